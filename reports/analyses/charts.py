"""Charts of intervals beside the tables of analyses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from markupsafe import Markup

from reports.analyses.columns import CODED, worded
from reports.numbers import fixed, is_missing, listing, number
from reports.vector.intervals import IntervalRow, draw_intervals

DRAWN = 20
"""Rows of a chart."""


@dataclass(frozen=True)
class Intervals:
    """A chart of estimates with their intervals.

    Parameters
    ----------
    label : sequence of str
        Columns that name a row.
    estimate, low, high : str
    axis : str
        With its unit.
    at : float, optional
        Where there is no effect.
    n : sequence of str
        Columns with the participants behind a row, group by group.
    """

    label: Sequence[str]
    estimate: str
    low: str
    high: str
    axis: str
    at: float | None = 0.0
    n: Sequence[str] = ("n_participants",)


def chart_of(rows: pd.DataFrame, spec: Intervals | None, caption: str) -> tuple[Markup | None, str]:
    """Chart of the first `DRAWN` rows that have an estimate, and its caption; None where there is nothing to draw."""
    if spec is None or not {spec.estimate, spec.low, spec.high} <= set(rows.columns):
        return None, ""
    known = rows[rows[spec.estimate].notna()].head(DRAWN)
    if known.empty:
        return None, ""
    drawn = []
    for row in known.to_dict("records"):
        parts = [
            worded(row[name]) if name in CODED else str(row[name])
            for name in spec.label
            if name in row and not is_missing(row[name])
        ]
        sizes = [number(row[name]) for name in spec.n if not is_missing(row.get(name))]
        n = f"n = {' and '.join(sizes)}" if sizes else ""
        drawn.append(IntervalRow(" · ".join(parts), n, row[spec.estimate], row[spec.low], row[spec.high],
                                 row.get("group_page")))  # fmt: skip
    alt = listing([f"{row.name} {fixed(row.estimate)}" for row in drawn[:6]])
    there = int(rows[spec.estimate].notna().sum())
    left = f" The first {number(DRAWN)} of {number(there)}." if there > DRAWN else ""
    return draw_intervals(drawn, spec.axis, f"{spec.axis}: {alt}.", spec.at), f"{caption} Lines are intervals.{left}"
