"""A run whose tables an older version of Heatlas wrote: what is missing is said, the rest of the report is made."""

from __future__ import annotations

import html
from dataclasses import replace

import pytest
from report_pages import page_with
from run_factory import SMALL, make_run

from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table, write_table
from heatlas.reports.content.run.summary import summarise
from heatlas.reports.figures import gallery
from heatlas.reports.page.build import build_report
from heatlas.reports.page.sections import QUESTIONS, find_cautions, missing_stages
from heatlas.reports.questions.analyses import ANALYSES
from heatlas.reports.read.run_files import TABLES, of_another_version
from heatlas.reports.read.run_record import RunRecord, read_run

REMEDY = "another version of Heatlas wrote it. Repeat the command that made this run"


@pytest.fixture(scope="module")
def record(tmp_path_factory) -> RunRecord:
    return read_run(make_run(tmp_path_factory.mktemp("finished") / "run", SMALL))


def without(layout: RunLayout, name: str, column: str) -> None:
    """Take a column out of a table, as an older version would have written it."""
    path = TABLES[name].path(layout)
    write_table(path, read_table(path).drop(columns=column))


def test_every_table_but_the_one_of_the_input_is_asked_for_its_columns(record):
    assert {name for name, table in TABLES.items() if not table.required} == {"clinical"}
    assert record.unreadable == {}
    assert {name for name in record.tables if set(TABLES[name].required) - set(record.tables[name])} == set()


@pytest.mark.parametrize("view", [view for one in ANALYSES for view in one.views], ids=lambda view: view.caption)
def test_a_view_asks_for_no_column_that_its_table_has_not(view):
    chart = view.intervals
    asked = {
        *view.columns,
        *view.where,
        *(name.removeprefix("-") for name in view.order),
        *filter(None, [view.finding]),
    }
    asked |= {*chart.label, chart.estimate, chart.low, chart.high, *chart.n} if chart else set()
    assert asked - set(TABLES[view.table].meanings) == set()


def test_each_missing_column_is_named_with_its_file_and_the_remedy(record):
    for name in record.tables.keys() & TABLES.keys():
        table, file = record.tables[name], f"{name}.tsv"
        assert of_another_version(name, file, table) == ""
        for column in TABLES[name].required:
            said = of_another_version(name, file, table.drop(columns=column))
            assert said.startswith(f"{file} has no column {column}: {REMEDY}")


def test_a_run_without_relevance_propagation_is_finished(record):
    """Other methods have no conservation; and some have no evidence either, but regions, without which it is open."""
    names = ("conservation", "evidence", "relevance_bilateral")
    for kept, missing in ((names[1:], []), (names[2:], []), ((), ["attribution", "regions"])):
        rest = {name: table for name, table in record.tables.items() if name not in names or name in kept}
        assert missing_stages(replace(record, tables=rest)) == missing


def test_the_summary_and_the_cautions_do_without_any_one_table(record):
    for name in record.tables:
        rest = {other: table for other, table in record.tables.items() if other != name}
        lacking = replace(record, tables=rest, unreadable={name: f"{name} lacks a column."})
        cautions = {one.title: one.text for one in find_cautions(lacking)}
        assert cautions["A table cannot be used."] == f"{name} lacks a column."
        assert "The run is not finished." not in cautions
        answers = {one.question: one.text for one in summarise(lacking).answers}
        if name in ("predictions", "relevance_bilateral", "region_summary"):
            assert answers["Where does it look?"] == f"Not known. {name} lacks a column."


def test_without_predictions_nothing_made_from_them_is_shown_and_the_reason_is_said_once(tmp_path):
    layout = make_run(tmp_path / "run", replace(SMALL, until="regions"))
    without(layout, "predictions", "outcome")
    found = read_run(layout)
    assert {"scans", "registration"} <= set(found.tables)
    assert not {"predictions", "relevance_bilateral", "beta_overlap"} & set(found.tables)
    said = found.unreadable["predictions"]
    assert said.startswith(f"group/predictions.tsv has no column outcome: {REMEDY}")
    assert found.unreadable["relevance_bilateral"] == said
    assert found.why_absent("predictions", "relevance_bilateral") == said


@pytest.mark.ci
def test_the_report_says_what_its_tables_lack_and_is_made_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(gallery, "rendered", lambda *_, **__: b"")
    layout = make_run(tmp_path / "run", SMALL)
    lacking = (
        ("volume_association", "fold_held", "Does relevance follow atrophy?"),
        ("group_comparisons", "p_fwe", "Where do groups differ?"),
        ("planted_recovery", "hits", "Are the planted regions found?"),
    )
    for name, column, _ in lacking:
        without(layout, name, column)
    index = html.unescape(build_report(layout).read_text(encoding="utf-8"))
    warning = index[index.index("Tables cannot be used.") : index.index('<section class="answers')]
    for name, column, title in lacking:
        said = f"group/statistics/{name}.tsv has no column {column}: {REMEDY}"
        anchor = next(one.id for one in QUESTIONS if one.title == title)
        page = html.unescape(page_with(layout, anchor).read_text(encoding="utf-8"))
        section = page[page.rindex(f">{title}</h2>") :]
        assert said in section[: section.index("</section>")]
        assert said in warning
    registration = page_with(layout, "registration").read_text(encoding="utf-8")
    assert "Registration of every scan, doubtful scans first." in registration
