"""How far several rankings of the same regions agree: Kendall's W, and the overlap of their tops against chance.

W is 1 where all rankings are the same and about 1 / rankings where they have nothing to do with each other (Kendall &
Babington Smith 1939), with the usual correction for ties; it is Friedman's chi-squared divided by k (n - 1), which is
how scipy's `friedmanchisquare` checks it in the tests. p values come from permuting each ranking by itself, so no
approximation for few rankings is needed. That null, "rankings know nothing of each other", is weak: regions differ in
size, and whatever follows size agrees. The overlap of tops of rankings of density, which size does not drive, is the
number to look at.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from pipeline.statistics.arrays import Floats
from pipeline.statistics.linear.exchangeability import p_value

AT_ONCE = 500
"""Permutations held at a time; bounds memory (500 x 5 rankings x 68 regions: 1.4 MB)."""


@dataclass(frozen=True)
class Agreement:
    """Agreement of k rankings of n regions.

    Parameters
    ----------
    w : float
        Kendall's coefficient of concordance.
    w_p : float
        Share of permutations with a W at least as large, (b+1)/(m+1).
    top : int
        Regions counted at the top.
    overlap : float
        Mean share of them that two rankings have in common.
    chance : float
        Its expectation for rankings that know nothing of each other: top / n.
    overlap_p : float
    """

    w: float
    w_p: float
    top: int
    overlap: float
    chance: float
    overlap_p: float


def kendall_w(values: Floats) -> float:
    """Kendall's W of k rankings, corrected for ties; NaN where a ranking is all ties.

    Parameters
    ----------
    values : array, shape (k, n)
        What each ranking orders by.

    Examples
    --------
    >>> kendall_w(np.array([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]]))
    1.0
    """
    ranks = np.asarray(rankdata(values, axis=1))
    spread, largest = _spread(ranks[None])[0], _largest_spread(ranks)
    return float(spread / largest) if largest > 0 else float("nan")


def tops(values: Floats, count: int) -> NDArray[np.bool_]:
    """Whether each region is among the `count` largest of a ranking, shape (k, n); of ties the first ones."""
    order = np.argsort(-values, axis=1, kind="stable")[:, :count]
    chosen = np.zeros(values.shape, bool)
    np.put_along_axis(chosen, order, True, axis=1)
    return chosen


def mean_overlap(chosen: NDArray[np.bool_]) -> Floats:
    """Mean over pairs of rankings of the share of the top that both have.

    Parameters
    ----------
    chosen : array of bool, shape (..., k, n)
        As from `tops`.

    Returns
    -------
    array, shape (...)
    """
    k, count = chosen.shape[-2], chosen[..., 0, :].sum(axis=-1)
    times = chosen.sum(axis=-2)
    common: Floats = (times * (times - 1) / 2).sum(axis=-1) / (k * (k - 1) / 2) / count
    return common


def agreement(values: Floats, top: int, permutations: int, rng: np.random.Generator) -> Agreement:
    """All measures of agreement.

    Parameters
    ----------
    values : array, shape (k, n)
        k of 2 or more, no NaN.
    top : int
        At most n.
    permutations : int
    rng : numpy.random.Generator
    """
    k, n = values.shape
    ranks, chosen = np.asarray(rankdata(values, axis=1)), tops(values, top)
    spread, overlap = _spread(ranks[None])[0], float(mean_overlap(chosen))
    wider = closer = 0
    for start in range(0, permutations, AT_ONCE):
        m = min(AT_ONCE, permutations - start)
        order = rng.permuted(np.tile(np.arange(n), (m, k, 1)), axis=2)
        wider += int((_spread(np.take_along_axis(ranks[None], order, axis=2)) >= spread * (1 - 1e-9)).sum())
        shuffled = np.take_along_axis(chosen[None], order, axis=2)
        closer += int((mean_overlap(shuffled) >= overlap * (1 - 1e-9)).sum())
    p = p_value(np.array([wider, closer]), permutations, exact=False)
    return Agreement(kendall_w(values), float(p[0]), top, overlap, top / n, float(p[1]))


def _spread(ranks: Floats) -> Floats:
    """Sum of squares of the rank sums around their mean; ranks (m, k, n)."""
    sums = ranks.sum(axis=1)
    squares: Floats = ((sums - sums.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
    return squares


def _largest_spread(ranks: Floats) -> float:
    """`_spread` of rankings that agree wholly: k times the sum of each one's own."""
    return float(len(ranks) * ((ranks - ranks.mean(axis=1, keepdims=True)) ** 2).sum())
