"""Answers of the bench and the level of its tests; what random orders of regions give, exactly.

A map by a network that has learned nothing true should put regions in an order that says nothing of the planted ones.
Whether it does is tested once with all swaps of labels together, since one swap alone decides nothing. By area, not by
hits among the first: where classes differ in the images, the evidence of any network differs most there, up or down, so
groups with disease gather at both ends of the order, and hits exceed chance though nothing was learned.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heatlas.pipeline.evaluation.scores.intervals import Floats

YES, PARTLY, NO, UNKNOWN = "yes", "partly", "no", "not known"
LEVEL = 0.05
"""A p below this answers a question. With shuffled labels it is a map that fails: random orders of the regions would
find planted ones as well in fewer cases than this. So it is also the share of sound maps that fail, were regions
independent."""

TIE = 1e-9
"""Sums of scores that differ by less are the same."""


def wins_in_random_order(planted: int, others: int) -> Floats:
    """Probability of 0, 1, ... pairs in which the planted region comes first (Mann and Whitney); area = pairs / all.

    Examples
    --------
    >>> wins_in_random_order(1, 2).round(4).tolist(), wins_in_random_order(2, 2).round(4).tolist()
    ([0.3333, 0.3333, 0.3333], [0.1667, 0.1667, 0.3333, 0.1667, 0.1667])
    """
    counts: Floats = np.ones(1)
    for one in range(1, planted + 1):  # the Gaussian binomial coefficient, factor by factor
        counts = np.convolve(counts, np.ones(others + one)).astype(np.float64)
        quotient = np.zeros(len(counts) - one + 1)
        for place in range(len(quotient)):  # divided by 1 + q + ... + q^(one - 1)
            quotient[place] = counts[place] - quotient[max(place - one + 1, 0) : place].sum()
        counts = quotient / quotient.sum()
    return counts


def at_least(of_one: Floats, observed: Sequence[float]) -> float:
    """Probability that the sum over independent orders is at least that of the observed ones.

    Examples
    --------
    >>> coin = np.array([0.5, 0.5])
    >>> at_least(coin, [1]), at_least(coin, [1, 1]), at_least(coin, [0, 0.5])
    (0.5, 0.25, 0.75)
    """
    together: Floats = np.ones(1)
    for _ in observed:
        together = np.convolve(together, of_one).astype(np.float64)
    return float(together[int(np.ceil(sum(observed) - TIE)) :].sum())


def chance_of_order(areas: Sequence[float], regions: int, planted: int) -> float:
    """Probability that random orders of the regions have areas under the ROC whose sum is as large.

    Examples
    --------
    >>> round(chance_of_order([0.5], 67, 5), 3), round(chance_of_order([0.75], 67, 5), 3)
    (0.505, 0.032)
    >>> chance_of_order([1.0], 67, 5) < 1e-4
    True
    """
    others = regions - planted
    return at_least(wins_in_random_order(planted, others), [area * planted * others for area in areas])
