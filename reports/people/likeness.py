"""Whether scans are like those that the networks of another run learned from.

A scan that is unlike is said to be so before anything else, and the answer of the networks is folded
(`pipeline.registration.quality.likeness` holds the measures and the rule).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from markupsafe import Markup

from heatlas.pipeline.registration.quality.likeness import AS_FAR, FARTHEST, LIKENESS, LIMITED
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.pages import in_two
from heatlas.reports.frame.tables import page_table, worded_columns
from heatlas.reports.questions.question import ANY_TASK, Caution, Question
from heatlas.reports.read.people import UNLIKE, likeness_of
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.vector.charts import NEGATIVE, POSITIVE, ScoreRow, draw_fingerprint
from heatlas.reports.words.numbers import fixed, listing, mid_sentence, number
from heatlas.reports.words.sentences import Words

WORDS = Words(__file__)
_MEASURES = {measure.column: measure for measure in LIKENESS}


def why_unlike(run: RunRecord, scans: Sequence[str] | None = None) -> str:
    """Which scans are unlike those that the networks learned from, and why, in plain words; empty where none is."""
    rows = likeness_of(run, scans)
    unlike = rows[rows["verdict"] == UNLIKE]
    if unlike.empty:
        return ""
    people, every = unlike["scan_id"].nunique(), rows["scan_id"].nunique()
    first = unlike.drop_duplicates("measure").sort_values("distance", ascending=False, kind="stable")
    reasons = [_reason(row) for row in first.to_dict("records")]
    if every == 1:
        return WORDS.say("one", reasons=". ".join(reasons))
    said = WORDS.say("several", scans=people, every=every, names=_names(first["measure"]))
    return said if run.without_labels or scans is not None else f"{said} {WORDS.say('counted')}"


def _names(measures: Iterable[Any]) -> str:
    return listing([mid_sentence(WORDS.all["short"][str(name)]) for name in measures])


def unlike_caution(run: RunRecord, scan: str) -> list[Caution]:
    """The same of one scan, for a page that shows its map."""
    first, rest = in_two(why_unlike(run, [scan]))
    return [Caution("serious", first, rest)] if first else []


def _reason(row: Mapping[Any, Any]) -> str:
    """What is unlike: what the scan may be, and how far it lies from the controls."""
    name = str(row["measure"])
    far = f"{fixed(row['distance'], 1)} robust SD from {number(row['controls'])} controls"
    if name in LIMITED:
        far = f"{number(row['value'])}, limit {number(LIMITED[name])}"
    return f"{WORDS.all['short'][name]}: {WORDS.all['may_be'][name]} ({far})"


def _beside(row: Mapping[Any, Any]) -> str:
    name = str(row["measure"])
    return f"limit {number(LIMITED[name])}" if name in LIMITED else f"controls {number(row['median'])}"


def likeness_chart(rows: pd.DataFrame) -> Markup | None:
    """Distance of one scan from the controls in every measure, the farthest first."""
    if rows.empty:
        return None
    ordered = rows.sort_values("distance", ascending=False, kind="stable")
    shown = [
        ScoreRow(
            WORDS.all["short"][str(row["measure"])], None, float(row["distance"]),
            f"{number(row['value'])}, {_beside(row)}",
        )
        for row in ordered.to_dict("records")
    ]  # fmt: skip
    look = POSITIVE if (rows["verdict"] == UNLIKE).any() else NEGATIVE
    alt = f"Distance from training controls: {listing([f'{row.name} {fixed(row.score, 1)}' for row in shown])}."
    return draw_fingerprint(shown, look, "training controls; right is worse", alt, "median")


def _likeness_table(rows: pd.DataFrame) -> Any:
    named = rows.assign(
        measure=rows["measure"].map(lambda name: _MEASURES[str(name)].words),
        place=[
            f"{row['as_far']:.0f} of {row['controls']:.0f}" if row["controls"] else _beside(row)
            for row in rows.to_dict("records")
        ],
    )
    return page_table(
        named, worded_columns(WORDS, "table"), WORDS.say("table_caption", FARTHEST=FARTHEST, AS_FAR=AS_FAR)
    )


def draw_likeness(material: Material) -> Mapping[str, Any]:
    rows = likeness_of(material.run)
    one = len(set(rows["scan_id"])) == 1
    unlike = rows[rows["verdict"] == UNLIKE]
    shown = rows if one else unlike
    if one and len(unlike):  # the reasons stand at the head of the page
        said = WORDS.say("no", names=_names(unlike["measure"]))
    else:
        said = why_unlike(material.run) or WORDS.say("alike", scans=int(rows["scan_id"].nunique()))
    return {
        "text": said,
        "chart": likeness_chart(rows) if one else None,
        "caption": WORDS.say("chart_caption"),
        "table": _likeness_table(shown) if len(shown) else None,
    }


LIKENESS_QUESTION = Question.read(
    WORDS, "likeness", draw=draw_likeness, tasks=ANY_TASK, applies=lambda run: run.has("likeness")
)
