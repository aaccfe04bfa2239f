"""Bootstrap over participants: each participant is drawn with all of their scans.

A statistic is a function of weights (draws, participants) that gives (draws, ...): how often each participant was
drawn, or zero for one left out (the jackknife of the BCa interval). One vectorised formula thus serves estimate, draws
and jackknife. `scipy.stats.bootstrap`, the oracle of the tests, does not support participants with several scans.

*Bounded measures* have Student's t intervals on a scale where they are nearly normal. Within the strata that the design
fixes (test fold and class) n_s - 1 of n_s are drawn, each counting n_s / (n_s - 1) times (Rao & Wu 1988, J Am Stat
Assoc 83:231), since n_s of n_s would take the variance for too small by 1 / n_s. The interval is

    f(estimate) -+ t f'(estimate) standard error,

transformed back, with f the logit of shares, areas and squared errors of probabilities, Fisher's z of correlations, the
logarithm of positive numbers, and degrees of freedom of the strata that the error comes from (`freedom_of_strata`). BCa
intervals of the same draws miss two to three times as often with 30 to 60 people (docs/benchmarks/statistics.md).

A share of 0 or 1, whose bootstrap interval has zero width, has the exact binomial one instead (Clopper & Pearson 1934,
Biometrika 26:404-413), over participants: one with several correct scans counts once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, ndtr, ndtri
from scipy.stats import binomtest
from scipy.stats import t as t_distribution

from heatlas.pipeline.statistics.arrays import Flags, Floats, Indices, Resampling

Statistic = Callable[[Floats], Floats]

MIN_PARTICIPANTS = 3
MIN_USABLE_SHARE = 0.5
"""Share of draws in which the statistic must be defined (a draw without patients has no sensitivity)."""

NO_INTERVAL = "none"
FLAT = "no interval: all bootstrap draws give the same value, so the bootstrap cannot estimate the uncertainty"
"""Note where `Intervals.flat`."""
SAME = 1e-12
"""Range of the draws, relative to the largest, that counts as rounding error."""


@dataclass(frozen=True, eq=False)
class Intervals:
    """Confidence intervals of several numbers, each of shape (numbers,); bounds are NaN where there is none.

    `method` is how it is made: ``BCa``, ``percentile`` where BCa is undefined, a scale, or ``none``. `spread`: standard
    deviation of the draws, the bootstrap standard error; exactly 0 if all draws are equal.
    """

    low: Floats
    high: Floats
    method: NDArray[np.str_]
    spread: Floats

    @property
    def flat(self) -> Flags:
        """Where all draws are equal: an interval of zero width would suggest certainty, so none is given."""
        return np.asarray(self.spread == 0, dtype=bool)

    @property
    def notes(self) -> list[str | None]:
        """`FLAT` for numbers with equal draws and no other interval."""
        return [FLAT if why else None for why in self.flat & (self.method == NO_INTERVAL)]

    def row(self, place: int = 0) -> dict[str, float | str]:
        """Columns ``ci_low``, ``ci_high`` and ``interval`` of one number."""
        return {"ci_low": self.low[place], "ci_high": self.high[place], "interval": str(self.method[place])}

    @classmethod
    def absent(cls, numbers: int) -> Intervals:
        nothing = np.full(numbers, np.nan)
        return cls(nothing, nothing.copy(), np.full(numbers, NO_INTERVAL, dtype="<U16"), nothing.copy())


def participant_draws(strata: Sequence[int], count: int, rng: np.random.Generator) -> Floats:
    """How often each participant is drawn within their stratum 0..S-1, shape (count, participants)."""
    members = np.asarray(strata)
    draws = np.zeros((count, len(members)))
    for stratum in np.unique(members):
        in_stratum = np.flatnonzero(members == stratum)
        draws[:, in_stratum] = rng.multinomial(
            len(in_stratum), np.full(len(in_stratum), 1 / len(in_stratum)), size=count
        )
    return draws


def percentile_bounds(draws: Floats, confidence: float) -> tuple[Floats, Floats]:
    """Percentile bounds of numbers from their draws, shape (count, numbers)."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(draws, [tail, 1 - tail], axis=0)
    return low, high


def acceleration(jackknife: Floats, strata: Sequence[int]) -> Floats:
    """Acceleration (numbers,) of the BCa interval (Efron 1987) from jackknife values (participants, numbers).

    With strata, the influence values of each stratum contribute (Davison & Hinkley 1997, section 5.4).
    """
    members = np.asarray(strata)
    cubes, squares = np.zeros(jackknife.shape[1]), np.zeros(jackknife.shape[1])
    for stratum in np.unique(members):
        of_stratum = jackknife[members == stratum]
        influence = (len(of_stratum) - 1) * (of_stratum.mean(axis=0) - of_stratum)
        cubes += (influence**3).sum(axis=0) / len(of_stratum) ** 3
        squares += (influence**2).sum(axis=0) / len(of_stratum) ** 2
    return np.divide(cubes, 6 * squares**1.5, out=np.zeros_like(cubes), where=squares > 0)


def bca_bounds(
    draws: Floats, estimates: Floats, jackknife: Floats, strata: Sequence[int], confidence: float
) -> tuple[Floats, Floats]:
    """Bias-corrected and accelerated bounds; NaN where they are not defined.

    draws (count, numbers), estimates (numbers,), jackknife (participants, numbers).
    """
    below = ((draws < estimates).mean(axis=0) + (draws <= estimates).mean(axis=0)) / 2
    defined = (below > 0) & (below < 1) & np.isfinite(jackknife).all(axis=0)
    bias = ndtri(np.where(defined, below, 0.5))
    a = acceleration(np.where(defined, jackknife, 0.0), strata)
    ordered = np.sort(draws, axis=0)
    bounds = []
    for tail in ndtri([(1 - confidence) / 2, (1 + confidence) / 2]):
        level = ndtr(bias + (bias + tail) / (1 - a * (bias + tail)))
        bounds.append(np.where(defined, _quantiles(ordered, level), np.nan))
    return bounds[0], bounds[1]


def _quantiles(ordered: Floats, levels: Floats) -> Floats:
    """One quantile of each column of sorted draws, interpolated linearly as by `numpy.quantile`."""
    place = levels * (len(ordered) - 1)
    lower = np.floor(place).astype(np.intp)
    upper = np.minimum(lower + 1, len(ordered) - 1)
    column = np.arange(ordered.shape[1])
    step: Floats = ordered[upper, column] - ordered[lower, column]
    result: Floats = ordered[lower, column] + (place - lower) * step
    return result


def bootstrap_intervals(statistic: Statistic, strata: Sequence[int], resampling: Resampling) -> Intervals:
    """Interval of every number that a statistic gives (draws,) or (draws, numbers), from the same draws within strata.

    No bounds for fewer than three participants, where the statistic is undefined in more than half of the draws (such
    draws are left out), or if all draws are equal (`Intervals.flat`).
    """
    n = len(strata)
    estimates = _columns(statistic(np.ones((1, n))))[0]
    result = Intervals.absent(len(estimates))
    if n < MIN_PARTICIPANTS:
        return result
    draws = _columns(statistic(participant_draws(strata, resampling.m, resampling.rng)))
    jackknife = _columns(statistic(1 - np.eye(n)))
    there = np.isfinite(estimates)
    draws = draws[np.isfinite(draws[:, there]).any(axis=1)]  # the others are undefined for all numbers
    usable = np.isfinite(draws)
    enough = there & (usable.sum(axis=0) >= MIN_USABLE_SHARE * resampling.m)
    whole, partly = enough & usable.all(axis=0), enough & ~usable.all(axis=0)
    for chosen in (np.flatnonzero(whole), *np.flatnonzero(partly)[:, None]):
        if len(chosen):
            usable_draws = draws[usable[:, chosen[0]]][:, chosen]
            low, high = bca_bounds(usable_draws, estimates[chosen], jackknife[:, chosen], strata, resampling.confidence)
            other = np.isnan(low)
            if other.any():
                low[other], high[other] = percentile_bounds(usable_draws[:, other], resampling.confidence)
            flat = np.ptp(usable_draws, axis=0) <= SAME * np.abs(usable_draws).max(axis=0)
            result.low[chosen], result.high[chosen] = (np.where(flat, np.nan, bound) for bound in (low, high))
            result.method[chosen] = np.where(flat, NO_INTERVAL, np.where(other, "percentile", "BCa"))
            result.spread[chosen] = np.where(flat, 0.0, usable_draws.std(axis=0, ddof=1))
    return result


def _columns(values: Floats) -> Floats:
    return values.reshape(len(values), -1)


def ratio(part: Floats, whole: Floats) -> Floats:
    """Part of a whole, element by element; NaN where the whole is 0."""
    result: Floats = np.divide(part, whole, out=np.full(np.shape(part), np.nan), where=whole > 0)
    return result


def weighted_mean(values: Floats, weights: Floats) -> Floats:
    """Mean of values (n,) in each draw of weights (draws, n); NaN where a value is.

    >>> weighted_mean(np.array([1.0, 4.0]), np.array([[1.0, 1.0], [2.0, 1.0]])).tolist()
    [2.5, 2.0]
    """
    result: Floats = weights @ values / weights.sum(axis=1)
    return result


def weighted_slope(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Least-squares slope of y over x (n,) in each draw of weights (draws, n); NaN without a spread of x.

    >>> weighted_slope(np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0, 5.0]), np.ones((1, 3))).tolist()
    [2.0]
    """
    from_mean = x - weighted_mean(x, weights)[:, None]
    spread = (weights * from_mean**2).sum(axis=1)
    covariance = (weights * from_mean * (y - weighted_mean(y, weights)[:, None])).sum(axis=1)
    result: Floats = np.divide(covariance, spread, out=np.full(len(weights), np.nan), where=spread > 0)
    return result


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


def strata_of(fold: Indices, of_class: Indices) -> Indices:
    """Stratum 0..S-1 of each participant: their fold and class; one alone in both joins others of the class."""
    cell = np.unique(np.column_stack([fold, of_class]), axis=0, return_inverse=True)[1].ravel()
    for person in np.flatnonzero(np.bincount(cell)[cell] == 1):
        mates = np.flatnonzero((of_class == of_class[person]) & (cell != cell[person]))
        if len(mates) and np.count_nonzero(cell == cell[person]) == 1:
            cell[person] = cell[mates[0]]
    return np.unique(cell, return_inverse=True)[1].astype(np.intp)


def rescaled_draws(strata: Sequence[int] | Indices, count: int, rng: np.random.Generator) -> Floats:
    """Weights (count, participants) of a bootstrap within strata whose variance is right for strata of any size."""
    members = np.asarray(strata)
    draws = np.ones((count, len(members)))
    for stratum in np.unique(members):
        place = np.flatnonzero(members == stratum)
        n = len(place)
        if n > 1:
            draws[:, place] = rng.multinomial(n - 1, np.full(n, 1 / n), size=count) * n / (n - 1)
    return draws


def freedom_of_strata(statistic: Statistic, strata: Sequence[int] | Indices) -> Floats:
    """Degrees of freedom (numbers,) of the standard error of each number of a statistic (Satterthwaite 1946).

    With v the variance that a stratum of n people adds, found by leaving out each of them, these are
    sum(v)^2 / sum(v^2 / (n - 1)): n - 1 for one stratum, at most participants less strata. NaN where undefined.
    """
    members = np.asarray(strata)
    total, squares = np.zeros(1), np.zeros(1)
    for stratum in np.unique(members):
        place = np.flatnonzero(members == stratum)
        n = len(place)
        if n > 1:
            weights = np.ones((n, len(members)))
            weights[:, place] = (1 - np.eye(n)) * n / (n - 1)
            part = statistic(weights).var(axis=0) * (n - 1)
            total, squares = total + part, squares + part**2 / (n - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(total**2 / squares, dtype=float)


def scaled_intervals(
    statistic: Statistic, strata: Sequence[int] | Indices, scales: Sequence[IntervalScale], resampling: Resampling
) -> Intervals:
    """Interval of every number that a statistic gives, on the scale of each, from the same draws within strata.

    No bounds for fewer than three participants, without a degree of freedom, where the statistic is undefined in more
    than half of the draws or at the end of its scale, or if all draws are equal (`Intervals.flat`).
    """
    n, groups = len(strata), len(np.unique(strata))
    result = Intervals.absent(len(scales))
    if n < MIN_PARTICIPANTS or n <= groups:
        return result
    estimates = statistic(np.ones((1, n)))[0]
    draws = statistic(rescaled_draws(strata, resampling.m, resampling.rng))
    freedom = freedom_of_strata(statistic, strata)
    critical = t_distribution.isf((1 - resampling.confidence) / 2, np.where(np.isfinite(freedom), freedom, n - groups))
    for place, (scale, estimate) in enumerate(zip(scales, estimates, strict=True)):
        finite = draws[np.isfinite(draws[:, place]), place]
        if not np.isfinite(estimate) or len(finite) < max(2, MIN_USABLE_SHARE * resampling.m):
            continue
        if np.ptp(finite) <= SAME * np.abs(finite).max():
            result.spread[place] = 0.0
            continue
        result.spread[place] = finite.std(ddof=1)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            centre, reach = scale.of(estimate), critical[place] * np.abs(scale.slope(estimate)) * result.spread[place]
            ends = np.sort(scale.back(np.array([centre - reach, centre + reach])))
        if np.isfinite(centre) and np.isfinite(ends).all():
            result.low[place], result.high[place] = ends
            result.method[place] = scale.name
    return Intervals(result.low, result.high, np.where(np.isnan(result.low), NO_INTERVAL, result.method), result.spread)


EXACT = "Clopper-Pearson"


def with_exact_shares(intervals: Intervals, shares: Mapping[int, tuple[float, int]], confidence: float) -> Intervals:
    """Replace intervals of shares of 0 or 1 by exact ones; `shares`: by position, estimate and number of participants.

    >>> exact = with_exact_shares(Intervals.absent(1), {0: (1.0, 5)}, 0.95)
    >>> float(exact.low[0].round(3)), float(exact.high[0]), str(exact.method[0])
    (0.478, 1.0, 'Clopper-Pearson')
    """
    low, high, method = intervals.low.copy(), intervals.high.copy(), intervals.method.astype("<U16")
    for place, (share, participants) in shares.items():
        if participants and share in (0.0, 1.0):
            bounds = binomtest(round(share * participants), participants).proportion_ci(confidence, method="exact")
            low[place], high[place], method[place] = bounds.low, bounds.high, EXACT
    return dataclasses.replace(intervals, low=low, high=high, method=method)
