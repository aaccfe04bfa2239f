"""Correlation of rows that belong to participants, studentised so that participants may differ in variance.

The products x y of centred rows are summed over each participant. With r the correlation, x and y of norm 1 and u the
sums,

    t = r sqrt(df / ((1 - r^2) n sum(u^2))),    n participants,

is the t of `pipeline.statistics.linear.robust` where every participant has one row, and holds its level where they
have several. Its error is right where there is no correlation. That of an interval elsewhere is from the influence of
each participant on r (Hampel 1974), x y - r (x^2 + y^2) / 2 summed over their rows, divided by 1 less their share of
the sums of squares, as HC3 of MacKinnon & White (1985) does with residuals. Of skewed and heavy-tailed pairs and of
ranks, Fisher's z with this error misses 3 to 9 % where that of t misses 9 to 16 % (docs/benchmarks/statistics.md).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata
from scipy.stats import t as t_distribution

from heatlas.pipeline.statistics.arrays import Floats, Indices
from heatlas.pipeline.statistics.linear.freedman_lane import dual_interval

ESTIMATORS = ("pearson", "spearman")
FISHER = "Fisher z"
SMALLEST = 1e-24
"""Rounding error of the squared denominator of t, where all rows lie on one line."""


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


def error_of_z(x: Floats, y: Floats, codes: Indices, df: int) -> float:
    """Standard error of Fisher's z of the correlation of x and y; arguments as of `clustered_t`.

    Examples
    --------
    >>> x = np.array([1.0, 1.0, -1.0, -1.0]) / 2
    >>> error_of_z(x, np.array([1.0, -1.0, 1.0, -1.0]) / 2, np.arange(4), 2)  # sqrt(n sum((xy / (1 - 1/4))^2) / df)
    0.9428090415820634
    """
    r = float(x @ y)
    share = np.bincount(codes, weights=(x**2 + y**2) / 2)
    influence = np.bincount(codes, weights=x * y) - r * share
    left = np.maximum(1 - share, SMALLEST)
    return float(np.sqrt(len(share) * ((influence / left) ** 2).sum() / df) / max(1 - r**2, SMALLEST))


def fisher_interval(
    r: float, t: float, error: float, df: int, critical: float, p: float, confidence: float
) -> tuple[float, float]:
    """Interval of a correlation in Fisher's z: Student's t with df degrees of freedom times `error_of_z`.

    It excludes 0 exactly where p, that of t above its critical value, is at most 1 - confidence: where it would reach
    0 although p is that small, it goes as far towards 0 as t allows. NaN without a critical value, as no p can be that
    small.
    """
    if np.isnan(critical):
        return np.nan, np.nan
    z, alpha = float(np.arctanh(r)), 1 - confidence
    reach = float(t_distribution.isf(alpha / 2, df)) * error
    inwards = abs(z) * critical / abs(t) if p <= alpha and reach >= abs(z) else reach
    reaches = np.array([inwards, reach] if z > 0 else [reach, inwards])
    low, high = dual_interval(np.full(2, z), reaches, np.full(2, p), alpha)
    return float(np.tanh(low[0])), float(np.tanh(high[1]))
