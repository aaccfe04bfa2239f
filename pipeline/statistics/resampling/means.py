"""Intervals of means over participants, from Hall's transformation of Student's t.

With t the t of n values, g their skewness and a = g / (3 sqrt(n)), Hall's (1992, J. R. Stat. Soc. B 54:221)

    H = ((1 + a t)^3 - 1) / (3 a) + a / 2

is nearly free of the skewness that makes t and the bootstrap miss means of few values; it is the statistic of
`pipeline.statistics.linear.sign_flip`, here between the quantiles of Student's t with n - 1 degrees of freedom. It
rises with t, so that its bounds are closed.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import t as t_distribution

from heatlas.pipeline.statistics.arrays import Floats
from heatlas.pipeline.statistics.resampling.bootstrap import MIN_PARTICIPANTS, SAME, Intervals

HALL = "Hall's t"
INTERVAL_OF_MEANS = "Kind of interval: Hall's t (Student's t corrected for skewness), or none"
"""Meaning of a column ``interval`` in a table with means."""
ALIKE = "no interval: all participants have the same value"
ENOUGH = 60
FEW = f"fewer than {ENOUGH} participants: of very skewed (lognormal) values the interval of 95 % misses 8 to 11 %"
"""Caveat by the number of participants: their own skewness does not tell (docs/benchmarks/statistics.md)."""
STRAIGHT = 1e-9
"""a below which H is t."""


def mean_intervals(values: Floats, confidence: float) -> tuple[Intervals, list[str | None]]:
    """Interval of the mean of each column of values (participants, columns), and what its row should say.

    Examples
    --------
    >>> found, said = mean_intervals(np.array([[1.0], [2.0], [3.0]]), 0.95)  # not skewed, so that of t
    >>> [round(float(bound[0]), 3) for bound in (found.low, found.high)]
    [-0.484, 4.484]
    """
    n, columns = values.shape
    if n < MIN_PARTICIPANTS:
        return Intervals.absent(columns), [None] * columns
    mean, spread = values.mean(axis=0), values.std(axis=0)
    alike = np.ptp(values, axis=0) <= SAME * np.abs(values).max(axis=0)
    error = np.where(alike, 0.0, spread / np.sqrt(n - 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        a = ((values - mean) ** 3).mean(axis=0) / spread**3 / (3 * np.sqrt(n))
    straight = np.abs(a) < STRAIGHT
    slope, critical = np.where(straight, 1.0, a), t_distribution.isf((1 - confidence) / 2, n - 1)
    sides = np.array([[critical], [-critical]])
    reached = np.where(straight, sides, (np.cbrt(1 + 3 * a * (sides - a / 2)) - 1) / slope)
    low, high = (np.where(alike, np.nan, mean - error * t) for t in reached)
    method = np.where(np.isnan(low), "none", HALL)
    few = FEW if n < ENOUGH else None
    notes = [ALIKE if same else None if kind == "none" else few for same, kind in zip(alike, method, strict=True)]
    return Intervals(low, high, method, error), notes
