"""Runs of several classes and of a number: groups of mean maps, ranking of regions, demographics, what is undefined."""

from pathlib import Path

import pandas as pd
import pytest

from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.layout.folder import RunInput
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.reports.content.relevance.regions import _evidence_table
from heatlas.reports.content.run.cohort import _demographics, _split
from heatlas.reports.figures.gallery import Gallery
from heatlas.reports.frame.material import Material
from heatlas.reports.page.sections import QUESTIONS, build_section
from heatlas.reports.questions.clinical import follows_number
from heatlas.reports.questions.findings import ranking
from heatlas.reports.read.run_record import RunRecord

TASKS = {
    "two": {"positive": "AD", "negative": "CN"},
    "three": {"classes": ["CN", "MCI", "AD"], "positive": "AD"},
    "number": {"target": "age"},
}
NAMES = {"two": "predictions", "three": "predictions_classes", "number": "predictions_number"}


def made(task: str) -> RunRecord:
    """Four scans of three people, with relevance in one region."""
    scans = pd.DataFrame({"participant_id": ["sub-1", "sub-1", "sub-2", "sub-3"], "scan_id": ["I1", "I2", "I3", "I4"]})
    labels = ["60", "61", "70", "80"] if task == "number" else ["CN", "CN", "CN" if task == "two" else "MCI", "AD"]
    predictions = scans.assign(label=labels, fold=0)
    if task != "number":
        predictions["outcome"] = ["TN", "TN", "FP", "TP"]
    relevance = scans.assign(map="lrpB000", group="Hippocampus", n_voxels=900, sum=0.0, gain=float("nan"))
    relevance["density"] = [1.0, 3.0, 6.0, 10.0]
    tables = {NAMES[task]: predictions, "relevance_bilateral": relevance}
    config = load_config(overrides={"cohort": TASKS[task], "attribution": {"betas": [0.0]}})
    return RunRecord(RunLayout(Path("nowhere")), config, RunInput(Path("nowhere"), "default"), tables, {}, {}, {}, {})


@pytest.mark.parametrize(
    ("task", "sizes"),
    [
        ("two", {"AD": (1, 1), "CN": (3, 2), "TP": (1, 1), "FP": (1, 1), "TN": (2, 1), "FN": (0, 0)}),
        ("three", {"AD": (1, 1), "not AD": (3, 2), "TP": (1, 1), "FP": (1, 1), "TN": (2, 1), "FN": (0, 0)}),
        ("number", {"all": (4, 3)}),
    ],
)
def test_every_task_has_its_groups_of_mean_maps(task: str, sizes: dict[str, tuple[int, int]]) -> None:
    run = made(task)
    assert run.group_sizes == sizes
    assert run.map_groups == tuple(sizes)[: 1 if task == "number" else 2]


@pytest.mark.parametrize(
    ("task", "mean", "group"),
    [
        ("two", 10.0, "scans labelled AD"),
        ("three", 10.0, "scans labelled AD"),
        ("number", (2 + 6 + 10) / 3, "all scans"),
    ],
)
def test_regions_are_ranked_whatever_the_task(task: str, mean: float, group: str) -> None:
    means, ranked_in = ranking(made(task), "lrpB000", "density")
    assert means.to_dict() == {"Hippocampus": pytest.approx(mean)}
    assert ranked_in == group


@pytest.mark.parametrize(("task", "classes"), [("two", ["AD", "CN"]), ("three", ["AD", "MCI", "CN"]), ("number", [])])
def test_demographics_and_flow_have_every_class(task: str, classes: list[str]) -> None:
    run = made(task)
    rows = [
        {"label": label, "variable": "age", "n_participants": 3, "n_known": 3, "mean": 70.0, "sd": 5.0}
        for label in ("all", *classes)
    ]
    run.tables["demographics"] = pd.DataFrame(rows)
    table = _demographics(run)
    assert [column.key for column in table.columns] == ["title", *classes, "all"]
    assert [cell.text for cell in table.rows[0]] == ["Age, years", *["70.0 ± 5.0"] * (len(classes) + 1)]
    assert _split(run, pd.DataFrame({"label": classes})) == (
        f"scans: {', '.join(f'{name} 1' for name in classes)}" if classes else ""
    )


def test_the_regions_that_follow_a_number_stand_with_their_places() -> None:
    run, columns = made("number"), {"estimator": "pearson", "metric": "density", "map": "lrpB000", "p_fwe": 0.01}
    rows = pd.DataFrame({
        "group": ["Amygdala", "Hippocampus", "Thalamus", "Putamen"], "biomarker": "target", **columns,
        "r": [0.5, 0.7, 0.6, 0.1], "ci_low": 0.0, "ci_high": 0.9, "n_participants": 30, "place_low": [1, 1, 1, 4],
        "place_high": [3, 2, 3, 4],
    })  # fmt: skip
    run.tables["associations"] = pd.concat([rows, rows.assign(biomarker="mmse", r=0.9, place_low=None)])
    found = follows_number(run)
    assert found.answer == (
        "Density rises with age most in hippocampus (between place 1 and 2 of 4), thalamus (1 to 3) and amygdala (1 to "
        "3)."
    )
    assert found.grounds.startswith(
        "One of 3 regions is the first of all 4 (95 % confidence): hippocampus, thalamus and amygdala. Pearson's r in "
        "the first by estimate: 0.70 (95 % interval 0.00 to 0.90), 30 participants, LRP β=0; 4 of 4 regions "
    )
    run.tables["associations"] = rows.drop(columns=["place_low", "place_high"])
    assert follows_number(run).answer == "Density rises with age most in hippocampus, thalamus and amygdala."


@pytest.mark.parametrize("task", TASKS)
def test_what_is_not_defined_for_a_task_is_one_line(task: str) -> None:
    material = Material(made(task), Gallery(Path("nowhere")))
    section = next(one for one in QUESTIONS if one.id == "undefined")
    built = build_section(section, material)
    if task == "two":
        assert built is None
        return
    text = built.content["text"]
    assert text.startswith(f"Not defined for a run that {'predicts a number' if task == 'number' else 'has several'}")
    assert "Group comparisons" in text
    assert ("Region table" in text) == (task == "number")
    assert [build_section(one, material) for one in QUESTIONS if one.id in ("performance", "subgroups")] == [None, None]


@pytest.mark.parametrize(
    ("task", "unit", "mean"),
    [("two", "logits", "+10.00"), ("three", "logits", "+10.00"), ("number", "units of age", "+6.00")],
)
def test_evidence_leads_whatever_the_task(task: str, unit: str, mean: str) -> None:
    run = made(task)
    own = run.tables["relevance_bilateral"].assign(map="expectedGradients", sum=[1.0, 3.0, 6.0, 10.0])
    run.tables["relevance_bilateral"] = pd.concat(
        [run.tables["relevance_bilateral"], own.assign(evidence=own["sum"])], ignore_index=True
    )
    assert (run.leading_map, run.main_maps[1], run.evidence_unit) == ("expectedGradients", "lrpB000", unit)
    table = _evidence_table(Material(run, Gallery(Path("nowhere"))), run.leading_map)
    assert [[cell.text for cell in row] for row in table.rows] == [["Hippocampus", mean, "900"]]
    assert table.columns[1].title == f"Evidence, {unit}"
