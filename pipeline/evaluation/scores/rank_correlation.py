"""Spearman's rank correlation, as every part of the bench computes it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

FEWEST = 3
"""Values of which an order can be compared."""


def rank_correlation(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    """Spearman's rho; NaN for fewer than `FEWEST` values, and where either is constant or not finite.

    Examples
    --------
    >>> rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([1.0, 4.0, 9.0]))
    1.0
    >>> rank_correlation(np.array([1.0, 2.0]), np.array([1.0, 4.0]))
    nan
    """
    if len(a) < FEWEST or np.ptp(a) == 0 or np.ptp(b) == 0 or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return float("nan")
    return float(np.corrcoef(stats.rankdata(a), stats.rankdata(b))[0, 1].clip(-1, 1))
