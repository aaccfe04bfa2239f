"""How far rankings of regions agree, and whether a score rises with accuracy; formulas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from heatlas.pipeline.evaluation.scores.intervals import Floats
from heatlas.pipeline.evaluation.scores.rankings import FIRST, LEVEL, NO, UNKNOWN, YES, rank_correlation, ranked
from heatlas.pipeline.run.work.seeds import generator

MOST_EXACT = 8
"""Networks up to which every order is tried; 40320."""
ORDERS = 20000
"""Random orders of more networks."""


def places(values: Floats) -> Floats:
    """Place of each region, 1 for the largest value; ties share the mean, regions without a value come last.

    Examples
    --------
    >>> places(np.array([0.0, 5.0, np.nan, 5.0])).tolist()
    [3.0, 1.5, 4.0, 1.5]
    """
    return np.asarray(stats.rankdata(-ranked(values)), dtype=np.float64)


def agreement(first: Floats, second: Floats) -> float:
    """Rank correlation over the regions that have a value in both; NaN with fewer than three, or without order."""
    known = np.isfinite(first) & np.isfinite(second)
    return rank_correlation(first[known], second[known])


def shared_first(first: Floats, second: Floats, count: int = FIRST) -> float:
    """How many regions are among the first of both rankings; a ranking without any value has none.

    Examples
    --------
    >>> shared_first(np.array([3.0, 2.0, 1.0, 0.0]), np.array([3.0, 0.0, 2.0, 1.0]), 2)
    1.0
    """
    return float((in_first(first, count) & in_first(second, count)).sum())


def in_first(values: Floats, count: int = FIRST) -> NDArray[np.bool_]:
    """Which regions are among the first; of regions tied at the end of the list, those that come first in the atlas."""
    known = np.isfinite(values)
    chosen = np.zeros(len(values), bool)
    chosen[np.argsort(-ranked(values), kind="stable")[: min(count, int(known.sum()))]] = True
    return chosen


def consensus(rankings: Sequence[Floats], count: int = FIRST) -> tuple[Floats, Floats]:
    """Mean place of each region over networks, and the share of networks that have it among the first.

    Examples
    --------
    >>> mean, share = consensus([np.array([2.0, 1.0, 0.0]), np.array([2.0, 0.0, 1.0])], 1)
    >>> mean.tolist(), share.tolist()
    ([1.0, 2.5, 2.5], [1.0, 0.0, 0.0])
    """
    return (
        np.mean([places(values) for values in rankings], axis=0),
        np.mean([in_first(values, count) for values in rankings], axis=0),
    )


@dataclass(frozen=True)
class Trend:
    """Rank correlation of a score with accuracy over sets of networks, and its permutation p, two-sided."""

    n: int
    rho: float
    p: float

    @property
    def answer(self) -> str:
        """Whether the score rises with accuracy."""
        if np.isnan(self.p) or self.p >= LEVEL:
            return UNKNOWN
        return YES if self.rho > 0 else NO


def trend(accuracy: Floats, score: Floats, seed: int) -> Trend:
    """Spearman's rho and its exact p; of more than `MOST_EXACT` networks by random orders.

    Networks without a score are left out. The p is exact if networks are exchangeable; those of a run share people and
    folds, so it says something about these people only.

    Examples
    --------
    >>> trend(np.arange(5.0), np.arange(5.0), 0)  # 2 of 120 orders
    Trend(n=5, rho=1.0, p=0.016666666666666666)
    """
    known = np.isfinite(accuracy) & np.isfinite(score)
    x, y = stats.rankdata(accuracy[known]), stats.rankdata(score[known])
    n = len(x)
    if n < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return Trend(n, float("nan"), float("nan"))
    x, y = x - x.mean(), y - y.mean()
    exact = n <= MOST_EXACT
    random = generator(seed, "trend")
    orders = (
        np.array(list(permutations(range(n)))) if exact else np.stack([random.permutation(n) for _ in range(ORDERS)])
    )
    size = np.sqrt((x @ x) * (y @ y))
    rho = float(x @ y / size)
    extreme = np.abs(y[orders] @ x) / size >= abs(rho) - 1e-12
    return Trend(n, rho, float(extreme.mean() if exact else (extreme.sum() + 1) / (ORDERS + 1)))
