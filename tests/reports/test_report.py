"""The report as a reader gets it: whole page of a finished run, and of runs that stopped or lack something."""

from __future__ import annotations

import dataclasses
import html
import itertools
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from report_pages import chapter_files, page_with
from run_factory import PLANTED, RESOLUTION, STAGES, RunPlan, make_run

from heatlas.atlases.templates import load_template
from heatlas.pipeline.cohort.people.tasks import TWO_CLASSES
from heatlas.pipeline.run.config.files import read_config
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table, write_table
from heatlas.reports.content.run.summary import summarise
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.pages import CHAPTERS
from heatlas.reports.page.build import build_report, report_inputs, written_files
from heatlas.reports.page.sections import QUESTIONS, UNSEEN_SHARE, find_cautions, sections_of
from heatlas.reports.people.page import person_content
from heatlas.reports.read.people import ParticipantRecords
from heatlas.reports.read.run_record import read_run
from heatlas.reports.words.numbers import fixed, number, percent

pytestmark = pytest.mark.usefixtures("all_unrendered")

HOSTILE = "<script>alert('x')</script>"
VOID = {"meta", "img", "br", "input", "link"}


class Page(HTMLParser):
    """Pages taken apart: elements by tag, text outside scripts and styles, ids; checks that tags are balanced."""

    def __init__(self, *paths: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.source = "".join(path.read_text(encoding="utf-8") for path in paths)
        self.feed(self.source)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("script", "style"):
            return
        self.words.append(data)
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).replace("\xa0", " ").split())

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def row(self, *start: str) -> list[str]:
        """The first table row that starts with these cells."""
        return next(row for row in self.rows if tuple(row[: len(start)]) == start)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunLayout:
    layout = make_run(tmp_path_factory.mktemp("report") / "run", RunPlan(text=HOSTILE, betas=(0.0, 0.5, 1.0)))
    build_report(layout)
    return layout


@pytest.fixture(scope="module")
def pages(run) -> dict[str, Page]:
    """The index and every chapter, by file."""
    return {path.name: Page(path) for path in chapter_files(run)}


@pytest.fixture(scope="module")
def page(pages) -> Page:
    """The index."""
    return pages["report.html"]


@pytest.fixture(scope="module")
def whole(run) -> Page:
    """The index and every chapter as one."""
    return whole_report(run)


def whole_report(layout: RunLayout) -> Page:
    return Page(*chapter_files(layout))


def small_report(folder: Path, **changes: object) -> RunLayout:
    """Report of a run with two maps, which is quicker to make."""
    layout = make_run(folder / "run", RunPlan(**{"betas": (0.0,), "people": 5, **changes}))
    build_report(layout)
    return layout


def said_first(layout: RunLayout, caution: str) -> None:
    """A caution stands before all results: the answers of the index, and the sections of every other page."""
    for path in chapter_files(layout):
        source = path.read_text(encoding="utf-8")
        results = '<section class="answers' if path == layout.report else '<section class="part'
        assert source.count(results) >= 1 or "This run has nothing to show here." in source
        assert 0 <= source.find(caution) < source.index("</header>"), path.name
        assert results not in source[: source.index(caution)], path.name


def test_pages_have_every_section_once_in_order(pages):
    assert [name for chapter in CHAPTERS for name in sections_of(chapter)] == [one.id for one in QUESTIONS]
    two_classes = [one for one in QUESTIONS if one.applies is None and TWO_CLASSES in one.tasks]
    always = {one.id for one in two_classes if one.requires or not one.views}
    ids = {
        file: [attributes["id"] for _, attributes in page.elements if attributes.get("id")]
        for file, page in pages.items()
    }
    for chapter in CHAPTERS:
        found = ids[chapter.file]
        assert [name for name in found if name in always] == [name for name in sections_of(chapter) if name in always]
        assert len(found) == len(set(found))
        for link in pages[chapter.file].of("a"):
            file, _, anchor = str(link["href"]).partition("#")
            if anchor and (file or chapter.file) in ids:
                assert anchor in ids[file or chapter.file], link


def test_headings_of_every_page_leave_out_no_level(pages):
    for page in pages.values():
        levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
        assert levels.count(1) == 1
        assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
        assert page.of("html") == [{"lang": "en-GB"}]


def test_no_section_of_a_finished_run_says_that_it_is_missing(whole):
    missing = [section.id for section in QUESTIONS if section.absent and section.absent in whole.text]
    assert missing == ["evaluation"]  # which another command makes


def policy_of(page: Page) -> str:
    (policy,) = [meta for meta in page.of("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    return str(policy["content"])


def test_pages_make_no_request(pages):
    for page in pages.values():
        for tag, attributes in page.elements:
            source = str(attributes.get("src", "data:"))
            assert source.startswith("data:") or (tag == "img" and ":" not in source and not source.startswith("/"))
            assert tag not in ("link", "iframe", "object", "embed", "base")
            if str(attributes.get("href", "#")).startswith("http"):
                assert tag == "a"
        styles = re.findall(r"<style>(.*?)</style>", page.source, re.S)
        assert len(styles) >= 1
        assert not any("url(" in style or "@import" in style for style in styles)
        assert "default-src 'none'" in policy_of(page)


def test_hostile_text_is_shown_as_text(pages, page, whole):
    for file, one in pages.items():
        executed = [script for script in one.of("script") if script.get("type") != "application/json"]
        assert len(executed) == policy_of(one).count("'sha256-") > 0, file
        assert HOSTILE not in one.source, file
        assert not any(
            "alert" in str(value) and name.startswith("on") for _, a in one.elements for name, value in a.items()
        ), file
    assert page.text.count(f"sub-AD000{HOSTILE}") == 1  # who is a link of the index
    assert whole.text.count(f"sub-BAD{HOSTILE}") == 1
    assert f"all voxels are zero{HOSTILE}" in whole.text


def test_pictures_have_alternative_text_and_files(run, whole):
    pictures = whole.of("img")
    assert len(pictures) >= 20
    assert all(len(str(picture["alt"])) > 20 for picture in pictures)
    files = {path.name for path in (run.root / "figures").iterdir() if path.suffix in (".png", ".svg")}
    named = set(re.findall(r"figures/([\w.-]+\.(?:png|svg))", whole.text))
    assert named == files
    for number_ in range(1, 9):
        assert any(name.startswith(f"bohle2019-0{number_}") for name in files), number_


def test_figures_are_numbered_as_they_are_met(pages):
    for page in pages.values():
        numbers = [int(found) for found in re.findall(r"Figure (\d+)\.", page.text)]
        assert numbers == list(range(1, len(numbers) + 1))
        captioned = [
            kind for figure in page.of("figure") if (kind := figure.get("class")) in ("dark", "small", "wide", "drawn")
        ]
        assert len(numbers) == len(captioned)
        assert "<!--figure" not in page.source


def test_performance_on_the_page_is_that_of_the_table(run, pages, page):
    table = read_table(run.statistics("performance"))
    row = table[(table["fold"] == "all") & (table["metric"] == "balanced_accuracy")].iloc[0]
    cells = pages["report-performance.html"].row("Balanced accuracy")
    assert cells[1:4] == [fixed(row["estimate"], 3), fixed(row["ci_low"], 3), fixed(row["ci_high"], 3)]
    assert f"balanced accuracy {fixed(row['estimate'])}, 95 % interval {fixed(row['ci_low'])} to" in page.text


def test_every_region_is_in_the_explorer_and_its_file(run, pages):
    page = pages["report-regions.html"]
    summary = read_table(run.statistics("region_summary"))
    means = summary[summary["scan_group"] == "AD"].set_index(["map", "group"])["mean_density"]
    compared = read_table(run.statistics("group_comparisons")).query("comparison == 'AD/CN' and metric == 'share'")
    shares = compared.set_index(["map", "group"])["mean_first"]
    for group in means["lrpB000"].index:
        assert page.row(group)[1] == number(shares["lrpB000", group])
        assert number(means["lrpB000", group]) in page.row(group)
    table = read_table(run.figures / "region_explorer.tsv")
    rows = table[(table["scan_group"] == "AD") & (table["hemisphere"] == "bilateral")].set_index(["map", "group"])
    assert len(rows) == len(means) == 68 * 4
    assert (rows["mean_density"] == means.loc[rows.index]).all()
    np.testing.assert_allclose(rows["mean_share"], shares.loc[rows.index], rtol=1e-12)


def test_summary_names_the_regions_with_the_highest_density(run, page):
    summary = read_table(run.statistics("region_summary"))
    rows = summary[(summary["map"] == "lrpB000") & (summary["scan_group"] == "AD")]
    first = rows.sort_values("mean_density", ascending=False)["group"].head(5)
    assert set(first) == set(PLANTED)
    shares = read_table(run.statistics("group_comparisons")).query(
        "comparison == 'AD/CN' and map == 'lrpB000' and metric == 'share'"
    )
    parts = shares.set_index("group")["mean_first"]
    named = [f"{group.lower()} ({100 * parts[group]:.1f} %)" for group in first]
    assert f"densest in {', '.join(named[:2])}" in page.text


def test_correlation_on_the_page_is_that_of_the_table(run, page):
    table = read_table(run.statistics("volume_association"))
    chosen = (table["map"] == "lrpB000") & (table["volume"] == "hippocampus/tiv") & (table["unit"] == "participant")
    row = table[chosen & (table["estimator"] == "pearson")].iloc[0]
    assert row["fold_held"]
    assert (
        f"r = {fixed(row['r'])} within test folds (95 % interval {fixed(row['ci_low'])} to {fixed(row['ci_high'])}"
        in page.text
    )


def test_flow_counts_scans_and_says_what_was_lost(pages):
    page = pages["report-cohort.html"]
    assert "Found 26 scans of 18 participants" in page.text
    assert "Kept 25 scans of 17 participants" in page.text
    assert "1 scan outside the contrast" in page.text
    assert f"1 × all voxels are zero{HOSTILE}" in page.text


def test_pages_are_small_enough(run):
    assert run.report.stat().st_size <= 3e6
    assert sum(path.stat().st_size for path in chapter_files(run)) < 8e6


@pytest.fixture(scope="module")
def quiet(tmp_path_factory) -> RunLayout:
    """A demo run without mistakes, volumes and guided backpropagation."""
    plan = RunPlan(betas=(0.0,), people=5, mistakes=False, volumes=False, guided=False, preset="demo")
    layout = make_run(tmp_path_factory.mktemp("quiet") / "run", plan)
    build_report(layout)
    return layout


@pytest.fixture(scope="module")
def quiet_text(quiet) -> str:
    return whole_report(quiet).text


OPENED: list[Path] | None = None
"""Files opened since a test asked for them to be noted; None while nobody asks."""


def note_opened(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and OPENED is not None and isinstance(arguments[0], str | Path):
        OPENED.append(Path(arguments[0]))


sys.addaudithook(note_opened)


@pytest.mark.ci
def test_report_is_the_same_when_made_again_and_opens_only_files_it_names(quiet, monkeypatch):
    before = [path.read_bytes() for path in chapter_files(quiet)]
    monkeypatch.setattr(sys.modules[__name__], "OPENED", [])
    build_report(quiet)
    opened = {path for path in OPENED or [] if path.is_relative_to(quiet.root) and path.exists()}
    assert [path.read_bytes() for path in chapter_files(quiet)] == before
    named, written = report_inputs(quiet), written_files(quiet)
    assert len(set(named)) == len(named)
    receipts = set((quiet.logs / "receipts" / "tables").glob("*.json"))  # whether a table was changed since
    assert opened <= {*named, *written, *receipts, quiet.provenance}
    assert any("relevance" in path.parent.name for path in opened), "maps of single scans are read"
    assert {path.name for path in written} >= {"report.html", "report-maps.html", quiet.methods_text.name}


def test_methods_text_is_written_and_cites_only_what_it_lists(run):
    text = run.methods_text.read_text(encoding="utf-8")
    body, references = text.split("## References")
    cited = {int(found) for found in re.findall(r"\[(\d+)\]", body)}
    listed = {int(found) for found in re.findall(r"^(\d+)\. ", references, re.M)}
    assert cited == listed != set()
    assert "10.3389/fnagi.2019.00194" in references
    assert "deepbet" not in body, "no scan of this run was extracted with it"
    assert "Labels by A. Nobody" in text
    assert "ADNI investigators" in text


@pytest.mark.sample(2)
@pytest.mark.parametrize("stage", STAGES[:-1])
def test_a_run_that_stopped_makes_a_report_that_says_so(stage, tmp_path):
    layout = small_report(tmp_path, until=stage)
    text, whole = Page(layout.report).text, whole_report(layout).text
    missing = STAGES[STAGES.index(stage) + 1 :]
    assert "The run is not finished." in text
    for later in missing:
        assert later in text[text.index("There are no results of") :][:120]
    assert f"The next stage is {missing[0]}: repeat the command" in text if missing else True
    assert ("No network has been trained yet." in whole) == ("training" in missing)
    assert ("Not known: no network has been trained" in text) == ("training" in missing)


def test_a_run_that_only_has_its_configuration_makes_a_report(tmp_path):
    layout = make_run(tmp_path / "run", RunPlan(until="cohort", people=2))
    for path in (layout.root / "scans.tsv", layout.root / "splits.tsv", layout.provenance):
        path.unlink()
    assert "The input has not been read yet" in Page(build_report(layout)).text


@pytest.mark.ci
def test_without_mistakes_the_empty_outcomes_are_named(quiet_text):
    assert "There is no scan among FP and FN" in quiet_text
    assert "There are no scans in false positive and false negative" in quiet_text


def test_without_volumes_the_association_is_said_to_be_unknown(quiet_text):
    assert "Not known: there are no true positives with a hippocampal volume" in quiet_text
    assert "No correlation is known: no true-positive scan has a known" in quiet_text


def test_without_guided_backpropagation_it_is_not_mentioned(quiet_text):
    assert "uided backpropagation" not in quiet_text


@pytest.mark.sample(1)
@pytest.mark.parametrize("kept", [pytest.param("none", marks=pytest.mark.slow), "group"])
def test_maps_that_are_not_kept_are_said_to_be_missing(kept, tmp_path):
    layout = make_run(tmp_path / "run", RunPlan(betas=(0.0,), people=5, overrides={"attribution": {"keep_maps": kept}}))
    single = list(layout.root.glob("sub-*/**/*_relevance.nii.gz"))
    assert single  # of an earlier setting: never shown beside tables of this one
    assert not set(single) & set(report_inputs(layout))
    build_report(layout)
    page = whole_report(layout)
    drawn = [path.name for path in layout.figures.glob("*")]
    assert any(name.startswith("bohle2019-01_") for name in drawn) == (kept == "group")
    assert not any(name.startswith("bohle2019-07a") for name in drawn)
    assert any(name.startswith("bohle2019-07b") for name in drawn)
    assert f'keep_maps = "{kept}"' in page.text
    assert "Slices of their own maps cannot be shown" in page.text
    assert ("This run keeps no maps" in page.text) == (kept == "none")


def test_recovery_of_planted_regions_is_that_of_the_table(quiet, quiet_text):
    table = read_table(quiet.statistics("planted_recovery")).set_index(["map", "metric"])
    row = table.loc["lrpB000", "density"]
    assert row["hits"] == 5
    assert (
        f"by density, 5 of 5 planted regions are among the first 10 of 68 (a random ranking puts "
        f"{fixed(row['expected_hits'])} there)" in quiet_text
    )
    assert "To see how many it finds, repeat the run with shuffle_labels = true in [cohort]" in quiet_text
    assert "blindly" not in quiet_text


@pytest.mark.ci
def test_one_class_only(tmp_path):
    text = Page(small_report(tmp_path, classes=("AD",), mistakes=False, guided=False).report).text
    assert "One class is empty. No participant has the label CN." in text
    assert "no balanced accuracy over both classes" in text


@pytest.mark.ci
def test_one_participant_per_class_and_one_fold(tmp_path):
    layout = small_report(tmp_path, people=1, folds=1, mistakes=False, guided=False)
    assert "The contrast rests on 1 AD and 1 CN." in Page(layout.report).text
    patients = Page(page_with(layout, "patients")).text
    assert "no pair can be shown" in patients


def test_an_empty_recovery_table_still_marks_the_run_as_synthetic(tmp_path):
    layout = make_run(tmp_path / "run", RunPlan(until="registration", people=2))
    build_report(layout)
    assert "Synthetic people" not in whole_report(layout).text
    layout.statistics("planted_recovery").parent.mkdir(parents=True)
    layout.statistics("planted_recovery").write_text("map\tmetric\n")
    assert "Synthetic people." in Page(build_report(layout)).text


@pytest.mark.slow
def test_classes_may_be_called_by_numbers(tmp_path):
    layout = small_report(tmp_path, contrast=("1", "0"), guided=False)
    page, whole = Page(layout.report), whole_report(layout)
    assert re.search("(told|did not reliably tell) diagnosis 1 from diagnosis 0 in people they had not seen", page.text)
    assert "The contrast rests on 5 of diagnosis 1 and 5 of diagnosis 0." in page.text
    predictions = read_table(layout.group / "predictions.tsv")
    hits = int(((predictions["label"] == "1") & (predictions["predicted"] == "1")).sum())
    assert hits > 0
    confusion = next(str(picture["alt"]) for picture in whole.of("img") if "Confusion" in str(picture["alt"]))
    assert f"{hits} scans of 1 predicted 1" in confusion
    summary = read_table(layout.statistics("region_summary"), text_columns=["scan_group"])
    rows = summary[(summary["map"] == "lrpB000") & (summary["scan_group"] == "1")].set_index("group")
    assert number(rows.loc["Hippocampus", "mean_density"]) in Page(page_with(layout, "regions")).row("Hippocampus")
    assert {"1", "0"} <= {path.name.split("_")[0].removeprefix("group-") for path in layout.group.rglob("*.nii.gz")}


@pytest.mark.ci
def test_only_folds_of_this_split_that_did_not_fail_count_as_trained(tmp_path):
    layout = make_run(tmp_path / "run", RunPlan(until="training", people=3, folds=3))
    for name, index in (("left from an earlier split", 7), ("failed this time", 2)):
        files = layout.fold(index)
        files.folder.mkdir(exist_ok=True)
        files.history.write_text(layout.fold(1).history.read_text())
        content = json.loads(layout.fold(1).description.read_text())
        files.description.write_text(
            json.dumps({**content, "fold": index, "ended_by": name, "validation_balanced_accuracy": 0.4})
        )
    failures = read_table(layout.failures)
    failures.loc[len(failures)] = ["training", "fold-2", "TrainingError", "loss is not finite", "logs/failures/f.txt"]
    write_table(layout.failures, failures)
    assert sorted(read_run(layout).models) == sorted(read_run(layout).histories) == [0, 1]
    page, whole = Page(build_report(layout)), whole_report(layout)
    assert "left from an earlier split" not in whole.text
    assert "failed this time" not in whole.text
    assert "did not learn" not in whole.text
    assert "1 fold of 2 (fold 0) stopped at the largest number of epochs" in page.text


def test_shuffled_labels_are_said_before_anything_else(tmp_path):
    layout = small_report(tmp_path, until="registration", overrides={"cohort": {"shuffle_labels": True}})
    assert "Labels were shuffled." in Page(layout.report).text
    said_first(layout, "Labels were shuffled")


@pytest.mark.ci
def test_real_people_are_not_called_synthetic_for_the_settings_they_were_run_with(tmp_path):
    layout = make_run(tmp_path / "run", RunPlan(until="registration", preset="demo"))
    build_report(layout)
    assert "Synthetic people" not in whole_report(layout).text
    provenance = json.loads(layout.provenance.read_text())
    provenance["sources"]["synthetic"] = True
    layout.provenance.write_text(json.dumps(provenance))
    assert "Synthetic people." in Page(build_report(layout)).text
    said_first(layout, "Synthetic people")
    assert "ADNI investigators" not in whole_report(layout).text


def test_a_damaged_table_is_said_to_be_unreadable(tmp_path):
    layout = make_run(tmp_path / "run", RunPlan(until="training", people=3))
    (layout.group / "registration.tsv").write_bytes(b"\xff\xfe\x00broken")
    text = Page(build_report(layout)).text
    assert "A table cannot be used." in text
    assert html.escape("registration.tsv") in text


def test_settings_are_those_of_the_run(run, pages):
    assert f"seed {read_config(run.config).seed}" in pages["report.html"].text
    assert "bootstrap_samples = 100" in pages["report-provenance.html"].text


@pytest.mark.ci
def test_a_network_that_did_not_learn_is_pointed_out(tmp_path):
    layout = make_run(tmp_path / "run", RunPlan(until="training", people=3))
    build_report(layout)
    assert "did not learn" not in whole_report(layout).text
    description = layout.fold(1).description
    description.write_text(description.read_text().replace("0.97", "0.5"))
    text = Page(build_report(layout)).text
    assert "A network did not learn. In 1 fold of 2 (fold 1)" in text
    assert "the statistics will add measures and intervals" in text


def cautions_of(layout: RunLayout) -> dict[str, str]:
    """Text of every caution of a run, by title."""
    return {caution.title: caution.text for caution in find_cautions(read_run(layout))}


@pytest.mark.parametrize("start_value", ["logit", "probability"])
def test_a_negative_start_value_is_pointed_out(start_value, tmp_path):
    overrides = {"attribution": {"start_value": start_value}}
    layout = make_run(tmp_path / "run", RunPlan(until="attribution", betas=(0.0,), people=4, overrides=overrides))
    title = "Some maps have reversed signs."
    assert title not in cautions_of(layout)
    table = read_table(layout.group / "conservation.tsv").merge(
        read_table(layout.group / "predictions.tsv")[["scan_id", "outcome"]]
    )
    chosen = [table.index[table["outcome"] == outcome][0] for outcome in ("TP", "TN")]
    table.loc[chosen, "start_value"] = -1.0
    write_table(layout.group / "conservation.tsv", table.drop(columns="outcome"))
    text = cautions_of(layout)[title]
    assert f"In 2 scans of {len(table)}, 1 of them true positives, the explained output of AD is below 0" in text
    assert ('start_value = "probability"' in text) == (start_value == "logit")


@pytest.mark.parametrize("start", [None, (2, 1, 3)])
def test_a_brain_that_the_network_does_not_see_whole_is_pointed_out(start, tmp_path):
    layout = make_run(tmp_path / "run", RunPlan(until="training", people=3))
    brain = load_template(RESOLUTION).brain_mask
    seen = (brain.shape[0] - 4, brain.shape[1] - 12, brain.shape[2] - 9)
    for fold, shape in enumerate((brain.shape, seen)):
        description = layout.fold(fold).description
        box = start and {"start": start, "shape": [side - 3 for side in brain.shape]}
        content = {**json.loads(description.read_text()), "seen_shape": list(shape), "input": {"box": box}}
        description.write_text(json.dumps(content))
    first = start or (0, 0, 0)
    missed = sum(
        any(not first[axis] <= place[axis] < first[axis] + seen[axis] for axis in range(3))
        for place in np.argwhere(brain)
    )
    share = missed / np.count_nonzero(brain)
    assert share > UNSEEN_SHARE
    assert cautions_of(layout)["The network does not see the whole brain."].startswith(percent(share))


def test_a_network_that_sees_the_whole_brain_raises_no_doubt(tmp_path):
    layout = make_run(tmp_path / "run", RunPlan(until="training", people=3))
    description = layout.fold(0).description
    whole = list(load_template(RESOLUTION).brain_mask.shape)
    content = {**json.loads(description.read_text()), "seen_shape": whole, "input": {"box": None}}
    description.write_text(json.dumps(content))
    assert "The network does not see the whole brain." not in cautions_of(layout)


def test_what_the_atlas_lacks_is_said(tmp_path):
    layout = make_run(tmp_path / "run", RunPlan(until="cohort", people=2))
    assert "About the atlas." not in cautions_of(layout)
    provenance = json.loads(layout.provenance.read_text())
    provenance["sources"]["atlas"] |= {"note": "Drawn by hand.", "empty": ["Left vessel", "Right vessel"]}
    layout.provenance.write_text(json.dumps(provenance))
    said = cautions_of(layout)["About the atlas."]
    assert said == "Drawn by hand. Without a voxel at this resolution: Left vessel and Right vessel."


@pytest.mark.parametrize("folds", [1, 2])
def test_pooling_of_several_networks_is_said(folds, tmp_path):
    layout = make_run(tmp_path / "run", RunPlan(betas=(0.0,), people=4, folds=folds, guided=False, until="regions"))
    assert ("Several networks are pooled." in cautions_of(layout)) == (folds == 2)


def test_few_participants_counts_those_of_the_test_part_where_one_split_is_all_there_is(tmp_path):
    single = {"cohort": {"split": "single"}}
    layout = make_run(tmp_path / "run", RunPlan(until="training", people=6, folds=1, overrides=single))
    predictions = read_table(layout.group / "predictions.tsv")
    tested = {
        one for label in ("AD", "CN") for one in sorted(set(predictions.query("label == @label")["participant_id"]))[:2]
    }
    write_table(layout.group / "predictions.tsv", predictions[predictions["participant_id"].isin(tested)])
    assert cautions_of(layout)["Few participants."].startswith("The contrast rests on 2 AD and 2 CN of the test part.")


@pytest.mark.parametrize(
    ("lost", "level"), [(0.19, None), (0.3, "note"), (0.5, "note"), (0.6, "serious"), (1.0, "serious")]
)
def test_relevance_lost_on_the_way_is_serious_once_it_is_most_of_it(lost, level, tmp_path):
    layout = make_run(tmp_path / "run", RunPlan(until="attribution", betas=(0.0,), people=3))
    table = read_table(layout.group / "conservation.tsv")
    empty = {"map_sum": (1 - lost) * table["start_value"], "lost_no_contribution": lost * table["start_value"]}
    write_table(layout.group / "conservation.tsv", table.assign(**empty, absorbed_by_bias=0.0, stabiliser=0.0))
    levels = {caution.title: caution.level for caution in find_cautions(read_run(layout))}
    assert levels.get("Part of the relevance never reaches the image.") == level


@pytest.mark.parametrize(("flagged", "level"), [(13, "serious"), (14, "note"), (26, "note")])
def test_flags_of_most_scans_say_little_of_each_and_do_not_come_first(flagged, level, tmp_path):
    layout = make_run(tmp_path / "run", RunPlan(until="registration", visits=(1,) * 26, people=13))
    table = read_table(layout.group / "registration.tsv")
    reasons = ["correlation with the template 0.41 is below 0.45; part dark as a lesion (ml) 11 is above 10"] * flagged
    flags = [*reasons, *[None] * (len(table) - flagged)]
    write_table(layout.group / "registration.tsv", table.assign(flags=flags, decision=None))
    (found,) = (one for one in find_cautions(read_run(layout)) if one.section == "registration")
    assert found.level == level
    if level == "note":
        assert found.title == "Most registrations are flagged."
        assert f"{flagged} of 27 scans, most often for: correlation with the template ({flagged})." in found.text
    else:
        assert found.text.startswith("Doubtful: 13 of 27 scans")
    material = Material.of(layout)
    levels = {
        one.title: one.level
        for one in person_content(material, ParticipantRecords(material.run), "sub-AD000")["cautions"]
    }
    assert levels["Registration is flagged." if level == "note" else "Registration is doubtful."] == level


def test_empty_maps_have_no_leading_region(run):
    found = read_run(run)
    table = found.tables["relevance_bilateral"].assign(sum=0.0, density=0.0)
    compared = found.tables["group_comparisons"].assign(mean_first=float("nan"))
    empty = dataclasses.replace(
        found, tables={**found.tables, "relevance_bilateral": table, "group_comparisons": compared}
    )
    answer = next(one for one in summarise(empty).answers if one.question == "Where does it look?")
    assert answer.text == "Not known: LRP β=0 maps of AD hold no relevance."


def test_mirrored_scans_are_a_caution_of_their_own_and_no_misplaced_ones(tmp_path):
    layout = make_run(tmp_path / "run", RunPlan(until="registration", people=6))
    table = read_table(layout.group / "registration.tsv")
    sides, flags = ["mirrored"] * 2, ["looks mirrored left to right (asymmetry -0.31 against the others')"] * 2
    rest = len(table) - 2
    changed = table.assign(
        sides=[*sides, *["as the others"] * rest], flags=[*flags, *[None] * rest], decision=None,
        side_score=[-0.31, -0.4, *[0.3] * rest],
    )  # fmt: skip
    write_table(layout.group / "registration.tsv", changed)
    (found,) = (one for one in find_cautions(read_run(layout)) if one.section == "registration")
    assert found.title == "2 scans look mirrored left to right."
    assert found.level == "serious"
    assert str(table["participant_id"][1]) in found.text
