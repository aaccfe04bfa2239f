"""Correlation of rows that belong to participants, studentised so that participants may differ in variance.

The products x y of centred rows are summed over each participant. With r the correlation, x and y of norm 1 and u the
sums,

    t = r sqrt(df / ((1 - r^2) n sum(u^2))),    n participants,

is the t of `pipeline.statistics.linear.robust` where every participant has one row, and holds its level where they
have several.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from pipeline.statistics.arrays import Floats, Indices

ESTIMATORS = ("pearson", "spearman")
SMALLEST = 1e-24
"""Of the squared denominator of t, where all rows lie on one line."""


def is_constant(values: Floats) -> NDArray[np.bool_]:
    """Whether values differ by no more than rounding along the first axis; shape (...) for values (rows, ...)."""
    return np.asarray(np.ptp(values, axis=0) <= 1e-12 * np.abs(values).max(axis=0), dtype=bool)


def standardised(x: Floats, estimator: str) -> Floats:
    """Values, or their ranks, with mean 0 and norm 1; x (rows,) is not constant."""
    values: Floats = rankdata(x) if estimator == "spearman" else x
    centred = values - values.mean()
    scaled: Floats = centred / np.linalg.norm(centred)
    return scaled


def clustered_t(x: Floats, y: Floats, codes: Indices, df: int, rows: NDArray[np.integer]) -> tuple[Floats, Floats]:
    """Correlation and t of y with x rearranged by each of `rows` (m, rows); each of shape (m,).

    x and y (rows,) have mean 0 and norm 1; codes (rows,) are participants 0..n-1.
    """
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], np.arange(int(codes.max()) + 1))
    products = (x[rows] * y)[:, order]
    sums = np.add.reduceat(products, starts, axis=1)
    r = sums.sum(axis=1)
    spread = np.maximum(sums.shape[1] * (sums**2).sum(axis=1) * (1 - r**2), SMALLEST)
    t: Floats = r * np.sqrt(df / spread)
    return r, t
