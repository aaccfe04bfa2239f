"""Intervals against scipy on equal draws, and what happens when draws are useless."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats

from heatlas.pipeline.statistics.resampling.bootstrap import (
    bca_bounds,
    bootstrap_intervals,
    participant_draws,
    percentile_bounds,
)


def weighted_mean(values):
    return lambda weights: (weights @ values) / weights.sum(axis=1)


@pytest.mark.parametrize("method", ["BCa", "percentile"])
def test_interval_equals_scipy_for_equal_draws(method):
    rng = np.random.default_rng(0)
    values = rng.lognormal(size=17)
    draws = weighted_mean(values)(participant_draws([0] * 17, 1000, rng))
    oracle = scipy.stats.bootstrap(
        (values,), np.mean, n_resamples=0, method=method, confidence_level=0.9,
        bootstrap_result=SimpleNamespace(bootstrap_distribution=draws),
    ).confidence_interval  # fmt: skip
    jackknife = weighted_mean(values)(1 - np.eye(17))
    if method == "BCa":
        own = bca_bounds(draws[:, None], values.mean(keepdims=True), jackknife[:, None], [0] * 17, 0.9)
    else:
        own = percentile_bounds(draws[:, None], 0.9)
    assert (own[0][0], own[1][0]) == pytest.approx((oracle.low, oracle.high), rel=1e-12)


def test_stratified_bca_equals_scipy_for_two_samples():
    rng = np.random.default_rng(1)
    a, b = rng.lognormal(size=9), rng.normal(size=14)
    strata = [0] * 9 + [1] * 14

    def difference(w):
        return (w[:, :9] @ a) / w[:, :9].sum(axis=1) - (w[:, 9:] @ b) / w[:, 9:].sum(axis=1)

    draws = difference(participant_draws(strata, 1000, rng))
    oracle = scipy.stats.bootstrap(
        (a, b), lambda x, y, axis: x.mean(axis=axis) - y.mean(axis=axis), n_resamples=0, vectorized=True,
        bootstrap_result=SimpleNamespace(bootstrap_distribution=draws),
    ).confidence_interval  # fmt: skip
    estimate, jackknife = np.array([a.mean() - b.mean()]), difference(1 - np.eye(23))
    own = bca_bounds(draws[:, None], estimate, jackknife[:, None], strata, 0.95)
    assert (own[0][0], own[1][0]) == pytest.approx((oracle.low, oracle.high), rel=1e-12)


def test_draws_keep_the_size_of_each_stratum():
    draws = participant_draws([1, 0, 1, 0, 0], 50, np.random.default_rng(2))
    assert (draws[:, [0, 2]].sum(axis=1) == 2).all()
    assert (draws[:, [1, 3, 4]].sum(axis=1) == 3).all()
    assert len(np.unique(draws, axis=0)) > 10


def test_interval_of_a_mean_has_its_coverage():
    """95 % intervals of the mean of 25 normal values hold the truth in 91 to 97 % of 400 data sets."""
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(400):
        values = rng.normal(size=25)
        interval = bootstrap_intervals(weighted_mean(values), [0] * 25, 400, 0.95, rng)
        assert interval.method[0] == "BCa"
        hits += interval.low[0] <= 0 <= interval.high[0]
    assert 0.91 <= hits / 400 <= 0.97


def test_too_few_participants_have_no_interval():
    interval = bootstrap_intervals(weighted_mean(np.array([1.0, 2.0])), [0, 0], 100, 0.95, np.random.default_rng(0))
    assert interval.method[0] == "none"
    assert np.isnan(interval.low[0])


def test_draws_without_the_statistic_are_left_out_and_mostly_such_draws_give_none():
    values = np.arange(10.0)

    def only_with(column):
        return lambda w: np.where(w[:, column].min(axis=1) > 0, (w @ values) / 10, np.nan)

    usable = bootstrap_intervals(only_with([0]), [0] * 10, 500, 0.95, np.random.default_rng(0))
    assert usable.method[0] == "percentile"  # the jackknife that leaves participant 0 out does not exist
    none = bootstrap_intervals(only_with([0, 1, 2]), [0] * 10, 500, 0.95, np.random.default_rng(0))
    assert none.method[0] == "none"


@pytest.mark.parametrize("value", [0.0, 1.0, 1e-9, 0.1])
def test_a_statistic_that_no_draw_changes_has_no_interval_and_says_so(value):
    """Beside one that does vary, and up to rounding: means of 0.1 differ in the last digit."""
    values = np.column_stack([np.full(6, value), np.arange(6.0)])

    def means(weights):
        return (weights @ values) / weights.sum(axis=1, keepdims=True)

    interval = bootstrap_intervals(means, [0] * 6, 100, 0.95, np.random.default_rng(0))
    assert interval.flat.tolist() == [True, False]
    assert interval.method.tolist() == ["none", "BCa"]
    assert np.isnan([interval.low[0], interval.high[0]]).all()
    assert interval.low[1] < 2.5 < interval.high[1]
    assert interval.spread[0] == 0
    assert [note is None for note in interval.notes] == [False, True]
