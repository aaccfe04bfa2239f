"""Groups: brute force, the libraries, planted groups found, and none where there are none."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.cluster.hierarchy import linkage
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import adjusted_rand_score

from heatlas.pipeline.statistics.normative.clustering import (
    adjusted_rand,
    consensus,
    gap_statistic,
    stability,
    ward_labels,
    within_squares,
)

NUMBERS = range(1, 7)


def cloud(n=40, n_features=30, seed=0):
    """Correlated normal data without groups."""
    rng = np.random.default_rng(seed)
    loadings = rng.normal(size=(3, n_features)) * np.array([[2.0], [1.0], [0.5]])
    return rng.normal(size=(n, 3)) @ loadings + rng.normal(size=(n, n_features))


def two_groups(n=40, distance=4.0, seed=0):
    rng = np.random.default_rng(seed)
    group = np.arange(n) % 4 == 0
    return rng.normal(size=(n, 10)) + distance * np.outer(group, np.arange(10) < 4), group.astype(int)


def test_within_squares_are_those_of_the_groups():
    points = cloud()
    labels = ward_labels(points, NUMBERS)
    for i, k in enumerate(NUMBERS):
        groups = [points[labels[:, i] == own] for own in np.unique(labels[:, i])]
        expected = sum(((own - own.mean(0)) ** 2).sum() for own in groups)
        assert within_squares(points, [k])[0] == pytest.approx(expected)
        assert len(groups) == k


def test_groups_are_those_of_scikit_learn():
    points = cloud(seed=2)
    for i, k in enumerate(NUMBERS):
        theirs = AgglomerativeClustering(k, linkage="ward").fit_predict(points)
        assert adjusted_rand_score(ward_labels(points, NUMBERS)[:, i], theirs) == 1


def test_adjusted_rand_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    for _ in range(50):
        one, other = rng.integers(1, 5, 20), rng.integers(1, 4, 20)
        assert adjusted_rand(one, other) == pytest.approx(adjusted_rand_score(one, other))
    assert adjusted_rand(np.ones(5, int), np.ones(5, int)) == 1


def test_gap_is_what_tibshirani_and_others_wrote():
    points = cloud(n=12, n_features=3, seed=3)
    found = gap_statistic(points, 3, 40, np.random.default_rng(9))
    rng = np.random.default_rng(9)
    centred = points - points.mean(0)
    u, s, v = np.linalg.svd(centred, full_matrices=False)
    axes = u * s
    null = []
    for _ in range(40):
        reference = rng.uniform(axes.min(0), axes.max(0), axes.shape) @ v
        squares = []
        for k in (1, 2, 3, 4):
            labels = ward_labels(reference, [k])[:, 0]
            # D_r over 2 n_r, from all pairs
            squares.append(
                sum(
                    ((own[:, None] - own[None]) ** 2).sum() / (2 * len(own))
                    for own in (reference[labels == name] for name in np.unique(labels))
                )
            )
        null.append(np.log(squares))
    null = np.array(null)
    observed = np.log(within_squares(points, [1, 2, 3, 4]))
    gap, error = null.mean(0) - observed, null.std(0) * np.sqrt(1 + 1 / 40)
    np.testing.assert_allclose(found.gap, gap[:3], rtol=1e-9)
    np.testing.assert_allclose(found.error, error[:3], rtol=1e-9)
    expected = next((k + 1 for k in range(3) if gap[k] >= gap[k + 1] - error[k + 1]), 3)
    assert found.number == expected


def test_no_groups_are_found_where_there_are_none():
    numbers = [gap_statistic(cloud(n, seed=seed), 5, 40, np.random.default_rng(seed)).number
               for n in (12, 40) for seed in range(30)]  # fmt: skip
    assert np.mean(np.array(numbers) == 1) > 0.9


@pytest.mark.parametrize("k", [2, 3])
def test_planted_groups_are_found(k):
    rng = np.random.default_rng(k)
    group = np.arange(60) % k
    points = rng.normal(size=(60, 20)) + 3.5 * np.kron(np.eye(k, 4), np.ones(5))[group]
    assert gap_statistic(points, 6, 60, rng).number == k
    one = consensus(points, [k], 40, rng)[0]
    assert adjusted_rand_score(one.labels, group) == 1
    assert one.ambiguous < 0.05
    assert stability(points, [one.labels], 40, rng).mean() > 0.95


def test_consensus_counts_how_often_two_are_together():
    points, group = two_groups()
    one = consensus(points, [2], 50, np.random.default_rng(0))[0]
    same = group[:, None] == group[None, :]
    assert one.together[same].min() > 0.9 > 0.1 > one.together[~same].max()
    assert one.labels[group == 0].tolist() == [1] * 30  # the larger group is the first
    pairs = one.together[np.triu_indices(40, 1)]
    grid = np.linspace(0, 1, 20001)
    area = np.trapezoid([(pairs <= x).mean() for x in grid], grid)
    assert one.area == pytest.approx(area, abs=1e-3)
    own = one.item_consensus()
    others = [j for j in range(40) if group[j] == group[0] and j != 0]
    assert own[0] == pytest.approx(one.together[0, others].mean())


def test_groups_in_noise_are_not_stable():
    points = np.random.default_rng(5).normal(size=(40, 30))
    one = consensus(points, [3], 40, np.random.default_rng(0))[0]
    assert stability(points, [one.labels], 40, np.random.default_rng(1)).mean() < 0.5
    assert one.ambiguous > 0.3


def test_a_group_of_one_has_no_company():
    points = np.vstack([np.random.default_rng(0).normal(size=(9, 3)), [[50.0, 50.0, 50.0]]])
    one = consensus(points, [2], 30, np.random.default_rng(0))[0]
    assert np.isnan(one.item_consensus()[9])
    assert one.item_consensus()[:9].min() > 0.5


def test_participants_who_are_alike_are_not_told_apart():
    points = np.repeat([[0.0, 0.0], [5.0, 5.0]], 4, axis=0)
    assert len(np.unique(ward_labels(points, [3])[:, 0])) == 2
    assert within_squares(points, [2, 3]).tolist() == [0, 0]
    assert linkage(points, "ward")[-1, 2] > 0
