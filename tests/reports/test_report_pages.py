"""Pages of participants and regions, validity of every page, and what the audit has to say, on made-up runs."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import html5lib
import numpy as np
import pandas as pd
import pytest
from markupsafe import escape
from report_pages import chapter_files, page_with
from run_factory import RunPlan, make_run

from heatlas.pipeline.regions.maps import read_map
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table, write_json, write_table
from heatlas.pipeline.statistics.normative.w_scores import CONTROLS_OF_A_FOLD, ControlGroup
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.pages import participant_file, region_files
from heatlas.reports.page.build import build_report, report_inputs, written_files
from heatlas.reports.page.sections import find_cautions
from heatlas.reports.people.page import _maps_of_mistakes, _rightly
from heatlas.reports.people.regions import cautions_of_maps
from heatlas.reports.people.scan_pictures import scan_page
from heatlas.reports.questions.findings import small_regions
from heatlas.reports.questions.question import g_in_words
from heatlas.reports.read.people import ParticipantRecords
from heatlas.reports.read.run_files import TABLES
from heatlas.reports.read.run_record import read_run
from heatlas.reports.region_pages.page import RegionMaterial, region_content
from heatlas.reports.viewer.component import viewing_space
from heatlas.reports.words.numbers import fixed, number, percent

pytestmark = pytest.mark.usefixtures("all_unrendered")

HOSTILE = "\"><script>alert('x')</script>&amp;Ω漢字" + "長" * 40
HARMLESS = {"invalid-character-reference"}
PLAN = RunPlan(betas=(0.0,), people=7, text=HOSTILE, guided=False)
BY_PROBABILITY = RunPlan(people=3, betas=(0.0,), guided=False, preset="demo",
                         overrides={"attribution": {"start_value": "probability", "keep_maps": "none"}})  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunLayout:
    layout = make_run(tmp_path_factory.mktemp("pages") / "run", PLAN)
    build_report(layout)
    return layout


ASKED = {
    "How good is the prediction?": ("report-performance.html", "performance"),
    "Did the networks learn?": ("report-training.html", "training"),
    "Where does it look?": ("report-maps.html", "maps"),
    "Which regions differ most?": ("report.html", "ranking"),
    "Does it follow atrophy?": ("report-clinical.html", "volume"),
    "For whom does it work: by age, sex and site?": ("report-fairness.html", "subgroups"),
    "Does it use shortcuts?": ("report-fairness.html", "shortcuts"),
    "Which map can be trusted?": ("report-evaluation.html", "evaluation"),
    "Who was left out?": ("report-cohort.html", "cohort"),
    "Which scans are in doubt?": ("report-registration.html", "registration"),
    "What does a word mean?": ("report-methods.html", "glossary"),
    "How can I cite it?": ("report-provenance.html", "credits"),
}
"""What readers ask of a report, and the page and section that answer."""
EMPTY = re.compile(r"\b(a|and|are|be|by|can|do|does|did|for|how|i|in|is|it|most|the|to|was|what|which|who|whom)\b")
"""Words that say nothing of what is asked."""


@pytest.mark.parametrize("question", ASKED)
def test_a_usual_question_is_answered_under_a_title_that_holds_its_words(run, question):
    """Words in the title of the page, or of the section; a plural counts as its singular."""
    file, anchor = ASKED[question]
    page = (run.root / file).read_text(encoding="utf-8")
    (section,) = re.findall(rf'<h2 id="{anchor}-title">(.*?)</h2>', page)
    (title,) = re.findall(r"<h1>(.*?)</h1>", page)
    said = words_of(section if file == "report.html" else f"{title} {section}")
    assert words_of(question) <= said
    assert f'href="{file}"' in run.report.read_text(encoding="utf-8") or file == "report.html"


def words_of(text: str) -> set[str]:
    return {word.removesuffix("s") for word in re.findall("[a-z]+", EMPTY.sub("", html.unescape(text).lower()))}


def pages_of(layout: RunLayout) -> list[Path]:
    return [path for path in written_files(layout) if path.suffix == ".html"]


def text_of(path: Path) -> str:
    source = re.sub(r"<(script|style)\b.*?</\1>", " ", path.read_text(encoding="utf-8"), flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", source)).split())


def test_there_is_a_page_for_everyone_and_everything(run):
    scans = read_table(run.root / "scans.tsv")
    people = scans.loc[scans["kept"], "participant_id"].unique()
    groups = read_table(run.group / "relevance_bilateral.tsv")["group"].unique()
    chapters = {path.name for path in chapter_files(run)}
    expected = {participant_file(name) for name in people} | set(region_files(groups).values()) | chapters
    assert {path.relative_to(run.root).as_posix() for path in pages_of(run)} == expected
    assert {path.relative_to(run.root).as_posix() for path in run.root.glob("*.html")} <= expected
    assert len(expected) == len(people) + len(groups) + len(chapters)
    assert "report.html" in chapters


def test_every_kind_of_page_is_valid_html(run):
    people = sorted(run.root.glob("sub-*.html"))
    for path in (*chapter_files(run), people[0], people[-1], run.root / "pages" / "region-hippocampus.html"):
        parser = html5lib.HTMLParser(strict=False)
        parser.parse(path.read_text(encoding="utf-8"))
        errors = [(place, code) for place, code, _ in parser.errors if code not in HARMLESS]
        assert not errors, (path.name, errors[:5])


def test_no_page_has_an_id_twice_or_a_link_that_leads_nowhere(run):
    sources = {path: path.read_text(encoding="utf-8") for path in pages_of(run)}
    ids = {path: re.findall(r'\sid="([^"]+)"', source) for path, source in sources.items()}
    for path, source in sources.items():
        assert len(ids[path]) == len(set(ids[path])), path.name
        for link in set(re.findall(r'<a [^>]*?href="([^"]+)"', source)):
            target, _, anchor = html.unescape(link).partition("#")
            if target.startswith("http"):
                continue
            led = (path.parent / unquote(target)).resolve() if target else path
            assert led.is_file(), (path.name, link)
            assert not anchor or not sources[led] or anchor in ids[led], (path.name, link)


def test_text_of_the_input_is_text_on_every_page(run):
    for path in pages_of(run):
        assert "<script>alert" not in path.read_text(encoding="utf-8"), path.name
    page = run.root / participant_file(f"sub-AD000{HOSTILE}")
    assert f"sub-AD000{HOSTILE}" in text_of(page)
    assert f"S1{HOSTILE}" in text_of(page)


def test_pages_ask_for_nothing(run):
    for path in pages_of(run):
        if not (source := path.read_text(encoding="utf-8")):
            continue  # of a region without a page here (conftest.py)
        for address in re.findall(r'\s(?:src|srcset|poster|data)="(?!data:)([^"]*)"', source):
            assert (path.parent / unquote(address)).is_file(), path.name  # a picture of the run
        assert not re.search(r"<(?:link|iframe|object|embed|base)\b", source), path.name
        policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]+)"', source)[1])
        assert "default-src 'none'" in policy
        executed = re.findall(r"<script>", source)
        assert len(executed) == policy.count("'sha256-")


def test_a_person_is_compared_with_controls_without_themselves(run):
    record = read_run(run)
    people = ParticipantRecords(record)
    table = record.tables["relevance_bilateral"]
    table = table[table["map"] == "lrpB000"]
    totals = table.groupby("scan_id")["sum"].apply(lambda sums: sums.abs().sum())  # not density, which follows p(AD)
    table = table[table["group"] == "Hippocampus"]
    shares = table["sum"] / table["scan_id"].map(totals)
    means = shares.groupby(table["participant_id"]).mean()
    controls = sorted(name for name in means.index if name.startswith("sub-CN"))
    person = controls[0]
    found = people.controls("lrpB000", person)
    assert sorted(found.values.index) == controls[1:]
    others = means[controls[1:]]
    expected = (means[person] - others.mean()) / others.std(ddof=1)
    score = found.scores(pd.Series({"Hippocampus": means[person]}))["Hippocampus"]
    assert score == pytest.approx(expected)
    page = text_of(run.root / participant_file(person))
    assert f"Hippocampus {percent(means[person], 2)} {percent(others.mean(), 2)} {fixed(expected)}" in page


def test_controls_of_the_own_fold_come_first_where_they_are_enough(tmp_path):
    layout = make_run(tmp_path / "run", RunPlan("regions", 2 * CONTROLS_OF_A_FOLD + 2, betas=(0.0,), guided=False))
    people = ParticipantRecords(read_run(layout))
    folds = dict(
        zip(*read_table(layout.group / "predictions.tsv")[["participant_id", "fold"]].to_numpy().T, strict=True)
    )
    found = people.controls("lrpB000", "sub-AD000")
    assert {folds[name] for name in found.values.index} == {folds["sub-AD000"]}
    assert "of the same fold" in found.who


def test_maps_of_a_missed_patient_do_not_show_what_misled_the_network(tmp_path):
    plan = RunPlan(until="cohort", people=1, overrides={"attribution": {"start_value": "probability"}})
    run = read_run(make_run(tmp_path / "run", plan))
    missed, alarm = _maps_of_mistakes(run, {"FN"}), _maps_of_mistakes(run, {"FP"})
    assert "the probability of AD, so those of a false negative" in missed
    assert "what spoke for AD, not why it was missed." in missed
    assert "misled" not in missed
    assert alarm == "The maps of a false positive show what misled the network, not where the disease is."
    assert _maps_of_mistakes(run, {"FP", "FN"}) == f"{alarm} {missed}"


def test_one_scan_is_called_rightly_or_wrongly_and_several_are_counted():
    assert [_rightly(*case) for case in ((1, 1), (0, 1), (1, 2))] == [
        "predicts the only scan correctly", "predicts the only scan wrongly", "predicts 1 of 2 scans correctly",
    ]  # fmt: skip


def test_pages_of_people_who_left_are_removed(tmp_path):
    layout = make_run(tmp_path / "run", RunPlan(until="registration", people=2))
    stale = [layout.root / "sub-GONE.html", layout.root / "pages" / "region-gone.html"]
    stale[1].parent.mkdir()
    for path in stale:
        path.write_text("old")
    build_report(layout)
    assert not any(path.exists() for path in stale)
    assert (layout.root / "sub-AD000.html").is_file()


@pytest.mark.parametrize("until", ["cohort", "registration", "training"])
def test_pages_of_an_unfinished_run_say_what_is_missing(until, tmp_path):
    layout = make_run(tmp_path / "run", RunPlan(until=until, people=1, folds=1, guided=False))
    build_report(layout)
    page = text_of(layout.root / "sub-AD000.html")
    assert "No scan of this participant has been explained." in page
    assert ("These scans have no prediction" in page) == (until != "training")
    assert not list(layout.root.glob("pages/*.html"))


def test_numbers_of_a_region_page_are_those_of_the_tables(run):
    page = text_of(run.root / "pages" / "region-hippocampus.html")
    effects = read_table(run.statistics("group_comparisons"))
    effects = effects[(effects["comparison"] == "AD/CN") & (effects["metric"] == "density")]
    row = effects[(effects["group"] == "Hippocampus") & (effects["map"] == "lrpB000")].iloc[0]
    assert f"Hedges' g of AD against CN {g_in_words(row)}, family-wise" in page
    shares = read_table(run.statistics("group_comparisons")).query(
        "comparison == 'AD/CN' and map == 'lrpB000' and metric == 'share' and group == 'Hippocampus'"
    )
    first = f"AD against CN {g_in_words(shares.iloc[0])}, family-wise corrected"
    assert (
        0 < page.index("the share of the map that lies here is") < page.index(first) < page.index("relevance here is")
    )
    summary = read_table(run.statistics("region_summary"))
    row = summary[(summary["group"] == "Hippocampus") & (summary["scan_group"] == "AD")].iloc[0]
    assert number(row["mean_density"]) in page
    part = shares["mean_first"].iloc[0]
    assert f"On average {percent(part)} of the map of AD lies here: number" in page


@pytest.mark.ci
def test_a_region_page_says_whether_disease_was_planted_there_and_that_maps_are_scaled(tmp_path):
    layout = make_run(tmp_path / "run", BY_PROBABILITY)
    truth = tmp_path / "input" / "truth" / "planted.json"
    write_json(truth, {"planted": ["Hippocampus", "Amygdala"]})
    assert truth in report_inputs(layout)
    table = read_table(layout.statistics("region_summary"))
    density = table[(table["map"] == "lrpB000") & (table["scan_group"] == "TP")].set_index("group")["mean_density"]
    density = density.dropna()
    material = Material.of(layout)
    synthetic = next(one for one in find_cautions(material.run) if one.title == "Synthetic people.")
    assert "in 2 regions, here called the planted regions: hippocampus and amygdala. Nothing here" in synthetic.text
    for group, said in (("Hippocampus", "one"), ("Putamen", "none")):
        cautions = region_content(RegionMaterial(material), group)["cautions"]
        assert cautions[0].title == "Maps are scaled by the prediction."
        assert cautions[0].section == ""
        place = density.rank(ascending=False)[group]
        assert (
            f"This is {said} of the planted regions; by density in true positives (LRP β=0) it is number {place:.0f} "
            f"of {len(density)}." in cautions[-1].text
        )


def test_a_viewer_of_a_scan_carries_the_cautions_of_its_maps(tmp_path):
    record = read_run(make_run(tmp_path / "run", BY_PROBABILITY))
    small = next(iter(small_regions(record)), None)
    said = cautions_of_maps(record, [small] if small else ["Hippocampus"])
    expected = [
        "Maps are scaled by the prediction.",
        *["Small regions lead here."] * bool(small),
        "A synthetic person.",
    ]
    assert [one.title for one in said] == expected
    space = viewing_space(record.resolution_mm, record.config.regions.atlas)
    files = record.layout.scan("sub-AD000", "ses-M000", record.resolution_mm)
    values = read_map(files.relevance_map("lrpB000"), space.source)
    brain = np.ones(space.source.shape, np.float32)
    page = scan_page(files, brain, {"lrpB000": values}, {"lrpB000": "relevance"}, space, said)
    for one in said:
        assert one.title in page
        assert escape(one.text) in page


def titles(layout: RunLayout) -> set[str]:
    return {caution.title for caution in find_cautions(read_run(layout))}


def written(name: str, rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows with all columns of a table, those not named unknown."""
    return pd.DataFrame(rows, columns=list(TABLES[name].meanings))


def test_relevance_that_tells_the_scanner_is_a_warning(run, tmp_path):
    path = run.statistics("site_prediction")
    row = dict(target="field_strength", map="lrpB000", balanced_accuracy=0.9, chance=0.5, p=0.001, p_fwe=0.002)
    before = path.read_bytes() if path.is_file() else None
    try:
        write_table(path, written("site_prediction", [{**row, "p_fwe": 0.2}]))
        assert not any("tells" in title for title in titles(run))
        write_table(path, written("site_prediction", [row]))
        assert "The field strength can be predicted from relevance." in titles(run)
    finally:
        path.unlink() if before is None else path.write_bytes(before)


def test_the_scanner_is_told_by_how_many_maps_and_whether_by_the_leading_one(tmp_path):
    layout = make_run(tmp_path / "run", RunPlan(until="regions", people=2, betas=(0.0, 1.0), guided=False))
    chance = {"site": 1 / 3, "field_strength": 0.5}
    for p_leading, p_other, level in ((0.9, 0.011, "note"), (0.9, 0.04, "note"), (0.04, 0.9, "serious")):
        rows = [
            {"target": target, "map": name, "balanced_accuracy": 0.57 if p < 0.05 else 0.28, "chance": chance[target],
             "p": p / 5, "p_fwe": p}
            for target, name, p in (("site", "lrpB000", p_leading), ("site", "lrpB100", p_other),
                                    ("field_strength", "lrpB000", 1.0), ("field_strength", "lrpB100", np.nan))
        ]  # fmt: skip
        write_table(layout.statistics("site_prediction"), written("site_prediction", rows))
        caution = next(one for one in find_cautions(read_run(layout)) if one.section == "shortcuts")
        # the title is about relevance at large only where the leading map passes
        assert caution.title == (
            "The site can be predicted from relevance."
            if p_leading < 0.05
            else "The site can be predicted from relevance of LRP β=1."
        )
        assert caution.level == level
        assert (
            "Of 3 predictions of site and field strength from the maps' regional relevance, 1 is significant"
            in caution.text
        )
        own = "The leading map, LRP β=0: site (balanced accuracy 0.57, chance 0.33, family-wise corrected p"
        not_shown = "From the leading map, LRP β=0, prediction was no better than chance."
        assert (own in caution.text, not_shown in caution.text) == (p_leading < 0.05, p_leading >= 0.05)


def test_relevance_outside_tissue_is_told_map_by_map(tmp_path):
    layout = make_run(tmp_path / "run", RunPlan(until="regions", people=2, betas=(0.0,)))
    rows = [
        {"map": "gb", "compartment": "fluid", "enrichment": 5.9, "ci_low": 5.0},
        {"map": "lrpB000", "compartment": "dark", "enrichment": 1.8, "ci_low": 1.6},
        {"map": "lrpB000", "compartment": "rim", "enrichment": 1.2, "ci_low": 0.9},
    ]
    for kept, said in (
        (rows, "LRP β=0: dark voxels (1.8 times its share). In other maps: Guided backpropagation: fluid (5.9 times"),
        (rows[:1], "LRP β=0: nothing notable. In other maps: Guided backpropagation: fluid (5.9 times"),
        (rows[1:], "LRP β=0: dark voxels (1.8 times its share). The mask"),
    ):
        write_table(layout.statistics("shortcuts"), written("shortcuts", kept))
        found = [one.text for one in find_cautions(read_run(layout)) if one.section == "shortcuts"]
        assert len(found) == 1
        assert said in found[0]


@pytest.mark.ci
def test_relevance_in_no_region_is_warned_of_above_a_third(run):
    path = run.statistics("shortcuts")
    before = path.read_bytes() if path.is_file() else None
    title = "Much of the relevance lies in no region."
    try:
        for share, compartment, warned in (
            (0.33, "no_region", False), (0.34, "no_region", True), (np.nan, "no_region", False), (0.9, "rim", False),
        ):  # fmt: skip
            row = {"map": "lrpB000", "compartment": compartment, "share": share, "voxel_share": 0.12, "enrichment": 3}
            write_table(path, written("shortcuts", [row]))
            found = [one for one in find_cautions(read_run(run)) if one.title == title]
            assert len(found) == warned
        write_table(path, written("shortcuts", [row | {"compartment": "no_region", "share": 0.4, "ci_low": 2.0}]))
        every = find_cautions(read_run(run))
        said = next(one.text for one in every if one.title == title)
        assert said.startswith(
            "Of |relevance| inside the brain mask: 40 % in LRP β=0 (mean over participants; warning above one third)."
        )
        assert "The atlas leaves 12 % of the mask without a region." in said
        assert not any("places that should not matter" in one.title for one in every)
    finally:
        path.unlink() if before is None else path.write_bytes(before)


def test_one_image_of_several_scans_is_warned_of(run):
    before = run.provenance.read_text()
    content = json.loads(before)
    said = "1 image is used as several scans, byte for byte; remove the copies: sub-01 = sub-02"
    try:
        for note, warned in (("", False), (said, True)):
            content["sources"]["same_images"] = note
            run.provenance.write_text(json.dumps(content))
            found = [one for one in find_cautions(read_run(run)) if one.title == "One image stands for several scans."]
            assert [one.text.partition(". The same")[0] for one in found] == [said] * warned
    finally:
        run.provenance.write_text(before)


def test_classes_of_different_age_are_a_warning(run):
    path = run.statistics("demographic_tests")
    before = path.read_bytes()
    try:
        row = {"variable": "age", "test": "Welch's t", "p": 0.001, "hedges_g": 0.9}
        write_table(path, written("demographic_tests", [{**row, "hedges_g": 0.1}]))
        assert "The classes differ in more than the disease." not in titles(run)
        write_table(path, written("demographic_tests", [row]))
        assert "The classes differ in more than the disease." in titles(run)
    finally:
        path.write_bytes(before)


def test_a_control_run_on_masks_says_so(tmp_path):
    plan = RunPlan(until="cohort", people=2, overrides={"training": {"control": "binarised"}})
    layout = make_run(tmp_path / "run", plan)
    assert "The networks saw a control, not the scans." in titles(layout)
    assert "The networks saw a control" in text_of(build_report(layout))


def test_analyses_that_could_not_be_done_give_their_reason(run):
    notes = read_table(run.statistics("notes"))
    reason = notes.loc[notes["tables"].str.contains("cox", na=False), "reason"].iloc[0]
    assert f"Not done: progression: {reason}" in text_of(page_with(run, "progression"))
    index = text_of(run.report)
    undone = index[index.index("What could not be tested") :].lower()
    assert all(name.lower() in undone for name in set(notes["analysis"].dropna()))


def test_bibliography_holds_just_the_works_cited(run):
    entries = re.findall(r"^@\w+\{(\w+),", run.bibliography.read_text(encoding="utf-8"), re.M)
    listed = re.findall(r"^\d+\. ", run.methods_text.read_text(encoding="utf-8").split("## References")[1], re.M)
    assert entries[0] == "heatlas"  # the program itself, which the text does not number
    assert len(entries) == len(set(entries)) == len(listed) + 1 > 6
    assert "founding" in entries


def test_densities_that_do_not_vary_give_no_scores():
    values = pd.DataFrame({"A": [1.0, 1.0, 1.0], "B": [1.0, 2.0, 3.0]})
    scores = ControlGroup(values, "3").scores(pd.Series({"A": 5.0, "B": 4.0}))
    assert np.isnan(scores["A"])
    assert scores["B"] == 2.0
