"""The part of the template grid that holds the brain: what a network needs to see, and nothing more."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatlas.atlases.spaces import Grid
from heatlas.atlases.templates import Template
from heatlas.pipeline.run.errors import BadInputError


@dataclass(frozen=True)
class Box:
    """A block of voxels.

    `start`: first voxel. `shape`: sides, in voxels.

    Examples
    --------
    >>> box = Box((1, 0, 2), (2, 3, 1))
    >>> whole = np.arange(4 * 3 * 5).reshape(4, 3, 5)
    >>> box.crop(whole).shape
    (2, 3, 1)
    >>> int(box.paste(box.crop(whole), whole.shape).sum() - box.crop(whole).sum())
    0
    """

    start: tuple[int, int, int]
    shape: tuple[int, int, int]

    def __post_init__(self) -> None:
        if min(self.start) < 0 or min(self.shape) < 1:
            raise BadInputError(f"not a box of voxels: start {self.start}, shape {self.shape}.")

    @property
    def slices(self) -> tuple[slice, slice, slice]:
        i, j, k = (slice(first, first + side) for first, side in zip(self.start, self.shape, strict=True))
        return i, j, k

    def crop(self, array: Any) -> Any:
        """View of the box in the last three axes of an array or tensor."""
        self._require_inside(tuple(array.shape[-3:]))
        return array[(..., *self.slices)]

    def paste(self, cropped: NDArray[Any], full_shape: tuple[int, ...]) -> NDArray[Any]:
        """Put a cropped array back, zeros outside; `full_shape` is that of the last three axes."""
        self._require_inside(tuple(full_shape[-3:]))
        if tuple(cropped.shape[-3:]) != self.shape:
            raise BadInputError(f"an array of shape {tuple(cropped.shape)} does not fit a box of shape {self.shape}.")
        whole = np.zeros((*cropped.shape[:-3], *full_shape[-3:]), dtype=cropped.dtype)
        whole[(..., *self.slices)] = cropped
        return whole

    def grid(self, full_grid: Grid) -> Grid:
        """Grid of the box: the same voxels keep their place in the world."""
        self._require_inside(full_grid.shape)
        affine = full_grid.affine.copy()
        affine[:3, 3] = full_grid.to_world(self.start)
        return Grid(self.shape, affine)

    def _require_inside(self, full_shape: tuple[int, ...]) -> None:
        if any(first + side > full for first, side, full in zip(self.start, self.shape, full_shape, strict=True)):
            raise BadInputError(f"the box {self.start} + {self.shape} reaches beyond an array of shape {full_shape}.")


def brain_box(template: Template, margin_mm: float = 6.0) -> Box:
    """Bounding box of the template brain with a margin, clipped to the grid.

    `margin_mm`: kept on every side, rounded up to whole voxels; room for registration error and for the few border
    voxels that unpadded convolutions do not see in full.
    """
    starts, sides = [], []
    for axis, voxel_size in enumerate(template.grid.voxel_sizes_mm):
        others = tuple(other for other in range(3) if other != axis)
        brain = np.flatnonzero(template.brain_mask.any(axis=others))
        margin = math.ceil(margin_mm / voxel_size - 1e-6)
        first = max(int(brain[0]) - margin, 0)
        last = min(int(brain[-1]) + margin, template.grid.shape[axis] - 1)
        starts.append(first)
        sides.append(last - first + 1)
    return Box((starts[0], starts[1], starts[2]), (sides[0], sides[1], sides[2]))
