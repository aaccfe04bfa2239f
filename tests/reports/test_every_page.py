"""Every page of a report: long names, and no folder of the machine."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pandas as pd
import pytest
import test_report_pages
from report_pages import all_pages, chapter_files, page_with
from run_factory import RunPlan, make_run

from heatlas.pipeline.run.plain_text import without_folders
from heatlas.pipeline.run.tables import read_table
from heatlas.reports.figures import gallery
from heatlas.reports.frame.tables import LONGEST_CELL, Column, page_table
from heatlas.reports.page.build import write_report
from heatlas.reports.page.parts import PARTS
from heatlas.reports.words.numbers import LONGEST_NAME, LONGEST_TEXT, mid_sentence, shortened
from heatlas.reports.words.wording import (
    contrast_in_words,
    covariates_in_words,
    level_in_words,
    levels_in_words,
    variable_in_words,
    without_codes,
)

# Names of thousands of characters: cut where they are shown, kept where they are stored, and read once.

EVERY_PAGE = True
LONG = "Q" * 100_000
"""A function that looks at each letter once for every letter before it needs minutes for this."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """End what runs away; nothing is timed: a linear function needs milliseconds."""

    def stop(*_):
        raise TimeoutError("not linear in the length of a name")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


WORDINGS = {
    "level": lambda name: level_in_words("site", name),
    "levels": lambda name: levels_in_words("site", f"A, {name}"),
    "variable": variable_in_words,
    "contrast": lambda name: contrast_in_words("site", f"{name} - the other"),
    "factor": lambda name: without_codes(f"C(site)[T.{name}]"),
    "region": mid_sentence,
    "any": shortened,
}


@pytest.mark.parametrize("wording", WORDINGS)
def test_a_long_name_is_cut_to_a_line(wording):
    with at_most(10):
        said = WORDINGS[wording](LONG)
    assert said.count("Q") + said.count("q") == LONGEST_NAME - 1
    assert "…" in said


@pytest.mark.parametrize(
    "text",
    [
        LONG,
        f"{LONG}[T.",
        f"site[T.{LONG}",
        "site[T." * 20_000,
        f"site[T.{LONG}]: too few",
        "C(" * 50_000,
        "a " * 50_000,
    ],
    ids=["word", "no level", "no end", "many begun", "whole", "brackets", "words"],
)
@pytest.mark.parametrize("function", [without_codes, covariates_in_words])
def test_wording_reads_every_letter_once(function, text):
    with at_most(10):
        assert function(text)


def test_a_cell_is_cut_and_has_the_rest_under_the_pointer():
    frame = pd.DataFrame({"site": [LONG, "short"]})
    (long,), (short,) = page_table(frame, (Column("site", "Site"),), "Sites.").rows
    assert (len(long.text), len(long.whole)) == (LONGEST_CELL, LONGEST_TEXT)
    assert (short.text, short.whole) == ("short", "")


@pytest.mark.ci
def test_pages_of_all_regions_are_as_sound_as_those_of_a_few(tmp_path, monkeypatch):
    monkeypatch.setattr(gallery, "rendered", lambda figure, form, dpi=0, reduce=False: b"")
    layout = make_run(tmp_path / "run", test_report_pages.PLAN)
    assert write_report(layout).faults == ()
    assert all(page.stat().st_size for page in layout.root.glob("pages/*.html"))
    test_report_pages.test_no_page_has_an_id_twice_or_a_link_that_leads_nowhere(layout)
    test_report_pages.test_text_of_the_input_is_text_on_every_page(layout)
    test_report_pages.test_pages_ask_for_nothing(layout)


@pytest.mark.ci
def test_a_report_shows_no_more_than_a_sentence_of_a_site_and_the_table_keeps_it(tmp_path, monkeypatch):
    monkeypatch.setattr(gallery, "rendered", lambda figure, form, dpi=0, reduce=False: b"")
    monkeypatch.delitem(PARTS, "regions")
    site = "Q" * 5000
    layout = make_run(tmp_path / "run", RunPlan(people=6, betas=(0.0,), guided=False, site=site))
    made = write_report(layout)
    assert made.faults == ()
    assert site in set(read_table(layout.root / "scans.tsv")["site"])
    for page in (*chapter_files(layout), *layout.root.glob("sub-*.html")):
        longest = max(map(len, re.findall("Q+", page.read_text(encoding="utf-8"))), default=0)
        assert longest <= LONGEST_TEXT
    assert "QQQ…" in layout.report.read_text(encoding="utf-8")
    assert "QQQ…" in page_with(layout, "subgroups").read_text(encoding="utf-8")


# No page of a report names a folder of the machine that made it, whatever the tables and settings hold.

FOLDER = "/data/secret-trial/people"


@pytest.mark.ci
def test_pages_name_files_and_no_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(gallery, "rendered", lambda figure, form, dpi=0, reduce=False: b"")
    monkeypatch.delitem(PARTS, "regions")
    layout = make_run(tmp_path / "run", RunPlan(people=4, betas=(0.0,), guided=False, text=f" {FOLDER}/scan.nii"))
    provenance = json.loads(layout.provenance.read_text(encoding="utf-8"))
    provenance["command"] = ["heatlas", "run", FOLDER, f"--config={FOLDER}/my.toml"]
    provenance["sources"]["atlas"]["note"] = f"read from {FOLDER}/atlas.nii."
    layout.provenance.write_text(json.dumps(provenance), encoding="utf-8")
    with layout.config.open("a", encoding="utf-8") as config:
        config.write(f"# labels of {FOLDER}/labels.csv\n")
    layout.group_map("AD", "lrpB000").write_bytes(b"no image")
    layout.statistics("calibration").write_bytes(b"")
    made = write_report(layout)
    assert len(made.faults) == 2
    for page in (
        *chapter_files(layout),
        layout.root / "report.json",
        *layout.root.glob("sub-*.html"),
        layout.methods_text,
    ):
        text = page.read_text(encoding="utf-8")
        assert str(layout.root) not in text, page.name
        assert str(tmp_path) not in text, page.name
    pages = all_pages(layout)
    for said in (
        "run …/people --config=…/my.toml",
        "read from …/atlas.nii",
        "labels of …/labels.csv",
        "image is 4D …/",
    ):
        assert said in pages, said


@pytest.mark.parametrize(
    "text", ["AD/CN", "n/a", "https://a.org/b", "1 / 2", "../../adni", "group/maps/x.nii.gz", "~/a/b"]
)
def test_what_is_no_absolute_path_stays(text):
    assert without_folders(text) == text


def test_a_long_text_is_read_once():
    assert without_folders("/a" * 50_000 + " " + "a/" * 50_000).startswith("…/a ")
