"""Charts of intervals beside the tables of analyses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from markupsafe import Markup

from heatlas.pipeline.run.columns import Form, column_of
from heatlas.reports.vector.intervals import IntervalRow, draw_intervals
from heatlas.reports.words.numbers import fixed, is_missing, listing, number, shortened
from heatlas.reports.words.wording import worded

DRAWN = 20  # rows of a chart


@dataclass(frozen=True)
class IntervalChart:
    """A chart of estimates with their intervals."""

    label: Sequence[str]  # columns that name a row
    estimate: str
    low: str
    high: str
    axis: str  # with its unit
    at: float | None = 0.0  # where there is no effect
    n: Sequence[str] = ("n_participants",)  # columns with the participants behind a row, group by group


def chart_of(
    rows: pd.DataFrame, spec: IntervalChart | None, caption: str, confidence: float
) -> tuple[Markup | None, str]:
    """Chart of the first `DRAWN` rows that have an estimate, and its caption; None where there is nothing to draw.

    Values that all rows share are in the caption, not in every name; `confidence` is that of the intervals.
    """
    if spec is None or not {spec.estimate, spec.low, spec.high} <= set(rows.columns):
        return None, ""
    known = rows[rows[spec.estimate].notna()].head(DRAWN)
    if known.empty:
        return None, ""
    drawn, (label, same) = [], _told_apart(known, spec)
    for row in known.to_dict("records"):
        parts = [_said(name, row[name]) for name in label if name in row and not is_missing(row[name])]
        sizes = [number(row[name]) for name in spec.n if not is_missing(row.get(name))]
        n = f"n = {' and '.join(sizes)}" if sizes else ""
        drawn.append(
            IntervalRow(" · ".join(parts), n, row[spec.estimate], row[spec.low], row[spec.high], row.get("group_page"))
        )
    alt = listing([f"{row.name} {fixed(row.estimate)}" for row in drawn[:6]])
    there = int(rows[spec.estimate].notna().sum())
    left = f" The first {number(DRAWN)} of {number(there)}." if there > DRAWN else ""
    lines = f" Lines are {100 * confidence:g} % intervals"
    upright = "." if spec.at is None else f"; the upright one marks {number(spec.at)}."
    return draw_intervals(drawn, spec.axis, f"{spec.axis}: {alt}.", spec.at), f"{caption}{same}{lines}{upright}{left}"


def _told_apart(rows: pd.DataFrame, spec: IntervalChart) -> tuple[list[str], str]:
    """Columns in which the rows differ, and a sentence with the values that they share."""
    there = [name for name in spec.label if name in rows]
    shared = [name for name in there if len(rows) > 1 and (rows[name] == rows[name].iloc[0]).all()]
    said = [_said(name, rows[name].iloc[0]) for name in shared]
    return [name for name in there if name not in shared], f" All rows: {', '.join(said)}." if said else ""


def _said(name: str, value: object) -> str:
    return shortened(worded(value) if column_of(name, "").form is Form.CODE else value)
