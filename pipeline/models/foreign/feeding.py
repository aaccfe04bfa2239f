"""How a network that others trained is fed: the input contract of its description file, and a scan made by it.

First the scan is brought onto the grid of the network, then its intensities are scaled there; `heatlas.explain`,
``heatlas run`` and ``heatlas check --network`` call the same function. Linear interpolation stands for whatever the
network's makers used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from heatlas.atlases.spaces import Grid, Placed
from heatlas.pipeline.models.families.foreign import Feeding, Scaling
from heatlas.pipeline.run.errors import BadInputError

SCALED: Mapping[Scaling, str] = {
    "minmax": "scaled by minimum and maximum",
    "percentiles": "scaled by percentiles of the brain",
    "zscore": "z-scores of the image",
    "zscore-brain": "z-scores of the brain",
    "none": "intensities as stored",
}
MOST_CHANGES = 2
"""Mistakes at a time that `conventions` looks for."""
OF_BRAIN: tuple[Scaling, ...] = ("percentiles", "zscore-brain")
USUAL_ENDS: Mapping[Scaling, tuple[float, float]] = {"minmax": (0.0, 100.0), "percentiles": (0.5, 99.5)}
_DIRECTIONS = {"R": (0, 1), "L": (0, -1), "A": (1, 1), "P": (1, -1), "S": (2, 1), "I": (2, -1)}


def network_grid(feeding: Feeding, image: Grid) -> Grid:
    """The grid of a network over an image, in the millimetres of the image.

    Examples
    --------
    >>> image = Grid((4, 6, 4), np.diag([1.0, 1, 1, 1]))
    >>> cut = Feeding((2, 2, 2), "minmax", spacing_mm=(1.0, 1.0, 1.0), orientation="LAS")
    >>> network_grid(cut, image).to_world([0, 0, 0]).tolist()
    [2.0, 2.0, 1.0]
    >>> squeezed = network_grid(Feeding((2, 2, 2), "minmax"), image)
    >>> squeezed.voxel_sizes_mm, squeezed.to_world([0, 0, 0]).tolist()
    ((2.0, 3.0, 2.0), [0.5, 1.0, 0.5])
    """
    a, b, c = feeding.grid
    affine, half = np.eye(4), (np.array(feeding.grid) - 1) / 2
    theirs = [_DIRECTIONS[letter] for letter in image.orientation]
    for axis, letter in enumerate(feeding.orientation):
        world, sign = _DIRECTIONS[letter]
        along = next(place for place, one in enumerate(theirs) if one[0] == world)
        column = image.affine[:3, along] * image.shape[along] / feeding.grid[axis] * (sign * theirs[along][1])
        affine[:3, axis] = np.eye(3)[world] * sign * feeding.spacing_mm[axis] if feeding.spacing_mm else column
    middle = feeding.middle_mm or image.to_world((np.array(image.shape) - 1) / 2)
    first = np.asarray(middle) - affine[:3, :3] @ half
    steps = np.abs(np.linalg.inv(image.affine[:3, :3]) @ affine[:3, :3]).round(3)
    if not feeding.middle_mm and set(steps.ravel()) == {0.0, 1.0}:  # voxels are taken over, not interpolated
        first = image.to_world(np.floor(image.to_voxel(first) + 1e-6))
    affine[:3, 3] = first
    return Grid((a, b, c), affine)


def scaled(
    values: NDArray[np.floating], feeding: Feeding, like: NDArray[np.floating] | None = None
) -> NDArray[np.float32]:
    """Intensities on the scale of a network.

    `like`: the image whose mean or ends are taken; the same if None. BadInputError where they are all alike.

    Examples
    --------
    >>> scaled(np.array([0.0, 1.0, 3.0]), Feeding(scaling="zscore-brain")).tolist()
    [0.0, -1.0, 1.0]
    """
    seen, of_brain = np.asarray(values if like is None else like, dtype=np.float64), feeding.scaling in OF_BRAIN
    seen = seen[seen != 0] if of_brain and seen.any() else seen
    if feeding.scaling.startswith("zscore"):
        low, high = seen.mean(), seen.mean() + seen.std()
    elif feeding.scaling in ("fixed", "none"):
        low, high = feeding.scaling_ends or (0.0, 1.0)
    else:
        low, high = np.percentile(seen, feeding.scaling_ends or USUAL_ENDS[feeding.scaling])
    if not low < high:
        raise BadInputError("all intensities on the grid of the network are the same; check the image and its place.")
    found = (np.asarray(values, dtype=np.float64) - low) / (high - low)
    found = np.clip(found, 0, 1) if feeding.scaling == "percentiles" else found
    return (np.where(values != 0, found, 0) if of_brain else found).astype(np.float32)


def fed(values: NDArray[np.floating], image: Grid, feeding: Feeding) -> tuple[NDArray[np.float32], Grid]:
    """What a network gets of an image (D, H, W): (channels, D, H, W), and the grid of it."""
    grid = network_grid(feeding, image)
    seen = scaled(Placed.on(grid, image).crop(values.astype(np.float32)), feeding)
    return np.repeat(seen[None], feeding.channels, axis=0), grid


@dataclass(frozen=True)
class Convention:
    """A way to feed a network that its users may take for the right one; `changes`: what differs, empty for its own."""

    feeding: Feeding
    changes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return ", ".join(self.changes) or "as declared"


def conventions(feeding: Feeding, image: Grid) -> list[Convention]:
    """The declared convention, then those that differ in at most two of scaling, orientation and place.

    Those that come to the same on the grid of the image are left out.
    """
    others = (name for name in SCALED if name != feeding.scaling)
    scalings = {"": feeding} | {SCALED[one]: replace(feeding, scaling=one, scaling_ends=()) for one in others}
    turned = {
        "": feeding.orientation,
        "mirrored left to right": feeding.orientation.translate(str.maketrans("RL", "LR")),
        "turned by half, as LPS for RAS": feeding.orientation.translate(str.maketrans("RLAP", "LRPA")),
        "axes in reverse order": feeding.orientation[::-1],
    }
    stored = {
        _DIRECTIONS[letter][0]: size for letter, size in zip(image.orientation, image.voxel_sizes_mm, strict=True)
    }
    found: dict[tuple[Grid, Feeding], Convention] = {}
    for (scale, base), (turn, axes) in product(scalings.items(), turned.items()):
        sizes = feeding.spacing_mm[::-1] if turn.startswith("axes") else feeding.spacing_mm
        own, theirs = replace(base, orientation=axes), tuple(stored[_DIRECTIONS[letter][0]] for letter in axes)
        places = {
            "": replace(own, spacing_mm=sizes),
            "squeezed, not cut": replace(own, spacing_mm=(), middle_mm=()),
            "cut, with the voxels of the image": replace(own, spacing_mm=theirs, middle_mm=()),
        }
        for place, one in places.items():
            changes = tuple(filter(None, (scale, turn, place)))
            if len(changes) <= MOST_CHANGES:
                key = network_grid(one, image), replace(base, spacing_mm=(), middle_mm=())
                found.setdefault(key, Convention(one, changes))
    return list(found.values())
