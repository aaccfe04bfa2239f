"""Class differences: scipy, brute force, family-wise correction, and data that do not allow a test."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.stats
from made_up import GROUPS, MAPS, inputs_of, people, predictions_of, relevance_of, settings
from statsmodels.stats.meta_analysis import effectsize_smd

from heatlas.pipeline.regions.effect_size import hedges_g
from heatlas.pipeline.statistics.groups.comparisons import comparisons_tables


def effects(scans, relevance=None, predictions=None, **changes):
    config = settings(
        covariates="", group_comparisons={"comparisons": ["positive/negative"], "metrics": ["density"]}, **changes
    )
    return comparisons_tables(inputs_of(scans, config, relevance=relevance, predictions=predictions))


def test_hedges_g_equals_statsmodels():
    rng = np.random.default_rng(1)
    a, b = rng.normal(1, 1, (9, 1)), rng.normal(0, 2, (14, 1))
    own = hedges_g(np.vstack([a, b]), np.arange(23) < 9)[0]
    oracle, _ = effectsize_smd(a.mean(), a.std(ddof=1), 9, b.mean(), b.std(ddof=1), 14)
    assert own == pytest.approx(oracle, rel=1e-3)  # statsmodels approximates the correction by 1 - 3 / (4 n - 9)


def test_p_values_equal_brute_force_over_all_regroupings():
    scans = people(4, (1,))[:7]
    relevance = relevance_of(scans, effect=0.0)
    table = effects(scans, relevance, permutations=10_000)
    is_patient = np.array([s.label == "AD" for s in scans])
    wide = relevance.pivot_table(index="scan_id", columns=["map", "group"], values="density", sort=False)
    values = wide.loc[[s.scan_id for s in scans], list(zip(table["map"], table["group"], strict=True))].to_numpy()
    assert is_patient.sum() == 3
    # Residuals have the spread of the class where they arrive. Their sum is 0, which takes variance from a difference.
    residuals = values - values.mean(axis=0)
    spread = np.array([np.sqrt((residuals[is_patient == one] ** 2).mean(axis=0)) for one in is_patient])
    alike = residuals / spread - (residuals / spread).mean(axis=0)
    weights = np.where(is_patient, 1 / 3, -1 / 4)[:, None] * spread
    stretch = np.sqrt((weights**2).sum(axis=0) / ((weights - weights.mean(axis=0)) ** 2).sum(axis=0))
    every = []
    for chosen in itertools.combinations(range(7), 3):
        permuted = np.empty_like(alike)
        permuted[is_patient] = alike[list(chosen)]
        permuted[~is_patient] = alike[[i for i in range(7) if i not in chosen]]
        permuted *= spread
        welch = scipy.stats.ttest_ind(permuted[is_patient], permuted[~is_patient], equal_var=False)
        every.append(np.abs(welch.statistic) * stretch)
    observed = scipy.stats.ttest_ind(values[is_patient], values[~is_patient], equal_var=False).statistic
    assert len(every) == 35
    assert table["exact"].all()
    assert table["t"].to_numpy() == pytest.approx(observed)
    threshold = np.abs(observed) - 1e-9
    assert table["p"].to_numpy() == pytest.approx(((np.array(every) >= threshold).sum(axis=0) + 1) / 36)
    largest = np.array(every).max(axis=1)[:, None]
    assert table["p_fwe"].to_numpy() == pytest.approx(((largest >= threshold).sum(axis=0) + 1) / 36)


def test_only_the_planted_group_differs():
    table = effects(people())
    assert list(zip(table["map"], table["group"], strict=True)) == [(m, g) for m in MAPS for g in GROUPS]
    planted = table["group"] == "Hippocampus"
    assert (table.loc[planted, "p_fwe"] <= 0.05).all()
    assert (table.loc[~planted, "p_fwe"] > 0.05).all()
    assert (table.loc[planted, "ci_low"] > 0).all()
    assert (table["p"] <= table["p_fwe"]).all()
    assert (table["p"] <= table["p_fdr"]).all()
    assert (table["n_permutations"] == 199).all()


def test_participant_with_both_classes_counts_once_by_positive_scans():
    scans = people()
    predictions = predictions_of(scans)
    relevance = relevance_of(scans)
    both = predictions["participant_id"] == "sub-005"  # three scans
    predictions.loc[predictions.index[both][0], "target"] = 0
    table = effects(scans, relevance, predictions).set_index(["map", "group"])
    assert table["note"].str.contains("both classes").all()
    own = relevance[(relevance["map"] == "gb") & (relevance["group"] == "Amygdala")]
    patients = [s.participant_id for s in scans if s.label == "AD"]
    own = own[own["participant_id"].isin(patients)]
    own = own[(own["participant_id"] != "sub-005") | (own["session_id"] != "ses-M000")]
    expected = own.groupby("participant_id")["density"].mean().mean()
    assert table.loc[("gb", "Amygdala"), "mean_first"] == pytest.approx(expected)
    assert (table["n_first"] + table["n_second"]).eq(16).all()


@pytest.mark.parametrize(("keep", "said"), [("CN", "0 participants of AD"), ("AD", "0 participants of CN")])
def test_one_class_missing(keep, said):
    scans = [scan for scan in people() if scan.label == keep]
    table = effects(scans)
    assert len(table) == len(MAPS) * len(GROUPS)
    assert table["p"].isna().all()
    assert table["note"].str.contains(said).all()


def test_empty_and_constant_groups_keep_their_rows():
    scans = people()
    relevance = relevance_of(scans)
    relevance.loc[relevance["group"] == "Amygdala", ["density", "gain"]] = np.nan
    relevance.loc[relevance["group"] == "Third ventricle", "density"] = 0.1
    table = effects(scans, relevance).set_index(["map", "group"])
    assert "no voxel" in table.loc[("gb", "Amygdala"), "note"]
    assert "values are constant" in table.loc[("gb", "Third ventricle"), "note"]
    assert table.loc[("gb", "Third ventricle"), "difference"] == pytest.approx(0)
    assert table.loc[("gb", "Hippocampus"), "p"] <= 0.05
    assert table.loc[("gb", "Hippocampus"), "family"] == "6 regions x maps: density"
