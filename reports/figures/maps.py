"""Figures of mean relevance maps: one row per map, one block of slices per group, one colour scale per row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from heatlas.pipeline.attribution.titles import map_title
from heatlas.reports.figures import slices
from heatlas.reports.figures.gallery import NIGHT, new_figure

DARK = tuple(channel / 255 for channel in NIGHT)
LIGHT = "#dfe5ec"
"""Background and lettering of figures of brains, for matplotlib."""
Outlined = tuple[slices.BrainImage, Mapping[int, int]]
"""Labels of an atlas, and the number of the body that each label belongs to."""
_WIDTH, _LABEL, _BAR, _HEAD, _GAP = 9.6, 1.15, 0.36, 0.34, 0.12
_LARGEST_CELL, _LARGEST_ALONE = 1.7, 2.3
_FILLED = 0.98  # share of a cell that its panel takes


@dataclass(frozen=True)
class MapRow:
    """One row of a figure of maps."""

    title: str
    scale: slices.ColourScale
    unit: str  # of the colour bar
    views: Sequence[slices.MapView | None]  # one per block; None where there is no map, which the panel says


def row_title(map_name: str) -> str:
    """Name of a map, broken for a narrow column.

    Examples
    --------
    >>> row_title("gb").splitlines()
    ['Guided', 'backpropagation']
    """
    return map_title(map_name).replace(" ", "\n", 1)


def draw_map_grid(
    rows: Sequence[MapRow],
    blocks: Sequence[str],
    cuts: Sequence[slices.Cut],
    backdrop: slices.Backdrop | None,
    density: int,
    outlined: Outlined | None = None,
) -> Figure:
    """Rows of maps by blocks of groups; every block shows the same slices.

    All panels are one picture, so that a figure of a hundred of them takes no longer than its pixels.

    `blocks`: titles of the blocks, with their n. `density`: pixels of the slices per inch: that at which the figure
    will be drawn, so that nothing is resampled. `outlined`: regions that every panel shows by a white line. Rows
    without titles have no column for them.
    """
    label, largest = (_LABEL, _LARGEST_CELL) if any(row.title for row in rows) else (0.0, _LARGEST_ALONE)
    cell = min((_WIDTH - label - _GAP * (len(blocks) - 1)) / (len(blocks) * len(cuts)), largest)
    block_width = cell * len(cuts) + _GAP
    width, height = label + block_width * len(blocks) - _GAP, _HEAD + len(rows) * (cell + _BAR)
    figure = new_figure(width, height, facecolor=DARK)
    figure.set_layout_engine("none")
    sheet = np.full((int(height * density), int(width * density), 3), NIGHT, dtype=np.uint8)
    plans = [slices.PanelGrid.of(cut, round(_FILLED * cell * density)) for cut in cuts]
    under = [_anatomy(plan, backdrop) for plan in plans]

    def write(left: float, top: float, text: str, **style: Any) -> None:
        figure.text(left / width, 1 - top / height, text, **{"color": LIGHT, "fontsize": 6.5, **style})

    for block, title in enumerate(blocks):
        write(label + block * block_width, 0.2, title, color="white", fontsize=8.5, weight="bold", va="center")
    for number, row in enumerate(rows):
        bottom = _HEAD + (number + 1) * (cell + _BAR) - _BAR
        write(0.08, bottom - cell / 2, row.title, color="white", fontsize=8.5, va="center")
        for block, view in enumerate(row.views):
            for place, plan in enumerate(plans):
                left, top = label + block * block_width + place * cell, bottom - _FILLED * cell
                panel = under[place] if view is None else slices.with_map(under[place], plan, view, row.scale)
                if outlined is not None and outlined[1]:
                    panel = slices.with_outlines(panel, slices.outlined_bodies(plan, *outlined))
                row_of, column_of = round(top * density), round(left * density)
                part = sheet[row_of : row_of + panel.shape[0], column_of : column_of + panel.shape[1]]
                part[:] = panel[: part.shape[0], : part.shape[1]]
                write(left + 0.02, bottom - 0.02, slices.slice_name(plan.cut))
                if plan.cut[0] != "sagittal":
                    write(left + 0.02, top + 0.02, "L", fontsize=7, va="top")
                    write(left + _FILLED * cell - 0.02, top + 0.02, "R", fontsize=7, va="top", ha="right")
            if view is None:
                write(label + block * block_width + 0.06, bottom - cell / 2, "no map", fontsize=8.5, va="center")
        bar = figure.add_axes((label / width, 1 - (bottom + 0.1) / height, 1.6 / width, 0.07 / height))
        draw_colour_bar(bar, row.scale)
        write(label + 1.75, bottom + 0.1, row.unit, va="center")
    axes = figure.add_axes((0, 0, 1, 1), zorder=-1)
    axes.set_axis_off()
    axes.imshow(sheet, aspect="auto", interpolation="nearest")
    return figure


def _anatomy(plan: slices.PanelGrid, backdrop: slices.Backdrop | None) -> slices.Pixels:
    """The template under a panel; night where it is not installed."""
    if backdrop is None:
        return np.full((len(plan.up), len(plan.across), 3), NIGHT, dtype=np.uint8)
    return slices.grey_panel(plan, backdrop.image, backdrop.ceiling)


def draw_colour_bar(axes: Axes, scale: slices.ColourScale) -> None:
    """A colour bar with units; two-sided where the map is."""
    axes.set(xticks=[], yticks=[], frame_on=False)
    axes.tick_params(colors=LIGHT, labelsize=6.5, length=2, pad=1)
    if scale.empty:
        axes.text(0.5, 0.5, "no relevance", ha="center", va="center", fontsize=7, color=LIGHT)
        return
    marks: dict[float, str] = {0: tick(scale.low), 1: tick(scale.high)}
    if scale.signed:
        marks = {0: tick(-scale.high), 0.5: f"±{tick(scale.low)}", 1: tick(scale.high)}
    axes.imshow(
        slices.coloured(scale.ramp(128)[None], scale), aspect="auto", extent=(0, 1, 0, 1), interpolation="nearest"
    )
    axes.set_xticks(list(marks), list(marks.values()))
    first, *_, last = axes.get_xticklabels()
    first.set_horizontalalignment("left")
    last.set_horizontalalignment("right")


def tick(value: float) -> str:
    """A value beside a colour bar.

    Examples
    --------
    >>> tick(-0.67), tick(5.06), tick(8.3e-4)
    ('−0.67', '5.1', '8.3e−4')
    """
    if 0.01 <= abs(value) < 100:
        return f"{value:.2g}".replace("-", "−")
    return f"{value:.1e}".replace("-", "−").replace("e−0", "e−").replace("e+0", "e").replace("e0", "")


def group_rows(
    views: Mapping[tuple[str, str], slices.MapView],
    groups: Sequence[str],
    map_names: Sequence[str],
    classes: Sequence[str],
    unit_of: Callable[[str], str],
) -> list[MapRow]:
    """Rows with a colour scale set on the first of the `classes` that has a map, or else the first group.

    `unit_of`: what the values of a map are, by its name.
    """
    rows = []
    for name in map_names:
        of_classes = [views[group, name] for group in classes if (group, name) in views]
        there = [*of_classes, *(views[group, name] for group in groups if (group, name) in views)]
        if there:
            scale = there[0].scale(slices.GROUP_PERCENTILES, there, of_classes)
            unit = f"{unit_of(name)} per voxel"
            rows.append(MapRow(row_title(name), scale, unit, [views.get((group, name)) for group in groups]))
    return rows
