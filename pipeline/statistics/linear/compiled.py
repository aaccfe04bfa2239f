"""Inner loops of permutation tests, compiled with numba: one pass where numpy needs several over large arrays.

Sums over cells: rows of a model with the same levels of all factors (sex, field strength, site) form a cell. The
projection of a permuted column of residuals on directions that are constant within cells depends only on its sums over
the cells, and these take one addition per row, whatever the number of directions. Memory bandwidth limits the
additions, so they use 16-bit integers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np


def compiled(function: Callable[..., Any], fast: bool = False) -> Callable[..., Any]:
    """Compile a loop, cached on disk where possible. ``fast``: sums may be taken in any order."""
    try:
        made = numba.njit(cache=True, nogil=True, fastmath=fast, error_model="numpy")(function)
    except RuntimeError:  # neither this folder nor the user's cache is writable
        made = numba.njit(nogil=True, fastmath=fast, error_model="numpy")(function)
    answer: Callable[..., Any] = made
    return answer


@compiled
def shuffle_rows(orders: Any, draws: Any) -> None:
    """Shuffle each row (Fisher & Yates) with 32-bit draws of the same shape, eight rows interleaved for speed."""
    for first in range(0, orders.shape[0], 8):
        end = min(first + 8, orders.shape[0])
        for last in range(orders.shape[1] - 1, 0, -1):
            for i in range(first, end):
                chosen = (np.uint64(draws[i, last]) * np.uint64(last + 1)) >> np.uint64(32)
                orders[i, last], orders[i, chosen] = orders[i, chosen], orders[i, last]


@compiled
def in_order_of_cells(rows: Any, cell: Any, order: Any, start: Any) -> None:
    """Positions 0..n-1 of each permutation sorted by cell (m, n), and where cells start (m, K+1)."""
    start[:] = 0
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            start[i, cell[rows[i, j]] + 1] += 1
        for k in range(1, start.shape[1]):
            start[i, k] += start[i, k - 1]
        place = start[i].copy()
        for j in range(rows.shape[1]):
            k = cell[rows[i, j]]
            order[i, place[k]] = j
            place[k] += 1


@compiled
def sum_of_rows(data: Any, order: Any, first: Any, end: Any, total: Any) -> None:
    """``total = data[order[first:end]].sum(axis=0)`` in 16-bit integers, eight rows at a time."""
    total[:] = 0
    while first + 8 <= end:
        a, b, c, d = data[order[first]], data[order[first + 1]], data[order[first + 2]], data[order[first + 3]]
        e, f, g, h = data[order[first + 4]], data[order[first + 5]], data[order[first + 6]], data[order[first + 7]]
        for j in range(total.shape[0]):
            total[j] = np.int16(total[j] + a[j] + b[j] + c[j] + d[j] + e[j] + f[j] + g[j] + h[j])
        first += 8
    while first < end:
        a = data[order[first]]
        for j in range(total.shape[0]):
            total[j] = np.int16(total[j] + a[j])
        first += 1


def _squares_along(data: Any, order: Any, start: Any, of_cell: Any, squares: Any) -> None:
    """Sum of squares of permuted columns along directions that are constant within cells.

    data (n, columns) of 16-bit integers whose sums over cells fit 16 bits, order and start from `in_order_of_cells`,
    of_cell (directions, K): value of each direction in each cell, squares (m, columns): the result.
    """
    sums = np.empty((of_cell.shape[1], data.shape[1]), np.int16)
    along = np.empty(data.shape[1], np.float32)
    for i in range(order.shape[0]):
        for k in range(of_cell.shape[1]):
            sum_of_rows(data, order[i], start[i, k], start[i, k + 1], sums[k])
        of_permutation = squares[i]
        of_permutation[:] = 0
        for d in range(of_cell.shape[0]):
            along[:] = 0
            for k in range(of_cell.shape[1]):
                value, part = of_cell[d, k], sums[k]
                for j in range(along.shape[0]):
                    along[j] += value * np.float32(part[j])
            for j in range(along.shape[0]):
                of_permutation[j] += along[j] * along[j]


squares_along = compiled(_squares_along, fast=True)


def _studentise(signal: Any, factor: Any, explained: Any, along: Any, df: Any, least_left: Any, tiny: Any) -> None:
    """Studentised t in place of signal: the root of ``df signal^2 / (factor left)``.

    What is left is ``1 - signal^2 - explained - sum(along^2)``. Signal, factor and explained are (m, columns), along is
    (directions, m, columns), all in single precision.
    """
    for i in range(signal.shape[0]):
        of_permutation, left = signal[i], explained[i]
        for d in range(along.shape[0]):
            direction = along[d, i]
            for j in range(left.shape[0]):
                left[j] += direction[j] * direction[j]
        for j in range(left.shape[0]):
            square = of_permutation[j] * of_permutation[j]
            below = max(factor[i, j] * max(np.float32(1) - square - left[j], least_left), tiny)
            of_permutation[j] = np.sqrt(square * df / below)


studentise = compiled(_studentise, fast=True)
