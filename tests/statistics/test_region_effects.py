"""Class differences: scipy, brute force, family-wise correction, and data that do not allow a test."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
import scipy.stats
from made_up import FAST, GROUPS, MAPS, people, predictions_of, relevance_of
from statsmodels.stats.meta_analysis import effectsize_smd

from pipeline.run.statistics_config import StatisticsConfig
from pipeline.statistics.permutation import regroupings
from pipeline.statistics.region_effects import TwoClasses, hedges_g, max_t_test, region_effects, welch_t
from pipeline.statistics.values import RelevanceValues


def values_of(scans, **options):
    return RelevanceValues.of(relevance_of(scans, **options), predictions_of(scans))


def test_welch_t_equals_scipy_for_every_assignment():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(11, 4)) * [1, 1e-8, 1e8, 1] + [0, 0, 0, 1e3]
    first = regroupings(np.arange(11) < 4, 30, rng).first
    expected = [scipy.stats.ttest_ind(values[row == 1], values[row == 0], equal_var=False).statistic for row in first]
    assert welch_t(values, first) == pytest.approx(np.array(expected), rel=1e-9)


def test_welch_t_without_spread():
    values = np.array([[1.0, 5.0], [1.0, 5.0], [2.0, 5.0], [2.0, 5.0]])
    assert welch_t(values, np.array([[1.0, 1.0, 0.0, 0.0]])).tolist() == [[-np.inf, 0.0]]


def test_hedges_g_equals_statsmodels():
    rng = np.random.default_rng(1)
    a, b = rng.normal(1, 1, (9, 1)), rng.normal(0, 2, (14, 1))
    own = hedges_g(np.vstack([a, b]), np.arange(23) < 9)[0]
    oracle, _ = effectsize_smd(a.mean(), a.std(ddof=1), 9, b.mean(), b.std(ddof=1), 14)
    assert own == pytest.approx(oracle, rel=1e-3)  # statsmodels approximates the correction by 1 - 3 / (4 n - 9)


def test_p_values_equal_brute_force_over_all_regroupings():
    rng = np.random.default_rng(2)
    values = rng.normal(size=(7, 3)) + np.array([1.0, 0.0, 0.0]) * (np.arange(7) < 3)[:, None]
    observed = welch_t(values, (np.arange(7) < 3)[None].astype(float))[0]
    p, p_fwe = max_t_test(values, observed, regroupings(np.arange(7) < 3, 10_000, rng))
    every = []
    for chosen in itertools.combinations(range(7), 3):
        rest = [i for i in range(7) if i not in chosen]
        every.append(np.abs(scipy.stats.ttest_ind(values[list(chosen)], values[rest], equal_var=False).statistic))
    every = np.array(every)
    threshold = np.abs(observed) - 1e-9
    assert len(every) == 35
    assert p == pytest.approx((every >= threshold).mean(axis=0))
    assert p_fwe == pytest.approx((every.max(axis=1)[:, None] >= threshold).mean(axis=0))


def test_only_the_planted_group_differs():
    table = region_effects(values_of(people()), FAST.cohort, FAST.statistics, 3)
    assert list(zip(table["map"], table["group"], strict=True)) == [(m, g) for m in MAPS for g in GROUPS]
    planted = table["group"] == "Hippocampus"
    assert (table.loc[planted, "p_fwe"] <= 0.05).all()
    assert (table.loc[~planted, "p_fwe"] > 0.05).all()
    assert (table.loc[planted, "ci_low"] > 0).all()
    assert (table["p"] <= table["p_fwe"]).all()
    assert (table["p"] <= table["p_fdr"]).all()
    assert (table["n_permutations"] == 199).all()


def test_family_wise_error_without_an_effect():
    """At most 5 % of 300 null data sets (12 correlated columns) have any p_fwe <= .05, within sampling error."""
    rng = np.random.default_rng(5)
    hits = 0
    for _ in range(300):
        values = rng.normal(size=(24, 1)) + rng.normal(size=(24, 12))
        members = np.arange(24) < 8
        observed = welch_t(values, members[None].astype(float))[0]
        _, p_fwe = max_t_test(values, observed, regroupings(members, 199, rng))
        hits += p_fwe.min() <= 0.05
    assert 0.02 <= hits / 300 <= 0.08


def test_participant_with_both_classes_counts_once_by_positive_scans():
    scans = people()
    predictions = predictions_of(scans)
    relevance = relevance_of(scans)
    both = predictions["participant_id"] == "sub-005"  # three scans
    predictions.loc[predictions.index[both][0], "target"] = 0
    data = TwoClasses.of(RelevanceValues.of(relevance, predictions))
    assert data.n_both == 1
    assert len(data.values) == 16
    own = relevance[(relevance["participant_id"] == "sub-005") & (relevance["map"] == "gb")]
    later = own[(own["session_id"] != "ses-M000") & (own["group"] == "Amygdala")]["density"]
    row = list(dict.fromkeys(predictions["participant_id"])).index("sub-005")
    assert data.values[row, 2 * len(GROUPS) + 1] == pytest.approx(later.mean())
    table = region_effects(RelevanceValues.of(relevance, predictions), FAST.cohort, FAST.statistics, 3)
    assert table["note"].str.contains("both classes").all()


@pytest.mark.parametrize(("keep", "said"), [("CN", "0 participants of AD"), ("AD", "0 participants of CN")])
def test_one_class_missing(keep, said):
    scans = [scan for scan in people() if scan.label == keep]
    table = region_effects(values_of(scans), FAST.cohort, FAST.statistics, 3)
    assert len(table) == len(MAPS) * len(GROUPS)
    assert table["p"].isna().all()
    assert table["note"].str.contains(said).all()


def test_empty_and_constant_groups_keep_their_rows():
    scans = people()
    relevance = relevance_of(scans)
    relevance.loc[relevance["group"] == "Amygdala", ["density", "gain"]] = np.nan
    relevance.loc[relevance["group"] == "Third ventricle", "density"] = 0.1
    table = region_effects(
        RelevanceValues.of(relevance, predictions_of(scans)), FAST.cohort, FAST.statistics, 3
    ).set_index(["map", "group"])
    assert "no voxel" in table.loc[("gb", "Amygdala"), "note"]
    assert "same in all" in table.loc[("gb", "Third ventricle"), "note"]
    assert table.loc[("gb", "Third ventricle"), "difference"] == pytest.approx(0)
    assert table.loc[("gb", "Hippocampus"), "p"] <= 0.05
    assert table.loc[("gb", "Hippocampus"), "family"] == "6 maps x groups"


def test_many_permutations_of_all_groups_and_maps_take_seconds():
    rng = np.random.default_rng(6)
    values, members = rng.normal(size=(60, 68 * 6)), np.arange(60) < 30
    started = time.perf_counter()
    groupings = regroupings(members, 10_000, rng)
    p, _ = max_t_test(values, welch_t(values, members[None].astype(float))[0], groupings)
    print(f"10,000 permutations x 408 columns x 60 participants: {time.perf_counter() - started:.2f} s")
    assert scipy.stats.kstest(p, "uniform").pvalue > 1e-3
    assert StatisticsConfig().permutations == len(groupings)
