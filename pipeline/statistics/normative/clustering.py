"""Ward's clustering: number of clusters (gap statistic), membership (consensus) and stability.

Ward's tree needs no starting values and holds the clusters for every number at once, so a resample costs one tree.
Trees are scipy's; scikit-learn's AgglomerativeClustering makes the same tree and cuts it once per fit. Considered:
consensusclustering (refits for every number, no gap statistic), gap-stat and gapstatistics (k-means only).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from heatlas.pipeline.statistics.arrays import Floats, Indices

Labels = Indices

SUBSAMPLE = 0.8
"""Share of participants in a subsample of the consensus (Monti et al. 2003)."""
AMBIGUOUS = (0.1, 0.9)
"""Pairs with a consensus between these are ambiguous (Senbabaoglu et al. 2014)."""


def ward_labels(points: Floats, numbers: Sequence[int]) -> Labels:
    """Ward's clusters of points (participants, features), numbered from 1; shape (participants, numbers)."""
    return _cut(linkage(points, "ward"), numbers)


def within_squares(points: Floats, numbers: Sequence[int]) -> Floats:
    """Sum of squared distances to the cluster means, W_k of Tibshirani et al. (2001), for Ward's clusters.

    Each merge of Ward's tree adds half its squared height.

    >>> within_squares(np.array([[0.0], [2.0], [9.0], [9.0]]), [1, 2, 3]).round(12).tolist()
    [66.0, 2.0, 0.0]
    """
    squares = np.concatenate([[0.0], np.cumsum(linkage(points, "ward")[:, 2] ** 2 / 2)])
    return squares[[max(len(points) - k, 0) for k in numbers]]


@dataclass(frozen=True, eq=False)
class Gap:
    """Gap statistic and its error for 1, 2, ... clusters; `number` is the smallest k with gap(k) >= gap(k+1) - error.

    gap: mean log W of reference data minus log W; error: their standard deviation times sqrt(1 + 1/references).
    """

    gap: Floats
    error: Floats
    number: int


def gap_statistic(points: Floats, largest: int, references: int, rng: np.random.Generator) -> Gap:
    """Compare the compactness of clusters with that of unclustered data (Tibshirani, Walther & Hastie 2001).

    Reference data are uniform over the box along the principal axes of points (participants, features), so that an
    elongated distribution, such as one of disease severity, does not count as clusters.
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
    """Consensus clusters over subsamples of participants, for one number of clusters; 1 is the largest cluster.

    `together` (participants, participants): share of the subsamples with both participants in which both were in one
    cluster; `ambiguous`: proportion of ambiguously clustered pairs (PAC); `area`: area under the distribution function
    of `together`, whose growth with k is Monti's delta.
    """

    labels: Labels
    together: Floats
    ambiguous: float
    area: float

    def item_consensus(self) -> Floats:
        """Mean consensus of each participant with the others of their cluster; NaN for a cluster of one."""
        same = (self.labels[:, None] == self.labels[None, :]) & ~np.eye(len(self.labels), dtype=bool)
        n = same.sum(axis=1)
        means = np.full(len(n), np.nan)
        np.divide((self.together * same).sum(axis=1), n, out=means, where=n > 0)
        return means


def consensus(points: Floats, numbers: Sequence[int], resamples: int, rng: np.random.Generator) -> list[Consensus]:
    """Consensus clustering (Monti et al. 2003) of points (participants, features); all numbers share the subsamples."""
    n = len(points)
    size = max(round(SUBSAMPLE * n), max(numbers))
    together, drawn = np.zeros((len(numbers), n, n)), np.zeros((n, n))
    for _ in range(resamples):
        sample = np.sort(rng.permutation(n)[:size])
        labels = ward_labels(points[sample], numbers)
        drawn[np.ix_(sample, sample)] += 1
        for i in range(len(numbers)):
            together[i][np.ix_(sample, sample)] += labels[:, None, i] == labels[None, :, i]
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
    """Adjusted Rand index between given clusters and those of bootstrap samples; shape (resamples, groups)."""
    numbers = [len(np.unique(labels)) for labels in groups]
    agreement = np.empty((resamples, len(groups)))
    for i in range(resamples):
        drawn = np.sort(rng.integers(len(points), size=len(points)))
        kept, first = np.unique(drawn, return_index=True)
        drawn_labels = ward_labels(points[drawn], numbers)[first]
        agreement[i] = [adjusted_rand(labels[kept], drawn_labels[:, k]) for k, labels in enumerate(groups)]
    return agreement


def adjusted_rand(first_labels: Labels, second_labels: Labels) -> float:
    """Adjusted Rand index (Hubert & Arabie 1985); 1 for identical clusters, 0 on average by chance.

    scikit-learn's `adjusted_rand_score`, the oracle of the tests, takes 4 ms per call because it checks its input.

    >>> adjusted_rand(np.array([1, 1, 2, 2]), np.array([5, 5, 3, 3]))
    1.0
    """
    both = _pairs(first_labels * (int(second_labels.max()) + 1) + second_labels)
    first, second = _pairs(first_labels), _pairs(second_labels)
    chance = first * second / (len(first_labels) * (len(first_labels) - 1) / 2)
    most = (first + second) / 2
    return 1.0 if most == chance else (both - chance) / (most - chance)


def _pairs(labels: Labels) -> float:
    """Number of pairs with the same label."""
    counts = np.bincount(labels).astype(float)
    return float((counts * (counts - 1)).sum()) / 2


def _cut(tree: Floats, numbers: Sequence[int]) -> Labels:
    return np.column_stack([fcluster(tree, k, "maxclust") for k in numbers]).astype(np.intp)


def _by_size(labels: Labels) -> Labels:
    """Clusters numbered by decreasing size; ties by first appearance."""
    names, first, counts = np.unique(labels, return_index=True, return_counts=True)
    order = sorted(range(len(names)), key=lambda i: (-counts[i], first[i]))
    number = {names[i]: place + 1 for place, i in enumerate(order)}
    return np.array([number[name] for name in labels], dtype=np.intp)


def _log_within(points: Floats, numbers: Sequence[int]) -> Floats:
    result: Floats = np.log(np.maximum(within_squares(points, numbers), np.finfo(float).tiny))
    return result
