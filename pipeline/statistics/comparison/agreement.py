"""Agreement of several rankings of the same regions: Kendall's W, and the overlap of their top regions.

W is 1 for identical rankings and about 1 / rankings for unrelated ones (Kendall & Babington Smith 1939), corrected for
ties; it is Friedman's chi-squared divided by k (n - 1), which the tests check against scipy's `friedmanchisquare`. p
values come from permuting each ranking independently, so no approximation for few rankings is needed. That null
hypothesis is weak: regions differ in size, and every measure that follows size agrees. The overlap of the top regions
by density, which does not depend on size, is the number to look at.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from heatlas.pipeline.statistics.arrays import Floats
from heatlas.pipeline.statistics.linear.exchangeability import p_value

AT_ONCE = 500
"""Permutations per chunk; bounds memory (500 x 5 rankings x 68 regions: 1.4 MB)."""


@dataclass(frozen=True)
class Agreement:
    """Agreement of k rankings of n regions; columns of ``ranking_agreement.tsv``, which says what they are."""

    kendall_w: float
    p: float
    top: int
    overlap: float
    overlap_chance: float
    overlap_p: float


def kendall_w(values: Floats) -> float:
    """Kendall's W of k rankings by values (k, n), corrected for ties; NaN if a ranking is constant.

    Examples
    --------
    >>> kendall_w(np.array([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]]))
    1.0
    """
    ranks = np.asarray(rankdata(values, axis=1))
    spread, largest = _spread(ranks[None])[0], _largest_spread(ranks)
    return float(spread / largest) if largest > 0 else float("nan")


def tops(values: Floats, count: int) -> NDArray[np.bool_]:
    """Mask (k, n) of the `count` largest regions of each ranking; ties go to the first."""
    order = np.argsort(-values, axis=1, kind="stable")[:, :count]
    chosen = np.zeros(values.shape, bool)
    np.put_along_axis(chosen, order, True, axis=1)
    return chosen


def mean_overlap(chosen: NDArray[np.bool_]) -> Floats:
    """Share of top regions in common, averaged over pairs of rankings; shape (...) for chosen (..., k, n)."""
    k, count = chosen.shape[-2], chosen[..., 0, :].sum(axis=-1)
    times = chosen.sum(axis=-2)
    common: Floats = (times * (times - 1) / 2).sum(axis=-1) / (k * (k - 1) / 2) / count
    return common


def agreement(values: Floats, top: int, permutations: int, rng: np.random.Generator) -> Agreement:
    """All measures of agreement of k >= 2 rankings by values (k, n) without NaN; top is at most n."""
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
    """Sum of squared deviations of the rank sums from their mean; ranks (m, k, n)."""
    sums = ranks.sum(axis=1)
    squares: Floats = ((sums - sums.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
    return squares


def _largest_spread(ranks: Floats) -> float:
    """`_spread` of identical rankings: k times the sum over rankings of their own sum of squares."""
    return float(len(ranks) * ((ranks - ranks.mean(axis=1, keepdims=True)) ** 2).sum())
