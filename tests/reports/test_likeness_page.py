"""What the pages say of scans that are unlike those that the networks learned from."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pandas as pd

from heatlas.pipeline.registration.quality.likeness import LIKENESS
from heatlas.reports.frame.pages import Frame, render
from heatlas.reports.people.likeness import WORDS, draw_likeness, unlike_caution, why_unlike
from heatlas.reports.read.people import unlike_scans


def _run(*verdicts: tuple[str, str, float, str], without_labels: bool = True) -> Any:
    rows = [
        {"participant_id": "sub-1", "session_id": None, "scan_id": scan, "measure": measure, "value": 1.0,
         "median": 0.5, "distance": distance, "as_far": 0, "controls": 12, "place": 1 / 13, "verdict": verdict}
        for scan, measure, distance, verdict in verdicts
    ]  # fmt: skip
    tables = {"likeness": pd.DataFrame(rows)} if rows else {}
    return SimpleNamespace(has=lambda name: name in tables, tables=tables, without_labels=without_labels)


MIRRORED = _run(("I1", "scale", 0.5, "alike"), ("I1", "side", 7.9, "unlike"))
ALIKE = _run(("I1", "scale", 0.5, "alike"), ("I1", "side", 1.0, "alike"))


def test_every_measure_has_its_words() -> None:
    names = {measure.column for measure in LIKENESS}

    assert set(WORDS.all["may_be"]) == set(WORDS.all["short"]) == names


def test_a_mirrored_scan_is_said_to_be_so_with_its_limit() -> None:
    assert why_unlike(MIRRORED) == (
        "This scan is unlike those that the networks learned from. Left and right: left and right may be exchanged "
        "(1, limit 0.0500). Do not rely on what the networks say of it."
    )
    assert why_unlike(MIRRORED, ["another"]) == ""
    assert (unlike_scans(MIRRORED), unlike_scans(ALIKE)) == ({"I1"}, set())
    (caution,) = unlike_caution(MIRRORED, "I1")
    assert (caution.level, f"{caution.title} {caution.text}") == ("serious", why_unlike(MIRRORED))
    assert unlike_caution(ALIKE, "I1") == []
    assert why_unlike(ALIKE) == why_unlike(_run()) == ""


def test_of_several_scans_those_that_are_unlike_are_counted_and_listed() -> None:
    rows = [("I1", "scale", 0.5, "alike"), ("I1", "side", 7.0, "unlike"), ("I2", "side", 1.0, "alike")]
    run, labelled = _run(*rows), _run(*rows, without_labels=False)

    assert why_unlike(run).startswith("1 of 2 scans are unlike those that the networks learned from, by left and right")
    table = draw_likeness(SimpleNamespace(run=run))["table"]
    assert [row[1].text for row in table.rows] == ["I1"]  # what is unlike of it, and no more
    assert "Results of the group include them" not in why_unlike(run)
    assert why_unlike(labelled) == (
        f'{why_unlike(run)} Results of the group include them; apply again with --include "scan_id not in [...]" to '
        "leave them out."
    )
    assert why_unlike(labelled, ["I1"]) == why_unlike(run, ["I1"])  # on the page of a person


def test_with_labels_the_index_says_it_above_results_of_the_group_that_stay_open() -> None:
    summary = SimpleNamespace(source="", question="Asked", found="", trust="", answers=[])
    said = {"title": "T", "summary": summary, "cautions": [], "sections": [], "shared": [], "withheld": "Two. Look."}
    frame = Frame("T", [])
    index = {applied: render("report.html.j2", frame, applied=applied, **said) for applied in (True, False)}

    for page in (*index.values(), render("chapter.html.j2", frame, **said)):
        assert '<p class="unlike" role="alert"><strong>Two.</strong> Look.</p>' in page
    assert [page.count('<details class="withheld">') for page in index.values()] == [1, 0]
