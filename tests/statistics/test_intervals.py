"""Intervals by bootstrap and of bounded measures: scipy on equal draws, formulas solved another way, useless draws."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from made_up import FAST
from scipy.optimize import brentq
from scipy.special import expit, logit
from scipy.stats import skew, t, ttest_1samp

from heatlas.pipeline.statistics.arrays import Resampling
from heatlas.pipeline.statistics.performance.classification import performance_table
from heatlas.pipeline.statistics.performance.other_tasks import SKEWED, number_metrics, number_tables
from heatlas.pipeline.statistics.resampling.bootstrap import (
    AS_IT_IS,
    FISHER,
    LOG,
    LOGIT,
    UNEXPLAINED,
    bca_bounds,
    bootstrap_intervals,
    freedom_of_strata,
    participant_draws,
    percentile_bounds,
    rescaled_draws,
    scaled_intervals,
    strata_of,
)
from heatlas.pipeline.statistics.resampling.means import ALIKE, FEW, HALL, mean_intervals


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
        interval = bootstrap_intervals(weighted_mean(values), [0] * 25, Resampling(400, rng))
        assert interval.method[0] == "BCa"
        hits += interval.low[0] <= 0 <= interval.high[0]
    assert 0.91 <= hits / 400 <= 0.97


def test_too_few_participants_have_no_interval():
    interval = bootstrap_intervals(
        weighted_mean(np.array([1.0, 2.0])), [0, 0], Resampling(100, np.random.default_rng(0))
    )
    assert interval.method[0] == "none"
    assert np.isnan(interval.low[0])


def test_draws_without_the_statistic_are_left_out_and_mostly_such_draws_give_none():
    values = np.arange(10.0)

    def only_with(column):
        return lambda w: np.where(w[:, column].min(axis=1) > 0, (w @ values) / 10, np.nan)

    usable = bootstrap_intervals(only_with([0]), [0] * 10, Resampling(500, np.random.default_rng(0)))
    assert usable.method[0] == "percentile"  # the jackknife that leaves participant 0 out does not exist
    none = bootstrap_intervals(only_with([0, 1, 2]), [0] * 10, Resampling(500, np.random.default_rng(0)))
    assert none.method[0] == "none"


@pytest.mark.parametrize("value", [0.0, 1.0, 1e-9, 0.1])
def test_a_statistic_that_no_draw_changes_has_no_interval_and_says_so(value):
    """Beside one that does vary, and up to rounding: means of 0.1 differ in the last digit."""
    values = np.column_stack([np.full(6, value), np.arange(6.0)])

    def means(weights):
        return (weights @ values) / weights.sum(axis=1, keepdims=True)

    interval = bootstrap_intervals(means, [0] * 6, Resampling(100, np.random.default_rng(0)))
    assert interval.flat.tolist() == [True, False]
    assert interval.method.tolist() == ["none", "BCa"]
    assert np.isnan([interval.low[0], interval.high[0]]).all()
    assert interval.low[1] < 2.5 < interval.high[1]
    assert interval.spread[0] == 0
    assert [note is None for note in interval.notes] == [False, True]


def test_bounds_of_means_are_where_halls_statistic_reaches_the_quantiles_of_t():
    values = np.random.default_rng(0).lognormal(size=12)
    (found, _), n, g = mean_intervals(values[:, None], 0.9), 12, skew(values)

    def hall(mean):
        s = (values.mean() - mean) / values.std()  # Hall 1992: of the mean in standard deviations with divisor n
        one = s * np.sqrt((n - 1) / n)
        return np.sqrt(n) * (one + g * one**2 / 3 + g**2 * one**3 / 27 + g / (6 * n))

    quantile = t.isf(0.05, n - 1)
    assert found.low[0] == pytest.approx(brentq(lambda mean: hall(mean) - quantile, -50, values.mean()))
    assert found.high[0] == pytest.approx(brentq(lambda mean: hall(mean) + quantile, values.mean(), 50))
    assert found.high[0] - values.mean() > 1.3 * (values.mean() - found.low[0])  # the longer tail is above


def test_bounds_of_means_are_those_of_t_where_values_are_symmetric():
    values = np.array([-3.0, -1.0, 0.0, 1.0, 3.0]) + 2
    found, said = mean_intervals(np.column_stack([values, np.full(5, 0.1)]), 0.95)
    oracle = ttest_1samp(values, 0).confidence_interval(0.95)
    assert (found.low[0], found.high[0]) == pytest.approx((oracle.low, oracle.high))
    assert found.method.tolist() == [HALL, "none"]
    assert np.isnan([found.low[1], found.high[1]]).all()
    assert said == [FEW, ALIKE]
    assert mean_intervals(np.random.default_rng(0).normal(size=(60, 1)), 0.95)[1] == [None]


def test_draws_within_strata_have_the_variance_of_stratified_sampling():
    """Of a sum: n_s times the variance with n_s - 1, of each stratum; with 3 drawn of 3 it would be two thirds."""
    rng = np.random.default_rng(0)
    strata, values = np.repeat([0, 1, 2], [2, 3, 6]), rng.normal(size=11)
    expected = sum(np.sum(strata == one) * values[strata == one].var(ddof=1) for one in range(3))
    draws = rescaled_draws(strata, 200_000, rng)
    assert np.var(draws @ values) == pytest.approx(expected, rel=0.02)
    for one in range(3):
        assert draws[:, strata == one].sum(axis=1) == pytest.approx(np.sum(strata == one))


def test_strata_are_folds_and_classes_and_nobody_is_alone():
    fold, of_class = np.array([0, 0, 0, 1, 1, 1, 1, 2]), np.array([0, 0, 1, 0, 0, 1, 1, 0])
    strata = strata_of(fold, of_class)
    assert strata[0] == strata[1] == strata[7]  # the only one of fold 2 joins the first others of the class
    assert strata[2] == strata[5] == strata[6]
    assert strata[3] == strata[4]
    assert len(set(strata.tolist())) == 3
    assert strata_of(np.zeros(0, np.intp), np.zeros(0, np.intp)).tolist() == []
    assert strata_of(np.array([0, 1]), np.array([0, 1])).tolist() == [0, 1]  # alone in the class as well


@pytest.mark.parametrize("scale", [LOGIT, FISHER, LOG, UNEXPLAINED, AS_IT_IS])
def test_slope_and_inverse_belong_to_the_scale(scale):
    x, step = np.array([0.1, 0.4, 0.9]), 1e-6
    assert scale.back(scale.of(x)) == pytest.approx(x)
    assert scale.slope(x) == pytest.approx((scale.of(x + step) - scale.of(x - step)) / (2 * step), rel=1e-5)


def test_interval_is_t_on_the_scale():
    rng, right = np.random.default_rng(1), np.r_[np.ones(20), np.zeros(6)]
    strata = np.arange(26) % 4

    def share(weights):
        return (weights @ right / weights.sum(axis=1))[:, None]

    found = scaled_intervals(share, strata, [LOGIT], Resampling(4000, rng))
    parts = [np.sum(strata == s) * right[strata == s].var(ddof=1) for s in range(4)]
    freedom = sum(parts) ** 2 / sum(v**2 / (np.sum(strata == s) - 1) for s, v in enumerate(parts))  # Satterthwaite
    error = np.sqrt(sum(parts)) / 26
    assert freedom_of_strata(share, strata) == pytest.approx(freedom)
    assert freedom_of_strata(share, np.zeros(26)) == pytest.approx(25)
    p, reach = 20 / 26, t.isf(0.025, freedom)
    expected = [expit(logit(p) + side * reach * error / (p * (1 - p))) for side in (-1, 1)]
    assert (found.low[0], found.high[0]) == pytest.approx(expected, abs=0.01)
    assert found.method[0] == "logit"


def test_a_number_without_interval_leaves_the_others_theirs():
    values = np.arange(8.0)

    def numbers(weights):
        mean = weights @ values / weights.sum(axis=1)
        return np.stack([mean, np.ones(len(weights)), np.where(weights[:, 0] > 9, mean, np.nan)], axis=1)

    found = scaled_intervals(numbers, [0] * 8, [LOG] * 3, Resampling(200, np.random.default_rng(0)))
    assert found.method.tolist() == ["log", "none", "none"]
    assert found.flat.tolist() == [False, True, False]
    assert 0 < found.low[0] < 3.5 < found.high[0]
    one_each = scaled_intervals(numbers, np.arange(8), [LOG] * 3, Resampling(200, np.random.default_rng(0)))
    assert set(one_each.method) == {"none"}  # no degree of freedom


def test_the_interval_of_performance_leaves_out_what_the_split_fixes():
    """Networks of three folds have all, half and no patients right, and nearly so in all draws within folds."""
    n = 60
    target, fold = np.arange(n) % 2, np.arange(n) // 2 % 3
    right = np.where(target == 1, fold == 0, True)
    right[[3, 5, 9, 11]] = ~right[[3, 5, 9, 11]]
    outcome = np.where(right, np.where(target == 1, "TP", "TN"), np.where(target == 1, "FN", "FP"))
    frame = pd.DataFrame({"participant_id": [f"sub-{i}" for i in range(n)], "fold": fold, "target": target})
    frame = frame.assign(outcome=outcome, probability=np.random.default_rng(0).uniform(size=n))
    width = {}
    for name, of in (("folds", frame), ("one fold", frame.assign(fold=0))):
        row = performance_table(of, FAST.statistics, 3).set_index(["fold", "metric"]).loc[("all", "sensitivity")]
        width[name] = row["ci_high"] - row["ci_low"]
    assert width["folds"] < 0.75 * width["one fold"]


def test_measures_of_a_number_stay_within_their_bounds():
    rng = np.random.default_rng(2)
    target = rng.normal(size=12)
    predicted = target + 0.2 * rng.normal(size=12)

    def statistic(weights):
        found = number_metrics(target, predicted, np.full(12, np.nan), weights)
        return np.stack([found[name] for name in ("mae", "r", "r2")], axis=1)

    found = scaled_intervals(statistic, [0] * 12, [LOG, FISHER, UNEXPLAINED], Resampling(500, rng))
    estimates = statistic(np.ones((1, 12)))[0]
    assert (found.low < estimates).all()
    assert (estimates < found.high).all()
    assert found.low[0] > 0
    assert (found.high[1:] < 1).all()


@pytest.mark.parametrize("is_skewed", [True, False])
def test_r_and_r2_of_a_skewed_target_have_a_caveat(is_skewed):
    rng = np.random.default_rng(3)
    target = rng.lognormal(size=40) if is_skewed else rng.uniform(60, 90, 40)
    people = pd.DataFrame({"participant_id": [f"sub-{i}" for i in range(40)], "fold": np.arange(40) % 2})
    people = people.assign(target=target, prediction=target + rng.normal(size=40), corrected_gap=np.nan)
    notes = number_tables(SimpleNamespace(predictions=people, config=FAST, seed=1)).set_index("metric")["note"]
    assert notes[["r", "r2"]].eq(SKEWED).all() == is_skewed
    assert notes.drop(["r", "r2"]).isna().all()
