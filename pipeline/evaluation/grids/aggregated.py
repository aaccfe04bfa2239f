"""AggAtt: the mean map of the best, the usual and the worst grids, instead of examples that someone chose.

Maps of one cell position are sorted by their share, best first, ties by positive attribution in the cell, and cut into
bins of unequal size: the first 2 %, to 5 %, to 50 %, to 95 %, to 98 %, and the last 2 %. All bins share one scale.

Source: Rao, Böhle & Schiele 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from heatlas.pipeline.run.errors import BadInputError

EDGES = (0, 2, 5, 50, 95, 98, 100)
"""Per cent."""
SHOWN = 99.5
"""Percentile of absolute values at which the scale ends."""


@dataclass(frozen=True, eq=False)
class Bin:
    """Maps between two ranks.

    Parameters
    ----------
    first, last : float
        Per cent.
    members : tuple of int
        Maps, best first.
    example : int
        The median of them.
    mean : array, shape (D, H, W)
    share : float
        Mean share.
    """

    first: float
    last: float
    members: tuple[int, ...]
    example: int
    mean: NDArray[np.float64]
    share: float


@dataclass(frozen=True, eq=False)
class Aggregated:
    """All bins of a method, the scale they share, and the maps that are undefined and in no bin."""

    bins: tuple[Bin, ...]
    limit: float
    undefined: tuple[int, ...]


def bin_edges(count: int, edges: Sequence[float] = EDGES) -> list[int]:
    """Ranks at which bins begin and end: rounded, at least one map per bin.

    Raises
    ------
    BadInputError
        For fewer maps than bins.

    Examples
    --------
    >>> bin_edges(100), bin_edges(10)
    ([0, 2, 5, 50, 95, 98, 100], [0, 1, 2, 5, 8, 9, 10])
    """
    bins = len(edges) - 1
    if count < bins:
        raise BadInputError(f"AggAtt: {count} defined maps cannot fill {bins} bins; make at least {bins} grids.")
    ranks = [round(count * edge / 100) for edge in edges]
    for place in range(1, bins):
        ranks[place] = max(ranks[place], ranks[place - 1] + 1)
    for place in range(bins - 1, 0, -1):
        ranks[place] = min(ranks[place], ranks[place + 1] - 1)
    return ranks


def aggregated(
    maps: NDArray[np.floating], shares: NDArray[np.floating], inside: NDArray[np.floating],
    edges: Sequence[float] = EDGES,
) -> Aggregated:  # fmt: skip
    """Bins of maps of one cell position.

    Parameters
    ----------
    maps : array, shape (N, D, H, W)
    shares : array, shape (N,)
        NaN for undefined maps.
    inside : array, shape (N,)
        Positive attribution in the cell.
    edges : sequence of float
        Per cent.
    """
    defined = np.flatnonzero(np.isfinite(shares))
    order = defined[np.lexsort((-np.asarray(inside)[defined], -np.asarray(shares)[defined]))]
    ranks = bin_edges(len(order), edges)
    bins = []
    for place, (start, stop) in enumerate(pairwise(ranks)):
        members = order[start:stop]
        mean = np.mean([np.asarray(maps[one], dtype=np.float64) for one in np.sort(members)], axis=0)
        bins.append(
            Bin(
                edges[place],
                edges[place + 1],
                tuple(map(int, members)),
                int(members[(len(members) - 1) // 2]),
                mean,
                float(np.asarray(shares, dtype=np.float64)[members].mean()),
            )
        )
    limit = float(np.percentile(np.abs([one.mean for one in bins]), SHOWN))
    return Aggregated(tuple(bins), limit, tuple(map(int, np.flatnonzero(~np.isfinite(shares)))))
