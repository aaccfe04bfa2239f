"""Bootstrap over participants: a participant is drawn with all of their scans.

A statistic is a function of weights, ``statistic(weights)`` with weights of shape (draws, participants) and a result
of shape (draws, ...). A bootstrap draw is how often each participant was drawn; leaving one out (the jackknife of the
BCa interval) is a weight of zero. So one vectorised formula serves the estimate, the draws and the jackknife, for one
number or for all regions at once.

`scipy.stats.bootstrap` draws independent rows of equally long samples and has no notion of a participant with several
scans; its BCa interval is the oracle of the tests, equal for equal draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Floats]

MIN_PARTICIPANTS = 3
MIN_USABLE_SHARE = 0.5
"""Share of draws in which the statistic must exist (a draw without patients has no sensitivity)."""

NO_INTERVAL = "none"


@dataclass(frozen=True)
class Interval:
    """A confidence interval.

    Parameters
    ----------
    low, high : float
        NaN where there is none.
    method : {"BCa", "percentile", "none"}
        Percentile where BCa is not defined (all draws on one side of the estimate).
    """

    low: float
    high: float
    method: str


ABSENT = Interval(float("nan"), float("nan"), NO_INTERVAL)


def participant_draws(strata: Sequence[int], count: int, rng: np.random.Generator) -> Floats:
    """How often each participant is drawn.

    Parameters
    ----------
    strata : sequence of int
        Stratum 0..S-1 of each participant; draws are made within each, so that group sizes stay as they are.
    count : int
    rng : numpy.random.Generator

    Returns
    -------
    array, shape (count, participants)
    """
    members = np.asarray(strata)
    draws = np.zeros((count, len(members)))
    for stratum in np.unique(members):
        own = np.flatnonzero(members == stratum)
        draws[:, own] = rng.multinomial(len(own), np.full(len(own), 1 / len(own)), size=count)
    return draws


def percentile_interval(draws: Floats, confidence: float) -> Interval:
    """Percentile interval of one number from its draws, shape (count,)."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    return Interval(float(low), float(high), "percentile")


def acceleration(jackknife: Floats, strata: Sequence[int]) -> float:
    """Acceleration of the BCa interval (Efron 1987), from estimates with one participant left out.

    With strata, each contributes its own influence values (Davison & Hinkley 1997, section 5.4).
    """
    members = np.asarray(strata)
    cubes = squares = 0.0
    for stratum in np.unique(members):
        own = jackknife[members == stratum]
        influence = (len(own) - 1) * (own.mean() - own)
        cubes += float((influence**3).sum()) / len(own) ** 3
        squares += float((influence**2).sum()) / len(own) ** 2
    return cubes / (6 * squares**1.5) if squares > 0 else 0.0


def bca_interval(
    draws: Floats, estimate: float, jackknife: Floats, strata: Sequence[int], confidence: float
) -> Interval | None:
    """Bias-corrected and accelerated interval of one number; None where it is not defined.

    Parameters
    ----------
    draws : array, shape (count,)
    estimate : float
    jackknife : array, shape (participants,)
    strata : sequence of int
    confidence : float
    """
    below = ((draws < estimate).mean() + (draws <= estimate).mean()) / 2
    if not 0 < below < 1 or not np.isfinite(jackknife).all():
        return None
    bias = ndtri(below)
    a = acceleration(jackknife, strata)
    tails = ndtri([(1 - confidence) / 2, (1 + confidence) / 2]) + bias
    low, high = np.quantile(draws, ndtr(bias + tails / (1 - a * tails)))
    return Interval(float(low), float(high), "BCa")


def bootstrap_intervals(
    statistic: Statistic, strata: Sequence[int], count: int, confidence: float, rng: np.random.Generator
) -> list[Interval]:
    """Interval of every number that a statistic gives, from the same draws.

    Parameters
    ----------
    statistic : callable
        Of weights; result of shape (draws,) or (draws, numbers).
    strata : sequence of int
        One per participant; all equal where groups need not keep their size.
    count : int
        Draws.
    confidence : float
    rng : numpy.random.Generator

    Returns
    -------
    list of Interval
        Without bounds for fewer than three participants, and where the statistic exists in fewer than half of the
        draws; draws in which it does not exist are left out.
    """
    n = len(strata)
    estimates = _columns(statistic(np.ones((1, n))))[0]
    if n < MIN_PARTICIPANTS:
        return [ABSENT] * len(estimates)
    draws = _columns(statistic(participant_draws(strata, count, rng)))
    jackknife = _columns(statistic(1 - np.eye(n)))
    return [
        _interval(draws[:, i], float(estimates[i]), jackknife[:, i], strata, confidence) for i in range(len(estimates))
    ]


def _columns(values: Floats) -> Floats:
    return values.reshape(len(values), -1)


def _interval(draws: Floats, estimate: float, jackknife: Floats, strata: Sequence[int], confidence: float) -> Interval:
    usable = draws[np.isfinite(draws)]
    if not np.isfinite(estimate) or len(usable) < MIN_USABLE_SHARE * len(draws):
        return ABSENT
    return bca_interval(usable, estimate, jackknife, strata, confidence) or percentile_interval(usable, confidence)
