"""A bright cube outside the brain, which a network can learn instead of the disease."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heatlas.pipeline.cohort.demo.anatomy import Array
from heatlas.pipeline.run.errors import BadInputError

MARKER_VOXELS = 3
MARKER_OFFSET = 2
"""A cube of bright voxels this far from the corner of what networks see."""


def marker(shape: tuple[int, ...], start: tuple[int, int, int]) -> NDArray[np.bool_]:
    """A cube near the first corner of what networks see.

    `shape`: shape of the grid. `start`: first voxel that networks see.
    """
    cube = np.zeros(shape, bool)
    cube[tuple(slice(first + MARKER_OFFSET, first + MARKER_OFFSET + MARKER_VOXELS) for first in start)] = True
    return cube


def with_marker(volume: Array, brain: NDArray[np.bool_], cube: NDArray[np.bool_]) -> tuple[Array, NDArray[np.bool_]]:
    """Volume and mask with a marker as bright as the brightest voxel of the brain.

    Raises BadInputError if the brain reaches into it.
    """
    if (cube & brain).any():
        raise BadInputError("the corner of what the networks see lies inside the brain: no marker can be put there.")
    return np.where(cube, volume[brain].max(), volume).astype(np.float32), brain | cube
