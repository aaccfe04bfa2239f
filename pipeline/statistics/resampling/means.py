"""Means over participants: their interval, their test against zero, and when skewed values need a caveat.

With t the t of n values, g their skewness and a = g / (3 sqrt(n)), Hall's statistic (1992, J. R. Stat. Soc. B 54:221)

    H = t + a t^2 + a^2 t^3 / 3 + a / 2 = ((1 + a t)^3 - 1) / (3 a) + a / 2

is nearly free of the skewness that makes t and the bootstrap miss means of few values, and rises with t. The *interval*
has H between the quantiles of Student's t with n - 1 degrees of freedom.

*Sign-flipping test* of a weighted mean for many columns at once: under the null hypothesis each participant's value is
as likely to be as much above zero as below it, whatever its variance (Fisher 1935; Winkler et al. 2014, NeuroImage 92).
The statistic is H of the weighted values: p is exact where they are symmetric, and of 40 lognormal values rejects 6.7 %
at 5 % (t: 10.5). Weights may depend on anything that flips do not change.

*Caveats* are by design (a small group) and by kind of value (most are the same): the skewness of a few is no guide to
that of the population, and the rows whose sample looks least skewed are the most often wrong.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as t_distribution

from heatlas.pipeline.statistics.arrays import Flags, Floats, Indices
from heatlas.pipeline.statistics.linear.permutations import two_sided_p
from heatlas.pipeline.statistics.linear.studentised import critical_values
from heatlas.pipeline.statistics.resampling.bootstrap import MIN_PARTICIPANTS, SAME, Intervals


@dataclass(frozen=True, eq=False)
class SignFlipTest:
    """Result for every column; arrays have shape (columns,), NaN where all values are 0 or one is missing.

    `low` to `high` are the means that the statistic H, with the critical value of the flips, does not reject: 0 is
    excluded exactly where p is at most 1 - confidence. p_fwe is against the largest |H| of all columns under the same
    flips.
    """

    estimate: Floats
    low: Floats
    high: Floats
    statistic: Floats
    skewness: Floats
    p: Floats
    p_fwe: Floats
    n_permutations: int
    exact: bool


def sign_flip_test(
    values: Floats, weights: Floats, m: int, rng: np.random.Generator, confidence: float = 0.95
) -> SignFlipTest:
    """Test whether participants' values (participants, columns), with positive weights, are symmetric about zero.

    `m` flips are random, or all distinct ones: 2^(participants - 1), as flipping all changes nothing. Memory: 8 bytes x
    m x (participants + columns).
    """
    u = values * weights
    length = np.linalg.norm(u, axis=0)
    usable = np.isfinite(length) & (length > 0)
    u = u[:, usable] / length[usable]
    signs, exact = sign_flips(len(values), m, rng)
    n = len(u)
    observed, skewness = transformed_t(u.sum(axis=0), (u**3).sum(axis=0), n)
    null = np.abs(transformed_t(signs @ u, signs @ u**3, n)[0])
    largest = null.max(axis=1, initial=0.0)[:, None]
    p, p_fwe = two_sided_p(observed, null, exact), two_sided_p(observed, largest, exact)
    bounds = _not_rejected(u, skewness, critical_values(null.T, confidence, exact))
    scale = n * length[usable] / weights[:, usable].sum(axis=0)
    estimate = u.mean(axis=0) * scale
    inside = p > 1 - confidence
    low = np.where(inside, np.minimum(bounds[0] * scale, 0.0), bounds[0] * scale)
    high = np.where(inside, np.maximum(bounds[1] * scale, 0.0), bounds[1] * scale)

    def everywhere(column: Floats) -> Floats:
        full = np.full(values.shape[1], np.nan)
        full[usable] = column
        return full

    estimate, low, high = (everywhere(column) for column in (estimate, low, high))
    statistic, skewness, p, p_fwe = (everywhere(column) for column in (observed, skewness, p, p_fwe))
    return SignFlipTest(estimate, low, high, statistic, skewness, p, p_fwe, len(signs), exact)


def transformed_t(sums: Floats, cubes: Floats, n: int) -> tuple[Floats, Floats]:
    """H and skewness from sums of n values and of their cubes, whose squares add up to 1."""
    mean = sums / n
    variance = np.maximum(1 / n - mean**2, np.finfo(float).eps / n)
    skewness = (cubes / n - 3 * mean / n + 2 * mean**3) / variance**1.5
    t = mean * np.sqrt((n - 1) / variance)
    a = skewness / (3 * np.sqrt(n))
    return t + a * t**2 + a**2 * t**3 / 3 + a / 2, skewness


def _not_rejected(u: Floats, skewness: Floats, critical: Floats) -> tuple[Floats, Floats]:
    """Bounds of the means of u (n, columns) that H does not reject: H is solved for t."""
    n = len(u)
    a = skewness / (3 * np.sqrt(n))
    straight = np.abs(a) < 1e-9
    slope = np.where(straight, 1.0, a)
    error = u.std(axis=0) / np.sqrt(max(n - 1, 1))
    bounds = []
    for side in (critical, -critical):
        t = np.where(straight, side, (np.cbrt(1 + 3 * slope * (side - slope / 2)) - 1) / slope)
        bounds.append(u.mean(axis=0) - error * t)
    return bounds[0], bounds[1]


def sign_flips(n: int, m: int, rng: np.random.Generator) -> tuple[Floats, bool]:
    """Signs of n participants, shape (flips, n), and whether these are all distinct ones, the observed one included."""
    if n <= m.bit_length() and 2 ** (n - 1) <= m:
        every = list(itertools.product((1.0, -1.0), repeat=n - 1))
        return np.column_stack([np.ones(len(every)), np.array(every).reshape(len(every), n - 1)]), True
    signs: Floats = 1.0 - 2.0 * rng.integers(0, 2, (m, n)).astype(float)
    return signs, False


VERY_SKEWED, FEW_VALUES = 1.0, 30
"""Skewness of fewer than `FEW_VALUES` values above which p of a mean is too small: a caveat is due."""
FEW_OF_GROUP = 100
"""People in the smallest group below which p and intervals of a difference are too small where values are skewed and
groups differ in spread: with lognormal values of SD 2:1 p of 5 % came up in 8 % with 30 and 90 people, and a
family-wise p in 8 % with 80 and 160."""
SMALL_GROUPS = "a group has fewer than {} participants: if values are skewed and groups differ in spread, {}"
MOSTLY_ALIKE = "most values of a group are the same: {}"
OF_P = "p may be too small, and so may family-wise, FDR and adjusted p"
OF_RANKS = "by ranks p may be too small if groups differ in spread alone"
OF_FAMILY, OF_INTERVAL = "family-wise p may be too small", "the interval may be too narrow"


def skewed_and_few(skewness: Floats, n: int) -> Flags:
    """Columns whose n values are skewed and few; False where skewness is NaN."""
    return np.asarray((np.abs(skewness) > VERY_SKEWED) & (n < FEW_VALUES), dtype=bool)


def caveat_of_size(groups: Indices, what: str) -> str | None:
    """Caveat of a difference of groups (participants,) where one is small; `what` may be wrong then."""
    few = np.unique(groups, return_counts=True)[1].min() < FEW_OF_GROUP
    return SMALL_GROUPS.format(FEW_OF_GROUP, what) if few else None


def caveats_of_groups(values: Floats, groups: Indices, what: str = OF_P) -> list[str | None]:
    """Caveat of a difference of groups in each column of values (participants, columns), or None.

    >>> two = np.arange(400.0).reshape(200, 2)
    >>> caveats_of_groups(two, np.repeat([0, 1], [99, 101]))[0][:39]
    'a group has fewer than 100 participants'
    >>> caveats_of_groups(two, np.repeat([0, 1], 100))
    [None, None]
    """
    members = [values[groups == group] for group in np.unique(groups)]
    small, caveats = caveat_of_size(groups, what), []
    for column in range(values.shape[1]):
        most = [np.unique(rows[:, column], return_counts=True)[1].max() / len(rows) for rows in members]
        caveats.append(MOSTLY_ALIKE.format(what) if max(most) > 0.5 else small)
    return caveats


HALL = "Hall's t"
ALIKE = "no interval: all participants have the same value"
ENOUGH = 60
FEW = f"fewer than {ENOUGH} participants: of very skewed (lognormal) values the interval of 95 % misses 8 to 11 %"
"""Caveat by the number of participants: their own skewness does not tell (docs/benchmarks/statistics.md)."""
STRAIGHT = 1e-9
"""a below which H is t."""


def mean_intervals(values: Floats, confidence: float) -> tuple[Intervals, list[str | None]]:
    """Interval of the mean of each column of values (participants, columns), and what its row should say.

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
