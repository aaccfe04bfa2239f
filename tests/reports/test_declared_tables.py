"""Every table of a run is as it is declared: columns, types, ranges, data dictionary, documentation."""

from __future__ import annotations

from pathlib import Path

import pytest
from declared_tables import require_as_declared
from run_factory import RunPlan, make_run

from pipeline.run.columns import Form, column_of, unit_of
from pipeline.run.declared import Table
from pipeline.run.layout.run_layout import RunLayout
from pipeline.statistics.stage import ANALYSES
from reports.analyses.columns import FORMS
from reports.read.table_documentation import documentation
from reports.read.written_tables import DECLARED

NAMES = {table.name: table for table in DECLARED}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunLayout:
    plan = RunPlan(people=4, betas=(0.0, 0.5), preset="demo", overrides={"attribution": {"keep_maps": "none"}})
    return make_run(tmp_path_factory.mktemp("declared") / "run", plan)


@pytest.mark.parametrize("name", NAMES)
def test_a_table_is_as_it_is_declared(run, name):
    if not NAMES[name].path(run).is_file():
        pytest.skip("the made-up run has no such table; the whole run has (tests/workflows/test_end_to_end.py)")
    require_as_declared(run, NAMES[name])


def test_every_table_of_the_made_up_run_is_declared(run):
    known = {table.path(run) for table in DECLARED} | {run.fold(1).history}
    assert {path for path in run.root.rglob("*.tsv") if path not in known and "sub-" not in str(path)} == set()


def test_no_name_and_no_file_is_declared_twice():
    assert len(NAMES) == len(DECLARED)
    assert len({table.path(RunLayout(Path("run"))) for table in DECLARED}) == len(DECLARED)
    assert {table.name for analysis in ANALYSES for table in analysis.tables} <= set(NAMES)


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


def test_the_documentation_is_that_of_the_declarations():
    written = Path(__file__).parents[2] / "docs" / "tables.md"
    remedy = "run: python -m reports.read.table_documentation > docs/tables.md"
    assert written.read_text(encoding="utf-8") == documentation(), remedy
