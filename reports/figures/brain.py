"""Slices of relevance maps over the template brain.

Planes follow the neurological convention: the left of the picture is the left of the person. Positions are
millimetres in template space (RAS+).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import nibabel as nib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from scipy import ndimage

from atlases.templates import load_template
from pipeline.run.errors import HeatlasError
from reports.figures.style import cool, warm

Plane = Literal["sagittal", "coronal", "axial"]
AXIS: Mapping[str, int] = {"sagittal": 0, "coronal": 1, "axial": 2}
COORDINATE = ("x", "y", "z")

HIPPOCAMPAL_CUTS: tuple[tuple[Plane, float], ...] = (("sagittal", -26.0), ("coronal", -20.0), ("axial", -16.0))
"""Through the left hippocampus; the slices of the founding study's figures."""
OVERVIEW_CUTS: tuple[tuple[Plane, float], ...] = tuple(("axial", float(z)) for z in (-40, -28, -16, -4, 8, 20, 34, 50))

GROUP_PERCENTILES = (50.0, 99.5)
"""Colour scale of group maps: set on the mean map of the positive class (founding study)."""
PERSON_PERCENTILES = (90.0, 99.5)
"""Colour scale of single scans: set on the scan's own map (founding study)."""

_PIXEL_MM = 0.75
_NEGATIVE_SHARE = 0.01


@dataclass(frozen=True)
class BrainImage:
    """A volume in RAS orientation with an axis-aligned affine."""

    values: np.ndarray
    affine: np.ndarray

    @classmethod
    def read(cls, path: Path) -> BrainImage:
        image: Any = nib.as_closest_canonical(nib.load(path))  # type: ignore[no-untyped-call]
        return cls(np.asarray(image.dataobj, dtype=np.float32), np.asarray(image.affine))

    def index(self, axis: int, mm: float) -> int:
        """Nearest slice to a position, inside the volume."""
        position = (mm - self.affine[axis, 3]) / self.affine[axis, axis]
        return int(np.clip(round(position), 0, self.values.shape[axis] - 1))

    def slice(self, plane: Plane, mm: float) -> np.ndarray:
        """Slice with rows from inferior (or posterior) to superior (anterior), columns from left (or posterior)."""
        axis = AXIS[plane]
        plane_values: np.ndarray = np.take(self.values, self.index(axis, mm), axis=axis).T
        return plane_values

    def pixel_mm(self, plane: Plane) -> float:
        return float(abs(np.delete(np.diag(self.affine)[:3], AXIS[plane])[0]))


@dataclass(frozen=True)
class ColourScale:
    """From where a map is drawn (`low`, in absolute value) to where its colour saturates (`high`)."""

    low: float
    high: float
    signed: bool

    @property
    def empty(self) -> bool:
        return not 0 <= self.low < self.high


@dataclass(frozen=True)
class MapView:
    """The little of a map that figures need; a whole group of maps would not fit into memory."""

    slices: Mapping[tuple[Plane, float], np.ndarray]
    pixel_mm: float
    magnitudes: Mapping[float, float]
    negative_share: float

    def scale(self, percentiles: tuple[float, float], others: Sequence[MapView] = ()) -> ColourScale:
        """Colour scale set on this map; two-sided if it or one of the `others` has negative values that matter."""
        signed = any(view.negative_share > _NEGATIVE_SHARE for view in (self, *others))
        return ColourScale(self.magnitudes[percentiles[0]], self.magnitudes[percentiles[1]], signed)


def view_map(path: Path, cuts: Sequence[tuple[Plane, float]], brain: np.ndarray | None) -> MapView:
    """Read a map and keep slices and percentiles.

    Parameters
    ----------
    path : Path
    cuts : sequence of (plane, mm)
    brain : array of bool, optional
        Voxels of the brain on the map's grid; percentiles are taken there. Without it, where the map is not 0.
    """
    image = BrainImage.read(path)
    values = image.values
    inside = brain if brain is not None and brain.shape == values.shape else values != 0
    magnitude = np.abs(values[inside]) if inside.any() else np.zeros(1)
    levels = sorted({*GROUP_PERCENTILES, *PERSON_PERCENTILES})
    total = float(magnitude.sum(dtype=np.float64))
    negative = float(-values[values < 0].sum(dtype=np.float64))
    return MapView(
        {cut: image.slice(*cut) for cut in cuts},
        image.pixel_mm("axial"),
        dict(zip(levels, np.percentile(magnitude, levels).tolist(), strict=True)),
        negative / total if total > 0 else 0.0,
    )


@dataclass(frozen=True)
class Backdrop:
    """The template brain under the maps; intensities at `ceiling` and above are drawn lightest."""

    image: BrainImage
    mask: np.ndarray
    ceiling: float

    @classmethod
    def load(cls, resolution_mm: float) -> Backdrop | None:
        """The template at the run's resolution; None if its package is not installed."""
        try:
            template = load_template(resolution_mm)
        except HeatlasError:
            return None
        ceiling = float(np.percentile(template.t1w[template.brain_mask], 99.5))
        return cls(BrainImage(template.t1w, template.grid.affine), template.brain_mask, ceiling)


def draw_slice(
    axes: Axes, cut: tuple[Plane, float], view: MapView | None, scale: ColourScale | None, backdrop: Backdrop | None
) -> None:
    """One panel: template in grey, map above its threshold in colour, nothing below it."""
    axes.set_axis_off()
    axes.set_aspect("equal")
    if backdrop is not None:
        axes.imshow(_grey(backdrop, cut), origin="lower", interpolation="bilinear", extent=_extent(backdrop, cut))
    if view is not None and scale is not None and not scale.empty:
        colours = coloured(view.slices[cut], scale, zoom=max(view.pixel_mm / _PIXEL_MM, 1.0))
        extent = None if backdrop is None else _extent(backdrop, cut)
        axes.imshow(colours, origin="lower", interpolation="nearest", extent=extent)
    if backdrop is not None:
        _crop(axes, backdrop, cut)
    plane, mm = cut
    axes.text(
        0.02, 0.02, f"{COORDINATE[AXIS[plane]]} = {mm:g}".replace("-", "−"), transform=axes.transAxes,
        fontsize=6.5, color="#c9d2dc", path_effects=[withStroke(linewidth=2, foreground="black")],
    )  # fmt: skip
    if plane != "sagittal":
        axes.text(0.02, 0.98, "L", transform=axes.transAxes, fontsize=7, color="#c9d2dc", va="top")


def coloured(values: np.ndarray, scale: ColourScale, zoom: float = 1.0) -> np.ndarray:
    """Colours of a slice: (rows, columns, 4), transparent where the absolute value is below ``scale.low``.

    Parameters
    ----------
    values : numpy.ndarray
        (rows, columns)
    scale : ColourScale
    zoom : float
        Linear enlargement before the threshold is applied, which gives smooth edges.
    """
    if zoom > 1:
        values = ndimage.zoom(values, zoom, order=1, grid_mode=True, mode="nearest")
    strength = np.clip((np.abs(values) - scale.low) / (scale.high - scale.low), 0, 1)
    colours = warm()(strength)
    if scale.signed:
        colours = np.where((values < 0)[..., None], cool()(strength), colours)
    visible = np.abs(values) > scale.low
    if not scale.signed:
        visible &= values > 0
    colours[..., 3] = visible
    return np.asarray(colours)


def draw_colour_bar(axes: Axes, scale: ColourScale, unit: str) -> None:
    """A colour bar with units; two-sided where the map is."""
    axes.set_yticks([])
    axes.tick_params(colors="#dfe5ec", labelsize=6.5, length=2, pad=1)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.grid(False)
    if scale.empty:
        axes.set_xticks([])
        axes.text(0.5, 0.5, "no relevance", ha="center", va="center", fontsize=7, color="#dfe5ec")
        return
    ramp = np.linspace(scale.low, scale.high, 128)
    if scale.signed:
        ramp = np.concatenate([-ramp[::-1], ramp])
    axes.imshow(coloured(ramp[None], scale), aspect="auto", extent=(0, 1, 0, 1), interpolation="nearest")
    if scale.signed:
        ticks, values = [0, 0.5, 1], [-scale.high, scale.low, scale.high]
        labels = [_tick(values[0]), f"±{_tick(values[1])}", _tick(values[2])]
    else:
        ticks, labels = [0, 1], [_tick(scale.low), _tick(scale.high)]
    axes.set_xticks(ticks, labels)
    first, *_, last = axes.get_xticklabels()
    first.set_horizontalalignment("left")
    last.set_horizontalalignment("right")
    axes.set_xlabel(unit, fontsize=6.5, color="#dfe5ec", labelpad=1)


def _tick(value: float) -> str:
    return f"{value:.1e}".replace("-", "−").replace("e−0", "e−").replace("e+00", "")


def _grey(backdrop: Backdrop, cut: tuple[Plane, float]) -> np.ndarray:
    values = backdrop.image.slice(*cut)
    grey = 0.72 * np.clip(values / backdrop.ceiling, 0, 1)
    colours = np.ones((*values.shape, 4))
    colours[..., :3] = np.asarray([0.93, 0.96, 1.0]) * grey[..., None]
    colours[..., 3] = values > 0
    return colours


def _extent(backdrop: Backdrop, cut: tuple[Plane, float]) -> tuple[float, float, float, float]:
    """Edges of a slice in mm: left, right, bottom, top."""
    across, up = np.delete(np.arange(3), AXIS[cut[0]])
    affine, shape = backdrop.image.affine, backdrop.image.values.shape
    edges = [(affine[k, 3] - affine[k, k] / 2, affine[k, 3] + affine[k, k] * (shape[k] - 0.5)) for k in (across, up)]
    return (*edges[0], *edges[1])


def _crop(axes: Axes, backdrop: Backdrop, cut: tuple[Plane, float]) -> None:
    """Show the brain, not the empty frame around it."""
    across, up = np.delete(np.arange(3), AXIS[cut[0]])
    limits = []
    for k in (across, up):
        others = tuple(axis for axis in range(3) if axis != k)
        filled = np.flatnonzero(backdrop.mask.any(axis=others))
        step, origin = backdrop.image.affine[k, k], backdrop.image.affine[k, 3]
        limits.append((origin + step * (filled[0] - 1.5), origin + step * (filled[-1] + 1.5)))
    axes.set_xlim(*limits[0])
    axes.set_ylim(*limits[1])
