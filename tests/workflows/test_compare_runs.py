"""``heatlas compare`` on small run folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pipeline.cohort.records import Scan
from pipeline.run.config_files import load_config
from pipeline.run.folder import RunInput, prepare_run_folder
from pipeline.run.layout import RunLayout
from pipeline.run.tables import read_table, write_table
from workflows.command_line import main

GROUPS = ("Hippocampus", "Cuneus", "Amygdala", "Insula")


def make_run(folder: Path, source: Path, wrong: int, people: int = 12) -> RunLayout:
    overrides = {"statistics": {"permutations": 99, "bootstrap_samples": 100}}
    layout = prepare_run_folder(folder, RunInput(source, "default"), load_config(overrides=overrides))
    rows, relevance = [], []
    for i in range(people):
        scan = Scan(f"sub-{i:02d}", "ses-1", f"I{i}", None, label="AD" if i % 2 else "CN")
        right, target = i >= wrong, i % 2
        called = target if right else 1 - target
        outcome = ("T" if right else "F") + ("P" if called else "N")
        rows.append(
            [scan.participant_id, scan.session_id, scan.scan_id, 0, target, 0.9 if called else 0.1, outcome, "none"]
        )
        for place, group in enumerate(GROUPS):
            value = float(len(GROUPS) - place) + 0.01 * i
            relevance.append([scan.scan_id, "gb", group, value, value, np.nan])
    columns = ["participant_id", "session_id", "scan_id", "fold", "target", "probability", "outcome", "control"]
    write_table(layout.predictions, pd.DataFrame(rows, columns=columns))
    columns = ["scan_id", "map", "group", "sum", "density", "gain"]
    write_table(layout.relevance_bilateral, pd.DataFrame(relevance, columns=columns))
    return layout


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "input").mkdir()
    return tmp_path / "input"


def test_two_runs_give_both_tables_and_stay_as_they_are(tmp_path, source, capsys) -> None:
    runs = [make_run(tmp_path / name / "run", source, wrong) for name, wrong in (("a", 0), ("b", 6))]
    before = {path: path.read_bytes() for run in runs for path in run.root.rglob("*") if path.is_file()}
    command = ["compare", *(str(run.root) for run in runs), "--to", str(tmp_path / "together")]
    assert main(command) == 0
    tests = read_table(tmp_path / "together" / "mcnemar.tsv").iloc[0]
    assert (tests["run_a"], tests["run_b"]) == ("a/run", "b/run")
    assert (tests["only_a_right"], tests["p"]) == (6, 2 * 0.5**6)
    ranks = read_table(tmp_path / "together" / "ranking_agreement.tsv")
    assert set(ranks["kendall_w"]) == {1.0}
    assert (tmp_path / "together" / "mcnemar.json").is_file()
    assert before == {path: path.read_bytes() for run in runs for path in run.root.rglob("*") if path.is_file()}
    assert "12 scans in all of a/run, b/run" in capsys.readouterr().out
    tables = {path: path.read_bytes() for path in (tmp_path / "together").iterdir()}
    assert main(command) == 0
    assert tables == {path: path.read_bytes() for path in (tmp_path / "together").iterdir()}


def test_what_cannot_be_compared_is_refused(tmp_path, source, capsys) -> None:
    a = make_run(tmp_path / "a", source, 0)
    to = ["--to", str(tmp_path / "together")]
    assert main(["compare", str(a.root), str(a.root), *to]) == 2
    assert "named twice" in capsys.readouterr().err
    assert main(["compare", str(a.root), str(source), *to]) == 2
    assert "not a Heatlas run" in capsys.readouterr().err
    b = make_run(tmp_path / "b", source, 1)
    assert main(["compare", str(a.root), str(b.root), "--to", str(b.root / "group")]) == 2
    assert "lies inside the run" in capsys.readouterr().err
    assert main(["compare", str(a.root), *to]) == 65
    assert "two runs or more" in capsys.readouterr().err
    b.predictions.unlink()
    assert main(["compare", str(a.root), str(b.root), *to]) == 65
    assert "predictions.tsv: no such table" in capsys.readouterr().err
    assert not (tmp_path / "together").exists()
