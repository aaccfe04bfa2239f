"""The whole chain on a small demo cohort: twice, in two folders, killed and continued."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest
from declared_tables import require_as_declared, tables_of_run

from heatlas.pipeline.cohort.demo.cohort import write_demo_cohort
from heatlas.pipeline.evaluation.claims.of_run import CLAIMS_TABLE
from heatlas.pipeline.run.errors import EXIT_INTERRUPTED, EXIT_TERMINATED
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.reports.content.relevance import maps as group_maps
from heatlas.reports.figures.gallery import new_figure
from heatlas.reports.page import parts
from heatlas.reports.page.build import write_report
from heatlas.workflows.command_line import main

CONFIG = Path(__file__).with_name("mini.toml")
UP_TO_THE_REPORT = ("--stop-after", "statistics")

pytestmark = pytest.mark.ci


@pytest.fixture(scope="session")
def cohort(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "cohort"
    write_demo_cohort(folder, seed=5, participants=10, resolution_mm=4.0)
    return folder


def words(cohort: Path, out: Path, *options: str) -> list[str]:
    return ["run", str(cohort), str(out), "--config", str(CONFIG), "--n-procs", "2", *options]


def command(cohort: Path, out: Path) -> list[str]:
    """A run in a process of its own."""
    return [sys.executable, "-m", "heatlas.workflows.adni", *words(cohort, out)]


class Answer(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def answer_of(*words: str) -> Answer:
    """A command in this process, where everything is imported already."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = main(words)
    return Answer(code, out.getvalue(), err.getvalue())


def run(cohort: Path, out: Path, *options: str) -> Answer:
    return answer_of(*words(cohort, out, *options))


@pytest.fixture(scope="session")
def finished(cohort, tmp_path_factory) -> RunLayout:
    """A run up to its report that tests must not change, made by a process of its own as users do."""
    layout = RunLayout(tmp_path_factory.mktemp("run") / "out")
    words = [*command(cohort, layout.root), *UP_TO_THE_REPORT]
    answer = subprocess.run(words, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return layout


@pytest.fixture(scope="session")
def reported(finished, cohort, tmp_path_factory) -> RunLayout:
    """A copy of it that went on to its report, which takes as long as all before; no test may change it either."""
    layout = RunLayout(shutil.copytree(finished.root, tmp_path_factory.mktemp("reported") / "out"))
    answer = run(cohort, layout.root)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return layout


def test_a_run_is_valid_bids_by_the_official_validator(reported, tmp_path):
    program = Path(sys.executable).with_name("bids-validator-deno")
    if not program.is_file():
        pytest.skip("bids-validator-deno of the test group is not installed")
    answer = subprocess.run(
        [program, reported.root, "--json"], capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "DENO_DIR": str(tmp_path), "NO_COLOR": "1"},
    )  # fmt: skip
    found = json.loads(answer.stdout)["issues"]["issues"]
    assert [one for one in found if one["severity"] == "error"] == []
    assert {one["code"] for one in found} <= {"SIDECAR_KEY_RECOMMENDED", "TOO_FEW_AUTHORS"}
    assert "sub-" in answer.stdout  # scans were looked at


def tables(layout: RunLayout) -> dict[str, bytes]:
    return {path.relative_to(layout.root).as_posix(): path.read_bytes() for path in layout.root.rglob("*.tsv")}


REWRITTEN = {"run.log", "digests.json"}
"""Files that even a run with nothing to do may write."""


def results(layout: RunLayout) -> dict[str, int]:
    """Modification time of every other file of a run."""
    files = [path for path in layout.root.rglob("*.*") if path.is_file() and path.name not in REWRITTEN]
    return {str(path): path.stat().st_mtime_ns for path in files}


def test_every_labelled_scan_gets_an_out_of_fold_prediction(finished):
    predictions = read_table(finished.group / "predictions.tsv")
    scans = read_table(finished.root / "scans.tsv")
    splits = read_table(finished.root / "splits.tsv")
    labelled = scans[scans["kept"] & scans["label"].notna()]
    assert sorted(predictions["scan_id"]) == sorted(labelled["scan_id"])
    merged = predictions.merge(splits[splits["part"] == "test"], on="participant_id", suffixes=("", "_split"))
    assert (merged["fold"] == merged["fold_split"]).all()
    assert len(merged) == len(predictions)


def test_region_sums_and_rest_add_up_to_the_start_value(finished):
    relevance = read_table(finished.group / "relevance.tsv")
    conservation = read_table(finished.group / "conservation.tsv")
    sums = relevance.groupby(["scan_id", "map"])["sum"].sum().rename("regions").reset_index()
    merged = conservation.merge(sums, on=["scan_id", "map"])
    assert len(merged) == len(conservation) > 0
    losses = merged[["absorbed_by_bias", "lost_no_contribution", "stabiliser"]].sum(axis=1)
    error = (merged["regions"] + losses - merged["start_value"]).abs()
    assert (error <= 1e-4 * merged["start_value"].abs().clip(lower=1e-3)).all()


def test_regions_keep_their_rows(finished):
    relevance = read_table(finished.group / "relevance.tsv")
    counts = relevance.groupby(["scan_id", "map"])["region"].nunique()
    assert set(counts) == {counts.iloc[0]}
    assert counts.iloc[0] >= 134


@pytest.mark.parametrize("table", tables_of_run(), ids=lambda table: table.name)
def test_every_declared_table_is_written_as_it_is_declared(request, table):
    require_as_declared(request.getfixturevalue("reported" if table.stage == "report" else "finished"), table)


def test_report_says_that_the_cohort_is_synthetic(reported):
    page = reported.report.read_text(encoding="utf-8").lower()
    assert "synthetic" in page


def test_a_second_run_recomputes_nothing(finished, cohort):
    before = results(finished)
    answer = run(cohort, finished.root, *UP_TO_THE_REPORT)
    assert answer.returncode == 0, answer.stderr
    assert results(finished) == before


def test_a_second_report_is_the_first(reported, cohort):
    before = results(reported)
    answer = run(cohort, reported.root)
    assert answer.returncode == 0, answer.stderr
    assert results(reported) == before


FAMILIES = {
    "resnet10": ("width = 0.1", 4.0, 4, "regions"),
    "densenet121": ("first_channels = 4\ngrowth = 2", 3.0, 64, "report"),
}
"""Settings of small networks, the resolution that their smallest grid needs, points of expected gradients for each
control (a barely trained network of 120 layers answers by a hundredth, with many kinks), and how far the run goes."""


@pytest.mark.parametrize("family", ["resnet10", pytest.param("densenet121", marks=pytest.mark.slow)])
def test_another_family_of_networks_runs(family, finished, cohort, tmp_path):
    """Networks that are no chain of layers, on scans that another run may have registered."""
    layout = RunLayout(tmp_path / "out")
    shutil.copytree(finished.root, layout.root)
    text = CONFIG.read_text()
    before, file = tables(finished), tmp_path / "family.toml"
    start, end = (text.index(section) for section in ("[model]", "[training]"))
    model, resolution, alphas, last = FAMILIES[family]
    model = f'[model]\narchitecture = "{family}"\n{model}\n'
    text = (text[:start] + model + text[end:]).replace("resolution_mm = 4.0", f"resolution_mm = {resolution}")
    file.write_text(text.replace("[attribution]", f'[attribution]\nsettings = ["expected-gradients:alphas={alphas}"]'))
    answer = run(cohort, layout.root, "--config", str(file), "--stop-after", last)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    description = json.loads(layout.fold(0).description.read_text())
    assert description["architecture"]["name"] == family
    test_every_labelled_scan_gets_an_out_of_fold_prediction(layout)
    test_region_sums_and_rest_add_up_to_the_start_value(layout)
    assert tables(layout)["group/predictions.tsv"] != before["group/predictions.tsv"]
    if last == "report":
        assert "MONAI" in (layout.root / "report-methods.html").read_text(encoding="utf-8")


def test_no_file_names_a_folder_of_this_machine(reported, cohort):
    folders = [reported.root, cohort, CONFIG.parents[2], Path(sys.prefix), Path.home()]
    texts = [path for path in reported.root.rglob("*") if path.suffix not in (".gz", ".safetensors", ".npz", ".png")]
    named = [
        (path.name, str(folder))
        for path in texts
        if path.is_file()
        for folder in folders
        if len(folder.parts) > 1 and str(folder).encode() in path.read_bytes()
    ]
    assert named == []


def test_what_was_changed_by_hand_is_named_and_made_again(reported, cohort, tmp_path_factory, monkeypatch):
    layout = RunLayout(tmp_path_factory.mktemp("edited") / "out")
    shutil.copytree(reported.root, layout.root)
    table = next(layout.root.glob("sub-*/ses-*/relevance/*_desc-regions_relevance.tsv"))
    before = table.read_text()
    last = max(i for i, letter in enumerate(before) if letter.isdigit())
    table.write_text(before[:last] + ("1" if before[last] != "1" else "2") + before[last + 1 :])
    gone = layout.group_map("AD", "lrpB000")
    gone.unlink()
    monkeypatch.setattr(parts, "_region_page", lambda *_: "")  # the index says it
    monkeypatch.setattr(group_maps, "draw_group_maps", lambda *_: new_figure(1, 1))  # surfaces take seconds
    assert any(f"{gone.name}: this map is missing" in fault for fault in write_report(layout).faults)
    assert f"{gone.name}: this map is missing" in layout.report.read_text(encoding="utf-8")
    answer = run(cohort, layout.root, *UP_TO_THE_REPORT)
    assert answer.returncode == 0, answer.stderr
    assert f"{table.relative_to(layout.root)} is not as it was written; it is made again" in answer.stdout
    assert f"{gone.relative_to(layout.root)} is missing; it is made again" in answer.stdout
    assert tables(layout) == tables(reported)
    assert gone.is_file()


CLUSTER = """
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.providers import LocalProvider
here = HighThroughputExecutor(
    address="127.0.0.1", max_workers_per_node=2, cores_per_worker=0.5, heartbeat_period=1, poll_period=1,
    provider=LocalProvider(init_blocks=1, max_blocks=1),
)
config = Config(executors=[here], strategy="none")
"""


@pytest.mark.parametrize("workers", ["processes", pytest.param("cluster", marks=pytest.mark.slow)])
def test_another_folder_gives_the_same_tables_and_nothing_is_left(workers, finished, cohort, tmp_path, monkeypatch):
    """By processes of this machine, or by Parsl."""
    pool, other = tmp_path / "pool.py", RunLayout(tmp_path / "elsewhere")
    pool.write_text(CLUSTER)
    elsewhere = ["--executor", str(pool)] if workers == "cluster" else []
    if elsewhere:
        pytest.importorskip("parsl")
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])))
    monkeypatch.chdir(tmp_path)
    answer = run(cohort, other.root, *elsewhere, *UP_TO_THE_REPORT)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert tables(other) == tables(finished)
    assert not other.parsl_logs.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "pool.py"]


def test_nothing_is_left_behind_and_the_input_is_untouched(finished, cohort):
    assert not list(finished.scratch.glob("*"))
    assert not list(finished.root.rglob("*.tmp"))
    assert not list(finished.root.rglob("checkpoint*"))
    newest = max(path.stat().st_mtime for path in cohort.rglob("*"))
    assert newest < finished.config.stat().st_mtime


def test_explanations_leave_the_run_as_it_was(finished, cohort, tmp_path):
    explained = RunLayout(shutil.copytree(finished.root, tmp_path / "out"))
    before = results(explained)
    scan = read_table(explained.group / "predictions.tsv")["scan_id"][0]
    asked = ["explain", str(explained.root), "--n-procs", "1"]
    answer = answer_of(*asked, "--method", "grad-cam", "--scan", scan)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    made = set(results(explained)) - set(before)
    assert [Path(name).name for name in made if name.endswith("desc-gradCam_explanation.nii.gz")]
    table = read_table(explained.explanations / "desc-gradCam_regions.tsv")
    assert set(table["scan_id"]) == {scan}
    assert table["region"].nunique() >= 134
    for wrong in (["--method", "nothing"], ["--method", "grad-cam", "--scan", "nobody"]):
        refused = answer_of(*asked, *wrong)
        assert refused.returncode == 2
        assert refused.stderr.startswith("heatlas: --")
    answer = run(cohort, explained.root, *UP_TO_THE_REPORT)
    assert answer.returncode == 0, answer.stderr
    after = results(explained)
    receipts = str(explained.logs / "receipts")  # those of a copied run are stamped anew, not its results
    assert {name: after[name] for name in before if not name.startswith(receipts)} == {
        name: written for name, written in before.items() if not name.startswith(receipts)
    }


def test_claims_are_asked_of_a_run_that_stays_as_it_was(finished, tmp_path):
    asked = RunLayout(shutil.copytree(finished.root, tmp_path / "out"))
    before = results(asked)
    answer = answer_of("claims", str(asked.root))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    require_as_declared(asked, CLAIMS_TABLE)
    table = CLAIMS_TABLE.read(asked)
    assert set(table["claim"]) >= {"L4", "L10", "L17", "B8"}
    assert {"not asked"} < set(table["verdict"])
    after = results(asked)
    assert {name: after[name] for name in before} == before


KILL_WHEN: dict[str, Callable[[RunLayout], bool]] = {
    "registration": lambda run: any((run.logs / "receipts" / "registration").glob("*")),
    "training": lambda run: any(run.root.glob("models/*/checkpoint*")) or any(run.root.glob("models/*/history.tsv")),
    "attribution": lambda run: any((run.logs / "receipts" / "attribution").glob("*")),
    "regions": lambda run: any((run.logs / "receipts" / "group-maps").glob("*")),
    "statistics": lambda run: any((run.group / "statistics").glob("performance*")),
}


@pytest.mark.slow
@pytest.mark.parametrize("stage", KILL_WHEN)
def test_killed_run_continues_to_the_same_tables(stage, reported, cohort, tmp_path):
    layout = RunLayout(tmp_path / "out")
    process = subprocess.Popen(command(cohort, layout.root), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not KILL_WHEN[stage](layout):
        assert process.poll() is None, "ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    answer = run(cohort, layout.root)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert tables(layout) == tables(reported)


def ends(group: int) -> bool:
    """Whether all processes of a group end within 20 seconds."""
    for _ in range(200):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, EXIT_INTERRUPTED), (signal.SIGTERM, EXIT_TERMINATED)])
def test_interrupted_run_says_so_and_leaves_no_worker(sent, code, cohort, tmp_path):
    layout = RunLayout(tmp_path / "out")
    process = subprocess.Popen(
        command(cohort, layout.root), stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job would ignore it
    )  # fmt: skip
    while not KILL_WHEN["registration"](layout):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(sent)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    assert "run the same command again" in said
    assert ends(process.pid), "a worker outlived the run"


def test_broken_scan_is_a_row_and_the_others_go_on(cohort, tmp_path):
    copy = tmp_path / "cohort"
    shutil.copytree(cohort, copy)
    *others, _, _ = sorted((copy / "ADNI").glob("9*"))
    for folder in others:
        shutil.rmtree(folder)
    victim = sorted((copy / "ADNI").rglob("*.nii.gz"))[-1]
    victim.write_bytes(victim.read_bytes()[:2000])
    layout = RunLayout(tmp_path / "out")
    answer = run(copy, layout.root, "--stop-after", "registration")
    scans = read_table(layout.root / "scans.tsv")
    failures = read_table(layout.failures)
    dropped = scans[~scans["kept"] & scans["image"].fillna("").str.endswith(victim.name)]
    failed = failures[failures["message"].str.contains(victim.name)] if len(failures) else pd.DataFrame()
    assert len(dropped) + len(failed) == 1
    assert answer.returncode == (1 if len(failed) else 0), answer.stderr
    quality = read_table(layout.group / "registration.tsv")
    assert quality["status"].tolist().count("failed") == len(failed)
