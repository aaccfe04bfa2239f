"""Verdicts by rule: an interval that draws people and trainings, what it says of a claim, and whether it can tell.

A statistic is asked of each seed with weights of people. The variance of its mean over the seeds is that of people (who
are drawn within their classes, the same in all seeds), and that of networks: statistics without the people of a network
give a pseudo-value for each, whose variance holds that of their people as well, which is taken off. Student's t with
the degrees of freedom of Satterthwaite. How often it holds the truth: `tests/evaluation/interval_coverage.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Statistic = Callable[[int, Floats], Floats]
"""Of a seed, by its place, for each row of weights (rows, people)."""
DRAWS = 1000
ALPHA = 0.05
EDGE = 0.02
"""Share of the range of a measure that is its floor or its ceiling."""
HOLDS, NOT, OPEN = "holds", "does not", "open"


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, with its error over people and networks; NaN where that is not known."""

    mean: float
    error: float
    freedom: float
    seeds: tuple[float, ...]
    seeds_differ: float = float("nan")
    """p of the test that seeds differ by more than their networks do."""

    @property
    def interval(self) -> tuple[float, float]:
        half = float(stats.t.ppf(1 - ALPHA / 2, self.freedom)) * self.error if self.error > 0 else self.error
        return self.mean - half, self.mean + half

    def p(self, bound: float) -> float:
        """Two-sided p of a mean at the bound."""
        if not self.error > 0:
            return 1.0
        return float(2 * stats.t.sf(abs(self.mean - bound) / self.error, self.freedom))


@dataclass(frozen=True, eq=False)
class Design:
    """Who was asked: class of each person, and the fold of the network by seed, (people, seeds); below 0: not asked."""

    classes: Ints
    folds: Ints


@lru_cache(maxsize=16)
def drawn(classes: tuple[int, ...], draws: int = DRAWS) -> Floats:
    """How often each person is drawn, (draws, people): one fewer than a class has, so that means vary enough."""
    random, found = np.random.default_rng(0), np.zeros((draws, len(classes)))
    for one in sorted(set(classes)):
        own = np.flatnonzero(np.array(classes) == one)
        found[:, own] = random.multinomial(max(len(own) - 1, 1), np.full(len(own), 1 / len(own)), size=draws)
    return found


def estimate(statistic: Statistic, design: Design, draws: int = DRAWS) -> Estimate:
    """The statistic over all seeds."""
    n_seeds, people = design.folds.shape[1], len(design.classes) - len(np.unique(design.classes))
    times, found, every, pseudo = drawn(tuple(design.classes), draws), [], [], []
    for seed in range(n_seeds):
        own = design.folds[:, seed]
        folds = np.unique(own[own >= 0])
        without = np.stack([own != fold for fold in folds]) if len(folds) > 1 else np.zeros((0, len(own)))
        values = statistic(seed, np.concatenate([np.ones((1, len(own))), without, times]) * (own >= 0))
        found.append(float(values[0]))
        every.append(values[len(without) + 1 :])
        n = len(folds)
        pseudo.append(n * values[0] - (n - 1) * values[1 : n + 1] if n > 1 else values[:1])
    known = np.stack(every)
    covariance = np.atleast_2d(np.cov(known[:, np.isfinite(known).all(axis=0)]))
    of_people = covariance.sum() / n_seeds**2
    networks = np.concatenate(pseudo)
    nested = len(networks) > n_seeds
    # Without folds a seed is a network, and all were asked of the same people: only what they do not share is theirs.
    shared = np.trace(covariance) / n_seeds**2 if nested else _interaction(covariance)
    of_networks = networks.var(ddof=1) / len(networks) if len(networks) > 1 else 0.0
    variance, freedom = of_people, float(people)
    if np.isnan(of_networks):  # a statistic that is not known without the people of one network
        variance = np.nan
    elif of_networks > shared:
        variance = of_people + of_networks - shared
        freedom = variance**2 / (of_people**2 / people + of_networks**2 / (len(networks) - 1))
    return Estimate(float(np.mean(found)), float(np.sqrt(variance)), freedom, tuple(found), _between(pseudo))


def _interaction(covariance: Floats) -> float:
    n = len(covariance)
    shared = (covariance.sum() - np.trace(covariance)) / max(n * (n - 1), 1)
    return float(np.trace(covariance) / n - shared) / n


def _between(pseudo: Sequence[Floats]) -> float:
    known = len(pseudo) > 1 and min(map(len, pseudo)) > 1 and any(np.ptp(one) > 0 for one in pseudo)
    return float(stats.f_oneway(*pseudo).pvalue) if known else float("nan")


def mean_of(values: Floats) -> Statistic:
    """The mean over people of values (people, seeds), each class by its share of those asked; NaN: not asked."""

    def statistic(seed: int, weights: Floats) -> Floats:
        there = np.isfinite(values[:, seed])
        own = weights[:, there]
        with np.errstate(invalid="ignore"):  # NaN where nobody who was asked is drawn
            return np.asarray((own @ values[there, seed]) / own.sum(axis=1))

    return statistic


def area_of(values: Floats, positive: NDArray[np.bool_], folds: Ints) -> Statistic:
    """Area under the curve of values (people, seeds) within folds, which count by their pairs."""

    def statistic(seed: int, weights: Floats) -> Floats:
        won, pairs = np.zeros(len(weights)), np.zeros(len(weights))
        for fold in np.unique(folds[folds[:, seed] >= 0, seed]):
            own = (folds[:, seed] == fold) & np.isfinite(values[:, seed])
            ill, well = own & positive, own & ~positive
            gap = values[ill, seed][:, None] - values[well, seed]
            won += np.einsum("ri,ij,rj->r", weights[:, ill], (gap > 0) + 0.5 * (gap == 0), weights[:, well])
            pairs += weights[:, ill].sum(axis=1) * weights[:, well].sum(axis=1)
        with np.errstate(invalid="ignore"):
            return won / pairs

    return statistic


def less(first: Statistic, second: Statistic) -> Statistic:
    return lambda seed, weights: first(seed, weights) - second(seed, weights)


def told(found: Estimate, says: str, bound: float, origin: float = 0.0) -> tuple[str, float]:
    """What an estimate says of a claim, `above` or `below` the bound or `within` it of the origin, and its p."""
    low, high = found.interval
    if not found.error > 0:  # not known, or a measure that never changes, whose error is not 0
        return OPEN, 1.0
    if says == "within":
        least, most = origin - bound, origin + bound
        inside, outside = least < low and high < most, low > most or high < least
        ps = found.p(least), found.p(most)
        return (HOLDS if inside else NOT if outside else OPEN), max(ps)
    sign = 1 if says == "above" else -1
    ends = sorted((sign * (low - bound), sign * (high - bound)))
    return (HOLDS if ends[0] > 0 else NOT if ends[1] < 0 else OPEN), found.p(bound)


def at_an_end(means: Sequence[float], floor: float, ceiling: float) -> bool:
    """Whether a mean lies at the floor or the ceiling of its measure."""
    edge = EDGE * (ceiling - floor)
    return any(mean <= floor + edge or mean >= ceiling - edge for mean in means)


def together(each: Sequence[tuple[str, float]]) -> tuple[str, float]:
    """Of a claim with several parts: it holds if all do, and does not if one does not; with its p, for all parts.

    One of many parts fails by chance more often than one alone: its p is multiplied by their number.
    """
    said = [verdict for verdict, _ in each]
    if NOT in said:
        p = min(1.0, len(each) * min(p for verdict, p in each if verdict == NOT))
        return (NOT if p < ALPHA else OPEN), p
    return (HOLDS if set(said) == {HOLDS} else OPEN), max(p for _, p in each)


def holm(ps: Sequence[float]) -> list[float]:
    """Adjusted for all of them.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    found, highest = [0.0] * len(ps), 0.0
    for rank, place in enumerate(np.argsort(ps)):
        highest = max(highest, min(1.0, (len(ps) - rank) * ps[place]))
        found[place] = highest
    return found
