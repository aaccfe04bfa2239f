"""What a random order of regions gives: exact distributions of hits and of the area under the ROC, over several orders.

A map by a network that has learned nothing true should put regions in an order that says nothing of the planted ones.
Whether it does is tested once with all swaps of labels together, since one swap alone decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import hypergeom

Floats = NDArray[np.float64]
TIE = 1e-9
"""Sums of scores that differ by less are the same."""


def hits_in_random_order(regions: int, planted: int, first: int) -> Floats:
    """Probability of 0, 1, ... planted regions among the first (hypergeometric).

    Examples
    --------
    >>> hits_in_random_order(4, 2, 2).round(4).tolist()
    [0.1667, 0.6667, 0.1667]
    """
    counts = np.arange(min(planted, first) + 1)
    found: Floats = hypergeom(regions, planted, min(first, regions)).pmf(counts)
    return found


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


def chance_of_order(hits: Sequence[float], areas: Sequence[float], regions: int, planted: int, first: int) -> float:
    """p-value that random orders find planted regions as well, by hits or by area, corrected for asking both.

    Parameters
    ----------
    hits, areas : sequence of float
        Of each order: planted regions among the first, and area under the ROC.

    Examples
    --------
    >>> round(chance_of_order([0], [0.5], 67, 5, 10), 3), round(chance_of_order([2], [0.43], 67, 5, 10), 3)
    (1.0, 0.315)
    >>> round(chance_of_order([3], [0.6], 67, 5, 10), 3), chance_of_order([5], [1.0], 67, 5, 10) < 1e-4
    (0.042, True)
    """
    others = regions - planted
    by_hits = at_least(hits_in_random_order(regions, planted, first), hits)
    by_area = at_least(wins_in_random_order(planted, others), [area * planted * others for area in areas])
    return min(1.0, 2 * min(by_hits, by_area))
