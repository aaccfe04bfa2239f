"""Every table of a run is as it is declared: columns, types, ranges, data dictionary, documentation."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from declared_tables import require_as_declared, tables_of_run
from printed_pages import REMEDY, tables_page
from run_factory import SMALL, make_run

from heatlas.pipeline.cohort.people.tasks import KINDS
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.declared import CORRECTIONS, Form, Table, column_of, unit_of
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.statistics.stage import ANALYSES
from heatlas.reports.frame.tables import FORMS
from heatlas.reports.read.run_files import DECLARED, HISTORIES_OF, PREDICTIONS_OF, _allowed, bad_cell, tables_of

NAMES = {table.name: table for table in DECLARED}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunLayout:
    return make_run(tmp_path_factory.mktemp("declared") / "run", SMALL)


@pytest.mark.parametrize("table", tables_of_run(), ids=lambda table: table.name)
def test_a_table_is_as_it_is_declared(run, table):
    if not table.path(run).is_file():
        pytest.skip("the made-up run has no such table; the whole run has (tests/workflows/test_end_to_end.py)")
    require_as_declared(run, table)


def test_every_table_of_the_made_up_run_is_declared(run):
    known = {table.path(run) for table in DECLARED} | {run.fold(1).history}
    assert {path for path in run.root.rglob("*.tsv") if path not in known and "sub-" not in str(path)} == set()


def test_no_name_and_no_file_is_declared_twice():
    assert len(NAMES) == len(DECLARED)
    for kind in KINDS:
        tables = tables_of(kind).values()
        assert len({table.path(RunLayout(Path("run"))) for table in tables}) == len(tables)
        assert {PREDICTIONS_OF[kind], HISTORIES_OF[kind]} <= {table.name for table in tables}
    assert {table.name for analysis in ANALYSES for table in analysis.tables} <= set(NAMES)


def test_the_name_of_a_table_is_that_of_its_file():
    """But for tables whose columns depend on the task, or that each network has."""
    others = {
        "predictions_classes",
        "predictions_number",
        "predictions_applied_number",
        "histories",
        "histories_number",
        "pretraining_history",
    }
    own = {table.name for table in DECLARED if Path(table.file).stem != table.name}
    assert own == others | {"partial_sums"}


@pytest.mark.parametrize("keyword", ["filled", "values", "forms", "later"])
def test_a_declaration_that_speaks_of_a_column_it_lacks_is_refused(keyword):
    given = {"p": ()} if keyword in ("values", "forms") else ("p",)
    with pytest.raises(ValueError, match="table made: p not among its columns"):
        Table("made", {"r": "Correlation"}, "region", "Does it?", **{keyword: given})


def test_a_form_is_known_by_the_name_of_a_column_and_every_form_has_a_way_onto_the_page():
    names = ("scan_id", "n_anything", "p_anything", "anything", "kept", "map", "target")
    forms = (Form.TEXT, Form.COUNT, Form.P, Form.VALUE, Form.FLAG, Form.MAP, Form.CODE)
    assert [column_of(name, "").form for name in names] == list(forms)
    assert NAMES["predictions"].columns["target"].form is Form.COUNT
    assert set(FORMS) == set(Form)
    assert [unit_of(name) for name in ("tiv_mm3", "age", "image", "affine_residual_mm")] == ["mm³", "years", "", "mm"]


PREDICTED = {"participant_id": ["sub-1", "sub-2"], "scan_id": ["a", "b"], "fold": [0, 1], "control": ["none"] * 2}
CLASSES = dict(label=["MCI", "AD"], target=[1, 2], predicted=["CN", "AD"], outcome=["TN", "TP"], probability=[0.1, 0.9])
CLASSES |= dict(session_id=["ses-1"] * 2)
NUMBER = dict(label=["61.5", "70"], target=[61.5, 70.0], prediction=[63.0, 68.0], gap=[1.5, -2.0])
NUMBER |= dict(corrected_gap=[0.1, 0.2], correction_intercept=[9.0, 9.0], correction_slope=[0.9, 0.8])
NUMBER |= dict(session_id=["ses-1"] * 2)


@pytest.mark.parametrize(
    ("name", "cells", "cohort", "wrong", "why"),
    [
        ("predictions_classes", CLASSES, {"classes": ["CN", "MCI", "AD"]}, {"predicted": ["MCI", "FTD"]},
         "line 3, column predicted: 'FTD' is not one of AD, MCI, CN."),
        ("predictions_classes", CLASSES, {"classes": ["CN", "MCI", "AD"]}, {"target": [0.5, 1]},
         "line 2, column target: '0.5' is not a number to count with."),
        ("predictions_number", NUMBER, {"target": "age"}, {"gap": [1.5, float("inf")]},
         "line 3, column gap: 'inf' is not a finite number."),
        ("predictions_number", NUMBER, {"target": "age"}, {"prediction": [None, 60.0]},
         "line 2, column prediction: n/a is missing."),
        ("predictions_number", NUMBER, {"target": "age"}, {"scan_id": ["a", "a"]},
         "line 3, column scan_id: 'a' appears twice."),
    ],
)  # fmt: skip
def test_predictions_of_each_task_are_checked_by_their_own_declaration(name, cells, cohort, wrong, why):
    config, frame = load_config(overrides={"cohort": cohort}), pd.DataFrame(PREDICTED | cells)
    assert bad_cell(name, "predictions.tsv", frame, config) == ""
    said = bad_cell(name, "predictions.tsv", frame.assign(**wrong), config)
    assert said.startswith(f"predictions.tsv: {why}")


def test_there_are_no_classes_where_a_number_is_predicted():
    table, target = NAMES["demographics"], load_config(overrides={"cohort": {"target": "age"}})
    frame = pd.DataFrame({name: ["1"] if name == "label" else [1] for name in table.meanings})
    assert "is not one of all" in bad_cell("demographics", "d.tsv", frame, target)
    assert _allowed(NAMES["scans"].values["label"], target) == []


def test_the_documentation_is_that_of_the_declarations():
    written = Path(__file__).parents[2] / "docs" / "tables.md"
    assert written.read_text(encoding="utf-8") == tables_page(), REMEDY


def test_the_page_for_reviewers_has_every_table_with_a_p_as_declared():
    """Role, family and correction in the last cell of a row are those of the declaration."""
    short = {"p_fwe": "FWE", "p_fdr": "FDR"}
    assert set(short) == set(CORRECTIONS)

    def declared(table: Table) -> str:
        corrected = [
            name for start, name in short.items() if any(column.startswith(start) for column in table.meanings)
        ]
        return f"{table.inference.role}; {table.inference.family}; {', '.join(corrected) or 'none'}"

    page = (Path(__file__).parents[2] / "docs" / "statistics.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    tested = {table.name: declared(table) for table in DECLARED if table.inference is not None}
    assert {row[0].strip("`"): row[-1] for row in rows} == tested
    assert {len(row) for row in rows} == {7}
    assert len(rows) == len(tested)
    with_p = {table.name for table in DECLARED if any(column.form is Form.P for column in table.columns.values())}
    assert {name for name in with_p | {"mcnemar"} if f"`{name}`" not in page} == set()
