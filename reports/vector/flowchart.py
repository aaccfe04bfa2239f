"""The way of a cohort through a study, as CONSORT and STARD draw it: down what went on, to the side what did not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from heatlas.reports.vector.drawing import INK, SOFT, Drawing, wrapped

WIDTH, MAIN, SIDE, GAP, LINE_HEIGHT = 600, 240, 300, 26, 16
KEPT, LOST, NOT_REACHED = "#e6f1f8", "#fff3ea", "#ffffff"


@dataclass(frozen=True)
class FlowBox:
    """One step and what left the flow before it."""

    title: str
    lines: Sequence[str]  # counts of those who are in
    lost: Sequence[str] = ()  # counts of those who are not, with reasons; empty where nobody left
    reached: bool = True  # whether the run came so far


def draw_flow(boxes: Sequence[FlowBox], title: str) -> Markup:
    """All steps from top to bottom."""
    laid = [
        (box, _lines(box.lines, MAIN), [line for text in box.lost for line in _lines([text], SIDE)]) for box in boxes
    ]
    heights = [(_height(len(lines) + 1), _height(len(lost)) if lost else 0) for _, lines, lost in laid]
    total = sum(main + (max(GAP, side + 16) if place else 0) for place, (main, side) in enumerate(heights)) + 2
    drawing = Drawing(WIDTH, total, title)
    top, middle = 1.0, 1 + MAIN / 2
    for place, ((box, lines, lost), (main, side)) in enumerate(zip(laid, heights, strict=True)):
        if place:
            space = max(GAP, side + 16)
            _arrow(drawing, middle, top, middle, top + space)
            if lost:
                centre = top + space / 2
                _arrow(drawing, middle, centre, WIDTH - SIDE - 2, centre)
                _write(drawing, WIDTH - SIDE - 1, centre - side / 2, SIDE, side, lost, LOST)
            top += space
        _write(drawing, 1, top, MAIN, main, lines, KEPT if box.reached else NOT_REACHED, box.title)
        top += main
    return drawing.html


def _lines(texts: Sequence[str], width: float) -> list[str]:
    return [line for text in texts for line in wrapped(text, width - 20, 12.5)]


def _height(lines: int) -> float:
    return LINE_HEIGHT * lines + 14


def _write(
    drawing: Drawing, x: float, y: float, width: float, height: float, lines: Sequence[str], fill: str, title: str = ""
) -> None:
    drawing.box(x, y, width, height, fill, "#aab4c0", 6)
    written = [(title, True)] if title else []
    for place, (text, bold) in enumerate([*written, *((line, False) for line in lines)]):
        drawing.text(x + 10, y + 19 + LINE_HEIGHT * place, text, size=13 if bold else 12.5, bold=bold, fill=INK)


def _arrow(drawing: Drawing, x1: float, y1: float, x2: float, y2: float) -> None:
    drawing.line(x1, y1, x2, y2, SOFT, 1.3)
    if x1 == x2:
        drawing.polyline([(x2 - 4, y2 - 6), (x2, y2 - 1), (x2 + 4, y2 - 6)], SOFT, 1.3)
    else:
        drawing.polyline([(x2 - 6, y2 - 4), (x2 - 1, y2), (x2 - 6, y2 + 4)], SOFT, 1.3)
