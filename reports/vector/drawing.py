"""Drawings written as SVG from numbers: for the pages of people and regions, of which there are hundreds.

A chart of matplotlib takes a third of a second; one of these takes a thousandth. Text is text, so it can be searched,
read aloud and copied, and everything that comes from a table is escaped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from markupsafe import Markup, escape

from heatlas.reports.words.numbers import LONGEST_TEXT, number, shortened

PHONE = 450
"""Pixels up to which a picture is made to fit a phone; a wider one would be too small to read and is scrolled."""
INK, SOFT, LINE, WASH = "#1c2733", "#4a5766", "#d9dfe6", "#f4f6f9"
LONGEST_LINE = 120
"""Characters of a line, however long the names of the input are."""
MOST_LINES = 3
LETTER_WIDTH = 0.56
"""Mean width of a letter as a share of its size, on the wide side."""


@dataclass
class Drawing:
    """A picture under construction; places are pixels from the upper left corner."""

    width: float
    height: float
    title: str  # what it shows, for those who cannot see it
    only: str = ""  # ``screen`` or ``phone`` where the page has the same picture for the other one
    _parts: list[str] = field(default_factory=list, repr=False)
    """Elements; text of tables goes in through `escape` and nowhere else."""

    def text(
        self, x: float, y: float, content: object, anchor: str = "start", size: float = 12, fill: str = INK,
        bold: bool = False, link: str | None = None,
    ) -> None:  # fmt: skip
        """Write a line whose baseline begins, is centred (``middle``) or ends (``end``) at a place."""
        weight = ' font-weight="600"' if bold else ""
        words = (
            f'<text x="{_short(x)}" y="{_short(y)}" text-anchor="{anchor}" font-size="{size:g}" fill="{fill}"{weight}>'
            f"{escape(shortened(content, LONGEST_LINE))}</text>"
        )
        self._parts.append(f'<a href="{escape(link)}">{words}</a>' if link else words)

    def line(self, x1: float, y1: float, x2: float, y2: float, stroke: str = LINE, width: float = 1) -> None:
        places = f"M{_short(x1)} {_short(y1)}L{_short(x2)} {_short(y2)}"
        self._parts.append(f'<path d="{places}" stroke="{stroke}" stroke-width="{width:g}"/>')

    def polyline(self, points: list[tuple[float, float]], stroke: str, width: float = 1.5, dash: str = "") -> None:
        path = "L".join(f"{_short(x)} {_short(y)}" for x, y in points)
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(f'<path d="M{path}" fill="none" stroke="{stroke}" stroke-width="{width:g}"{dashes}/>')

    def box(
        self, x: float, y: float, width: float, height: float, fill: str = WASH, stroke: str = LINE, round_: float = 0,
        opacity: float = 1,
    ) -> None:  # fmt: skip
        self._parts.append(
            f'<rect x="{_short(x)}" y="{_short(y)}" width="{_short(max(width, 0))}" height="{_short(max(height, 0))}" '
            f'rx="{round_:g}" fill="{fill}" fill-opacity="{opacity:g}" stroke="{stroke}"/>'
        )

    def mark(
        self, x: float, y: float, shape: str, fill: str, size: float = 4, opacity: float = 1.0, hint: object = ""
    ) -> None:
        """A point of a chart: ``circle``, ``square``, ``triangle`` or ``diamond``, with a hint for the pointer."""
        hidden = f"<title>{escape(shortened(hint, LONGEST_LINE))}</title>" if hint else ""
        look = f'fill="{fill}" fill-opacity="{opacity:g}" stroke="#fff" stroke-width=".5"'
        if shape == "circle":
            found = f'<circle cx="{_short(x)}" cy="{_short(y)}" r="{size:g}" {look}>{hidden}</circle>'
        else:
            found = f'<path d="{_outline(x, y, shape, size)}" {look}>{hidden}</path>'
        self._parts.append(found)

    def value_axis(self, axis: Axis, top: float, bottom: float, title: str) -> None:
        """Draw lines at the ticks of a horizontal axis, with their values and a title below."""
        for tick in axis.ticks():
            self.line(axis(tick), top, axis(tick), bottom)
            self.text(axis(tick), bottom + 15, tick_text(tick), "middle", 11, SOFT)
        self.text((axis.start + axis.stop) / 2, bottom + 32, title, "middle", 12, SOFT)

    @property
    def html(self) -> Markup:
        """The picture as an element of a page; as wide as given, narrower where there is no room."""
        width, height = _short(self.width), _short(self.height)
        kind = " wide" if self.width > PHONE else ""
        kind += f" {self.only}" if self.only else ""
        role = "group" if any(part.startswith("<a ") for part in self._parts) else "img"  # in an img, links are lost
        return Markup(
            f'<svg class="chart{kind}" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="{role}" '
            f'aria-label="{escape(shortened(self.title, LONGEST_TEXT))}">{"".join(self._parts)}</svg>'
        )


def _outline(x: float, y: float, shape: str, size: float) -> str:
    corners = {
        "square": [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
        "triangle": [(0, -1.15), (1.05, 0.8), (-1.05, 0.8)],
        "diamond": [(0, -1.2), (1.2, 0), (0, 1.2), (-1.2, 0)],
    }[shape]
    return "M" + "L".join(f"{_short(x + size * dx)} {_short(y + size * dy)}" for dx, dy in corners) + "z"


def _short(value: float) -> str:
    """A place with a tenth of a pixel.

    Examples
    --------
    >>> _short(3.0), _short(2.345), _short(-0.01)
    ('3', '2.3', '0')
    """
    text = f"{value:.1f}"
    text = text[:-2] if text.endswith(".0") else text
    return "0" if text == "-0" else text


LEAST_TICKS = 3


@dataclass(frozen=True)
class Axis:
    """A linear scale from values to pixels."""

    low: float  # values at the ends; ``low < high``
    high: float
    start: float  # their pixels
    stop: float

    @classmethod
    def around(cls, values: list[float], start: float, stop: float, include: float | None = None) -> Axis:
        """A scale that holds all finite values with a little room; from 0 to 1 where there is none."""
        known = [value for value in values if math.isfinite(value)]
        known += [include] if include is not None else []
        low, high = (min(known), max(known)) if known else (0.0, 1.0)
        if low == high:
            low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
        room = 0.05 * (high - low)
        return cls(low - room, high + room, start, stop)

    def __call__(self, value: float) -> float:
        """Pixel of a value; values outside stop at the ends."""
        share = min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)
        return self.start + share * (self.stop - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        """Round values inside the scale, 1, 2 or 5 times a power of ten apart; at least three, which make a scale.

        Examples
        --------
        >>> Axis(0.02, 1.04, 0, 100).ticks(4)
        [0.2, 0.4, 0.6, 0.8, 1.0]
        >>> Axis(-3.2, 7.1, 0, 100).ticks()
        [-2.0, 0.0, 2.0, 4.0, 6.0]
        """
        span = (self.high - self.low) / max(about, 1)
        power = 10.0 ** math.floor(math.log10(span))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= 0.8 * span)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        found = [round(place * step, 12 - math.floor(math.log10(step))) for place in range(first, last + 1)]
        return found if len(found) >= LEAST_TICKS else self.ticks(max(about, 1) + 1)


def tick_text(value: float) -> str:
    """A tick's label.

    Examples
    --------
    >>> tick_text(0.0), tick_text(2e-06), tick_text(-1.5), tick_text(0.05)
    ('0', '2e−6', '−1.5', '0.05')
    """
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}".replace("-", "−")
    return f"{value:g}".replace("-", "−") if abs(value) < 1000 else number(value)


def fitted(content: str, width: float, size: float = 12) -> str:
    """Text cut to a width, with an ellipsis where something is missing.

    Examples
    --------
    >>> fitted("Parahippocampal gyrus", 80)
    'Parahippoc…'
    """
    letters = max(int(width / (LETTER_WIDTH * size)), 1)
    return content if len(content) <= letters else f"{content[: letters - 1].rstrip()}…"


def wrapped(content: str, width: float, size: float = 12) -> list[str]:
    """Text on lines of a width; what does not fit on `MOST_LINES` is cut with an ellipsis."""
    letters, lines = max(int(width / (LETTER_WIDTH * size)), 4), [""]
    for word in content.split():
        while len(word) > letters:  # a long id, or a language without spaces
            lines.append(word[:letters])
            word = word[letters:]
        if lines[-1] and len(lines[-1]) + 1 + len(word) > letters:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    lines = [line for line in lines if line]
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 1], fitted(f"{lines[MOST_LINES - 1]}…{' ' * letters}".rstrip(), width, size)]
        lines[-1] = lines[-1] if lines[-1].endswith("…") else f"{lines[-1][: letters - 1]}…"
    return lines
