"""Charts of the pages of people and regions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from heatlas.reports.figures.gallery import BLUE, GREY, ORANGE, SKY, VERMILION
from heatlas.reports.vector.drawing import INK, LINE, SOFT, Axis, Drawing, fitted, tick_text
from heatlas.reports.words.numbers import fixed, number

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


def draw_fingerprint(rows: Sequence[ScoreRow], look: Look, controls: str, title: str) -> Markup:
    """A person's regions against the distribution of controls.

    `look`: of the person's points. `controls`: who the controls are, with n.
    """
    left, right, height, top = 210, 66, 22, 8
    drawing = Drawing(640, top + height * len(rows) + 44, title)
    ends = [0.0, *(row.score for row in rows), *(end for row in rows for end in row.band or ())]
    lowest, highest = min(ends), max(ends)
    axis = Axis(max(lowest - 0.3, -LIMIT), min(max(highest + 0.3, 2.0), LIMIT), left, drawing.width - right)
    bottom = top + height * len(rows)
    drawing.value_axis(axis, top, bottom, f"standard deviations from the mean of {controls}")
    drawing.line(axis(0), top, axis(0), bottom, SOFT)
    for place, row in enumerate(rows):
        middle = top + height * (place + 0.5)
        drawing.text(left - 8, middle + 4, fitted(row.name, left - 14), "end", link=row.link)
        if row.band is not None:
            low, first, third, high = row.band
            drawing.line(axis(low), middle, axis(high), middle, "#8a96a3", 1.5)
            drawing.box(axis(first), middle - 5, axis(third) - axis(first), 10, "#c9d2dc", "#8a96a3", 2)
        beyond = row.score > axis.high or row.score < axis.low
        hint = f"{row.name}: {row.value}, {fixed(row.score)} standard deviations"
        drawing.mark(axis(row.score), middle, "triangle" if beyond else look.shape, look.colour, 5, 1, hint)
        drawing.text(drawing.width - right + 10, middle + 4, f"{fixed(row.score, 1)}{_off(row.score, axis)}", size=11)
    return drawing.html


def _off(score: float, axis: Axis) -> str:
    """An arrow to where a value lies that the axis does not reach."""
    return " ▸" if score > axis.high else " ◂" if score < axis.low else ""


def draw_scatter(groups: Sequence[tuple[Group, Floats]], x_title: str, y_title: str, title: str) -> Markup:
    """Values of groups against another quantity, one point per participant.

    `groups`: the array holds each participant's place on the horizontal axis. `x_title`, `y_title`: with units.
    """
    drawing = Drawing(430, 300, title)
    left, right, top, bottom = 70.0, 416.0, 26.0, 250.0
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
        drawing.mark(place + 5, 11, group.look.shape, group.look.colour, 4.5)
        drawing.text(place + 14, 15, words, size=11)
        place += 34 + 6.2 * len(words)
    drawing.text(4, 15, fitted(y_title, 66, 11), size=11, fill=SOFT)
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
