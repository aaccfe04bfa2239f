"""Student's t intervals of bounded measures on a scale where they are nearly normal, from a stratified bootstrap.

Participants are drawn within the strata that the design fixes (test fold and class): n_s - 1 of n_s, each counting
n_s / (n_s - 1) times (Rao & Wu 1988, J Am Stat Assoc 83:231), since drawing n_s of n_s takes the variance within a
stratum of few for too small by 1 / n_s. The standard deviation of the draws is the standard error; the interval is

    f(estimate) -+ t f'(estimate) standard error,

transformed back, with f the logit of shares, areas and squared errors of probabilities, Fisher's z of correlations and
the logarithm of positive numbers. BCa intervals of the same draws miss two to three times as often with 30 to 60 people
(docs/benchmarks/statistics.md). The degrees of freedom are those of the strata that the standard error comes from
(`freedom_of_strata`): where a small class or the few who are wrong decide a measure, they are few, and with as many as
participants less strata the interval of a Brier score missed up to 16 %.

A share of 0 or 1 has an exact interval instead: if all participants are classified correctly, so is every bootstrap
sample, and its interval has zero width. The exact binomial interval (Clopper & Pearson 1934, Biometrika 26:404-413) has
a positive width: 48 to 100 % for five out of five. The participant is the unit: one with several correct scans counts
once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit
from scipy.stats import binomtest
from scipy.stats import t as t_distribution

from heatlas.pipeline.statistics.arrays import Floats, Indices
from heatlas.pipeline.statistics.resampling.bootstrap import (
    MIN_PARTICIPANTS,
    MIN_USABLE_SHARE,
    NO_INTERVAL,
    SAME,
    Intervals,
    Statistic,
)


@dataclass(frozen=True)
class IntervalScale:
    """A scale f: its name, f, its inverse and its slope."""

    name: str
    of: Callable[[Floats], Floats]
    back: Callable[[Floats], Floats]
    slope: Callable[[Floats], Floats]


LOGIT = IntervalScale("logit", logit, expit, lambda x: 1 / (x * (1 - x)))
FISHER = IntervalScale("Fisher z", np.arctanh, np.tanh, lambda x: 1 / (1 - x**2))
LOG = IntervalScale("log", np.log, np.exp, lambda x: 1 / x)
UNEXPLAINED = IntervalScale("log(1 - r2)", lambda x: np.log1p(-x), lambda x: -np.expm1(x), lambda x: 1 / (x - 1))
AS_IT_IS = IntervalScale("t", lambda x: x, lambda x: x, np.ones_like)
INTERVAL_OF_SCALED = (
    "Kind of interval: Student's t on the scale named (logit, log, Fisher z, log(1 - r2); t: as it is), with the "
    "standard error of bootstrap draws of participants within test folds and classes"
)
"""Meaning of a column ``interval``."""


def strata_of(fold: Indices, of_class: Indices) -> Indices:
    """Stratum 0..S-1 of each participant: their fold and class; one alone in both joins others of the class."""
    cell = np.unique(np.column_stack([fold, of_class]), axis=0, return_inverse=True)[1].ravel()
    for one in np.flatnonzero(np.bincount(cell)[cell] == 1):
        mates = np.flatnonzero((of_class == of_class[one]) & (cell != cell[one]))
        if len(mates) and np.count_nonzero(cell == cell[one]) == 1:
            cell[one] = cell[mates[0]]
    return np.unique(cell, return_inverse=True)[1].astype(np.intp)


def rescaled_draws(strata: Sequence[int] | Indices, count: int, rng: np.random.Generator) -> Floats:
    """Weights (count, participants) of a bootstrap within strata whose variance is right for strata of any size."""
    members = np.asarray(strata)
    draws = np.ones((count, len(members)))
    for stratum in np.unique(members):
        own = np.flatnonzero(members == stratum)
        n = len(own)
        if n > 1:
            draws[:, own] = rng.multinomial(n - 1, np.full(n, 1 / n), size=count) * n / (n - 1)
    return draws


def freedom_of_strata(statistic: Statistic, strata: Sequence[int] | Indices) -> Floats:
    """Degrees of freedom (numbers,) of the standard error of each number of a statistic (Satterthwaite 1946).

    With v the variance that a stratum of n people adds, found by leaving out each of them, these are
    sum(v)^2 / sum(v^2 / (n - 1)): n - 1 for one stratum, at most participants less strata. NaN where undefined.
    """
    members = np.asarray(strata)
    total, squares = np.zeros(1), np.zeros(1)
    for stratum in np.unique(members):
        own = np.flatnonzero(members == stratum)
        n = len(own)
        if n > 1:
            weights = np.ones((n, len(members)))
            weights[:, own] = (1 - np.eye(n)) * n / (n - 1)
            part = statistic(weights).var(axis=0) * (n - 1)
            total, squares = total + part, squares + part**2 / (n - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(total**2 / squares, dtype=float)


def scaled_intervals(
    statistic: Statistic,
    strata: Sequence[int] | Indices,
    scales: Sequence[IntervalScale],
    count: int,
    confidence: float,
    rng: np.random.Generator,
) -> Intervals:
    """Interval of every number that a statistic gives, from the same draws.

    The result has no bounds for fewer than three participants, without a degree of freedom, where the statistic is
    undefined in more than half of the draws or at the end of its scale, or if all draws are equal (`Intervals.flat`).

    Parameters
    ----------
    statistic : callable
        Function of weights (draws, participants); result of shape (draws, numbers).
    strata : sequence of int
        One per participant.
    scales : sequence of IntervalScale
        One per number.
    count : int
        Number of draws.
    """
    n, groups = len(strata), len(np.unique(strata))
    result = Intervals.absent(len(scales))
    if n < MIN_PARTICIPANTS or n <= groups:
        return result
    estimates = statistic(np.ones((1, n)))[0]
    draws = statistic(rescaled_draws(strata, count, rng))
    freedom = freedom_of_strata(statistic, strata)
    critical = t_distribution.isf((1 - confidence) / 2, np.where(np.isfinite(freedom), freedom, n - groups))
    for place, (scale, estimate) in enumerate(zip(scales, estimates, strict=True)):
        known = draws[np.isfinite(draws[:, place]), place]
        if not np.isfinite(estimate) or len(known) < max(2, MIN_USABLE_SHARE * count):
            continue
        if np.ptp(known) <= SAME * np.abs(known).max():
            result.spread[place] = 0.0
            continue
        result.spread[place] = known.std(ddof=1)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            centre, reach = scale.of(estimate), critical[place] * np.abs(scale.slope(estimate)) * result.spread[place]
            ends = np.sort(scale.back(np.array([centre - reach, centre + reach])))
        if np.isfinite(centre) and np.isfinite(ends).all():
            result.low[place], result.high[place] = ends
            result.method[place] = scale.name
    return Intervals(result.low, result.high, np.where(np.isnan(result.low), NO_INTERVAL, result.method), result.spread)


EXACT = "Clopper-Pearson"
_OF_ENDS = "; Clopper-Pearson (exact, over participants) for a share of 0 or 1; none"
INTERVAL_OF_SHARES = "Kind of interval: BCa or percentile bootstrap" + _OF_ENDS
"""Meaning of a column ``interval`` in a table of conversion."""
INTERVAL_OF_PERFORMANCE = INTERVAL_OF_SCALED + _OF_ENDS
"""The same in a table of performance."""


def with_exact_shares(found: Intervals, shares: Mapping[int, tuple[float, int]], confidence: float) -> Intervals:
    """Replace the intervals of shares of 0 or 1 by exact ones.

    `shares`: by position in `found`: estimate of a share, and number of participants it is based on.

    Examples
    --------
    >>> exact = with_exact_shares(Intervals.absent(1), {0: (1.0, 5)}, 0.95)
    >>> float(exact.low[0].round(3)), float(exact.high[0]), str(exact.method[0])
    (0.478, 1.0, 'Clopper-Pearson')
    """
    low, high, method = found.low.copy(), found.high.copy(), found.method.astype("<U16")
    for place, (share, participants) in shares.items():
        if participants and share in (0.0, 1.0):
            bounds = binomtest(round(share * participants), participants).proportion_ci(confidence, method="exact")
            low[place], high[place], method[place] = bounds.low, bounds.high, EXACT
    return dataclasses.replace(found, low=low, high=high, method=method)
