"""Threshold-free cluster enhancement (Smith & Nichols 2009), as an exact integral.

The enhanced value of a voxel of height h is the integral over heights t from 0 to h of e(t)^E t^H dt, where e(t) is the
number of voxels of the cluster that holds it at height t: neighbours by faces, E = 0.5, H = 2. Clusters change only at
heights of voxels. So voxels of both signs are added from the largest down, clusters are joined by union-find, and each
cluster keeps what all its voxels have gained since it came to be: one pass without steps of height, and no error of
their width.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatlas.pipeline.statistics.arrays import Floats
from heatlas.pipeline.statistics.linear.exchangeability import compiled

EXTENT, HEIGHT = 0.5, 2.0
"""Exponents E and H of Smith & Nichols, for volumes."""


def neighbours_of(mask: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Places of the six neighbours of each voxel of a mask among its voxels, -1 where there is none; (voxels, 6).

    Examples
    --------
    >>> neighbours_of(np.ones((1, 1, 3), bool))[:, 4:].tolist()
    [[-1, 1], [0, 2], [1, -1]]
    """
    place = np.full(np.array(mask.shape) + 2, -1, np.int32)
    inner = (slice(1, -1),) * 3
    place[inner][mask] = np.arange(np.count_nonzero(mask), dtype=np.int32)
    found = [np.roll(place, shift, axis)[inner][mask] for axis in range(3) for shift in (1, -1)]
    return np.ascontiguousarray(np.stack(found, axis=1))


def enhanced(heights: NDArray[Any], neighbours: NDArray[np.int32]) -> Floats:
    """Enhanced heights (voxels,), those below 0 with their sign, each side on its own."""
    signed = np.asarray(heights, np.float64)
    size = np.abs(signed)
    order = np.argsort(-size)[: np.count_nonzero(size)]
    gained = np.zeros(len(size))
    extents = _extents(len(size))
    _enhance(size**HEIGHT * size / (HEIGHT + 1), signed > 0, order, neighbours, extents, gained)
    return np.where(signed < 0, -gained, gained)


@functools.lru_cache(maxsize=4)
def _extents(voxels: int) -> Floats:
    """Powers of all sizes of clusters, from 0 voxels."""
    return np.arange(voxels + 1, dtype=np.float64) ** EXTENT


def _enhance_sides(levels: Any, higher: Any, order: Any, neighbours: Any, extents: Any, gained: Any) -> None:
    """Enhanced heights of the voxels in `order`, largest size first, into `gained`.

    `levels`: height^(H+1) / (H+1); `higher`: whether the height is above 0: clusters have one sign; `extents`:
    `_extents`. A voxel's gain is the sum of ``gained`` along its path to the root of its cluster, where a root's own
    counts, too.
    """
    n = len(levels)
    parent = np.full(n, -1, np.int32)
    size = np.ones(n, np.int32)
    since = np.zeros(n)  # level up to which a root's gain has been counted
    for step in range(len(order)):
        root = order[step]
        level = levels[root]
        parent[root], since[root] = root, level
        for k in range(neighbours.shape[1]):
            other = neighbours[order[step], k]
            if other < 0 or parent[other] < 0 or higher[other] != higher[root]:
                continue
            while parent[other] != other:
                other = parent[other]
            if root == other:
                continue
            gained[root] += extents[size[root]] * (since[root] - level)
            gained[other] += extents[size[other]] * (since[other] - level)
            since[root] = since[other] = level
            if size[root] < size[other]:
                root, other = other, root
            parent[other] = root  # joined by size: paths stay short
            gained[other] -= gained[root]
            size[root] += size[other]
    for step in range(len(order)):
        root = order[step]
        if parent[root] == root:
            gained[root] += extents[size[root]] * since[root]
    total = np.zeros(n)
    for step in range(len(order)):
        voxel = order[step]
        at = voxel
        total[voxel] = gained[at]
        while parent[at] != at:
            at = parent[at]
            total[voxel] += gained[at]
    gained[:] = total


_enhance = compiled(_enhance_sides)
