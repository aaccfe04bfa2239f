"""Weighted correlations against scipy on the repeated rows they stand for."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from pipeline.statistics.associations.correlation import (
    is_constant,
    weighted_midranks,
    weighted_pearson,
    weighted_spearman,
)


@pytest.mark.parametrize(
    ("own", "oracle"), [(weighted_pearson, scipy.stats.pearsonr), (weighted_spearman, scipy.stats.spearmanr)]
)
def test_weights_are_repeats(own, oracle):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=15).round(1), rng.lognormal(size=15) * 1e-6 + 1e3  # ties; a large offset
    y[3] = y[7]
    weights = rng.integers(0, 4, size=(20, 15)).astype(float)
    got = own(x, y, weights)
    expected = [oracle(np.repeat(x, w.astype(int)), np.repeat(y, w.astype(int))).statistic for w in weights]
    assert got == pytest.approx(expected, abs=2e-6 if own is weighted_pearson else 1e-12)


def test_pearson_is_precise_without_an_offset():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, 30))
    assert weighted_pearson(x, y, np.ones((1, 30)))[0] == pytest.approx(scipy.stats.pearsonr(x, y).statistic, abs=1e-14)


def test_midranks_equal_scipy_ranks_of_the_repeated_rows():
    x = np.array([3.0, 1.0, 3.0, 2.0])
    weights = np.array([[2.0, 1.0, 1.0, 0.0]])
    assert weighted_midranks(x, weights)[0, [0, 1, 2]].tolist() == [3.0, 1.0, 3.0]
    assert scipy.stats.rankdata([3, 3, 1, 3]).tolist() == [3.0, 3.0, 1.0, 3.0]


def test_a_draw_without_spread_has_no_correlation():
    x, y = np.array([1.0, 2.0, 4.0]), np.array([5.0, 3.0, 3.0])
    weights = np.array([[3.0, 0, 0], [0, 1, 2.0], [1, 1, 1.0]])
    for own in (weighted_pearson, weighted_spearman):
        assert np.isnan(own(x, y, weights)).tolist() == [True, True, False]


def test_constant_is_meant_up_to_rounding():
    assert is_constant(np.array([0.1 + 0.2, 0.3, 0.3]))
    assert is_constant(np.zeros(3))
    assert not is_constant(np.array([1.0, 1.0 + 1e-6]))
