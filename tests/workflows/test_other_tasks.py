"""Whole runs of several classes and of a number, on brains in template space, and new seeds on one registration."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from declared_tables import REPEATS, require_as_declared, tables_of_run

from heatlas.pipeline.cohort.people.tasks import NUMBER, SEVERAL_CLASSES, TWO_CLASSES, KindName
from heatlas.pipeline.run.config.files import load_config, read_config
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.layout.folder import with_registration_seed
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.workflows.command_line import main
from tests.workflows.template_cohort import write_config, write_template_cohort


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template") / "bids"
    write_template_cohort(folder, 15)
    return folder


def run(cohort: Path, out: Path, config: Path, *options: str) -> RunLayout:
    command = ["run", str(cohort), str(out), "--config", str(config), "--n-procs", "1", *options]
    assert main(command) == 0
    return RunLayout(out)


def require_declared(layout: RunLayout, kind: KindName, repeats: bool = False) -> None:
    """Each table that the run has is as it is declared for its task, and tables of its task are there."""
    made = [table for table in tables_of_run(kind, repeats) if table.path(layout).is_file()]
    for table in made:
        require_as_declared(layout, table)
    names = {NUMBER: {"predictions_number", "histories_number", "performance_number"},
             SEVERAL_CLASSES: {"predictions_classes", "performance_classes", "confusion"}}  # fmt: skip
    assert names[kind] | (REPEATS if repeats else set()) <= {table.name for table in made}


def test_a_registration_seed_stays_that_of_the_run_that_began(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    first = with_registration_seed(Config(seed=7), layout)
    assert first.registration.seed == 7
    layout.config.write_text('seed = 7\n[run]\ninput = "."\npreset = "default"\n')  # of a version without the setting
    assert with_registration_seed(Config(seed=8), layout).registration.seed == 7
    stated = load_config(overrides={"seed": 8, "registration": {"seed": 3}})
    assert with_registration_seed(stated, layout).registration.seed == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--target", "remark"), "has 'word"),
        (("--target", "brain_age"), "cohort.target = 'brain_age'"),
        (("--target", "age", "--contrast", "diagnosis=CN,AD"), "give only one of them"),
        (("--contrast", "diagnosis=CN,,AD"), "write COLUMN=CLASS,CLASS"),
        (("--contrast", "diagnosis=CN,MCI,FTD"), "cohort.positive = 'FTD'"),
    ],
)
def test_check_refuses_a_task_before_work(
    cohort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    config = write_config(tmp_path / "c.toml", folds=3)
    assert main(["check", str(cohort), "--config", str(config), *options]) in (2, 65)
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_a_number_ends_in_a_report(cohort: Path, tmp_path: Path) -> None:
    layout = run(cohort, tmp_path / "out", write_config(tmp_path / "c.toml", 3, 25, rate=1e-2), "--target", "age")
    predictions = read_table(layout.group / "predictions.tsv")
    assert (predictions["gap"] - (predictions["prediction"] - predictions["target"])).abs().max() < 1e-9
    measures = read_table(layout.statistics("performance_number"))
    overall = measures[measures["fold"] == "all"].set_index("metric")["estimate"]
    assert overall["mae"] == pytest.approx(predictions["gap"].abs().mean())
    assert overall["mae"] < overall["mae_of_mean"]
    assert overall["r"] == pytest.approx(np.corrcoef(predictions["prediction"], predictions["target"])[0, 1])
    associations = read_table(layout.statistics("associations"))
    assert associations[associations["biomarker"] == "target"]["r"].notna().any()
    require_declared(layout, NUMBER)
    page = layout.report.read_text(encoding="utf-8")
    assert "How well is the number predicted?" in (layout.root / "report-performance.html").read_text("utf-8")
    methods = (layout.root / "report-methods.html").read_text("utf-8")
    assert "Not defined for a run that predicts a number, as they compare two classes: Regions, Perf" in methods
    assert "The run is not finished" not in page
    assert "not reached by this run" not in page


@pytest.mark.slow
def test_three_classes_and_repeats_end_in_a_report(cohort: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "c.toml", 3, 4, repeats=2)
    layout = run(cohort, tmp_path / "out", config, "--contrast", "diagnosis=CN,MCI,AD")
    predictions, every = (
        read_table(layout.group / "predictions.tsv"),
        read_table(layout.group / "predictions_repeats.tsv"),
    )
    names = ["probability_CN", "probability_MCI", "probability_AD"]
    assert predictions[names].sum(axis=1).to_numpy() == pytest.approx(1.0)
    assert (predictions["probability"] == predictions["probability_AD"]).all()
    first = every[every["repeat"] == 1].drop(columns="repeat").reset_index(drop=True)
    assert first.equals(predictions)
    assert not every[every["repeat"] == 2].reset_index(drop=True)["logit_AD"].equals(predictions["logit_AD"])
    confusion = read_table(layout.statistics("confusion"))
    assert confusion.loc[confusion["fold"] == "all", "n_scans"].sum() == len(predictions)
    repeats = read_table(layout.statistics("performance_repeats"))
    assert repeats["repeat"].tolist() == ["1", "2", "mean", "sd", "mean of folds"]
    performance = (layout.root / "report-performance.html").read_text("utf-8")
    assert "How well are the classes distinguished?" in performance
    assert "not reached by this run" not in layout.report.read_text(encoding="utf-8")
    simple = read_table(layout.group / "predictions_baselines.tsv")
    assert simple[names].sum(axis=1).to_numpy() == pytest.approx(1.0)
    assert (simple["prediction"] == simple["probability_AD"]).all()
    compared = read_table(layout.statistics("baselines")).set_index(["baseline", "metric"])
    assert compared.loc[("regions", "auc_within_folds"), "estimate"] > 0.5
    assert compared.loc["volumes"]["n_scans"].eq(0).all()  # nobody has volumes
    assert "mean over classes of the area under the curve, within folds" in performance
    require_declared(layout, SEVERAL_CLASSES, repeats=True)
    # A new training seed registers nothing again.
    before = {path: path.stat().st_mtime_ns for path in layout.root.glob("logs/receipts/registration/*.json")}
    run(cohort, layout.root, config, "--contrast", "diagnosis=CN,MCI,AD", "--seed", "6", "--stop-after", "training")
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert read_config(layout.config).registration.seed == 5
    assert json.loads(layout.fold(0).description.read_text())["seed"] == 6


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--contrast", "diagnosis=CN,AD"), ("--target", "age")])
def test_a_linear_network_goes_through_the_whole_chain(cohort: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    config = write_config(tmp_path / "c.toml", 3)
    text = config.read_text()
    model, rest = text.index("[model]"), text.index("[training]")
    methods = 'methods = ["expected-gradients", "deeplift", "lrp"]'
    network = '[model]\narchitecture = "linear"\nfwhm_voxels = 2.0\n'
    config.write_text(text[:model] + network + text[rest:].replace("[attribution]", f"[attribution]\n{methods}"))
    layout = run(cohort, tmp_path / "out", config, *options)
    description = json.loads(layout.fold(0).description.read_text())
    assert (description["ended_by"], description["epochs"], description["converged"]) == ("exact solution", 1, True)
    relevance = read_table(layout.group / "relevance.tsv")
    expected, chord = (
        relevance[relevance["map"].str.startswith(name)].set_index(["scan_id", "region"])["sum"].dropna()
        for name in ("expected", "deeplift")
    )
    assert len(expected)
    assert (expected - chord.reindex(expected.index)).abs().max() <= 1e-4 * expected.abs().max()
    assert "solved exactly" in (layout.root / "report-methods.html").read_text(encoding="utf-8")
    assert not layout.kept_volumes.exists()


@pytest.mark.slow
def test_classes_by_number_go_through_the_whole_chain(tmp_path: Path) -> None:
    people = write_template_cohort(tmp_path / "bids", 18)
    people["cdr"] = people["diagnosis"].map({"CN": 0.0, "MCI": 0.5, "AD": 2.0})
    people.to_csv(tmp_path / "bids" / "participants.tsv", sep="\t", index=False)
    config = write_config(tmp_path / "c.toml", 3, 25, rate=1e-2)
    layout = run(tmp_path / "bids", tmp_path / "out", config, "--contrast", "cdr=0,>=1", "--include", "age > 56")
    names = {0.0: "cdr = 0", 2.0: "cdr ≥ 1"}
    scans = read_table(layout.root / "scans.tsv").set_index("scan_id")
    kept = scans[scans["kept"]]
    assert (scans["age"] > 56).equals(scans["kept"])
    assert (kept["label"].fillna("") == kept["cdr"].map(names).fillna("")).all()
    predictions = read_table(layout.group / "predictions.tsv")
    assert set(predictions["label"]) == set(names.values())
    positive = predictions["label"] == "cdr ≥ 1"
    assert (positive == predictions["outcome"].isin(["TP", "FN"])).all()
    assert (scans.loc[read_table(layout.group / "predictions_applied.tsv")["scan_id"], "cdr"] == 0.5).all()
    assert set(names.values()) <= set(read_table(layout.statistics("demographics"))["label"])
    page = layout.report.read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}", " ")
    assert re.search("Networks (told|did not reliably tell) cdr ≥ 1 from cdr = 0", page)
    assert "not reached by this run" not in page
    for table in tables_of_run(TWO_CLASSES, repeats=False):
        if table.path(layout).is_file():
            require_as_declared(layout, table)
    explain = ["explain", str(layout.root), "--method", "grad-cam", "--participant-label", "00", "--n-procs", "1"]
    assert main([*explain, "--target", ">=1"]) == 0
    assert main([*explain, "--target", ">=2"]) == 2
