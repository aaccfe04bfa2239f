"""What the pages say of scans that are unlike those that the networks learned from."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from heatlas.pipeline.registration.quality.likeness import LIKENESS
from heatlas.reports.frame.pages import Frame, render
from heatlas.reports.people.likeness import WORDS, draw_likeness, likeness_chart, why_unlike
from heatlas.reports.questions.question import Answer


def _run(*verdicts: tuple[str, str, float, str]) -> Any:
    rows = [
        {"participant_id": "sub-1", "session_id": None, "scan_id": scan, "measure": measure, "value": 1.0,
         "median": 0.5, "distance": distance, "as_far": 0, "controls": 12, "place": 1 / 13, "verdict": verdict}
        for scan, measure, distance, verdict in verdicts
    ]  # fmt: skip
    tables = {"likeness": pd.DataFrame(rows)} if rows else {}
    return SimpleNamespace(has=lambda name: name in tables, tables=tables)


MIRRORED = _run(("I1", "scale", 0.5, "alike"), ("I1", "side", 7.9, "unlike"))
ALIKE = _run(("I1", "scale", 0.5, "alike"), ("I1", "side", 1.0, "alike"))


def _page(withheld: str, picture: Any = None) -> str:
    return render(
        "scan_report.html.j2", Frame("One scan", [], of_a_run=False), answer=Answer("It is 0.9.", "0.9", "probability"),
        evidence=[], picture=picture, withheld=withheld, chart=likeness_chart(ALIKE.tables["likeness"]),
        caption="", networks="4 networks", positive="AD", checked=2,
    )  # fmt: skip


def test_every_measure_has_its_words() -> None:
    names = {measure.column for measure in LIKENESS}

    assert set(WORDS.all["may_be"]) == set(WORDS.all["short"]) == names


def test_a_mirrored_scan_is_said_to_be_so_with_its_distance() -> None:
    assert why_unlike(MIRRORED) == (
        "This scan is unlike those that the networks learned from. Left and right: left and right may be exchanged "
        "(7.9 robust SD from 12 controls). Do not rely on what the networks say of it."
    )
    assert why_unlike(MIRRORED, ["another"]) == ""
    assert why_unlike(ALIKE) == why_unlike(_run()) == ""


def test_of_several_scans_those_that_are_unlike_are_counted_and_listed() -> None:
    run = _run(("I1", "side", 7.0, "unlike"), ("I2", "side", 1.0, "alike"), ("I2", "scale", 1.0, "alike"))

    assert why_unlike(run).startswith("1 of 2 scans are unlike those that the networks learned from, by left and right")
    table = draw_likeness(SimpleNamespace(run=run))["table"]
    assert [row[1].text for row in table.rows] == ["I1"]


@pytest.mark.parametrize(("withheld", "folded"), [(why_unlike(MIRRORED), True), ("", False)])
def test_the_answer_is_folded_under_the_reason_only_where_the_scan_is_unlike(withheld: str, folded: bool) -> None:
    page = _page(withheld)

    before = page[: page.index("It is 0.9.")]
    assert ('role="alert"' in before, '<details class="withheld">' in before) == (folded, folded)
    assert "Research only; no diagnosis." in before
    assert "http" not in page.split("<main")[1].split("<footer")[0].replace("http://www.w3.org/2000/svg", "")
