"""Bootstrap over participants: each participant is drawn with all of their scans.

A statistic is a function of weights, ``statistic(weights)`` with weights of shape (draws, participants) and a result of
shape (draws, ...). The weights of a bootstrap draw count how often each participant was drawn; leaving one out (the
jackknife of the BCa interval) is a weight of zero. So one vectorised formula serves the estimate, the draws and the
jackknife, for one number or for all regions at once.

`scipy.stats.bootstrap` draws independent rows of samples of equal length and does not support participants with several
scans; its BCa interval is the oracle of the tests, equal for equal draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from heatlas.pipeline.statistics.arrays import Floats

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
    """Confidence intervals of several numbers.

    Parameters
    ----------
    low, high : array, shape (numbers,)
        NaN if there is none.
    method : array of str, shape (numbers,)
        How it is made, such as ``BCa``; ``percentile`` if BCa is undefined (all draws on one side of the estimate);
        ``none``.
    spread : array, shape (numbers,)
        Standard deviation of the draws: the bootstrap standard error; exactly 0 if all draws are equal.
    """

    low: Floats
    high: Floats
    method: NDArray[np.str_]
    spread: Floats

    @property
    def flat(self) -> NDArray[np.bool_]:
        """Where all draws are equal: an interval of zero width would suggest certainty, so none is given."""
        return np.asarray(self.spread == 0, dtype=bool)

    @property
    def notes(self) -> list[str | None]:
        """`FLAT` for numbers with equal draws."""
        return [FLAT if one else None for one in self.flat]

    def row(self, place: int = 0) -> dict[str, float | str]:
        """Columns ``ci_low``, ``ci_high`` and ``interval`` of one number."""
        return {"ci_low": self.low[place], "ci_high": self.high[place], "interval": str(self.method[place])}

    @classmethod
    def absent(cls, numbers: int) -> Intervals:
        nothing = np.full(numbers, np.nan)
        return cls(nothing, nothing.copy(), np.full(numbers, NO_INTERVAL, dtype="<U16"), nothing.copy())


def participant_draws(strata: Sequence[int], count: int, rng: np.random.Generator) -> Floats:
    """How often each participant is drawn.

    `strata`: stratum 0..S-1 of each participant; draws are made within strata, so that group sizes do not change.

    Gives an array (count, participants).
    """
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


def bootstrap_intervals(
    statistic: Statistic,
    strata: Sequence[int],
    count: int,
    confidence: float,
    rng: np.random.Generator,
) -> Intervals:
    """Interval of every number that a statistic gives, from the same draws.

    `statistic`: function of weights; result of shape (draws,) or (draws, numbers). `strata`: one per participant; all
    equal if group sizes may vary. `count`: number of draws.

    The result has no bounds for fewer than three participants, if the statistic is undefined in more than half of the
    draws (draws in which it is undefined are left out), or if all draws are equal (`Intervals.flat`).
    """
    n = len(strata)
    estimates = _columns(statistic(np.ones((1, n))))[0]
    result = Intervals.absent(len(estimates))
    if n < MIN_PARTICIPANTS:
        return result
    draws = _columns(statistic(participant_draws(strata, count, rng)))
    jackknife = _columns(statistic(1 - np.eye(n)))
    there = np.isfinite(estimates)
    draws = draws[np.isfinite(draws[:, there]).any(axis=1)]  # the others are undefined for all numbers
    usable = np.isfinite(draws)
    enough = there & (usable.sum(axis=0) >= MIN_USABLE_SHARE * count)
    whole, partly = enough & usable.all(axis=0), enough & ~usable.all(axis=0)
    for chosen in (np.flatnonzero(whole), *np.flatnonzero(partly)[:, None]):
        if len(chosen):
            usable_draws = draws[usable[:, chosen[0]]][:, chosen]
            low, high = bca_bounds(usable_draws, estimates[chosen], jackknife[:, chosen], strata, confidence)
            other = np.isnan(low)
            if other.any():
                low[other], high[other] = percentile_bounds(usable_draws[:, other], confidence)
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

    Examples
    --------
    >>> weighted_mean(np.array([1.0, 4.0]), np.array([[1.0, 1.0], [2.0, 1.0]])).tolist()
    [2.5, 2.0]
    """
    result: Floats = weights @ values / weights.sum(axis=1)
    return result


def weighted_slope(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Least-squares slope of y over x (n,) in each draw of weights (draws, n); NaN without a spread of x.

    Examples
    --------
    >>> weighted_slope(np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0, 5.0]), np.ones((1, 3))).tolist()
    [2.0]
    """
    from_mean = x - weighted_mean(x, weights)[:, None]
    spread = (weights * from_mean**2).sum(axis=1)
    covariance = (weights * from_mean * (y - weighted_mean(y, weights)[:, None])).sum(axis=1)
    result: Floats = np.divide(covariance, spread, out=np.full(len(weights), np.nan), where=spread > 0)
    return result
