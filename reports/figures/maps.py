"""Figures of relevance maps: mean maps in a grid of slices, and in views by nilearn.

In the grid, a row is a map with one colour scale, and a block of slices is a group. The views are the cortical surface,
a glass brain and slices. The surface is fsaverage5, whose files are part of nilearn: nothing is downloaded. Maps lie in
the space of an MNI152 template and fsaverage in MNI305 space, a few millimetres apart. This is not corrected: the
pictures are for display only, and no number of a report is made from them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import nibabel as nib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from heatlas.pipeline.attribution.titles import map_title
from heatlas.reports.figures import slices
from heatlas.reports.figures.gallery import NIGHT, new_figure
from heatlas.reports.figures.slices import AXIS, HIPPOCAMPAL_CUTS, Backdrop, BrainImage, ColourScale, coloured

DARK = tuple(channel / 255 for channel in NIGHT)
LIGHT = "#dfe5ec"
"""Background and lettering of figures of brains, for matplotlib."""
Outlined = tuple[slices.BrainImage, Mapping[int, int]]
"""Labels of an atlas, and the number of the body that each label belongs to."""
_WIDTH, _LABEL, _BAR, _HEAD, _GAP = 9.6, 1.15, 0.4, 0.34, 0.12
_LARGEST_CELL, _LARGEST_ALONE = 1.7, 2.5
_FILLED = 0.98  # share of a cell that its panel takes


@dataclass(frozen=True)
class MapRow:
    """One row of a figure of maps."""

    title: str
    scale: slices.ColourScale
    unit: str  # of the colour bar
    views: Sequence[slices.MapView | None]  # one per block; None where there is no map, which the panel says
    ends: tuple[str, str] = ("", "")  # what the left and the right end of the colour bar mean


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
    lines: int = 1,
) -> Figure:
    """Rows of maps by blocks of groups; every block shows the same slices.

    All panels are one picture, so that a figure of a hundred of them takes no longer than its pixels.

    `blocks`: titles of the blocks, with their n. `density`: pixels of the slices per inch: that at which the figure
    will be drawn, so that nothing is resampled. `outlined`: regions that every panel shows by a white line. `lines`: in
    how many the slices of a block stand. Rows without titles have no column for them.
    """
    label, largest = (_LABEL, _LARGEST_CELL) if any(row.title for row in rows) else (0.0, _LARGEST_ALONE)
    letters = 6.5 if lines == 1 else 7.5
    columns = -(-len(cuts) // lines)
    cell = min((_WIDTH - label - _GAP * (len(blocks) - 1)) / (len(blocks) * columns), largest)
    block_width = cell * columns + _GAP
    bar_height = _BAR + 0.12 * any(any(row.ends) for row in rows)
    width, height = label + block_width * len(blocks) - _GAP, _HEAD + len(rows) * (lines * cell + bar_height)
    figure = new_figure(width, height, facecolor=DARK)
    figure.set_layout_engine("none")
    sheet = np.full((int(height * density), int(width * density), 3), NIGHT, dtype=np.uint8)
    plans = [slices.PanelGrid.of(cut, round(_FILLED * cell * density)) for cut in cuts]
    under = [_anatomy(plan, backdrop) for plan in plans]

    def write(left: float, top: float, text: str, **style: Any) -> None:
        figure.text(left / width, 1 - top / height, text, **{"color": LIGHT, "fontsize": letters, **style})

    for block, title in enumerate(blocks):
        write(label + block * block_width, 0.2, title, color="white", fontsize=8.5, weight="bold", va="center")
    for number, row in enumerate(rows):
        end = _HEAD + (number + 1) * (lines * cell + bar_height) - bar_height
        write(0.08, end - lines * cell / 2, row.title, color="white", fontsize=8.5, va="center")
        for block, view in enumerate(row.views):
            for place, plan in enumerate(plans):
                line, column = divmod(place, columns)
                bottom = end - (lines - 1 - line) * cell
                left, top = label + block * block_width + column * cell, bottom - _FILLED * cell
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
                write(label + block * block_width + 0.06, end - cell / 2, "no map", fontsize=8.5, va="center")
        start = (width - 1.6) / 2 if any(row.ends) else label
        bar = figure.add_axes((start / width, 1 - (end + 0.14) / height, 1.6 / width, 0.08 / height))
        draw_colour_bar(bar, row.scale, row.unit, row.ends)
    axes = figure.add_axes((0, 0, 1, 1), zorder=-1)
    axes.set_axis_off()
    axes.imshow(sheet, aspect="auto", interpolation="nearest")
    return figure


def _anatomy(plan: slices.PanelGrid, backdrop: slices.Backdrop | None) -> slices.Pixels:
    """The template under a panel; night where it is not installed."""
    if backdrop is None:
        return np.full((len(plan.up), len(plan.across), 3), NIGHT, dtype=np.uint8)
    return slices.grey_panel(plan, backdrop.image, backdrop.ceiling)


def draw_colour_bar(axes: Axes, scale: slices.ColourScale, unit: str, ends: tuple[str, str] = ("", "")) -> None:
    """A colour bar with its unit at the right; where its ends have a meaning, with that at either side, the unit below.

    Two-sided where the map is. A power of ten that all numbers share stands before the unit.
    """
    axes.set(xticks=[], yticks=[], frame_on=False)
    axes.tick_params(colors=LIGHT, labelsize=6.5, length=2, pad=1)
    if scale.empty:
        axes.text(0.5, 0.5, "no relevance", ha="center", va="center", fontsize=7, color=LIGHT)
        return
    factor, power = _power_of_ten(scale.high)
    low, high, unit = tick(scale.low / factor), tick(scale.high / factor), f"{power}{unit}"
    marks: dict[float, str] = {0: low, 1: high}
    if scale.signed:
        marks = {0: f"−{high}", 0.5: f"±{low}", 1: high}
    beside: Mapping[str, Any] = {"transform": axes.transAxes, "va": "center", "color": LIGHT}
    if any(ends):
        axes.tick_params(labelsize=7.5)
        axes.text(-0.04, 0.5, ends[0], fontsize=10, ha="right", **beside)
        axes.text(1.04, 0.5, ends[1], fontsize=10, ha="left", **beside)
        axes.text(0.5, -2.9, unit, fontsize=7.5, ha="center", **beside)
    else:
        axes.text(1.08, 0.5, unit, fontsize=6.5, **beside)
    axes.imshow(
        slices.coloured(scale.ramp(128)[None], scale), aspect="auto", extent=(0, 1, 0, 1), interpolation="nearest"
    )
    axes.set_xticks(list(marks), list(marks.values()))
    first, *_, last = axes.get_xticklabels()
    first.set_horizontalalignment("left")
    last.set_horizontalalignment("right")


def _power_of_ten(highest: float) -> tuple[float, str]:
    """What to divide small or large values by, and how that is written before their unit."""
    if 0.01 <= highest < 100:
        return 1.0, ""
    exponent = math.floor(math.log10(highest))
    return 10.0**exponent, f"10{str(exponent).translate(_RAISED)} × "


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


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
            scale = there[0].scale(slices.PERSON_PERCENTILES, there, of_classes)
            unit = f"{unit_of(name)} per voxel"
            rows.append(MapRow(row_title(name), scale, unit, [views.get((group, name)) for group in groups]))
    return rows


VIEWS: Mapping[str, float] = {"surface": 1.5, "glass": 1.4, "slices": 2.0}
"""Ways to show a map, with the height of each in inches."""
SURFACE_VIEWS = (("left", "lateral"), ("left", "medial"), ("right", "medial"), ("right", "lateral"))
"""Hemispheres and sides of the surface, from left to right."""
WIDTH = 7.2  # inches; two columns of a journal
_TITLE, _COLOUR_BAR = 0.3, 0.4
_STEPS = 512


@dataclass(frozen=True)
class GroupMap:
    """A map to be drawn."""

    title: str  # the method, the group and its n
    image: BrainImage  # in template space
    scale: ColourScale
    unit: str  # of the colour bar

    @property
    def nifti(self) -> Any:
        """The map as nilearn takes it, with the values that its scale can show."""
        values = self.image.values if self.scale.signed else self.image.values.clip(min=0)
        return nib.Nifti1Image(values * (not self.scale.empty), self.image.affine)  # type: ignore[no-untyped-call]

    @property
    def colours(self) -> Mapping[str, Any]:
        """Colours and limits of the slice figures, for nilearn."""
        scale = ColourScale(0.5, 1.0, False) if self.scale.empty else self.scale
        table = ListedColormap(coloured(np.linspace(-scale.high, scale.high, _STEPS), scale)[:, :3])
        threshold = scale.low or scale.high / _STEPS  # at 0 all that is empty would be drawn
        return {"cmap": table, "threshold": threshold, "vmin": -scale.high, "vmax": scale.high, "colorbar": False}


def draw_group_maps(shown: Sequence[tuple[GroupMap, Sequence[str]]], backdrop: Backdrop | None) -> Figure:
    """Maps one below the other, each in one or more views, with a colour bar.

    `shown`: views are those of `VIEWS`. `backdrop`: under the slices.
    """
    height = sum(_TITLE + sum(VIEWS[view] for view in views) + _COLOUR_BAR for _, views in shown)
    figure = new_figure(WIDTH, height, facecolor="black")
    figure.set_layout_engine("none")
    top = 0.0
    for one, views in shown:
        figure.text(0.01, 1 - (top + 0.2) / height, one.title, color="white", fontsize=8.5, weight="bold")
        top += _TITLE
        for view in views:
            top += VIEWS[view]
            place = (0.0, 1 - top / height, 1.0, VIEWS[view] / height)
            if view == "surface":
                _draw_surface(figure, place, one)
            else:
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "empty mask")  # a map without relevance
                    _draw_volume(figure, place, one, view, backdrop)
        draw_colour_bar(figure.add_axes((0.35, 1 - (top + 0.12) / height, 0.3, 0.08 / height)), one.scale, one.unit)
        top += _COLOUR_BAR
    return figure


def surface_values(shown: GroupMap, hemisphere: str) -> NDArray[np.float64]:
    """Values of a map at the vertices of a hemisphere (``left``, ``right``): nilearn's mean over a ball of 3 mm."""
    from nilearn.surface import vol_to_surf  # late: it takes a second that only these figures need

    return np.asarray(np.nan_to_num(vol_to_surf(shown.nifti, _fsaverage()[f"pial_{hemisphere}"])))


def _fsaverage() -> Mapping[str, str]:
    from nilearn.datasets import fetch_surf_fsaverage

    files: Mapping[str, str] = fetch_surf_fsaverage("fsaverage5")  # the one mesh that nilearn carries
    return files


def _draw_surface(figure: Figure, place: tuple[float, float, float, float], shown: GroupMap) -> None:
    """Both hemispheres from both sides; triangles become pixels, which keeps SVG and PDF small."""
    from nilearn.plotting import plot_surf_stat_map

    files, (left, bottom, width, height) = _fsaverage(), place
    values = {hemisphere: surface_values(shown, hemisphere) for hemisphere in ("left", "right")}
    for number, (hemisphere, side) in enumerate(SURFACE_VIEWS):
        middle = left + (number + 0.5) * width / 4
        box = (middle - 0.16 * width, bottom - 0.12 * height, 0.32 * width, 1.2 * height)
        axes: Any = figure.add_axes(box, projection="3d")
        plot_surf_stat_map(
            files[f"infl_{hemisphere}"], values[hemisphere], hemi=hemisphere, view=side, figure=figure, axes=axes,
            bg_map=files[f"sulc_{hemisphere}"], **shown.colours,
        )  # fmt: skip
        axes.patch.set_visible(False)
        for triangles in axes.collections:
            triangles.set_rasterized(True)
        name = f"{hemisphere[0].upper()}, {side}"
        figure.text(middle, bottom + 0.95 * height, name, color=LIGHT, fontsize=6.5, ha="center")


def _draw_volume(
    figure: Figure, place: tuple[float, float, float, float], shown: GroupMap, view: str, backdrop: Backdrop | None
) -> None:
    """Strongest values along lines through a glass brain, or three slices through the left hippocampus."""
    from nilearn import plotting

    common = {"figure": figure, "axes": place, "black_bg": True, "annotate": False, **shown.colours}
    if view == "glass":
        display = plotting.plot_glass_brain(shown.nifti, display_mode="lyrz", plot_abs=False, alpha=1, **common)
        for side in "lr":
            axes = display.axes[side].ax
            axes.text(0.02, 0.9, side.upper(), transform=axes.transAxes, color="white", fontsize=7)
    else:
        cuts = [mm for _, mm in sorted(HIPPOCAMPAL_CUTS, key=lambda cut: AXIS[cut[0]])]
        under = None if backdrop is None else backdrop.nifti
        display = plotting.plot_stat_map(shown.nifti, bg_img=under, cut_coords=cuts, draw_cross=False, **common)
    display.annotate(size=7)
