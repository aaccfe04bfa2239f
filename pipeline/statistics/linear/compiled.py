"""Inner loops of permutation tests, compiled with numba: one pass where numpy needs several over large arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a loop, cached on disk where possible."""
    try:
        loop: Callable[..., Any] = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # neither this folder nor the user's cache is writable
        loop = numba.njit(nogil=True, error_model="numpy")(function)
    return loop


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
