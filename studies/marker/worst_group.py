"""What the accuracy of the worst group means: what chance gives, and how far it and differences are known.

The least of several accuracies of few people lies below each of them, so chance is not one half; and a bootstrap of it
is biased once more: with 15 people in a group, 95 % intervals of the difference of two worst groups held the truth in
7 % (percentile, three seeds) to 74 % (basic, one seed) of simulations in which a network that follows a marker is
compared with a coin, and Welch's t intervals of the difference of mean accuracies in 94 to 97 %. So the worst group has
the interval of its groups, and differences have those of mean accuracies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Chance:
    """Expected accuracy of the worst group, and its central 95 % range."""

    expected: float
    low: float
    high: float


def chance_of_worst(people: Sequence[int], seeds: int = 1, opposite: bool = False) -> Chance:
    """The worst group of a network that tosses a coin for each person, whatever their disease and marker; exact.

    NaN if a class has nobody.

    `people`: number of people in each class; each has two copies, which the coin answers alike. `seeds`: networks over
    which the worst group is averaged, each with coins of its own. `opposite`: whether one of a person's copies is then
    right and the other wrong, as where the marker is to be recognised; otherwise both are right or both are wrong.

    Examples
    --------
    With one person in each class, both are right in one case of four.

    >>> chance_of_worst((1, 1)).expected, chance_of_worst((1, 1), opposite=True).expected
    (0.25, 0.0)
    """
    if not all(people):
        return Chance(math.nan, math.nan, math.nan)
    unit = math.lcm(*people)  # shares are whole numbers of 1 / unit
    shares = np.unique(np.concatenate([np.arange(count + 1) * (unit // count) for count in people]))
    beyond = np.ones(len(shares))  # P(worst group >= share)
    for count in people:
        least = -(-shares * count // unit)  # right answers that make up a share
        above = stats.binom.sf(least - 1, count, 0.5)
        beyond *= np.clip(2 * above - 1, 0, 1) if opposite else above
    of_one = beyond - np.append(beyond[1:], 0.0)
    sums, found = shares, of_one
    for _ in range(seeds - 1):
        sums, places = np.unique(np.add.outer(sums, shares), return_inverse=True)
        found = np.bincount(places.ravel(), np.multiply.outer(found, of_one).ravel())
    low, high = (sums[np.searchsorted(found.cumsum(), level)] / (unit * seeds) for level in (0.025, 0.975))
    return Chance(float(found @ sums) / (unit * seeds), float(low), float(high))


def worst_interval(right: Sequence[int], people: Sequence[int], level: float = 0.05) -> tuple[float, float]:
    """Interval of the least of several shares, which holds it in 95 % or more, and its estimate always.

    The least lower bound of all groups, and the least upper bound at a level divided by their number (Clopper-Pearson
    bounds of each). Groups may share people. NaN if a group has nobody.

    `right`, `people`: successes and people of each group.

    Examples
    --------
    >>> [round(bound, 3) for bound in worst_interval((8, 15), (15, 15))]
    [0.266, 0.813]
    """
    if not all(people):
        return math.nan, math.nan
    pairs = list(zip(right, people, strict=True))
    low = [stats.beta.ppf(level / 2, k, n - k + 1) if k else 0.0 for k, n in pairs]
    high = [stats.beta.ppf(1 - level / 2 / len(pairs), k + 1, n - k) if k < n else 1.0 for k, n in pairs]
    return float(min(low)), float(min(high))


def mean_of_classes(values: Floats, of_class: NDArray[np.bool_], level: float = 0.05) -> tuple[float, float, float]:
    """The mean over two classes of the means of their people, and its Welch's t interval.

    `values`: (people,), such as differences of a person's answers by two networks, averaged over seeds. `of_class`:
    (people,). Returns mean, lower and upper bound. No bounds (NaN) for fewer than two people in a class, and where
    nobody differs from the others of the class: an interval without width would claim certainty.
    """
    parts = [values[of_class == label] for label in (False, True)]
    if not all(map(len, parts)):
        return math.nan, math.nan, math.nan
    middle = float(np.mean([own.mean() for own in parts]))
    errors = [float(own.var(ddof=1)) / len(own) if len(own) > 1 else math.nan for own in parts]
    if not sum(errors) > 0:
        return middle, math.nan, math.nan
    freedom = sum(errors) ** 2 / sum(error**2 / (len(own) - 1) for error, own in zip(errors, parts, strict=True))
    half = float(stats.t.ppf(1 - level / 2, freedom)) * math.sqrt(sum(errors)) / 2
    return middle, middle - half, middle + half
