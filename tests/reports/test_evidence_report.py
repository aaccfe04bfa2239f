"""A report leads with evidence in logits, and with what the evaluation passed; numbers by hand from the tables."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from report_pages import all_pages, page_with
from run_factory import EVIDENCE, PLANTED, WITH_EVIDENCE, RunPlan, make_run

from heatlas.pipeline.evaluation.bench.table import EVALUATION_TABLE
from heatlas.pipeline.evaluation.bench.verdicts import DISTRACTORS_TABLE, VERDICTS_TABLE, verdict_table
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table, write_table
from heatlas.reports.content.relevance import evaluation, regions
from heatlas.reports.content.run.summary import WHERE, summarise
from heatlas.reports.figures import gallery
from heatlas.reports.frame.material import Material
from heatlas.reports.page.build import report_inputs, write_report
from heatlas.reports.page.sections import find_cautions
from heatlas.reports.people.page import person_content
from heatlas.reports.people.regions import evidence_sentences, regions_of_scans
from heatlas.reports.questions import trust
from heatlas.reports.questions.comparisons import COMPARISONS
from heatlas.reports.questions.findings import evidence_differences, sum_error
from heatlas.reports.questions.trust import NOT_EVALUATED, bench_sentence
from heatlas.reports.read.people import ParticipantRecords
from heatlas.reports.read.run_files import of_another_version
from heatlas.reports.read.run_record import RunRecord, leading_map, read_run
from heatlas.reports.region_pages.page import RegionMaterial, region_content
from heatlas.reports.region_pages.results import lead_of
from heatlas.reports.words.numbers import fixed, signed

VOXELS = 100  # of every region of the made-up runs
SHOWN = 5e-6  # six significant digits
MAPS = ("lrpB000", "gb", "deeplift", EVIDENCE)


def finished_run(folder: Path) -> RunLayout:
    layout = make_run(folder / "run", WITH_EVIDENCE)
    config = layout.config.read_text(encoding="utf-8")
    layout.config.write_text(config.replace(str(layout.root.parent / "input"), str(layout.root.parent)), "utf-8")
    truth = layout.root.parent / "truth"
    truth.mkdir(exist_ok=True)
    (layout.root.parent / "planted.json").replace(truth / "planted.json")
    return layout


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunLayout:
    return finished_run(tmp_path_factory.mktemp("evidence"))


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory) -> RunLayout:
    """The same run, evaluated and with its pages."""
    layout = finished_run(tmp_path_factory.mktemp("evaluated"))
    evaluate(layout)
    assert write_report(layout).faults == ()
    return layout


@pytest.fixture(scope="module")
def unevaluated(run) -> RunRecord:
    return read_run(run)


@pytest.fixture
def record(run, unevaluated) -> RunRecord:
    """Of the run without the evaluation that another test has written."""
    for path in run.evaluation.glob("*.tsv"):
        path.unlink()
    return unevaluated


@pytest.mark.parametrize(
    ("evidence", "passed", "leads"),
    [
        ((), {}, "lrpB000"),
        ((EVIDENCE,), {}, EVIDENCE),
        (("deeplift", EVIDENCE), {}, EVIDENCE),
        (("deeplift",), {}, "deeplift"),
        (("deeplift", EVIDENCE), {"deeplift": True, EVIDENCE: True}, EVIDENCE),
        (("deeplift", EVIDENCE), {"deeplift": True, EVIDENCE: False}, "deeplift"),
        (("deeplift", EVIDENCE), {"deeplift": True, EVIDENCE: None}, "deeplift"),
        ((EVIDENCE,), {"lrpB000": True, EVIDENCE: False}, "lrpB000"),
        ((EVIDENCE,), {"lrpB000": False, EVIDENCE: False}, EVIDENCE),
        ((EVIDENCE,), {"gb": True, EVIDENCE: False}, EVIDENCE),
        ((), {"lrpB000": False, "gb": True}, "lrpB000"),
    ],
)
def test_one_function_decides_the_leading_map(evidence, passed, leads):
    verdicts = pd.DataFrame({"map": list(passed), "passed": list(passed.values())}) if passed else None
    assert leading_map(MAPS, evidence, verdicts) == leads


def test_the_exact_map_of_a_network_that_has_one_leads():
    names = ["deeplift", EVIDENCE, "inherent"]
    assert leading_map(names, names, None) == "inherent"


def test_a_map_must_pass_on_every_cohort_to_lead():
    verdicts = pd.DataFrame({"map": [EVIDENCE, EVIDENCE, "deeplift"], "passed": [True, False, True]})
    assert leading_map(MAPS, ("deeplift", EVIDENCE), verdicts) == "deeplift"


def by_hand(run: RunLayout) -> pd.DataFrame:
    rows = read_table(run.statistics("group_comparisons"))
    rows = rows[(rows["comparison"] == "AD/CN") & (rows["map"] == EVIDENCE) & (rows["metric"] == "density")]
    return rows.set_index("group").sort_values("hedges_g", ascending=False)


def g_of(row: pd.Series) -> str:
    return f"{fixed(row['hedges_g'])} [{fixed(row['hedges_g_low'])} to {fixed(row['hedges_g_high'])}]"


def test_a_run_with_evidence_leads_with_it_and_keeps_the_maps_of_the_founding_study(record):
    assert record.evidence_maps == (EVIDENCE,)
    assert record.main_maps == (EVIDENCE, "lrpB000", "gb")
    assert record.ordered_maps == (EVIDENCE, "lrpB000", "gb")
    assert [record.map_unit(name) for name in record.main_maps] == ["evidence (logits)", "relevance", "susceptibility"]


def test_the_headline_names_the_regions_whose_evidence_differs_most_in_logits(run, record):
    rows = by_hand(run)
    answer = next(one for one in summarise(record).answers if one.question == "Where does it look?")
    assert set(rows.index[:5]) == set(PLANTED)
    named = [f"{group.lower()} (1 to 5)" for group in rows.index[:5]]
    named[0] = f"{rows.index[0].lower()} (between place 1 and 5 of 68)"
    row = rows.iloc[0]
    assert answer.text == (
        f"The largest difference by Hedges' g is in the {rows.index[0].lower()}: "
        f"{signed(VOXELS * row['difference'])} logits (g {fixed(row['hedges_g'])})."
    )
    assert f"The evidence for AD differs most in these regions: {', '.join(named[:-1])} and {named[-1]}. Map:" in (
        answer.more
    )
    said = []
    for group in rows.index[:5]:
        row = rows.loc[group]
        low, high = (fixed(VOXELS * row[name]) for name in ("ci_low", "ci_high"))
        said.append(f"{group.lower()} {signed(VOXELS * row['difference'])} ({low} to {high}; g {g_of(row)})")
    people = rows.iloc[0]
    first, second, third = (group.lower() for group in rows.index[:3])
    assert f"The first of all 68 regions is one of 5 (95 % confidence): {first}, {second}, {third} and 2 more." in (
        answer.more
    )
    assert (
        f"{people['n_first']:.0f} participants of AD and {people['n_second']:.0f} of CN; differences in logits: "
        f"{', '.join(said[:-1])} and {said[-1]}. In brackets: 95 % interval, Hedges' g [interval]. {NOT_EVALUATED}"
    ) in answer.more
    passed = int((rows["p_fwe"] < 0.05).sum())
    assert answer.figure == f"{passed} regions"
    assert answer.figure_caption.startswith("of 68 differ between AD and CN after correction: ")
    assert "relevance (LRP β=0) is densest in" in answer.more


def with_places(record: RunRecord, low: list[int], high: list[int]) -> RunRecord:
    """The run with these bounds of places for its regions, the largest Hedges' g first; 68 where none are left."""
    table = record.tables["group_comparisons"].copy()
    rows = (table["comparison"] == "AD/CN") & (table["map"] == EVIDENCE) & (table["metric"] == "density")
    order = table[rows].sort_values("hedges_g", ascending=False, kind="stable").index
    for column, bounds in (("place_low", low), ("place_high", high)):
        table.loc[order, column] = [*bounds, *[bounds[-1]] * (len(order) - len(bounds))]
    return replace(record, tables={**record.tables, "group_comparisons": table})


@pytest.mark.parametrize(
    ("low", "high", "order", "text"),
    [
        ([1, 2], [1, 68], "The first of all 68 regions is {a} (95 % confidence).",
         "{a} (place 1 of 68), {b} (2 to 68)"),
        ([1, 1, 1, 2], [3, 3, 3, 68], "The first of all 68 regions is one of 3 (95 % confidence): {a}, {b} and {c}.",
         "{a} (between place 1 and 3 of 68), {b} (1 to 3)"),
        ([1, 1, 1, 1, 2], [4, 4, 4, 4, 68], "The first of all 68 regions is one of 4 (95 % confidence): {a}, {b}, {c} "
         "and 1 more.", "{a} (between place 1 and 4 of 68), {b} (1 to 4)"),
        ([1] * 40 + [2], [40] * 40 + [68], "Any of 40 of the 68 regions may be the first (95 % confidence): the "
         "data do not order them.", "{a} (between place 1 and 40 of 68), {b} (1 to 40)"),
        ([1], [68], "Any of the 68 regions may be the first (95 % confidence): the data do not order them.",
         "{a} (between place 1 and 68 of 68), {b} (1 to 68)"),
        ([2, 1, 2], [68, 1, 68], "The first of all 68 regions is {b} (95 % confidence).",
         "{a} (between place 2 and 68 of 68), {b} (1)"),
    ],
)  # fmt: skip
def test_more_says_which_regions_may_be_first(run, record, low, high, order, text):
    names = list(by_hand(run).index)
    words = {"a": names[0].lower(), "b": names[1].lower(), "c": names[2].lower()}
    answer = next(one for one in summarise(with_places(record, low, high)).answers if one.question == WHERE)
    assert order.format(**words) in answer.more
    assert text.format(**words) in answer.more
    assert not any(name in answer.figure for name in names)


def test_a_run_of_an_earlier_version_has_places_without_bounds(run, record):
    table = record.tables["group_comparisons"].drop(columns=["place_low", "place_high"])
    assert of_another_version("group_comparisons", "group_comparisons.tsv", table) == ""
    older = replace(record, tables={**record.tables, "group_comparisons": table})
    first = by_hand(run).index[0]
    answer = next(one for one in summarise(older).answers if one.question == WHERE)
    assert first.lower() in answer.text
    assert "place" not in answer.text + answer.more
    assert lead_of(older, first).endswith("By g it is number 1 of 68 regions.")
    bounded = with_places(record, [1, 2], [3, 68])
    assert lead_of(bounded, first).endswith("By g it is number 1 of 68 regions (95 % interval 1 to 3).")
    assert f"{first.lower()} 1 (1 to 3)" in trust.PLANTED.answered(bounded).grounds.lower()


def test_planted_regions_are_looked_for_where_the_headline_looks(record):
    assert trust.PLANTED.answered(record).answer.endswith("5 of 5 planted regions are among the first 10 of 68.")
    titles = {caution.title: caution.level for caution in find_cautions(record)}
    assert "The maps miss most of the planted regions." not in titles
    assert "Maps are scaled by the prediction." not in titles


@pytest.mark.parametrize(
    ("column", "error", "level", "title", "words"),
    [
        ("completeness_error", 0.02, None, "", ""),  # of a median evidence of 2.25
        ("completeness_error", -0.09, "serious", "The leading map does not add up.",
         "by 0.09 in the median (4.0 % of the median evidence), 0.90 at most, in logits"),
        ("sampling_error", 0.1, None, "", ""),
        ("sampling_error", -0.225, "note", "Regions of a single scan are approximate.",
         "by 0.23 in the median (10.0 % of the median evidence), 0.90 at most, in logits"),
        ("sampling_error", 0.54, "serious", "Regions of a single scan are approximate.",
         "by 0.54 in the median (24.0 % of the median evidence), 0.90 at most, in logits"),
    ],
)  # fmt: skip
def test_a_map_that_does_not_add_up_is_the_first_caution(record, column, error, level, title, words):
    table = record.tables["evidence"].copy()
    evidence = (table["evidence"] - table["reference_evidence"]).abs()
    assert evidence.median() == 2.25
    table[column] = error
    table.loc[table.index[0], column] = 0.9
    found = find_cautions(replace(record, tables={**record.tables, "evidence": table}))
    own = [caution for caution in found if caution.title in
           ("The leading map does not add up.", "Regions of a single scan are approximate.")]  # fmt: skip
    assert [(caution.level, caution.title) for caution in own] == ([] if level is None else [(level, title)])
    if level is not None:
        assert words in own[0].text
        assert own[0] is next(caution for caution in found if caution.level == level)


def test_a_run_of_an_earlier_version_has_no_sampling_error(record):
    table = record.tables["evidence"].drop(columns=["completeness_share", "sampling_error", "sampling_share"])
    earlier = replace(record, tables={**record.tables, "evidence": table})
    assert sum_error(earlier, EVIDENCE, "sampling_error") is None
    assert sum_error(earlier, EVIDENCE).median == pytest.approx(0.01)
    assert "approximate" not in " ".join(caution.title for caution in find_cautions(earlier))


def test_the_comparison_of_the_classes_is_one_of_evidence(run, record):
    found, rows = COMPARISONS.answered(record), by_hand(run)
    first = rows[rows["p_fwe"] < 0.05].sort_values(["p_fwe", "hedges_g"], ascending=[True, False]).iloc[0]
    assert found.answer.startswith(f"Scans of AD have more evidence in {first.name.lower()} (g {g_of(first)})")
    assert "Regions add up to the difference in logits" in found.grounds


def test_a_scan_is_described_by_its_evidence_and_that_of_its_reference(run, record):
    content = person_content(Material.of(run), ParticipantRecords(record), "sub-AD000")
    table = read_table(run.group / "relevance_bilateral.tsv")
    own = table[(table["participant_id"] == "sub-AD000") & (table["map"] == EVIDENCE)].set_index("group")["sum"]
    first = by_hand(run).index[0]
    largest = list(regions_of_scans(record)["IAD0M000"].largest)
    shown = own.round(2)
    parts = {
        sign: [f"{name[:1].lower()}{name[1:]} {signed(own[name])}" for name in largest if (own[name] < 0) == (sign < 0)]
        for sign in (1, -1)
    }
    said = [f"{word} AD: {' and '.join(', '.join(names).rsplit(', ', 1))}"
            for word, names in (("for", parts[1]), ("against", parts[-1])) if names]  # fmt: skip
    if first not in largest:
        leader = f"the region that differs most between the classes, {first[:1].lower()}{first[1:]}"
        said.append(f"{leader} (between place 1 and 5 of 68): {signed(own[first])}")
    rest = 4.0 - shown[list(dict.fromkeys([*largest, first]))].sum()
    text = "; ".join(said)
    assert content["evidence"] == [
        "Scan IAD0M000: the evidence for AD is +2.50 logits. The 12 training controls that the map compares it with "
        f"have −1.50 on average, a difference of +4.00. {text[:1].upper()}{text[1:]}; all else: {signed(rest)}, of "
        "which −0.01 is error of the sum. Parts below about 0.1 logits are uncertain."
    ]


def test_a_large_part_against_the_class_is_named_and_the_parts_add_up(record):
    table = record.tables["relevance_bilateral"].copy()
    here = (table["scan_id"] == "IAD0M000") & (table["map"] == EVIDENCE)
    groups = table.loc[here, "group"]
    for group, value in zip(groups.iloc[:3], (4.912, -0.904, 0.351), strict=True):
        table.loc[here & (table["group"] == group), "sum"] = value
    table.loc[here & ~table["group"].isin(groups.iloc[:3]), "sum"] = 0.001
    changed = replace(record, tables={**record.tables, "relevance_bilateral": table})
    visits = record.tables["scans"].query("scan_id == 'IAD0M000'")
    (sentence,) = evidence_sentences(changed, visits)
    first, second, third = (f"{group[:1].lower()}{group[1:]}" for group in groups.iloc[:3])
    assert f"For AD: {first} +4.91 and {third} +0.35; against AD: {second} −0.90; " in sentence
    total = float(re.search(r"difference of ([+−]\d+\.\d\d)", sentence)[1].replace("−", "-"))
    after = sentence.split("difference of", 1)[1].split(". ", 1)[1].split(", of which")[0]
    parts = [float(part.replace("−", "-")) for part in re.findall(r"[+−]\d+\.\d\d", after)]
    assert sum(parts) == pytest.approx(total, abs=1e-9)


def test_the_fingerprint_compares_evidence_and_shares_of_other_maps(run, record):
    content = person_content(Material.of(run), ParticipantRecords(record), "sub-AD001")  # with two scans
    evidence, lrp, _ = content["fingerprints"]
    table = read_table(run.group / "relevance_bilateral.tsv")
    own = table[(table["participant_id"] == "sub-AD001") & (table["group"] == "Hippocampus")]
    mean = own[own["map"] == EVIDENCE]["sum"].mean()
    cells = {row[0].text: row for row in evidence["table"].rows}["Hippocampus"]
    assert float(cells[1].order) == pytest.approx(mean, rel=SHOWN)
    assert [one["table"].columns[1].title for one in (evidence, lrp)] == ["Evidence, logits", "Share of the map"]
    assert evidence["text"].startswith("Evidence, logits (Expected gradients) in each region, mean over 2 scans")


def test_a_region_is_described_by_its_difference_in_logits(run, record, unrendered):
    content = region_content(RegionMaterial(Material.of(run)), "Amygdala")
    rows = by_hand(run)
    row, place = rows.loc["Amygdala"], list(rows.index).index("Amygdala") + 1
    assert content["lead"].startswith("Expected gradients: evidence here is larger in AD (Hedges' g ")
    assert f": {signed(VOXELS * row['difference'])} logits, 95 % interval " in content["lead"]
    assert f"mean {signed(VOXELS * row['mean_first'])} logits in AD" in content["lead"]
    assert content["lead"].endswith(f"By g it is number {place} of {len(rows)} regions (95 % interval 1 to 5).")
    assert [block["title"] for block in content["blocks"]] == [
        "Expected gradients",
        "LRP β=0",
        "Guided backpropagation",
    ]
    assert [len(block["charts"]) for block in content["blocks"]] == [1, 2, 2]


def test_regions_by_evidence_come_first_and_the_founding_tables_are_complete(run, record, unrendered):
    content = regions.build(Material.of(run))
    rows = by_hand(run)
    table = content["evidence"]["table"]
    keys = [column.key for column in table.columns]
    assert [row[0].text for row in table.rows] == list(rows.index)
    shown = np.array(
        [[float(row[keys.index(key)].order) for key in ("difference", "ci_low", "ci_high")] for row in table.rows]
    )
    np.testing.assert_allclose(shown, VOXELS * rows[["difference", "ci_low", "ci_high"]].to_numpy(), rtol=SHOWN)
    assert content["maps"] == "LRP β=0 and Guided backpropagation"
    assert content["bench"] == NOT_EVALUATED
    lrp = content["whole"][0]
    summary = read_table(run.statistics("region_summary"))
    summary = summary[(summary["map"] == "lrpB000") & (summary["scan_group"] == "AD")].set_index("group")
    assert len(lrp.rows) == len(summary)
    assert [column.key for column in lrp.columns] == ["group", "sum", "density", "gain"]
    for row in lrp.rows:
        expected = summary.loc[row[0].text, ["mean_sum", "mean_density"]].astype(float)
        assert [float(cell.order) for cell in row[1:3]] == pytest.approx(expected.tolist(), rel=SHOWN)


def scores(finds: str = EVIDENCE) -> pd.DataFrame:
    """Scores of two maps and two images without a network; `finds` finds what was planted, the other map does not."""
    rows = []
    for name in (EVIDENCE, "lrpB000"):
        area, hits = (0.98, 5.0) if name == finds else (0.5, 1.0)
        for cohort in ("run", "planted"):
            base = dict(cohort=cohort, map=name, method=name, severity="all", n_planted=5, n_scans=14)
            base |= dict(n_participants=14, n_undefined=0, n_groups=68, rim=0.5)
            rows.append({**base, "network": "real", "auroc_difference": area, "hits_difference": hits,
                         "dose_response": 0.7 if cohort == "planted" else np.nan})  # fmt: skip
            for null in ("shuffled-1", "untrained"):
                rows.append(
                    {**base, "network": null, "auroc_difference": 0.41, "hits_difference": 0.0, "spearman_real": 0.1}
                )
        for severity, value in (("0.5", 0.7), ("2", 0.97)):
            rows.append({**rows[-3], "cohort": "planted", "network": "real", "severity": severity,
                         "auroc_difference": value, "dose_response": np.nan})  # fmt: skip
    for name in ("edges", "scanDifference"):
        rows.append(
            dict(cohort="run", map=name, network="none", severity="all", n_planted=5, n_scans=14, n_participants=14)
            | dict(n_undefined=0, n_groups=68, auroc_difference=0.9, hits_difference=4.0, rim=2.0)
        )
    return pd.DataFrame(rows).reindex(columns=list(EVALUATION_TABLE.meanings))


def distractors() -> pd.DataFrame:
    """A distractor <b> that two maps and an image are judged by; only the image and one map mark it."""
    rows = [
        dict(cohort="run", map=name, network=network, distractor="spot <b>", kind="marker", n_scans=7, ratio=ratio)
        | dict(limit=0.5, marked=ratio > 0.5)
        for name, network, ratio in ((EVIDENCE, "real", 0.25), ("deeplift", "real", 0.75), ("edges", "none", 5.5))
    ]
    return DISTRACTORS_TABLE.frame(rows)


def evaluate(run: RunLayout, finds: str = EVIDENCE) -> RunRecord:
    """Write the tables of an evaluation as ``heatlas evaluate`` does."""
    run.evaluation.mkdir(exist_ok=True)
    EVALUATION_TABLE.write(run, scores(finds))
    VERDICTS_TABLE.write(run, verdict_table(scores(finds)))
    DISTRACTORS_TABLE.write(run, distractors())
    return read_run(run)


def test_the_evaluation_stands_in_the_report_with_nulls_beside_each_map(run, record):
    evaluated = evaluate(run)
    assert {VERDICTS_TABLE.path(run), EVALUATION_TABLE.path(run), DISTRACTORS_TABLE.path(run)} <= set(
        report_inputs(run)
    )
    assert evaluated.unreadable == {}
    content = evaluation.build(Material.of(run))
    on_run, planted = content["blocks"]
    assert content["verdict"].answer == "Passed: Expected gradients."
    without = ["Edge detector (no network)", "|scan − mean control| (no network)"]
    assert [title for title, *_ in on_run["lines"]] == ["Expected gradients", "LRP β=0", *without]
    keys = [column.key for column in on_run["table"].columns]
    row = dict(zip(keys, (cell.text for cell in on_run["table"].rows[0]), strict=True))
    assert {key: row[key] for key in ("passed", "hits", "auroc", "shuffled_hits", "shuffled_auroc", "rim")} == dict(
        passed="yes", hits="5", auroc="0.98", shuffled_hits="0.0", shuffled_auroc="0.41", rim="0.50"
    )
    edges = dict(zip(keys, (cell.text for cell in on_run["table"].rows[2]), strict=True))
    assert (edges["hits"], edges["auroc"], edges["shuffled_auroc"], edges["passed"]) == ("4", "0.90", "n/a", "no")
    assert on_run["folded"] == []  # one severity, no faithfulness
    dose = planted["folded"][0]
    assert [column.title for column in dose.columns][2:] == ["AUROC at severity 0.5", "AUROC at severity 2"]
    assert [cell.text for cell in dose.rows[0]] == ["Expected gradients", "0.70", "0.70", "0.97"]


@pytest.mark.ci
def test_two_sentences_say_what_the_bench_found_about_lrp(run, record, unrendered):
    evaluated = evaluate(run)
    first, second = bench_sentence(evaluated, "lrpB000").split(". ", 1)
    assert first == "In the evaluation of this run, LRP β=0 did not pass"
    assert second.startswith("Scans of the run: does not find planted disease; tells real from shuffled labels;")
    answer = next(one for one in summarise(evaluated).answers if one.question == "Where does it look?")
    assert "In the evaluation of this run, this map passed: scans of the run: finds planted disease; tells real" in (
        answer.text
    )
    assert regions.build(Material.of(run))["bench"].startswith(first)


def test_without_a_row_the_bench_has_nothing_to_say_of_a_map(run, record):
    evaluated = evaluate(run)
    assert bench_sentence(evaluated, "gb") == "The evaluation of this run did not cover Guided backpropagation."


@pytest.mark.ci
def test_the_report_leads_with_what_passed(run, record):
    evaluated = evaluate(run, finds="lrpB000")
    assert evaluated.leading_map == "lrpB000"
    assert evaluated.main_maps == ("lrpB000", "gb")
    none = evaluate(run, finds="none")
    assert none.leading_map == EVIDENCE
    answer = next(one for one in summarise(none).answers if one.question == "Where does it look?")
    assert answer.text.endswith("This map did not pass the evaluation of this run; the warnings say why.")
    found = next(one for one in find_cautions(none) if one.section == "evaluation")
    assert (found.level, found.title) == ("serious", "The leading map did not pass the evaluation.")
    assert found.text.startswith("Expected gradients: scans of the run: does not find planted disease;")


def text_of(source: str) -> str:
    source = re.sub(r"<(script|style)\b.*?</\1>", " ", source, flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", source)).split())


@pytest.mark.ci
def test_whole_pages_without_an_evaluation(run, record, monkeypatch):
    monkeypatch.setattr(gallery, "rendered", lambda *_, **__: b"")  # the report of the evaluated run draws them all
    assert write_report(run).faults == ()
    index = run.report.read_text(encoding="utf-8")
    assert NOT_EVALUATED in text_of(index)
    for section in ("evaluation", "regions"):  # its own, and that of LRP
        assert NOT_EVALUATED in text_of(page_with(run, section).read_text(encoding="utf-8"))
    assert 'href="report-evaluation.html#evaluation"' in index
    table = read_table(run.figures / "region_explorer.tsv")
    of_map = {name: rows for name, rows in table.groupby("map")}
    assert table["map"].iloc[0] == EVIDENCE
    np.testing.assert_array_equal(of_map[EVIDENCE]["mean_evidence"], of_map[EVIDENCE]["mean_sum"])
    assert of_map["lrpB000"]["mean_evidence"].isna().all()
    rows = of_map[EVIDENCE][(of_map[EVIDENCE]["scan_group"] == "AD")].set_index("group")
    assert set(rows["tested"]) == {"evidence"}
    np.testing.assert_array_equal(rows["hedges_g"], by_hand(run)["hedges_g"].reindex(rows.index))
    source = page_with(run, "regions").read_text(encoding="utf-8")
    options = re.search(r'<select name="metric">(.*?)</select>', source, re.S)[1]
    assert re.findall(r'value="(\w+)"', options)[0] == "mean_evidence"
    methods = re.search(r'<select name="method">(.*?)</select>', source, re.S)
    assert methods is not None


@pytest.mark.ci
def test_whole_pages_with_an_evaluation(evaluated):
    assert NOT_EVALUATED not in text_of(all_pages(evaluated))
    page = text_of(page_with(evaluated, "evaluation").read_text(encoding="utf-8"))
    assert "Edge detector (no network)" in page
    assert "AUROC at severity 0.5" in page
    assert "Marked in the scans of the run: spot <b>: DeepLIFT." in page  # escaped in the file
    assert "Not asked: heatlas evaluate OUT --parts grids makes this part." in page


@pytest.mark.ci
def test_the_explorer_offers_evidence_first_and_only_where_there_is_some(evaluated, visit):
    page = visit(page_with(evaluated, "regions"))
    page.wait_for_selector(".explorer[data-ready]")
    offered = "names => names.filter(one => !one.disabled).map(one => one.value)"
    metrics = ".explorer [name=metric] option"
    assert page.input_value(".explorer [name=method]") == EVIDENCE
    assert page.input_value(".explorer [name=metric]") == "mean_evidence"
    assert "mean_gain" not in page.eval_on_selector_all(metrics, offered)
    page.select_option(".explorer [name=method]", "lrp")
    assert page.input_value(".explorer [name=metric]") == "mean_share"
    assert "mean_evidence" not in page.eval_on_selector_all(metrics, offered)


def test_a_damaged_evaluation_is_said_and_the_rest_is_made(run, record):
    evaluate(run)
    VERDICTS_TABLE.path(run).write_bytes(VERDICTS_TABLE.path(run).read_bytes()[:-40])
    damaged = read_run(run)
    assert damaged.leading_map == EVIDENCE
    assert "verdicts.tsv" in damaged.unreadable["verdicts"]
    assert bench_sentence(damaged, "lrpB000") == damaged.unreadable["verdicts"]


def test_a_run_without_evidence_has_none(tmp_path):
    layout = make_run(tmp_path / "run", RunPlan(until="regions", people=3, betas=(0.0,)))
    table = read_table(layout.group / "relevance_bilateral.tsv").drop(
        columns="evidence"
    )  # as earlier versions wrote it
    write_table(layout.group / "relevance_bilateral.tsv", table)
    record = read_run(layout)
    assert record.unreadable == {}
    assert (record.evidence_maps, record.leading_map, record.main_maps) == ((), "lrpB000", ("lrpB000", "gb"))
    assert evidence_differences(record, "lrpB000").empty


@pytest.mark.parametrize("planted", [0, 1, 2])
def test_regions_that_differ_without_disease_are_counted(record, planted):
    rows = evidence_differences(record, record.leading_map)
    differ = [str(group) for group in rows.index[rows["p_fwe"] < 0.05]]
    known = replace(record)
    known.__dict__["planted"] = tuple(differ[:planted])
    others = len(differ) - planted
    named = f"{others} of the {len(differ)} regions that differ have no planted disease."
    assert (named in summarise(known).trust) == (planted > 0)
