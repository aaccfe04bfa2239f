"""Random orders of many rows at once (Fisher & Yates), compiled: a third of a test's time is spent here otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

ROWS_AT_A_TIME = 512


def random_orders(count: int, n: int, rng: np.random.Generator) -> NDArray[np.int32]:
    """Independent uniform orders of 0..n-1.

    `numpy.random.Generator.permuted` does the same in three times the time. A position is a 32-bit draw scaled to its
    range (Lemire 2019 without rejection), so no order is likelier than another by more than n^2 / 2^32.

    Returns
    -------
    array of int, shape (count, n)
    """
    orders = np.empty((count, n), np.int32)
    orders[:] = np.arange(n, dtype=np.int32)
    for start in range(0, count, ROWS_AT_A_TIME):
        rows = orders[start : start + ROWS_AT_A_TIME]
        _shuffle(rows, rng.integers(0, 2**32, size=rows.shape, dtype=np.uint32))
    return orders


def _compiled(function: Callable[..., None]) -> Callable[..., None]:
    """Compile a loop; keep it on disk where there is a place to."""
    try:
        compiled = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # neither this folder nor the user's cache can be written to
        compiled = numba.njit(nogil=True)(function)
    answer: Callable[..., None] = compiled
    return answer


@_compiled
def _shuffle(orders: Any, draws: Any) -> None:
    for i in range(orders.shape[0]):
        for last in range(orders.shape[1] - 1, 0, -1):
            chosen = (np.uint64(draws[i, last]) * np.uint64(last + 1)) >> np.uint64(32)
            orders[i, last], orders[i, chosen] = orders[i, chosen], orders[i, last]
