"""Figures of mean relevance maps: one row per map, one block of slices per group, one colour scale per row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.backend_bases import RendererBase
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from pipeline.run.layout.map_names import map_title
from reports.figures.brain import (
    AXIS,
    COORDINATE,
    HIPPOCAMPAL_CUTS,
    OVERVIEW_CUTS,
    Backdrop,
    ColourScale,
    Cut,
    MapView,
    draw_colour_bar,
)
from reports.figures.panels import Pixels, Plan, empty_panel, grey_panel, with_map
from reports.figures.style import new_figure

NIGHT = "#0b0f14"
_WIDTH, _LABEL, _BAR, _HEAD, _GAP = 9.6, 1.15, 0.36, 0.34, 0.12
_LARGEST_CELL = 1.7


@dataclass(frozen=True)
class MapRow:
    """One row of a figure of maps.

    Parameters
    ----------
    title : str
    scale : ColourScale
    unit : str
        Of the colour bar.
    views : sequence of MapView or None
        One per block; None where there is no map, which the panel says.
    """

    title: str
    scale: ColourScale
    unit: str
    views: Sequence[MapView | None]


def row_title(map_name: str) -> str:
    """Name of a map, broken for a narrow column.

    Examples
    --------
    >>> row_title("gb").splitlines()
    ['Guided', 'backpropagation']
    """
    return map_title(map_name).replace(" ", "\n", 1)


def map_unit(map_name: str) -> str:
    return "susceptibility" if map_name == "gb" else "relevance"


def draw_map_grid(
    rows: Sequence[MapRow], blocks: Sequence[str], cuts: Sequence[Cut], backdrop: Backdrop | None, density: int
) -> Figure:
    """Rows of maps by blocks of groups; every block shows the same slices.

    Parameters
    ----------
    rows : sequence of MapRow
    blocks : sequence of str
        Titles of the blocks, with their n.
    cuts : sequence of (plane, mm)
    backdrop : Backdrop or None
    density : int
        Pixels of the slices per inch: that at which the figure will be drawn, so that nothing is resampled.
    """
    columns = len(blocks) * len(cuts)
    cell = min((_WIDTH - _LABEL - _GAP * (len(blocks) - 1)) / columns, _LARGEST_CELL)
    widths = [_LABEL]
    for _ in blocks:
        widths += [cell] * len(cuts) + [_GAP]
    total = sum(widths[:-1])
    height = _HEAD + len(rows) * (cell + _BAR)
    figure = new_figure(total, height, facecolor=NIGHT)
    figure.set_layout_engine("none")
    sheet = Sheet.blank(total, height, density)
    lefts = np.cumsum([0.0, *widths[:-1]])
    plans = [Plan.of(cut, sheet.pixels(0.98 * cell)) for cut in cuts]
    under = [anatomy(plan, backdrop) for plan in plans]
    for index, row in enumerate(rows):
        bottom = height - _HEAD - (index + 1) * (cell + _BAR) + _BAR
        figure.text(0.08 / total, (bottom + cell / 2) / height, row.title, color="white", fontsize=8.5, va="center")
        for column in range(columns):
            block, cut = divmod(column, len(cuts))
            left, view = lefts[1 + column + block], row.views[block]
            picture = under[cut]
            if view is not None:
                picture = with_map(picture, plans[cut], view.slices[cuts[cut]], view.affine, row.scale)
            elif cut == 0:
                middle = (bottom + 0.5 * cell) / height
                figure.text((left + 0.06) / total, middle, "no map", color="white", fontsize=8.5, va="center")
            sheet.paste(picture, left, height - bottom - 0.98 * cell)
            _name_slice(figure, cuts[cut], left / total, bottom / height, 0.98 * cell / height)
        bar = figure.add_axes((_LABEL / total, (bottom - 0.1) / height, 1.6 / total, 0.07 / height))
        draw_colour_bar(bar, row.scale, "")
        figure.text(
            (_LABEL + 1.75) / total, (bottom - 0.1) / height, row.unit, color="#dfe5ec", fontsize=6.5, va="center"
        )
    sheet.show(figure)
    for block, title in enumerate(blocks):
        left = lefts[1 + block * (len(cuts) + 1)]
        figure.text(left / total, 1 - 0.2 / height, title, color="white", fontsize=8.5, weight="bold", va="center")
    return figure


@dataclass(frozen=True)
class Sheet:
    """All panels of a figure as one picture, which is drawn in one stroke.

    Parameters
    ----------
    picture : array of uint8, shape (rows, columns, 3)
    density : int
        Pixels per inch.
    """

    picture: Pixels
    density: int

    @classmethod
    def blank(cls, width: float, height: float, density: int) -> Sheet:
        """A sheet of a figure's size in inches."""
        shape = (int(height * density), int(width * density), 3)
        night = tuple(int(NIGHT[place : place + 2], 16) for place in (1, 3, 5))
        return cls(np.full(shape, night, dtype=np.uint8), density)

    def pixels(self, inches: float) -> int:
        return round(inches * self.density)

    def paste(self, panel: Pixels, left: float, top: float) -> None:
        """Put a panel at a place in inches from the upper left corner."""
        row, column = max(self.pixels(top), 0), self.pixels(left)
        part = self.picture[row : row + panel.shape[0], column : column + panel.shape[1]]
        part[:] = panel[: part.shape[0], : part.shape[1]]

    def show(self, figure: Figure) -> None:
        axes = figure.add_axes((0, 0, 1, 1), zorder=-1)
        axes.set_axis_off()
        image = _Pixels(axes, extent=(0, 1, 0, 1), interpolation="antialiased")
        image.set_data(self.picture)
        axes.add_image(image)


class _Pixels(AxesImage):
    """A picture that fills its figure; a canvas of its own size takes the pixels as they are."""

    def draw(self, renderer: RendererBase) -> None:
        rows, columns = self.get_size()
        if renderer.option_scale_image() or renderer.get_canvas_width_height() != (columns, rows):
            super().draw(renderer)
            return
        opaque = np.dstack([np.asarray(self.get_array()), np.full((rows, columns), 255, np.uint8)])
        renderer.draw_image(renderer.new_gc(), 0, 0, np.asarray(opaque)[::-1])


def anatomy(plan: Plan, backdrop: Backdrop | None) -> Pixels:
    """The template under a panel; night where it is not installed."""
    if backdrop is None:
        return empty_panel(plan)
    image = backdrop.image
    return grey_panel(plan, image.slice(*plan.cut), image.affine, backdrop.ceiling)


def slice_name(cut: Cut) -> str:
    """Coordinate of a slice.

    Examples
    --------
    >>> slice_name(("coronal", -20.0))
    'y = −20'
    """
    plane, mm = cut
    return f"{COORDINATE[AXIS[plane]]} = {mm:g}".replace("-", "−")


def _name_slice(figure: Figure, cut: Cut, left: float, bottom: float, height: float) -> None:
    """Coordinate below, side of the person above, in parts of the figure."""
    figure.text(left + 0.002, bottom + 0.02 * height, slice_name(cut), fontsize=6.5, color="#c9d2dc")
    if cut[0] != "sagittal":
        figure.text(left + 0.002, bottom + 0.98 * height, "L", fontsize=7, color="#c9d2dc", va="top")


def draw_overview(row: MapRow, title: str, backdrop: Backdrop | None, density: int) -> Figure:
    """One map in eight axial slices, from the temporal lobes to the vertex."""
    return draw_map_grid([row], [title], OVERVIEW_CUTS, backdrop, density)


def group_rows(
    views: Mapping[tuple[str, str], MapView],
    groups: Sequence[str],
    map_names: Sequence[str],
    reference: str,
    percentiles: tuple[float, float],
) -> list[MapRow]:
    """Rows with a colour scale set on the `reference` group of each map, or on the first group there is.

    Parameters
    ----------
    views : mapping of (group, map name) to MapView
    groups, map_names : sequence of str
    reference : str
    percentiles : tuple of float
    """
    rows = []
    for name in map_names:
        there = [views[group, name] for group in (reference, *groups) if (group, name) in views]
        if there:
            scale = there[0].scale(percentiles, there)
            unit = f"{map_unit(name)} per voxel"
            rows.append(MapRow(row_title(name), scale, unit, [views.get((group, name)) for group in groups]))
    return rows


MAP_CUTS = (*HIPPOCAMPAL_CUTS, *OVERVIEW_CUTS)
"""All slices any figure of maps needs."""
