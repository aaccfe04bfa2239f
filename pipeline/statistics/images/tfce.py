"""Threshold-free cluster enhancement (Smith & Nichols 2009), as an exact integral.

The enhanced value of a voxel of height h is the integral over heights t from 0 to h of e(t)^E t^H dt, where e(t) is the
number of voxels of the cluster that holds it at height t: neighbours by faces, E = 0.5, H = 2. Clusters change only at
heights of voxels. So voxels are added from the highest down, clusters are joined by union-find, and each cluster keeps
what all its voxels have gained since it came to be: one pass without steps of height, and no error of their width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatlas.pipeline.statistics.arrays import Floats
from heatlas.pipeline.statistics.linear.compiled import compiled

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
    result = np.zeros(len(heights))
    for sign in (1.0, -1.0):
        signed = sign * np.asarray(heights, np.float64)
        order = np.flatnonzero(signed > 0)
        order = order[np.argsort(-signed[order], kind="stable")]
        gained = np.zeros(len(heights))
        _enhance(signed, order, neighbours, EXTENT, HEIGHT, gained)
        result += sign * gained
    return result


def _enhance_one_side(heights: Any, order: Any, neighbours: Any, extent: Any, height: Any, gained: Any) -> None:
    """Enhanced heights of the voxels in `order`, highest first, into `gained`.

    A voxel's gain is the sum of ``gained`` along its path to the root of its cluster, where a root's own counts, too.
    """
    n = len(heights)
    parent = np.full(n, -1, np.int32)
    size = np.ones(n, np.int64)
    since = np.zeros(n)  # height^(H+1) up to which a root's gain has been counted
    power = height + 1.0
    for step in range(len(order)):
        voxel = order[step]
        level = heights[voxel] ** power
        parent[voxel], since[voxel] = voxel, level
        for k in range(neighbours.shape[1]):
            other = neighbours[voxel, k]
            if other < 0 or parent[other] < 0:
                continue
            a, b = voxel, other
            while parent[a] != a:
                a = parent[a]
            while parent[b] != b:
                b = parent[b]
            if a == b:
                continue
            gained[a] += size[a] ** extent * (since[a] - level) / power
            gained[b] += size[b] ** extent * (since[b] - level) / power
            since[a] = since[b] = level
            if size[a] < size[b]:
                a, b = b, a
            parent[b] = a  # joined by size: paths stay short
            gained[b] -= gained[a]
            size[a] += size[b]
    for step in range(len(order)):
        root = order[step]
        if parent[root] == root:
            gained[root] += size[root] ** extent * since[root] / power
    total = np.zeros(n)
    for step in range(len(order)):
        voxel = order[step]
        at = voxel
        total[voxel] = gained[at]
        while parent[at] != at:
            at = parent[at]
            total[voxel] += gained[at]
    gained[:] = total


_enhance = compiled(_enhance_one_side)
