"""Permutation of participants.

What is exchanged under the null hypothesis is a participant, never a scan. p = (b+1)/(m+1), with b of m random
permutations at least as extreme as what was observed (Phipson & Smyth 2010). Where there are no more distinct
permutations than were asked for, all of them are used, the observed order among them, and p is exact.

Own code: `scipy.stats.permutation_test` and nilearn's `permuted_ols` know no blocks of scans that move together.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

TIE_TOLERANCE = 1e-9
"""Relative; statistics of equivalent permutations differ by rounding only and must count as equal."""

CHUNK = 1_000


@dataclass(frozen=True, eq=False)
class Permutations:
    """Rearrangements of rows.

    Parameters
    ----------
    rows : array of int, shape (m, rows)
        ``values[rows[i]]`` is the i-th rearrangement.
    exact : bool
        True if these are all there are, the identity included.
    """

    rows: Indices
    exact: bool

    def __len__(self) -> int:
        return len(self.rows)


def block_permutations(codes: Indices, count: int, rng: np.random.Generator) -> Permutations:
    """Exchange whole participants among those with equally many scans; scans keep their order within.

    With one row per participant these are plain permutations of participants.

    Parameters
    ----------
    codes : array of int, shape (rows,)
        Participant of each row.
    count : int
        Random permutations wanted.
    rng : numpy.random.Generator
    """
    blocks = _blocks_by_size(codes)
    distinct = math.prod(math.factorial(len(block)) for block in blocks)
    if distinct <= count:
        orders = itertools.product(*(itertools.permutations(range(len(block))) for block in blocks))
        chosen = [[np.array(part) for part in order] for order in orders]
        per_block = [np.array([order[i] for order in chosen]) for i in range(len(blocks))]
    else:
        per_block = [rng.permuted(np.tile(np.arange(len(block)), (count, 1)), axis=1) for block in blocks]
    rows = np.empty((len(per_block[0]), len(codes)), np.intp)
    for block, order in zip(blocks, per_block, strict=True):
        rows[:, block.ravel()] = block[order].reshape(len(rows), -1)
    return Permutations(rows, distinct <= count)


def _blocks_by_size(codes: Indices) -> list[Indices]:
    """Rows of all participants with one, two ... rows, each of shape (participants, rows of one)."""
    sizes = np.bincount(codes)
    order = np.argsort(codes, kind="stable")
    per_participant = np.split(order, np.cumsum(sizes)[:-1])
    return [
        np.array([per_participant[code] for code in np.flatnonzero(sizes == size)], dtype=np.intp)
        for size in np.unique(sizes[sizes > 0])
    ]


@dataclass(frozen=True, eq=False)
class Regroupings:
    """Assignments of participants to two classes: ``first`` is 1 for the first class, shape (m, participants)."""

    first: Floats
    exact: bool

    def __len__(self) -> int:
        return len(self.first)


def regroupings(is_first: NDArray[np.bool_], count: int, rng: np.random.Generator) -> Regroupings:
    """Reassign participants to two classes of the given sizes, at random or in all ways there are."""
    n, size = len(is_first), int(is_first.sum())
    if math.comb(n, size) <= count:
        chosen = np.array(list(itertools.combinations(range(n), size)), dtype=np.intp).reshape(-1, size)
        first = np.zeros((len(chosen), n))
        np.put_along_axis(first, chosen, 1.0, axis=1)
        return Regroupings(first, True)
    return Regroupings(rng.permuted(np.tile(is_first.astype(float), (count, 1)), axis=1), False)


def two_sided_p(observed: Floats, null: Floats, exact: bool) -> Floats:
    """Share of permutations at least as extreme as what was observed.

    Parameters
    ----------
    observed : array, shape (...)
    null : array, shape (m, ...)
        Statistics under permutation; with `exact`, of all permutations, the observed one included.
    exact : bool

    Examples
    --------
    >>> float(two_sided_p(np.array(2.0), np.array([1.0, -2.0, 0.5]), exact=False))
    0.5
    """
    b = (np.abs(null) >= np.abs(observed) * (1 - TIE_TOLERANCE)).sum(axis=0)
    p: Floats = b / len(null) if exact else (b + 1) / (len(null) + 1)
    return np.where(np.isnan(observed), np.nan, p)
