"""Volumes small enough to travel inside a page: fewer voxels, one byte each, compressed.

A value v is kept as the code c = ±round(127 √(|v| / top)), where top is the largest absolute value of the map, and
read back as ±top (c / 127)². Relevance has long tails: evenly spaced levels would round most of a brain to zero, the
square root spends the levels where the values are. No value is off by more than `Coded.error`.
"""

from __future__ import annotations

import base64
import math
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatlas.atlases.spaces import Grid

LEVELS = 127  # codes on either side of 0
FINEST_MM = 2.0
"""Voxel side of the viewer; maps with smaller voxels are averaged over blocks. A whole run at 1 mm would make a page of
some 60 MB, at 2 mm of some 7 MB."""


def block_side(voxel_mm: float) -> int:
    """Voxels per side of the blocks that one voxel of the viewer stands for.

    Examples
    --------
    >>> block_side(1.0), block_side(1.5), block_side(2.0), block_side(4.0)
    (2, 1, 1, 1)
    """
    return max(1, round(FINEST_MM / voxel_mm))


def block_grid(grid: Grid, side: int) -> Grid:
    """Grid of blocks of ``side`` voxels each way; the last block of an axis may stick out of the field of view.

    Examples
    --------
    >>> from heatlas.atlases.spaces import template_grid
    >>> block_grid(template_grid(1.0), 2).to_world([0, 0, 0]).tolist()
    [-95.5, -131.5, -77.5]
    """
    affine = np.array(grid.affine)
    affine[:3, 3] = grid.to_world([(side - 1) / 2] * 3)
    affine[:3, :3] *= side
    x, y, z = (math.ceil(n / side) for n in grid.shape)
    return Grid((x, y, z), affine)


def block_mean(values: NDArray[Any], side: int) -> NDArray[np.float32]:
    """Mean over blocks, so that sums over regions stay what they were.

    Blocks that stick out of the field of view are means over their voxels inside.
    """
    if side == 1:
        return np.asarray(values, dtype=np.float32)
    means: NDArray[Any] = np.asarray(values)
    for axis in range(3):
        lines = np.moveaxis(means, axis, 0)
        sums = lines[::side].astype(np.float64)
        for place in range(1, side):
            there = lines[place::side]
            sums[: len(there)] += there
        sizes = np.minimum(side, len(lines) - np.arange(0, len(lines), side))
        means = np.moveaxis(sums / sizes[:, None, None], 0, axis)
    return means.astype(np.float32)


@dataclass(frozen=True, eq=False)
class Coded:
    """A map of one byte per voxel."""

    codes: NDArray[np.int8]  # -127 to 127, shape (x, y, z)
    top: float  # largest absolute value; 0 for an empty map

    @classmethod
    def of(cls, values: NDArray[Any]) -> Coded:
        """Code a map of finite values."""
        size = np.abs(values)
        top = float(size.max(initial=0.0))
        if top == 0:
            return cls(np.zeros(size.shape, np.int8), top)
        levels = np.rint(LEVELS * np.sqrt(size / top))
        return cls(np.copysign(levels, values).astype(np.int8), top)

    @property
    def values(self) -> NDArray[np.float64]:
        """What a reader of the codes sees."""
        shares = self.codes.astype(np.float64) / LEVELS
        result: NDArray[np.float64] = self.top * np.sign(shares) * shares**2
        return result

    @property
    def error(self) -> NDArray[np.float64]:
        """How far, at most, the true value is from `values`, voxel by voxel.

        The true root lies within half a level of the code c, its square between (c - 1/2)² and (c + 1/2)² levels
        squared: at most c + 1/4 away from c².
        """
        result: NDArray[np.float64] = self.top * (np.abs(self.codes.astype(np.float64)) + 0.25) / LEVELS**2
        return result


def packed(array: NDArray[Any], strategy: int = zlib.Z_FILTERED) -> str:
    """Bytes of an array, first axis fastest, little-endian, as zlib stream in base64.

    Browsers take it apart without a library (``DecompressionStream("deflate")``).

    `strategy`: ``zlib.Z_RLE`` for volumes of one byte per voxel, whose only repetition is the background: smaller and
    three times as fast, see ``docs/viewer.md``. Labels, of two bytes, and tables repeat in longer patterns.
    """
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    stream = zlib.compressobj(4, strategy=strategy)
    return base64.b64encode(stream.compress(little.tobytes(order="F")) + stream.flush()).decode()
