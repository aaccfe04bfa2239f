"""``heatlas compare`` on small run folders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.evaluation.bench.table import EVALUATION_TABLE
from heatlas.pipeline.evaluation.bench.verdicts import VERDICTS_TABLE
from heatlas.pipeline.run.config.files import load_config, read_config
from heatlas.pipeline.run.layout.folder import RunInput, prepare_run_folder
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table, write_table
from heatlas.pipeline.statistics.performance.classification import performance_table
from heatlas.reports.words.numbers import fixed, number
from heatlas.workflows.command_line import main

GROUPS = ("Hippocampus", "Cuneus", "Amygdala", "Insula")


def make_run(folder: Path, source: Path, wrong: int, people: int = 12, **sections: dict[str, object]) -> RunLayout:
    overrides = {"statistics": {"permutations": 99, "bootstrap_samples": 100}, **sections}
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
    write_table(layout.group / "predictions.tsv", pd.DataFrame(rows, columns=columns))
    columns = ["scan_id", "map", "group", "sum", "density", "gain"]
    write_table(layout.group / "relevance_bilateral.tsv", pd.DataFrame(relevance, columns=columns))
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
    assert "12 scans common to a/run, b/run" in capsys.readouterr().out
    tables = {path: path.read_bytes() for path in (tmp_path / "together").iterdir()}
    assert main(command) == 0
    assert tables == {path: path.read_bytes() for path in (tmp_path / "together").iterdir()}


def test_families_are_compared_on_one_page(tmp_path, source) -> None:
    """Values by hand: 6 of 12 people wrong, costs from descriptions and receipts, densities in reversed order."""
    a = make_run(tmp_path / "a", source, 0)
    b = make_run(tmp_path / "b", source, 6, model={"architecture": "bcos-simple"})
    table = read_table(b.group / "relevance_bilateral.tsv")
    write_table(b.group / "relevance_bilateral.tsv", table.assign(map="inherent", density=-table["density"]))
    for path, content in (
        (b.fold(0).description, {"parameters": 54176}), (b.receipt("training", "fold-0"), {"seconds": 51.5}),
        (b.receipt("attribution", "one"), {"seconds": 1.0}), (b.receipt("attribution", "two"), {"seconds": 2.0}),
    ):  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    scores = {"cohort": ["run", "run", "planted"], "map": "inherent", "network": ["real", "untrained", "real"]}
    scores |= {"severity": "all", "hits_difference": [1, 0, 4], "n_planted": 5, "auroc_difference": [0.5, 0.5, 0.9]}
    scores |= {"auroc_mean": 0.25, "pointing": 0.75, "seconds": 0.125}
    write_table(EVALUATION_TABLE.path(b), pd.DataFrame(scores))
    verdicts = {"cohort": ["run", "planted"], "map": "inherent", "passed": ["false", "true"]}
    write_table(VERDICTS_TABLE.path(b), pd.DataFrame(verdicts))
    planted = {"map": "inherent", "metric": ["sum", "density"], "outcome": "TP", "n_planted": 5}
    write_table(b.statistics("planted_recovery"), pd.DataFrame(planted | {"hits": [0, 2], "enrichment": [9.0, 1.5]}))
    to = tmp_path / "together"
    assert main(["compare", str(a.root), str(b.root), "--to", str(to)]) == 0
    runs = read_table(to / "family_comparison.tsv").set_index("run")
    assert runs["balanced_accuracy"].tolist() == [1.0, 0.5]
    assert runs.loc["b", "ci_low"] < 0.5 < runs.loc["b", "ci_high"]
    assert tuple(runs.loc["b", ["architecture", "parameters", "training_seconds", "explaining_seconds"]]) == (
        "bcos-simple", 54176, 51.5, 1.5
    )  # fmt: skip
    assert runs.loc["a", "note"].startswith("the run holds no networks and no times of training; no interval")
    maps = read_table(to / "map_comparison.tsv").set_index("run")
    names = ["hits", "hits_found", "n_planted", "auroc", "auroc_mean", "enrichment", "pointing", "seconds"]
    assert maps.loc["b", names].tolist() == [4, 2, 5, 0.9, 0.25, 1.5, 0.75, 0.125]
    assert str(maps.loc["b", "passed"]).lower() == "true"
    assert maps.loc["a", "note"] == "no scores of maps: run heatlas evaluate on this run"
    alike = read_table(to / "map_agreement.tsv").iloc[0]
    assert (alike["map_a"], alike["map_b"], alike["n_regions"]) == ("gb", "inherent", len(GROUPS))
    assert alike["spearman"] == pytest.approx(-1)
    page = (to / "comparison.html").read_text()
    for words in ("bcos-simple", number(54176), "0.90", "no scores of maps", "Guided backpropagation", fixed(-1.0)):
        assert words in page, words


def test_equal_runs_have_the_interval_of_their_reports(tmp_path, source) -> None:
    runs = [make_run(tmp_path / name, source, 5, people=24) for name in "ab"]
    assert main(["compare", *(str(run.root) for run in runs), "--to", str(tmp_path / "together")]) == 0
    found = read_table(tmp_path / "together" / "family_comparison.tsv")[["balanced_accuracy", "ci_low", "ci_high"]]
    config = read_config(runs[0].config)
    own = performance_table(read_table(runs[0].group / "predictions.tsv"), config.statistics, config.seed)
    own = own[(own["fold"] == "all") & (own["metric"] == "balanced_accuracy")].iloc[0]
    for column, values in found.items():
        assert values.tolist() == pytest.approx([own["estimate" if column == "balanced_accuracy" else column]] * 2)
    assert found["ci_low"].between(0.5, 0.75).all()


def test_a_run_that_is_not_finished_is_named(tmp_path, source, capsys) -> None:
    runs = [make_run(tmp_path / name, source, wrong) for name, wrong in (("a", 0), ("b", 1))]
    write_table(runs[0].statistics("performance"), pd.DataFrame({"fold": ["all"], "metric": "accuracy"}))
    assert main(["compare", *(str(run.root) for run in runs), "--to", str(tmp_path / "together")]) == 0
    said = "the run is not finished: there are no results of statistics"
    assert f"note: b: {said}" in capsys.readouterr().out
    notes = read_table(tmp_path / "together" / "family_comparison.tsv")["note"]
    assert [said in note for note in notes] == [False, True]
    assert said in (tmp_path / "together" / "comparison.html").read_text()


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
    assert main(["compare", str(a.root), *to]) == 2  # as any other wrong command
    assert "two runs or more" in capsys.readouterr().err
    (b.group / "predictions.tsv").unlink()
    assert main(["compare", str(a.root), str(b.root), *to]) == 65
    assert "predictions.tsv: no such table" in capsys.readouterr().err
    assert not (tmp_path / "together").exists()


def shared(layout: RunLayout, people: int) -> RunLayout:
    """The run with other names for all but the first people."""
    for path in (layout.group / "predictions.tsv", layout.group / "relevance_bilateral.tsv"):
        table = read_table(path)
        others = ~table["scan_id"].isin([f"I{i}" for i in range(people)])
        table["scan_id"] = table["scan_id"].where(~others, "other" + table["scan_id"])
        write_table(path, table)
    return layout


@pytest.mark.parametrize(
    ("people", "words"), [(0, "no scan was predicted by all of"), (1, "share 1 scan of 1 participant")]
)
def test_runs_that_share_too_few_people_make_no_test(tmp_path, source, capsys, people, words) -> None:
    a = make_run(tmp_path / "a", source, 0)
    b = shared(make_run(tmp_path / "b", source, 1), people)
    assert main(["compare", str(a.root), str(b.root), "--to", str(tmp_path / "together")]) == 65
    said = capsys.readouterr().err
    assert words in said
    assert "a, b" in said
    assert not (tmp_path / "together").exists()


def test_several_scans_of_one_person_are_one_person(tmp_path, source, capsys) -> None:
    runs = [make_run(tmp_path / name, source, wrong) for name, wrong in (("a", 0), ("b", 1))]
    for run in runs:
        write_table(
            run.group / "predictions.tsv", read_table(run.group / "predictions.tsv").assign(participant_id="sub-00")
        )
    assert main(["compare", *(str(run.root) for run in runs), "--to", str(tmp_path / "together")]) == 65
    assert "share 12 scans of 1 participant" in capsys.readouterr().err


@pytest.mark.parametrize(("people", "least"), [(2, "0.5"), (5, "0.0625"), (6, None)])
def test_where_no_p_can_be_small_compare_says_so(tmp_path, source, capsys, people, least) -> None:
    a = make_run(tmp_path / "a", source, 0)
    b = shared(make_run(tmp_path / "b", source, 1), people)
    assert main(["compare", str(a.root), str(b.root), "--to", str(tmp_path / "together")]) == 0
    note = f"{people} participants: p cannot be below {least}"
    assert (note in capsys.readouterr().out) == (least is not None)
    table = read_table(tmp_path / "together" / "mcnemar.tsv")
    assert table["note"].astype(str).str.contains(note, regex=False).all() == (least is not None)


def test_other_atlases_are_said_and_other_contrasts_and_classes_refused(tmp_path, source, capsys) -> None:
    a = make_run(tmp_path / "a", source, 0)
    to = ["--to", str(tmp_path / "together")]
    other = make_run(tmp_path / "b", source, 1, regions={"atlas": "neuromorphometrics-spm12"})
    assert main(["compare", str(a.root), str(other.root), *to]) == 0
    told = "a: neuromorphometrics-cat12; b: neuromorphometrics-spm12"
    note = f"different atlases; regions are matched by name ({told})"
    assert f"note: {note}" in capsys.readouterr().out
    assert set(read_table(tmp_path / "together" / "ranking_agreement.tsv")["note"]) == {note}
    for name, cohort in (
        ("c", {"positive": "MCI"}),
        ("d", {"contrast_column": "sex", "negative": "F", "positive": "M"}),
    ):
        run = make_run(tmp_path / name, source, 1, cohort=cohort)
        assert main(["compare", str(a.root), str(run.root), *to]) == 65
        assert "runs with different contrasts cannot be compared (a: diagnosis CN against AD" in capsys.readouterr().err
    flipped = make_run(tmp_path / "e", source, 1)
    table = read_table(flipped.group / "predictions.tsv")
    write_table(flipped.group / "predictions.tsv", table.assign(target=1 - table["target"]))
    assert main(["compare", str(a.root), str(flipped.root), *to]) == 65
    assert "scan I0 has another target in e than in a" in capsys.readouterr().err


def test_runs_without_a_region_in_common_say_that_nothing_is_ranked(tmp_path, source, capsys) -> None:
    a, b = make_run(tmp_path / "a", source, 0), make_run(tmp_path / "b", source, 1)
    table = read_table(b.group / "relevance_bilateral.tsv")
    write_table(b.group / "relevance_bilateral.tsv", table.assign(group="other " + table["group"]))
    assert main(["compare", str(a.root), str(b.root), "--to", str(tmp_path / "together")]) == 0
    assert "note: no ranking of regions can be compared" in capsys.readouterr().out


def test_tables_never_go_into_a_run_or_an_input(tmp_path, source, capsys) -> None:
    a, b, third = (make_run(tmp_path / name, source, wrong) for wrong, name in enumerate("abc"))
    for folder in (a.root, b.root / "group", third.root / "new", source, source / "new"):
        assert main(["compare", str(a.root), str(b.root), "--to", str(folder)]) == 2
        assert "lies inside the" in capsys.readouterr().err
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(a.root)
    assert main(["compare", str(a.root), str(b.root), "--to", str(tmp_path / "file")]) == 2
    assert main(["compare", str(a.root), str(tmp_path / "link"), "--to", str(tmp_path / "together")]) == 2
    assert "named twice" in capsys.readouterr().err
    assert not (tmp_path / "together").exists()
    assert (tmp_path / "file").read_text() == "mine"
