"""The report says first what was asked first; every table of tests is labelled; no g without its interval."""

from __future__ import annotations

from dataclasses import replace

import pytest
from run_factory import EVIDENCE, WITH_EVIDENCE, make_run

from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.reports.content.run.methods import further_analyses
from heatlas.reports.content.run.summary import summarise
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.pages import CHAPTERS, INDEX
from heatlas.reports.page.sections import QUESTIONS, sections_of
from heatlas.reports.questions.comparisons import PRIMARY
from heatlas.reports.read.run_files import TABLES
from heatlas.reports.read.run_record import RunRecord, read_run
from heatlas.reports.words.numbers import fixed, p_value


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunLayout:
    return make_run(tmp_path_factory.mktemp("primary") / "run", WITH_EVIDENCE)


@pytest.fixture(scope="module")
def record(run) -> RunRecord:
    return read_run(run)


def test_the_primary_outcome_is_printed_first_with_its_numbers(run, record):
    row = read_table(run.statistics("primary")).iloc[0]
    assert (row["map"], row["metric"]) == (EVIDENCE, "sum")
    answer = summarise(record).answers[0]
    named = "artial correlation of evidence (Expected gradients) in the hippocampus with "
    held = "AD and CN together, adjusted for test fold, class, age, sex"
    assert f"P{named}" in answer.text
    assert f"{held}." in answer.text
    assert answer.more.startswith(f"Primary outcome (named before any result: p{named}")
    assert f"{held})" in answer.more
    bounds = f"{fixed(row['ci_low'])} to {fixed(row['ci_high'])}"
    assert f"r\xa0=\xa0{fixed(row['r'])} (95 % interval {bounds})" in answer.more
    assert f"{p_value(row['p'])}, {row['n_participants']} participants" in answer.more
    assert f"Permutations exchange {row['exchanged']}." in answer.more
    assert answer.figure == f"r = {fixed(row['r'])}"
    assert answer.figure_caption == f"95 % interval {bounds}, {p_value(row['p'])}, n = {row['n_participants']}"
    results = [name for chapter in CHAPTERS if chapter.file != INDEX for name in sections_of(chapter)]
    assert results[0] == "primary"
    assert "The primary outcome, named before any result, was the partial correlation of evi" in further_analyses(
        record
    )


@pytest.mark.parametrize(("p", "answer"), [(0.049, "A correlation."), (0.05, "No clear correlation.")])
def test_the_answer_is_that_of_its_p(record, p, answer):
    tables = {**record.tables, "primary": record.tables["primary"].assign(p=p)}
    found = PRIMARY.answered(RunRecord(record.layout, record.config, record.source, tables, {}, {}, {}, {}))
    assert found.answer == answer


def test_an_outcome_that_could_not_be_computed_says_why(record):
    blank = record.tables["primary"].assign(r=None, p=None, covariates=None, map=None, note="hippocampus: no value.")
    found = PRIMARY.answered(RunRecord(record.layout, record.config, record.source, {"primary": blank}, {}, {}, {}, {}))
    assert found.answer == "Not known."
    assert found.grounds.endswith("Hippocampus: no value.")


def test_a_report_does_not_begin_with_what_is_not_known(record):
    assert summarise(record).answers[0].question == "What is the primary outcome?"
    blank = record.tables["primary"].assign(r=None, p=None, note="hippocampus/tiv: no scan has a value.")
    answers = summarise(replace(record, tables={**record.tables, "primary": blank})).answers
    assert answers[0].question == "How good is the classifier?"
    assert answers[-1].question == "What is the primary outcome?"
    assert not any(one.text.startswith("Not known") for one in answers[:-1])


def test_an_outcome_that_another_measure_stands_in_for_says_so(record):
    note = "hippocampus/tiv: no scan has a value, so mmse takes its place"
    table = record.tables["primary"].assign(biomarker="mmse", note=note)
    found = PRIMARY.answered(replace(record, tables={**record.tables, "primary": table}))
    assert found.grounds.endswith(" Hippocampus/tiv: no scan has a value, so mmse takes its place.")
    assert "in the hippocampus with MMSE" in found.grounds


def test_every_caption_of_tests_names_role_family_and_correction(run):
    material = Material.of(run)
    seen = set()
    for analysis in [question for question in QUESTIONS if question.views]:
        for shown in analysis.build(material)["views"]:
            if shown.table is not None:
                name = shown.file.rpartition("/")[2].removesuffix(".tsv")
                seen.add(name)
                assert TABLES[name].tests in shown.table.caption
    assert {"primary", "associations", "group_comparisons", "main_effects"} <= seen


def test_no_view_shows_g_without_its_interval():
    for analysis in [question for question in QUESTIONS if question.views]:
        for view in analysis.views:
            for name in [one for one in view.columns if one.endswith("hedges_g")]:
                assert {f"{name}_low", f"{name}_high"} <= set(view.columns), view.caption
                assert {f"{name}_low", f"{name}_high"} <= set(TABLES[view.table].meanings)
