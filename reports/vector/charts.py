"""Charts in SVG: those of the pages of people and regions, and estimates with their intervals, one below the other."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from heatlas.reports.figures.gallery import BLUE, GREY, ORANGE, SKY, VERMILION
from heatlas.reports.vector.drawing import INK, LINE, SOFT, Axis, Drawing, fitted, tick_text
from heatlas.reports.words.numbers import fixed, is_missing, number

Floats = NDArray[np.float64]
MANY = 80  # points of one group above which they are drawn fainter


@dataclass(frozen=True)
class Look:
    """How a group is drawn: never by colour alone."""

    colour: str
    shape: str


OUTCOME_LOOKS: Mapping[str, Look] = {
    "TP": Look(VERMILION, "circle"), "FN": Look(ORANGE, "triangle"), "TN": Look(BLUE, "square"),
    "FP": Look(SKY, "diamond"),
}  # fmt: skip
POSITIVE, NEGATIVE, OTHER = Look(VERMILION, "circle"), Look(BLUE, "square"), Look(GREY, "diamond")


@dataclass(frozen=True)
class Group:
    """Values of one group, a participant each, with what is said of each under the pointer."""

    name: str
    values: Floats
    look: Look
    hints: Sequence[str] = ()


def draw_groups(groups: Sequence[Group], axis_title: str, title: str, at: float | None = None) -> Markup:
    """Distribution of a value by group: every participant as a point, quartiles as a box.

    `axis_title`: with its unit. `title`: for those who cannot see the chart. `at`: A value marked by a line, such as 0.
    """
    left, right, row, top = 96, 24, 34, 6
    drawing = Drawing(430, top + row * len(groups) + 40, title)
    known = [group.values[np.isfinite(group.values)] for group in groups]
    axis = Axis.around(np.concatenate(known).tolist() if known else [], left, drawing.width - right, at)
    drawing.value_axis(axis, top, top + row * len(groups), axis_title)
    if at is not None:
        drawing.line(axis(at), top, axis(at), top + row * len(groups), SOFT)
    for place, (group, values) in enumerate(zip(groups, known, strict=True)):
        middle = top + row * (place + 0.5)
        drawing.text(left - 8, middle - 1, fitted(group.name, left - 12), "end")
        drawing.text(left - 8, middle + 11, f"n = {number(len(values))}", "end", 10, SOFT)
        if len(values):
            _box(drawing, axis, values, middle, group.look.colour)
        hints = [hint for hint, value in zip(group.hints or [""] * len(group.values), group.values, strict=True)
                 if math.isfinite(value)]  # fmt: skip
        opacity = 0.45 if len(values) > MANY else 0.85
        for index, value in enumerate(values):
            drawing.mark(
                axis(value), middle + _spread(index), group.look.shape, group.look.colour, 3, opacity, hints[index]
            )
    return drawing.html


def _spread(index: int) -> float:
    """Vertical place of a point among others: spread evenly (golden ratio), the same every time."""
    return ((index * 0.6180339887) % 1 - 0.5) * 18


def _box(drawing: Drawing, axis: Axis, values: Floats, middle: float, colour: str) -> None:
    low, centre, high = np.quantile(values, (0.25, 0.5, 0.75))
    drawing.box(axis(low), middle - 12, axis(high) - axis(low), 24, colour, colour, 2, 0.16)
    drawing.line(axis(centre), middle - 12, axis(centre), middle + 12, INK, 2)


@dataclass(frozen=True)
class ScoreRow:
    """One region of a fingerprint, in standard deviations of the controls from their mean."""

    name: str
    band: tuple[float, ...] | None  # 5, 25, 75 and 95 % quantiles of the controls' own scores
    score: float  # of the person
    value: str  # the value behind the score, as text
    link: str | None = None


LIMIT = 6.0


def draw_fingerprint(rows: Sequence[ScoreRow], look: Look, controls: str, title: str, middle: str = "mean") -> Markup:
    """A person's regions against the distribution of controls; names above the points where the page is narrow.

    `look`: of the person's points. `controls`: who the controls are, with n. `middle`: what 0 is of them.
    """
    of_axis = f"standard deviations from the {middle} of {controls}"
    on_phone = textwrap.wrap(of_axis, 52)
    top, beside, above = 8, 22, 36
    wide = Drawing(640, top + beside * len(rows) + 44, title, "screen")
    narrow = Drawing(340, top + above * len(rows) + 26 + 18 * len(on_phone), title, "phone")
    for drawing, left, height in ((wide, 210, beside), (narrow, 8, above)):
        right, bottom = drawing.width - 66, top + height * len(rows)
        axis = _fingerprint_axis(rows, left, right)
        drawing.value_axis(axis, top, bottom, of_axis if drawing is wide else "")
        drawing.line(axis(0), top, axis(0), bottom, SOFT)
        for place, row in enumerate(rows):
            y = top + height * (place + 0.5) + (8 if drawing is narrow else 0)
            if drawing is wide:
                drawing.text(left - 8, y + 4, fitted(row.name, left - 14), "end", link=row.link)
            else:
                drawing.text(0, y - 12, fitted(row.name, drawing.width - 10), link=row.link)
            _score(drawing, axis, row, y, look)
            drawing.text(right + 10, y + 4, f"{fixed(round(row.score, 1) + 0.0, 1)}{_off(row.score, axis)}", size=11)
    for line, words in enumerate(on_phone):
        narrow.text(0, narrow.height - 18 * (len(on_phone) - line) + 8, words, fill=SOFT)
    return wide.html + narrow.html


def _fingerprint_axis(rows: Sequence[ScoreRow], left: float, right: float) -> Axis:
    ends = [0.0, *(row.score for row in rows), *(end for row in rows for end in row.band or ())]
    return Axis(max(min(ends) - 0.3, -LIMIT), min(max(max(ends) + 0.3, 2.0), LIMIT), left, right)


def _score(drawing: Drawing, axis: Axis, row: ScoreRow, y: float, look: Look) -> None:
    """A person's point over the controls' own."""
    if row.band is not None:
        low, first, third, high = row.band
        drawing.line(axis(low), y, axis(high), y, "#8a96a3", 1.5)
        drawing.box(axis(first), y - 5, axis(third) - axis(first), 10, "#c9d2dc", "#8a96a3", 2)
    beyond = row.score > axis.high or row.score < axis.low
    hint = f"{row.name}: {row.value}, {fixed(row.score)} standard deviations"
    drawing.mark(axis(row.score), y, "triangle" if beyond else look.shape, look.colour, 5, 1, hint)


def _off(score: float, axis: Axis) -> str:
    """An arrow to where a value lies that the axis does not reach."""
    return " ▸" if score > axis.high else " ◂" if score < axis.low else ""


def draw_scatter(groups: Sequence[tuple[Group, Floats]], x_title: str, y_title: str, title: str) -> Markup:
    """Values of groups against another quantity, one point per participant.

    `groups`: the array holds each participant's place on the horizontal axis. `x_title`, `y_title`: with units.
    """
    drawing = Drawing(430, 318, title)
    left, right, top, bottom = 70.0, 416.0, 44.0, 268.0
    pairs = [(x, y) for group, xs in groups for x, y in zip(xs, group.values, strict=True) if math.isfinite(x + y)]
    across = Axis.around([x for x, _ in pairs], left, right)
    up = Axis.around([y for _, y in pairs], bottom, top)
    drawing.value_axis(across, top, bottom, x_title)
    for tick in up.ticks():
        drawing.line(left, up(tick), right, up(tick))
        drawing.text(left - 6, up(tick) + 4, tick_text(tick), "end", 11, SOFT)
    place = left
    for group, xs in groups:
        known = [(x, y, hint) for x, y, hint in zip(xs, group.values, group.hints or [""] * len(xs), strict=True)
                 if math.isfinite(x + y)]  # fmt: skip
        for x, y, hint in known:
            drawing.mark(
                across(x), up(y), group.look.shape, group.look.colour, 3.6, 0.5 if len(known) > MANY else 0.85, hint
            )
        words = f"{group.name}, n = {number(len(known))}"
        drawing.mark(place + 5, 29, group.look.shape, group.look.colour, 4.5)
        drawing.text(place + 14, 33, words, size=11)
        place += 34 + 6.2 * len(words)
    drawing.text(4, 14, fitted(y_title, 420, 11), size=11, fill=SOFT)
    return drawing.html


@dataclass(frozen=True)
class VisitSeries:
    """One quantity over the visits of a person."""

    name: str  # with its unit
    values: Sequence[float]  # by visit; NaN where it is not known
    bounds: tuple[float, float] | None = None  # ends of the scale, where the quantity has natural ones
    mark: float | None = None  # A value with a meaning, such as 0.5 of a probability


def draw_visits(
    times: Sequence[float], names: Sequence[str], courses: Sequence[VisitSeries], time_title: str, title: str
) -> Markup:
    """Several quantities over the same visits, one small panel each.

    `times`: of the visits, rising. `names`: of the visits.
    """
    width, panel, left = 640, 74, 58
    drawing = Drawing(width, len(courses) * panel + 44, title)
    across = Axis.around(list(times), left, width - 20)
    for place, course in enumerate(courses):
        top = place * panel
        low, high = top + panel - 8, top + 24
        up = Axis(*course.bounds, low, high) if course.bounds else Axis.around(list(course.values), low, high)
        drawing.text(left, top + 14, course.name, size=12, bold=True)
        for tick in up.ticks(2):
            drawing.line(left, up(tick), width - 20, up(tick))
            drawing.text(left - 6, up(tick) + 4, tick_text(tick), "end", 10.5, SOFT)
        if course.mark is not None:
            drawing.polyline([(left, up(course.mark)), (width - 20, up(course.mark))], SOFT, 1, "4 3")
        known = [(t, name, v) for t, name, v in zip(times, names, course.values, strict=True) if math.isfinite(v)]
        if len(known) > 1:
            drawing.polyline([(across(time), up(value)) for time, _, value in known], VERMILION)
        for time, name, value in known:
            drawing.mark(across(time), up(value), "circle", VERMILION, 4.5, 1, f"{name}: {number(value)}")
    foot = len(courses) * panel
    drawing.line(left, foot, width - 20, foot, LINE)
    taken = -1e9
    for time, name in zip(times, names, strict=True):
        label = fitted(name, 90, 11)
        if across(time) - taken > 7 * len(label):
            drawing.text(across(time), foot + 15, label, "middle", 11, SOFT)
            taken = across(time)
    drawing.text((left + width - 20) / 2, foot + 33, time_title, "middle", 12, SOFT)
    return drawing.html


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
    points: tuple[float, ...] = ()  # what the estimate is the mean of, such as one value a seed


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
    bands = [end for row in rows for end in (row.by_chance, -row.by_chance)]
    ends = [end for row in rows for end in (row.estimate, row.low, row.high, *row.points)]
    values = [value for value in (*ends, *bands) if not is_missing(value)]
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
    for point in row.points:
        drawing.mark(axis(point), middle, "circle", ORANGE, 3)


def _known(row: IntervalRow) -> bool:
    return not (is_missing(row.low) or is_missing(row.high))


def _words(row: IntervalRow) -> str:
    """An estimate and its interval in figures."""
    return _short(row.estimate) + (f" [{_short(row.low)}, {_short(row.high)}]" if _known(row) else "")


def _short(value: float) -> str:
    return fixed(value) if 0.1 <= abs(value) < 1000 or value == 0 else number(value, 2)
