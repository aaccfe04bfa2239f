"""Estimates with their intervals, one below the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from heatlas.reports.figures.gallery import BLUE
from heatlas.reports.vector.drawing import SOFT, Axis, Drawing, fitted
from heatlas.reports.words.numbers import fixed, is_missing, number


@dataclass(frozen=True)
class IntervalRow:
    """One estimate; `low` and `high` are NaN where there is no interval."""

    name: str
    remark: str  # beside the name, such as the n
    estimate: float
    low: float
    high: float
    link: str | None = None
    by_chance: float = math.nan  # size that chance alone seldom exceeds, shown as a grey band around 0


_LETTER, _SMALL = 6.6, 6.4  # width of a letter, and of one of the smaller letters beside names and estimates
_PAGE, _SCALE, _LEAST = 916, 420, 150
"""Width of a section of the page, of the scale where there is room for it, and where names are long."""
BAND = "#e3e8ee"
"""Colour of the band of chance."""


def draw_intervals(rows: Sequence[IntervalRow], axis_title: str, title: str, at: float | None) -> Markup:
    """A forest of estimates.

    `axis_title`: with its unit. `title`: for those who cannot see it. `at`: where there is no effect.
    """
    return _in_lines(rows, axis_title, title, at) + _stacked(rows, axis_title, title, at)


def _in_lines(rows: Sequence[IntervalRow], axis_title: str, title: str, at: float | None) -> Markup:
    """Names to the left of the estimates."""
    beside = round(_SMALL * max(len(row.remark) for row in rows)) + 16
    right, height, top = round(_SMALL * max(len(_words(row)) for row in rows)) + 16, 24, 8
    room = _PAGE - beside - 8 - right
    names = min(room - _LEAST, round(_LETTER * max(len(row.name) for row in rows)))
    left = names + beside + 8
    drawing = Drawing(left + min(_SCALE, room - names) + right, top + height * len(rows) + 44, title, "screen")
    axis = _axis(drawing, rows, left, drawing.width - right, top, top + height * len(rows), axis_title, at)
    for place, row in enumerate(rows):
        middle = top + height * (place + 0.5)
        drawing.text(left - beside, middle + 4, fitted(row.name, left - beside), "end", link=row.link)
        drawing.text(left - 8, middle + 4, row.remark, "end", 10.5, SOFT)
        _mark(drawing, axis, row, middle)
        drawing.text(drawing.width - right + 8, middle + 4, _words(row), size=10.5)
    return drawing.html


def _stacked(rows: Sequence[IntervalRow], axis_title: str, title: str, at: float | None) -> Markup:
    """Names above the estimates, as narrow as a phone."""
    width, words, height, top = 360, 118, 40, 6
    drawing = Drawing(width, top + height * len(rows) + 44, title, "phone")
    axis = _axis(drawing, rows, 10, width - words, top, top + height * len(rows), axis_title, at)
    for place, row in enumerate(rows):
        middle = top + height * place + 28
        drawing.text(0, middle - 12, fitted(row.name, width - 60), link=row.link)
        drawing.text(width, middle - 12, row.remark, "end", 10.5, SOFT)
        _mark(drawing, axis, row, middle)
        drawing.text(width, middle + 4, _words(row), "end", 10.5)
    return drawing.html


def _axis(
    drawing: Drawing, rows: Sequence[IntervalRow], left: float, right: float, top: float, bottom: float, title: str,
    at: float | None,
) -> Axis:  # fmt: skip
    """Scale that holds all rows, with its ticks, title, and the line of no effect."""
    ends = [end for row in rows for end in (row.estimate, row.low, row.high, row.by_chance, -row.by_chance)]
    values = [value for value in ends if not is_missing(value)]
    axis = Axis.around(values, left, right, at)
    drawing.value_axis(axis, top, bottom, title)
    if at is not None:
        drawing.line(axis(at), top, axis(at), bottom, SOFT)
    return axis


def _mark(drawing: Drawing, axis: Axis, row: IntervalRow, middle: float) -> None:
    """Draw a row's estimate with its interval, over the band of chance."""
    if math.isfinite(row.by_chance):
        drawing.box(axis(-row.by_chance), middle - 9, axis(row.by_chance) - axis(-row.by_chance), 18, BAND, BAND)
    if _known(row) and math.isfinite(row.low + row.high):
        drawing.line(axis(row.low), middle, axis(row.high), middle, BLUE, 2)
    drawing.mark(axis(row.estimate), middle, "square", BLUE, 4.5, 1, f"{row.name}: {number(row.estimate)}")


def _known(row: IntervalRow) -> bool:
    return not (is_missing(row.low) or is_missing(row.high))


def _words(row: IntervalRow) -> str:
    """An estimate and its interval in figures."""
    return _short(row.estimate) + (f" [{_short(row.low)}, {_short(row.high)}]" if _known(row) else "")


def _short(value: float) -> str:
    return fixed(value) if 0.1 <= abs(value) < 1000 or value == 0 else number(value, 2)
