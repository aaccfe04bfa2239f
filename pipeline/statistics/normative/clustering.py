"""Ward's clustering: number of groups (gap statistic), membership (consensus) and stability.

Ward's tree needs no starting values and holds the groups for every number at once, so a resample costs one tree. Trees
are scipy's; scikit-learn's AgglomerativeClustering makes the same tree and cuts it once per fit. Considered:
consensusclustering (fits every number anew, has no gap statistic), gap-stat and gapstatistics (k-means only). The loops
below are short.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from pipeline.statistics.arrays import Floats

Labels = NDArray[np.intp]

SUBSAMPLE = 0.8
"""Share of participants in a subsample of the consensus (Monti et al. 2003)."""
AMBIGUOUS = (0.1, 0.9)
"""Consensus between these is ambiguous (Senbabaoglu et al. 2014)."""


def ward_labels(points: Floats, numbers: Sequence[int]) -> Labels:
    """Groups by Ward's method, for several numbers of groups.

    Parameters
    ----------
    points : array, shape (participants, features)
    numbers : sequence of int

    Returns
    -------
    array, shape (participants, len(numbers))
        Numbered from 1; participants who are alike in everything are not told apart.
    """
    return _cut(linkage(points, "ward"), numbers)


def within_squares(points: Floats, numbers: Sequence[int]) -> Floats:
    """Sum of squared distances to the means of the groups, W_k of Tibshirani et al. (2001), for Ward's groups.

    Each merge of Ward's tree adds half its squared height.

    Examples
    --------
    >>> within_squares(np.array([[0.0], [2.0], [9.0], [9.0]]), [1, 2, 3]).round(12).tolist()
    [66.0, 2.0, 0.0]
    """
    squares = np.concatenate([[0.0], np.cumsum(linkage(points, "ward")[:, 2] ** 2 / 2)])
    return squares[[max(len(points) - k, 0) for k in numbers]]


@dataclass(frozen=True, eq=False)
class Gap:
    """Gap statistic for 1, 2, ... groups, and the number it gives.

    Parameters
    ----------
    gap, error : array, shape (numbers,)
        Mean log W of reference data minus log W; standard deviation of the reference times sqrt(1 + 1/references).
    number : int
        The smallest k with gap(k) >= gap(k + 1) - error(k + 1).
    """

    gap: Floats
    error: Floats
    number: int


def gap_statistic(points: Floats, largest: int, references: int, rng: np.random.Generator) -> Gap:
    """Compare the tightness of groups with data that have none (Tibshirani, Walther & Hastie 2001).

    Reference data are uniform over the box along the principal axes of the points, so that a long cloud, such as more
    and less ill people, does not count as groups.

    Parameters
    ----------
    points : array, shape (participants, features)
    largest : int
        Largest number of groups considered; one more is looked at, for the rule.
    references : int
        Reference data sets.
    rng : numpy.random.Generator
    """
    numbers = list(range(1, largest + 2))
    left, singular, _ = np.linalg.svd(points - points.mean(axis=0), full_matrices=False)
    axes = left * singular
    low, high = axes.min(axis=0), axes.max(axis=0)
    null = np.array([_log_within(rng.uniform(low, high, axes.shape), numbers) for _ in range(references)])
    gap = null.mean(axis=0) - _log_within(axes, numbers)
    error = null.std(axis=0) * np.sqrt(1 + 1 / references)
    enough = gap[:-1] >= gap[1:] - error[1:]
    return Gap(gap[:-1], error[:-1], int(np.argmax(enough)) + 1 if enough.any() else largest)


@dataclass(frozen=True, eq=False)
class Consensus:
    """Groups that hold over subsamples of participants, for one number of groups.

    Parameters
    ----------
    labels : array, shape (participants,)
        1 for the largest group, and so on.
    together : array, shape (participants, participants)
        Share of subsamples holding both in which both were in one group.
    ambiguous : float
        Proportion of pairs that were neither nearly always together nor nearly always apart (PAC).
    area : float
        Under the distribution function of `together` over pairs; its growth with k is Monti's delta.
    """

    labels: Labels
    together: Floats
    ambiguous: float
    area: float

    def own_group(self) -> Floats:
        """Mean share of each participant with the others of their group; NaN for a group of one."""
        same = (self.labels[:, None] == self.labels[None, :]) & ~np.eye(len(self.labels), dtype=bool)
        n = same.sum(axis=1)
        means = np.full(len(n), np.nan)
        np.divide((self.together * same).sum(axis=1), n, out=means, where=n > 0)
        return means


def consensus(points: Floats, numbers: Sequence[int], resamples: int, rng: np.random.Generator) -> list[Consensus]:
    """Consensus clustering (Monti et al. 2003), the same subsamples of participants for every number of groups.

    Parameters
    ----------
    points : array, shape (participants, features)
    numbers : sequence of int
        2 or more each, and no more than the subsamples have participants.
    resamples : int
    rng : numpy.random.Generator
    """
    n = len(points)
    size = max(round(SUBSAMPLE * n), max(numbers))
    together, drawn = np.zeros((len(numbers), n, n)), np.zeros((n, n))
    for _ in range(resamples):
        own = np.sort(rng.permutation(n)[:size])
        labels = ward_labels(points[own], numbers)
        drawn[np.ix_(own, own)] += 1
        for i in range(len(numbers)):
            together[i][np.ix_(own, own)] += labels[:, None, i] == labels[None, :, i]
    shares = together / np.maximum(drawn, 1)
    return [_consensus_of(share, k) for share, k in zip(shares, numbers, strict=True)]


def _consensus_of(together: Floats, number: int) -> Consensus:
    np.fill_diagonal(together, 1.0)
    pairs = together[np.triu_indices(len(together), 1)]
    tree = linkage(squareform(1 - together, checks=False), "average")
    ambiguous = float(((pairs > AMBIGUOUS[0]) & (pairs < AMBIGUOUS[1])).mean())
    # The area under a distribution function on [0, 1] is 1 minus the mean.
    return Consensus(_by_size(_cut(tree, [number])[:, 0]), together, ambiguous, float(1 - pairs.mean()))


def stability(points: Floats, groups: Sequence[Labels], resamples: int, rng: np.random.Generator) -> Floats:
    """Adjusted Rand index between given groups and those of bootstrap samples of participants.

    Parameters
    ----------
    points : array, shape (participants, features)
    groups : sequence of array, shape (participants,)
        Labels from 1, for several numbers of groups.
    resamples : int
    rng : numpy.random.Generator

    Returns
    -------
    array, shape (resamples, len(groups))
        Over the participants drawn, each counted once.
    """
    numbers = [len(np.unique(labels)) for labels in groups]
    agreement = np.empty((resamples, len(groups)))
    for i in range(resamples):
        drawn = np.sort(rng.integers(len(points), size=len(points)))
        own, first = np.unique(drawn, return_index=True)
        found = ward_labels(points[drawn], numbers)[first]
        agreement[i] = [adjusted_rand(labels[own], found[:, k]) for k, labels in enumerate(groups)]
    return agreement


def adjusted_rand(one: Labels, other: Labels) -> float:
    """Adjusted Rand index (Hubert & Arabie 1985); 1 where the groups are the same, 0 on average by chance.

    scikit-learn's `adjusted_rand_score`, the oracle of the tests, takes 4 ms a call for its checks of input.

    Examples
    --------
    >>> adjusted_rand(np.array([1, 1, 2, 2]), np.array([5, 5, 3, 3]))
    1.0
    """
    both = _pairs(one * (int(other.max()) + 1) + other)
    first, second = _pairs(one), _pairs(other)
    chance = first * second / (len(one) * (len(one) - 1) / 2)
    most = (first + second) / 2
    return 1.0 if most == chance else (both - chance) / (most - chance)


def _pairs(labels: Labels) -> float:
    """Pairs with the same label."""
    counts = np.bincount(labels).astype(float)
    return float((counts * (counts - 1)).sum()) / 2


def _cut(tree: Floats, numbers: Sequence[int]) -> Labels:
    return np.column_stack([fcluster(tree, k, "maxclust") for k in numbers]).astype(np.intp)


def _by_size(labels: Labels) -> Labels:
    """Groups numbered from the largest to the smallest; equal ones by who comes first."""
    names, first, counts = np.unique(labels, return_index=True, return_counts=True)
    order = sorted(range(len(names)), key=lambda i: (-counts[i], first[i]))
    number = {names[i]: place + 1 for place, i in enumerate(order)}
    return np.array([number[name] for name in labels], dtype=np.intp)


def _log_within(points: Floats, numbers: Sequence[int]) -> Floats:
    result: Floats = np.log(np.maximum(within_squares(points, numbers), np.finfo(float).tiny))
    return result
