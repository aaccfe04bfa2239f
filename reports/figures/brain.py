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

from atlases.templates import load_template
from pipeline.regions.maps import load_whole
from pipeline.run.errors import HeatlasError
from reports.figures.style import cool, warm

Plane = Literal["sagittal", "coronal", "axial"]
AXIS: Mapping[str, int] = {"sagittal": 0, "coronal": 1, "axial": 2}
COORDINATE = ("x", "y", "z")

Cut = tuple[Plane, float]
"""A slice: its plane and its position in mm."""

HIPPOCAMPAL_CUTS: tuple[Cut, ...] = (("sagittal", -26.0), ("coronal", -20.0), ("axial", -16.0))
"""Through the left hippocampus; the slices of the founding study's figures."""
OVERVIEW_CUTS: tuple[Cut, ...] = tuple(("axial", float(z)) for z in (-40, -28, -16, -4, 8, 20, 34, 50))

GROUP_PERCENTILES = (50.0, 99.5)
"""Colour scale of group maps: set on the mean map of the positive class (founding study)."""
PERSON_PERCENTILES = (90.0, 99.5)
"""Colour scale of single scans: set on the scan's own map (founding study)."""

BRAIN_MM: tuple[tuple[float, float], ...] = ((-74.0, 74.0), (-109.0, 74.0), (-72.0, 86.0))
"""The brain of the template along x, y and z: what a panel shows."""
_NEGATIVE_SHARE = 0.01


@dataclass(frozen=True)
class BrainImage:
    """A volume in RAS orientation with an axis-aligned affine."""

    values: np.ndarray
    affine: np.ndarray

    @classmethod
    def read(cls, path: Path) -> BrainImage:
        image: Any = nib.as_closest_canonical(load_whole(path))  # type: ignore[no-untyped-call]
        return cls(np.asarray(image.dataobj, dtype=np.float32), np.asarray(image.affine))

    def index(self, axis: int, mm: float) -> int:
        """Nearest slice to a position, inside the volume."""
        position = (mm - self.affine[axis, 3]) / self.affine[axis, axis]
        return int(np.clip(round(position), 0, self.values.shape[axis] - 1))

    def slice(self, plane: Plane, mm: float) -> np.ndarray:
        """Slice with rows from inferior (or posterior) to superior (anterior), columns from left (or posterior)."""
        axis = AXIS[plane]
        place = [slice(None)] * axis + [self.index(axis, mm)]
        plane_values: np.ndarray = self.values[tuple(place)].T
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

    slices: Mapping[Cut, np.ndarray]
    affine: np.ndarray
    magnitudes: Mapping[float, float]
    negative_share: float

    def scale(self, percentiles: tuple[float, float], others: Sequence[MapView] = ()) -> ColourScale:
        """Colour scale set on this map; two-sided if it or one of the `others` has negative values that matter."""
        signed = any(view.negative_share > _NEGATIVE_SHARE for view in (self, *others))
        return ColourScale(self.magnitudes[percentiles[0]], self.magnitudes[percentiles[1]], signed)


def view_of(image: BrainImage, cuts: Sequence[Cut], brain: np.ndarray | None) -> MapView:
    """Slices and percentiles of a map.

    Parameters
    ----------
    image : BrainImage
    cuts : sequence of (plane, mm)
    brain : array of bool, optional
        Voxels of the brain on the map's grid; percentiles are taken there. Without it, where the map is not 0.
    """
    values = image.values
    inside = brain if brain is not None and brain.shape == values.shape else values != 0
    magnitude = np.abs(values[inside]) if inside.any() else np.zeros(1)
    levels = sorted({*GROUP_PERCENTILES, *PERSON_PERCENTILES})
    total = float(magnitude.sum(dtype=np.float64))
    negative = float(-values[values < 0].sum(dtype=np.float64))
    return MapView(
        {cut: image.slice(*cut) for cut in cuts},
        image.affine,
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


def coloured(values: np.ndarray, scale: ColourScale) -> np.ndarray:
    """Colours of a slice: (rows, columns, 4), transparent where the absolute value is not above ``scale.low``."""
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
