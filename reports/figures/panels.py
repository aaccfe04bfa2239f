"""Panels of brain slices as pixels: grey anatomy, a map over it, outlines of regions.

Everything is sampled at the same points in mm, so images of other grids and resolutions lie where they belong. Pixels
rather than plotting commands: a page may show a hundred panels, and an axis each would cost seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.ndimage
from numpy.typing import NDArray

from reports.figures.brain import AXIS, BRAIN_MM, ColourScale, Cut, coloured
from reports.figures.palette import LIGHTEST, NIGHT

Pixels = NDArray[np.uint8]
OUTLINE = (255, 255, 255)


@dataclass(frozen=True)
class Plan:
    """Which points of a slice a panel shows.

    Parameters
    ----------
    cut : (plane, mm)
    across, up : array, shape (pixels,)
        Position in mm of each column from left to right, and of each row from top to bottom.
    """

    cut: Cut
    across: NDArray[np.float64]
    up: NDArray[np.float64]

    @classmethod
    def of(cls, cut: Cut, pixels: int) -> Plan:
        """The brain of the template in a square of `pixels`, on the scale that makes it fit."""
        across, up = np.delete(np.arange(3), AXIS[cut[0]])
        (left, right), (bottom, top) = BRAIN_MM[across], BRAIN_MM[up]
        step = max(right - left, top - bottom) / pixels
        places = (np.arange(pixels) + 0.5 - pixels / 2) * step
        return cls(cut, (left + right) / 2 + places, (bottom + top) / 2 - places)

    def sample(self, values: NDArray[np.floating], affine: NDArray[np.float64], order: int = 1) -> NDArray[Any]:
        """Values of a slice at the points, 0 outside it.

        Parameters
        ----------
        values : array, shape (up, across)
            As `reports.figures.brain.BrainImage.slice` gives it.
        affine : array, shape (4, 4)
            Of the volume: axis-aligned, RAS.
        order : int
            1 linear, 0 nearest neighbour (labels).
        """
        across, up = np.delete(np.arange(3), AXIS[self.cut[0]])
        columns = (self.across - affine[across, 3]) / affine[across, across]
        rows = (self.up - affine[up, 3]) / affine[up, up]
        if order == 0:
            return _take(_take(values, np.rint(rows), 0), np.rint(columns), 1)
        return _between(_between(np.asarray(values, dtype=float), rows, 0), columns, 1)


def _between(values: NDArray[np.float64], places: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """Linear interpolation along one axis; with it along the other, it is that of the plane."""
    below = np.floor(places)
    share = (places - below)[:, None] if axis == 0 else places - below
    found: NDArray[np.float64] = _take(values, below, axis) * (1 - share) + _take(values, below + 1, axis) * share
    return found


def _take(values: NDArray[Any], places: NDArray[np.float64], axis: int) -> NDArray[Any]:
    """Rows or columns at whole places, 0 where there are none."""
    size = values.shape[axis]
    there = (places >= 0) & (places < size)
    taken = np.take(values, np.clip(places, 0, size - 1).astype(int), axis=axis)
    return np.where(there[:, None] if axis == 0 else there, taken, 0)


def grey_panel(plan: Plan, anatomy: NDArray[np.floating], affine: NDArray[np.float64], ceiling: float) -> Pixels:
    """Anatomy in shades of grey on night; `ceiling` and above are lightest.

    Returns
    -------
    array of uint8, shape (rows, columns, 3)
    """
    shade = np.clip(plan.sample(anatomy, affine) / (ceiling or 1.0), 0, 1)[..., None]
    night = np.asarray(NIGHT, dtype=float)
    return np.asarray(night + shade * (np.asarray(LIGHTEST) - night), dtype=np.uint8)


def empty_panel(plan: Plan) -> Pixels:
    """Night, where there is no anatomy to show."""
    return np.tile(np.asarray(NIGHT, dtype=np.uint8), (len(plan.up), len(plan.across), 1))


def with_map(
    picture: Pixels, plan: Plan, values: NDArray[np.floating], affine: NDArray[np.float64], scale: ColourScale
) -> Pixels:
    """The panel with a map above its threshold in colour, interpolated before the threshold is applied."""
    if scale.empty:
        return picture
    colours = coloured(plan.sample(values, affine), scale)
    return np.where(colours[..., 3:] > 0, (255 * colours[..., :3]).astype(np.uint8), picture)


def outlined_bodies(
    plan: Plan, labels: NDArray[np.integer], affine: NDArray[np.float64], chosen: Mapping[int, int]
) -> NDArray[np.int16]:
    """Which body each pixel of a panel belongs to, 0 for none.

    Parameters
    ----------
    plan : Plan
    labels : array of int, shape (up, across)
        Slice of the atlas.
    affine : array
        Of the atlas.
    chosen : mapping of int to int
        Label number to the number of its body; labels of one number are outlined as one.
    """
    bodies = np.zeros(int(max(labels.max(initial=0), *chosen, 0)) + 1, dtype=np.int16)
    for label, number in chosen.items():
        bodies[label] = number
    return plan.sample(bodies[labels], affine, order=0).astype(np.int16)


def with_outlines(picture: Pixels, bodies: NDArray[np.int16]) -> Pixels:
    """The panel with a line around each body."""
    edge = np.zeros(bodies.shape, dtype=bool)
    for axis in (0, 1):
        ahead = np.roll(bodies, -1, axis) != bodies
        behind = np.roll(bodies, 1, axis) != bodies
        edge |= (bodies > 0) & (ahead | behind)
    return np.where(edge[..., None], np.asarray(OUTLINE, dtype=np.uint8), picture)


def middle_of(bodies: NDArray[np.int16]) -> dict[int, tuple[int, int]]:
    """For each body in a panel, the pixel (row, column) deepest inside its largest part."""
    places = {}
    for number in sorted(set(np.unique(bodies)) - {0}):
        parts, _ = scipy.ndimage.label(bodies == number)
        largest = parts == np.argmax(np.bincount(parts.ravel())[1:]) + 1
        depth = scipy.ndimage.distance_transform_edt(largest)
        row, column = np.unravel_index(int(np.argmax(depth)), depth.shape)
        places[int(number)] = (int(row), int(column))
    return places
