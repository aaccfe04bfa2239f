"""Intervals: bootstrap, bounded measures, places, and data that allow none."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from made_up import FAST, GROUPS, MAPS, inputs_of, people, predictions_of, relevance_of, settings
from mci_cohort import applied_to, mci_people
from scipy.optimize import brentq
from scipy.special import expit, logit
from scipy.stats import beta, skew, t, ttest_1samp

from heatlas.pipeline.regions.effect_size import hedges_g
from heatlas.pipeline.statistics.arrays import Floats, Resampling
from heatlas.pipeline.statistics.associations.associations import associations_tables
from heatlas.pipeline.statistics.comparison.external import weighted_g
from heatlas.pipeline.statistics.data.members import reported_g
from heatlas.pipeline.statistics.groups.comparisons import comparisons_tables
from heatlas.pipeline.statistics.groups.fairness import FLAT_ERROR, fairness_tables
from heatlas.pipeline.statistics.groups.gains import DRAWS, FIRST_STEP, influence_on_g, influence_on_r, place_bounds
from heatlas.pipeline.statistics.groups.subgroups import subgroups_tables
from heatlas.pipeline.statistics.linear.correlation import partial_correlation
from heatlas.pipeline.statistics.linear.design import Design
from heatlas.pipeline.statistics.linear.freedman_lane import PermutationTest, freedman_lane
from heatlas.pipeline.statistics.linear.permutations import Exchangeability
from heatlas.pipeline.statistics.performance.classification import performance_table
from heatlas.pipeline.statistics.performance.other_tasks import SKEWED, number_metrics, number_tables
from heatlas.pipeline.statistics.progression.cox import conversions
from heatlas.pipeline.statistics.progression.prediction import progression_table
from heatlas.pipeline.statistics.resampling.bootstrap import (
    AS_IT_IS,
    FISHER,
    FLAT,
    LOG,
    LOGIT,
    UNEXPLAINED,
    Intervals,
    bca_bounds,
    bootstrap_intervals,
    freedom_of_strata,
    participant_draws,
    percentile_bounds,
    rescaled_draws,
    scaled_intervals,
    strata_of,
    with_exact_shares,
)
from heatlas.pipeline.statistics.resampling.means import ALIKE, FEW, HALL, mean_intervals

# Intervals by bootstrap and of bounded measures: scipy on equal draws, formulas solved another way, useless draws.


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


@pytest.mark.ci
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


# Bounds of places: variances in closed form, brute force, planted orders, and how often they hold the true place.

CONFIDENCE = 0.95


def made(n: int, effects, seed: int = 1, folds: int = 1):
    """Values of people, half of them of the first class, with effects in standard deviations; their fold."""
    rng = np.random.default_rng(seed)
    is_first = np.arange(n) % 2 == 0
    shared = rng.standard_normal((n, 1))
    values = shared + rng.standard_normal((n, len(effects))) + is_first[:, None] * np.asarray(effects) * math.sqrt(2)
    return values, is_first, (np.arange(n) // 2 % folds).astype(np.intp)


def bounds_of(values, is_first, fold, seed: int = 7):
    influence = influence_on_g(values, is_first, fold)
    rng = np.random.default_rng(seed)
    return place_bounds(hedges_g(values, is_first, fold), influence, is_first.astype(np.intp), CONFIDENCE, rng)


def test_without_a_difference_the_influence_adds_up_to_welch_s_variance():
    values, is_first, fold = made(21, [0.0, 0.0, 0.0])
    values[is_first] *= 3
    values[is_first] += values[~is_first].mean(axis=0) - values[is_first].mean(axis=0)
    first, second = values[is_first], values[~is_first]
    pooled = (10 * first.var(axis=0, ddof=1) + 9 * second.var(axis=0, ddof=1)) / 19
    expected = (first.var(axis=0, ddof=1) / 11 + second.var(axis=0, ddof=1) / 10) / pooled
    np.testing.assert_allclose((influence_on_g(values, is_first, fold) ** 2).sum(axis=0), expected)


def test_the_influence_is_the_derivative_of_g_by_a_participant_s_weight():
    values, is_first, fold = made(3_000, [1.0, 0.2, -0.5], folds=3)
    step = 1e-4 * np.eye(len(values))[:40]
    up, down = (weighted_g(values, is_first, fold, 1 + sign * step) for sign in (1, -1))
    slope = (up - down) / 2e-4
    found = influence_on_g(values, is_first, fold)[:40]
    np.testing.assert_allclose(found, slope, atol=3e-3 * np.abs(slope).max())  # leverages are at most 1/500


def test_the_influence_on_a_partial_correlation_is_its_derivative_by_a_participant_s_weight():
    values, is_first, fold = made(2_000, [1.0, 0.2, -0.5], folds=3)
    age = values @ np.array([[0.3], [0.0], [0.2]]) + np.random.default_rng(2).standard_normal((2_000, 1))
    nuisance = np.column_stack([np.ones(2_000), fold == 1, fold == 2, is_first]).astype(float)

    def correlation(weight):
        root = np.sqrt(weight)[:, None]
        held = np.linalg.qr(root * nuisance)[0]
        x, y = (root * one - held @ (held.T @ (root * one)) for one in (age, values))
        return (x * y).sum(axis=0) / np.linalg.norm(x) / np.linalg.norm(y, axis=0)

    step = 1e-4 * np.eye(2_000)[:20]
    slope = np.array([correlation(1 + one) - correlation(1 - one) for one in step]) / 2e-4
    found = influence_on_r(values, age, nuisance)[:20]
    np.testing.assert_allclose(found, slope, atol=1e-2 * np.abs(slope).max())  # leverages are at most 1/100


def brute_force(estimates, influence, group, seed: int = 7):
    """The definition, pair by pair and draw by draw, in double precision."""
    n, alpha = len(estimates), 1 - CONFIDENCE
    signs = (
        np.random.default_rng(seed).choice(np.array([-1, 1], np.float32), size=(len(influence), DRAWS)).astype(float)
    )
    sides = [group == one for one in np.unique(group)]

    def quantile(values, level):
        return np.sort(values)[math.ceil(level * (DRAWS + 1)) - 1]

    low, high = [], []
    for region in range(n):
        t, null = [], []
        for other in (other for other in range(n) if other != region):
            difference = influence[:, other] - influence[:, region]
            t.append((estimates[other] - estimates[region]) / np.sqrt((difference**2).sum()))
            drawn = difference[:, None] * signs
            variance = sum(drawn[side].var(axis=0, ddof=1) * side.sum() for side in sides)
            null.append(drawn.sum(axis=0) / np.sqrt(variance))
        t, null = np.array(t), np.array(null)
        beyond = quantile(np.abs(null).max(axis=0), 1 - FIRST_STEP * alpha)
        level = 1 - alpha + FIRST_STEP * alpha
        up = [np.minimum(0, one + beyond) for one in t]
        best = quantile(np.max([row + shift for row, shift in zip(null, up, strict=True)], axis=0), level)
        left = [row + min(0, one + beyond) for row, one in zip(null, t, strict=True) if one <= beyond]
        left += [min(0, beyond - one) - row for row, one in zip(null, t, strict=True) if one >= -beyond]
        reach = min(beyond, quantile(np.max(left, axis=0), level))
        low.append(1 if max(t) <= min(best, beyond) else max(2, 1 + int((t > reach).sum())))
        high.append(n - int((t < -reach).sum()))
    return low, high


@pytest.mark.parametrize(("n", "effects"), [(24, [0.0] * 5), (200, [1.6, 1.5, 0.4, 0.1, -0.9, -1.0])])
def test_bounds_are_those_of_the_definition(n, effects):
    values, is_first, fold = made(n, effects, folds=2)
    low, high = bounds_of(values, is_first, fold)
    estimates, influence = hedges_g(values, is_first, fold), influence_on_g(values, is_first, fold)
    assert (low.tolist(), high.tolist()) == brute_force(estimates, influence, is_first)


def test_a_planted_order_is_found_and_follows_the_regions():
    effects = [0.0, 8.0, 2.0, 4.0]
    values, is_first, fold = made(300, effects, folds=3)
    for order in ([0, 1, 2, 3], [3, 0, 2, 1]):
        low, high = bounds_of(values[:, order], is_first, fold)
        assert low.tolist() == high.tolist() == [[4, 1, 3, 2][region] for region in order]


def test_regions_that_cannot_be_told_apart_share_their_places():
    values, is_first, fold = made(300, [4.0, 0.0, -4.0])
    low, high = bounds_of(values[:, [1, 0, 0, 2]], is_first, fold)  # one region twice
    assert low.tolist() == [3, 1, 1, 4]
    assert high.tolist() == [3, 2, 2, 4]


@pytest.mark.parametrize("seed", range(4))
def test_a_place_lies_within_its_bounds_and_the_unit_of_a_map_does_not_matter(seed):
    values, is_first, fold = made(60, np.linspace(1.5, 0, 12), seed, folds=3)
    low, high = bounds_of(values, is_first, fold)
    g = hedges_g(values, is_first, fold)
    place = 1 + (g > g[:, None]).sum(axis=1)
    assert ((low <= place) & (place <= high)).all()
    assert low[np.argmax(g)] == 1
    assert 1 < (low == 1).sum() < 12
    scaled = bounds_of(values * 1024.0, is_first, fold)
    np.testing.assert_array_equal(scaled, (low, high))


def test_the_classes_have_places_by_map_and_metric_and_outcomes_have_none():
    own = {"comparisons": ["positive/negative", "TP/TN"], "metrics": ["density", "share"]}
    table = comparisons_tables(inputs_of(people(10), settings(group_comparisons=own)))
    of_classes = table["comparison"] == "AD/CN"
    assert table.loc[~of_classes, ["place_low", "place_high"]].isna().all(axis=None)
    for _, rows in table[of_classes].groupby(["map", "metric"]):
        known = rows["hedges_g"].notna()
        place = rows["hedges_g"].rank(ascending=False)
        assert (rows["place_low"].notna() == known).all()
        assert (rows["place_low"] <= place)[known].all()
        assert (rows["place_high"] >= place)[known].all()
        assert rows.loc[known, "place_high"].max() == known.sum() <= len(GROUPS)


def test_correlations_with_the_target_have_places_and_others_have_none():
    own = {"biomarkers": ["target", "age"], "metrics": ["density"], "scan_groups": ["all"]}
    table = associations_tables(inputs_of(people(10), settings(associations=own, covariates="sex", permutations=99)))
    bounded = (table["biomarker"] == "target") & table["estimator"].isin(["pearson", "partial"])
    assert table.loc[~bounded, ["place_low", "place_high"]].isna().all(axis=None)
    assert set(table.loc[bounded, "estimator"]) == {"pearson", "partial"}
    for _, rows in table[bounded].groupby(["map", "estimator"]):
        rows = rows[rows["r"].notna()]
        place = rows["r"].rank(ascending=False)
        assert ((rows["place_low"] <= place) & (place <= rows["place_high"])).all()
    hippocampus = table[bounded & (table["group"] == "Hippocampus") & (table["map"] == MAPS[0])]
    assert hippocampus["place_low"].eq(1).all()  # where the classes differ


# Few people, people alike, or values almost on a line: no interval without width, and rounding does not decide p.

DEGENERATE_FEW = "no Hedges' g: fewer than 8 degrees of freedom"


@pytest.mark.parametrize("n", [1, 5, 40])
def test_exact_bounds_are_quantiles_of_the_beta_distribution(n: int) -> None:
    found = with_exact_shares(Intervals.absent(3), {0: (1.0, n), 1: (0.0, n), 2: (0.5, n)}, 0.9)
    np.testing.assert_allclose(found.low[:2], [beta.ppf(0.05, n, 1), 0])
    np.testing.assert_allclose(found.high[:2], [1, beta.ppf(0.95, 1, n)])
    assert np.isnan(found.low[2])
    assert found.method.tolist() == ["Clopper-Pearson", "Clopper-Pearson", "none"]


def test_g_needs_eight_degrees_of_freedom_in_tables_and_two_by_its_formula() -> None:
    rng = np.random.default_rng(0)
    values, first = rng.normal(size=(10, 2)), np.arange(10) < 5
    together, folds = np.zeros(10, np.intp), np.arange(10, dtype=np.intp) % 3
    g, why = reported_g(values, first, together)
    np.testing.assert_array_equal(g, hedges_g(values, first))
    assert why == [None, None]
    g, why = reported_g(values, first, folds)
    assert np.isnan(g).all()
    assert why == [f"{DEGENERATE_FEW} (6)"] * 2
    assert np.isfinite(hedges_g(values, first, folds)).all()
    assert np.isnan(hedges_g(values[:3], first[3:6])).all()  # one degree of freedom: its correction is 0
    assert np.isfinite(hedges_g(values[:4], first[3:7])).all()


def test_g_of_people_alike_but_for_rounding_is_missing_and_said() -> None:
    first = np.arange(12) < 6
    alike = np.where(first, 0.3, 0.1) + 1e-16 * np.arange(12)
    g, why = reported_g(np.column_stack([alike, np.full(12, np.nan)]), first, np.zeros(12, np.intp))
    assert np.isnan(g).all()
    assert why == ["no Hedges' g: participants do not differ within the groups", None]


def test_small_subgroups_and_comparisons_say_why_there_is_no_g() -> None:
    config = settings(subgroups={"variables": ("sex",), "minimum_participants": 2})
    scans = people(4, (1,))
    table = comparisons_tables(inputs_of(scans, config)).query("comparison == 'AD/CN'")
    assert table["hedges_g"].isna().all()
    assert table["note"].str.contains(DEGENERATE_FEW).all()
    assert table[["difference", "ci_low", "t", "p"]].notna().all().all()
    inside = subgroups_tables(inputs_of(people(8), config))
    small = inside[inside["class_difference"].notna() & (inside["n_participants"] < 10)]
    assert len(small)
    assert small["class_hedges_g"].isna().all()
    assert small["note"].str.contains(DEGENERATE_FEW).all()


@pytest.mark.filterwarnings("error")
def test_a_region_that_is_the_same_in_everybody_has_no_interval_and_no_g() -> None:
    scans = people(8, (1,))
    relevance = relevance_of(scans)
    relevance.loc[relevance["group"] == "Amygdala", ["sum", "density"]] = [7.0, 0.35]
    inputs = inputs_of(scans, settings(subgroups={"variables": ("sex",)}), relevance=relevance)
    table = comparisons_tables(inputs)
    own = table[(table["group"] == "Amygdala") & (table["metric"] == "density") & (table["comparison"] == "AD/CN")]
    assert own["hedges_g"].isna().all()
    assert own["ci_low"].isna().all()
    assert (own["interval"] == "none").all()
    assert own["note"].str.contains("values are constant", regex=False).all()
    inside = subgroups_tables(inputs)
    own = inside[inside["group"] == "Amygdala"]
    assert (own["interval"] == "none").all()
    assert own["mean_density"].to_numpy() == pytest.approx(np.full(len(own), 0.35))
    assert own["note"].str.contains(ALIKE, regex=False).all()
    assert (inside.loc[inside["group"] != "Amygdala", "interval"] == HALL).all()
    assert len(GROUPS) * 3 * 2 == len(inside)


def test_a_subgroup_classified_without_error_has_exact_intervals() -> None:
    scans = people(15, (1,))
    wrong = [s.participant_id for s in scans if s.sex == "M"][:3]
    config = settings(subgroups={"variables": ("sex",)})
    table = fairness_tables(inputs_of(scans, config, predictions=predictions_of(scans, wrong)))
    rows = table[table["level"] == "F"].set_index("metric")
    for metric, n in {"sensitivity": "n_positive", "specificity": "n_negative"}.items():
        row = rows.loc[metric]
        assert (row["estimate"], row["ci_high"], row["interval"]) == (1, 1, "Clopper-Pearson")
        assert row["ci_low"] == pytest.approx(0.025 ** (1 / row[n]))
    assert rows.loc["balanced_accuracy", "interval"] == "none"
    assert FLAT in rows.loc["balanced_accuracy", "note"]
    perfect = fairness_tables(inputs_of(scans, config, predictions=predictions_of(scans, ())))
    assert (perfect["difference"] == 0).all()
    assert (perfect["difference_interval"] == "none").all()
    assert perfect["note"].str.contains(f"difference: {FLAT_ERROR}", regex=False).all()


def test_a_predictor_that_orders_everybody_right_has_no_interval_of_no_width() -> None:
    scans, clinical, risk = mci_people(20)
    order = np.argsort(np.argsort(clinical["months_to_conversion"].fillna(999.0).to_numpy(), kind="stable"))
    cohort = conversions(applied_to(scans, clinical, -order.astype(float) + 8.5, risk))
    course = np.where(order < 8, "pMCI", "sMCI")
    cohort = dataclasses.replace(cohort, frame=cohort.frame.assign(progression=course))
    table = progression_table(cohort, settings().statistics, 3, 36).set_index(["predictor", "measure"])
    for measure in ("concordance", "auc"):
        row = table.loc[("model", measure)]
        assert (row["estimate"], row["interval"]) == (1, "none")
        assert np.isnan(row["ci_low"])
        assert FLAT in row["note"]
        assert row["p"] < 0.05
    sensitivity = table.loc[("model", "sensitivity")]
    assert (sensitivity["estimate"], sensitivity["interval"]) == (1, "Clopper-Pearson")
    assert sensitivity["ci_low"] == pytest.approx(0.025 ** (1 / 8))
    assert table.loc[("age", "auc"), "interval"] == "BCa"


M = 500
Test = Callable[[Floats, Design, Exchangeability, np.random.Generator], PermutationTest]

TESTS: dict[str, Test] = {
    "pearson": lambda y, design, units, rng: partial_correlation(y, design, units, Resampling(M, rng), "pearson"),
    "spearman": lambda y, design, units, rng: partial_correlation(y, design, units, Resampling(M, rng), "spearman"),
    "robust t": lambda y, design, units, rng: freedman_lane(y, design, units, Resampling(M, rng)),
    "plain t": lambda y, design, units, rng: freedman_lane(y, design, units, Resampling(M, rng), equal_variances=True),
    "groups": lambda y, design, units, rng: freedman_lane(
        y, design, units, Resampling(M, rng), (design.tested[:, 0] > 0).astype(int).tolist()
    ),
}


def almost(x: Floats, rng: np.random.Generator, covariate: bool) -> tuple[Floats, Design]:
    """Values that follow x but for noise of 1e-9 to 1 times its spread, a column for each."""
    n = len(x)
    y = x[:, None] + 10.0 ** np.arange(-9, 1) * rng.normal(size=(n, 10))
    nuisance = np.column_stack([np.ones(n), rng.normal(size=n)] if covariate else [np.ones(n)])
    names = ("x", "Intercept", "age")[: 1 + nuisance.shape[1]]
    return y, Design(x[:, None], nuisance, np.arange(n), {}, names, {})


@pytest.mark.parametrize("name", TESTS)
@pytest.mark.parametrize("covariate", [False, True])
@pytest.mark.parametrize("n", [5, 6, 8, 12])
def test_p_counts_the_observed_order_and_agrees_with_the_interval(name: str, covariate: bool, n: int) -> None:
    for seed in range(4):
        rng = np.random.default_rng(seed)
        x = np.where(np.arange(n) < n // 2, -1.0, 1.0) if name == "groups" else rng.normal(size=n)
        y, design = almost(x, rng, covariate)
        found = TESTS[name](y, design, Exchangeability.free(n), rng)
        orders = found.n_permutations
        for p in (found.p, found.p_fwe):
            least = 1 / orders if found.exact and name != "groups" else 1 / (orders + 1)
            assert (p >= least - 1e-12).all(), "the observed order counts"
        known = np.isfinite(found.low)
        outside = (found.low > 0) | (found.high < 0)
        assert (outside == (found.p <= 0.05))[known].all()


@pytest.mark.parametrize("noise", 10.0 ** np.arange(-12, 1, 2))
@pytest.mark.parametrize("name", ["pearson", "robust t", "plain t"])
def test_mirrored_groups_of_one_size_are_as_extreme_as_the_observed_ones(name: str, noise: float) -> None:
    """Exchanging all of two groups of four gives the same |t|: 2 of 70 orders, however small the noise."""
    x = np.repeat([-1.0, 1.0], 4)
    rng = np.random.default_rng(0)
    y = x + noise * rng.normal(size=8)
    design = Design(x[:, None], np.ones((8, 1)), np.arange(8), {}, ("x", "Intercept"), {})
    found = TESTS[name](y[:, None], design, Exchangeability.free(8), rng)
    assert (found.exact, found.n_permutations) == (True, 70)
    brute = 2 if noise < 0.1 else round(float(found.p[0]) * 70)
    assert float(found.p[0]) == pytest.approx(brute / 70)


def test_a_column_without_variance_to_divide_by_does_not_decide_for_the_others() -> None:
    """Two of four groups do not vary, differ, and are a block each: F has no error in any permutation."""
    rng = np.random.default_rng(0)
    group = np.repeat([0, 1, 2, 3], 6)
    y = rng.normal(size=(24, 3)) + (group == 1)[:, None]
    y[group > 1, 1] = group[group > 1] / 3
    tested = (group[:, None] == [1, 2, 3]).astype(float)
    design = Design(tested, np.ones((24, 1)), np.arange(24), {}, ("a", "b", "c", "Intercept"), {})
    units = Exchangeability.free(24).in_blocks(np.maximum(group, 1).tolist())
    both, alone = (
        freedman_lane(
            y[:, columns], design, units, Resampling(99, np.random.default_rng(0)), group.tolist(), kinds=columns
        )
        for columns in ([0, 1, 2], [0, 2])
    )
    assert np.isnan([both.p[1], both.statistic[1]]).all()
    assert "no variance" in str(both.problems[1])
    for name in ("statistic", "p", "p_fwe"):
        np.testing.assert_allclose(getattr(both, name)[[0, 2]], getattr(alone, name), rtol=1e-12)


def test_groups_that_neither_vary_nor_differ_are_no_effect() -> None:
    """Two of three groups are constant and equal, the third varies about the same mean: F is 0, not without bound."""
    rng = np.random.default_rng(0)
    group, third = np.repeat([0, 1, 2], 8), rng.normal(size=8)
    y = np.concatenate([np.zeros(16), third - third.mean()])
    design = Design((group[:, None] == [1, 2]).astype(float), np.ones((24, 1)), np.arange(24), {}, ("a", "b", "1"), {})
    found = freedman_lane(y, design, Exchangeability.free(24), Resampling(99, rng), group.tolist())
    assert abs(found.statistic[0]) < 1e-12
    assert found.p[0] > 0.9
