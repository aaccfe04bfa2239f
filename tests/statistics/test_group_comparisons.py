"""Comparisons of groups, and groups that cannot be tested."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import statsmodels.api as sm
from made_up import FAST, GROUPS, MAPS, inputs_of, means_in_one_spread, people, predictions_of, relevance_of, settings
from statsmodels.stats.meta_analysis import combine_effects, effectsize_smd

from heatlas.pipeline.regions.effect_size import hedges_g
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.statistics.arrays import Resampling
from heatlas.pipeline.statistics.data.members import TwoGroups
from heatlas.pipeline.statistics.groups.comparisons import (
    GROUP_COMPARISONS_TABLE,
    comparisons_tables,
)
from heatlas.pipeline.statistics.groups.fairness import _of_level
from heatlas.pipeline.statistics.groups.gains import between_variance, gain_floor, log_gain, shrink
from heatlas.pipeline.statistics.groups.summaries import _fisher, welch
from heatlas.pipeline.statistics.harmonisation.sites import site_effect
from heatlas.pipeline.statistics.linear.correlation import partial_correlation
from heatlas.pipeline.statistics.linear.fold_effect import model_within_folds
from heatlas.pipeline.statistics.linear.freedman_lane import freedman_lane
from heatlas.pipeline.statistics.linear.permutations import Exchangeability
from heatlas.pipeline.statistics.normative.subtypes import Subtypes, _compared
from heatlas.pipeline.statistics.progression.cox import Conversions, cox_table
from heatlas.pipeline.statistics.progression.prediction import progression_table
from heatlas.pipeline.statistics.progression.trajectories import change_test
from heatlas.pipeline.statistics.resampling.means import FEW_OF_GROUP, MOSTLY_ALIKE, OF_P, OF_RANKS, SMALL_GROUPS
from heatlas.pipeline.statistics.shortcuts import Scans, _difference, _predictions, scaled_within

# Comparisons of groups of scans against scipy, statsmodels and brute force; gains that a ratio cannot give.


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


HIPPOCAMPUS = GROUPS.index("Hippocampus")


def table_of(inputs):
    table = comparisons_tables(inputs)
    assert list(table.columns) == list(GROUP_COMPARISONS_TABLE.meanings)
    return table


def only(*comparisons, **more):
    own = {"comparisons": list(comparisons), "metrics": ["density"]} | more.pop("group_comparisons", {})
    return settings(group_comparisons=own, **more)


def hippocampus(table, name=MAPS[0]):
    (row,) = table[(table["map"] == name) & (table["group"] == "Hippocampus")].to_dict("records")
    return row


def class_means(inputs):
    frame = inputs.frame.assign(density=inputs.values.densities[:, 0, HIPPOCAMPUS])
    means = frame.groupby("participant_id").agg(
        density=("density", "mean"),
        target=("target", "first"),
        age=("age", "mean"),
        sex=("sex", "first"),
        fold=("fold", "first"),
    )
    return means, means.loc[means["target"] == 1, "density"], means.loc[means["target"] == 0, "density"]


def test_welch_t_is_scipy_s_over_participant_means():
    inputs = inputs_of(people(10), only("positive/negative", fold_effect=False))
    row = hippocampus(table_of(inputs))
    _, patients, controls = class_means(inputs)
    assert row["comparison"] == "AD/CN"
    assert row["t"] == pytest.approx(scipy.stats.ttest_ind(patients, controls, equal_var=False).statistic)
    assert row["difference"] == pytest.approx(patients.mean() - controls.mean())
    assert row["ci_low"] < row["difference"] < row["ci_high"]
    assert row["ratio"] == pytest.approx(patients.mean() / controls.mean())
    assert row["log_gain"] == pytest.approx(np.log(patients.mean() / controls.mean()))
    assert row["p"] == row["p_fwe"] == 1 / 200
    assert (row["n_first"], row["n_second"], row["n_scans_first"], row["n_scans_second"]) == (10, 10, 19, 19)


def test_adjusted_difference_is_the_coefficient_of_least_squares():
    inputs = inputs_of(people(10), only("positive/negative", covariates="age + sex"))
    row = hippocampus(table_of(inputs))
    means, *_ = class_means(inputs)
    model = sm.add_constant(means[["target", "age", "fold"]].assign(male=(means["sex"] == "M")).astype(float))
    alike = means_in_one_spread(inputs, inputs.values.densities[:, 0], means.index)["Hippocampus"]
    assert row["difference_adjusted"] == pytest.approx(sm.OLS(alike, model).fit().params["target"])
    assert row["covariates"] == "fold, age, sex[T.M]"


@pytest.mark.parametrize("fold_effect", [False, True])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_region_is_beyond_chance_exactly_where_its_family_wise_p_is_small(seed, fold_effect):
    config = only("positive/negative", fold_effect=fold_effect)
    table = table_of(inputs_of(people(10), config, relevance=relevance_of(people(10), seed=seed)))
    assert table["g_by_chance"].notna().all()
    beyond = table["hedges_g"].abs() > table["g_by_chance"]
    assert beyond.tolist() == (table["p_fwe"] <= 0.05).tolist()
    assert beyond.any()
    assert not beyond.all()


@pytest.mark.parametrize("fold_effect", [False, True])
def test_superiority_is_the_share_of_pairs_that_the_first_group_wins(fold_effect):
    """U of Mann and Whitney over the pairs of each network, weighted by n1 n2 / (n1 + n2)."""
    inputs = inputs_of(people(10), only("positive/negative", fold_effect=fold_effect))
    table = table_of(inputs)
    means, *_ = class_means(inputs)
    networks = means["fold"] if fold_effect else pd.Series(0, index=means.index)
    u, weights = [], []
    for _, own in means.groupby(networks):
        first, second = own.loc[own["target"] == 1, "density"], own.loc[own["target"] == 0, "density"]
        pairs = len(first) * len(second)
        u.append(scipy.stats.mannwhitneyu(first, second).statistic / pairs)
        weights.append(pairs / len(own))
    assert hippocampus(table)["superiority"] == pytest.approx(np.average(u, weights=weights))
    assert hippocampus(table)["p_fwe_ranks"] == 1 / 200


def test_one_extreme_person_moves_means_and_not_ranks():
    relevance = relevance_of(people(10, (1,)))
    most = relevance.groupby(["map", "group"])["density"].transform("max") == relevance["density"]
    config = only("positive/negative", covariates="", fold_effect=False)
    extreme = relevance.assign(density=relevance["density"] * np.where(most & (relevance["density"] > 0), 50, 1))
    before, after = (table_of(inputs_of(people(10, (1,)), config, relevance=own)) for own in (relevance, extreme))
    assert not np.allclose(before["t"], after["t"], rtol=0.1)
    columns = ["superiority", "p_fwe_ranks"]
    pd.testing.assert_frame_equal(before[columns], after[columns])


def test_outcomes_are_not_compared_by_ranks():
    table = table_of(inputs_of(people(6), only("TP/TN")))
    assert table["p_fwe"].notna().any()
    assert table[["superiority", "p_fwe_ranks"]].isna().all(axis=None)


def test_what_is_not_planted_is_not_found():
    table = table_of(inputs_of(people(10), only("positive/negative"), relevance=relevance_of(people(10), seed=1)))
    others = table[table["group"] != "Hippocampus"]
    assert (others["p_fwe"] > 0.05).all()
    assert (others["p_fwe_adjusted"] > 0.05).all()


def test_someone_in_both_outcomes_is_left_out_and_counted():
    scans = people(6)
    predictions = predictions_of(scans, wrong=())
    twice = predictions.index[predictions["participant_id"] == "sub-003"]
    assert len(twice) > 1
    predictions.loc[twice[0], "outcome"] = "FN"
    predictions.loc[predictions["participant_id"].isin(["sub-001", "sub-005"]), "outcome"] = "FN"
    inputs = inputs_of(scans, only("FN/TP", covariates=""), predictions=predictions)
    table = table_of(inputs)
    row = hippocampus(table)
    assert (row["n_first"], row["n_second"], row["n_both"]) == (2, 3, 1)
    assert "1 participant with scans of both groups left out" in row["note"]
    assert "fold: left out: too few participants (4 in 1 fold of two or more)" in row["note"]
    assert not row["fold_held"]
    assert bool(row["exact"])
    assert row["n_permutations"] == 10  # 5 people, 2 of them FN
    assert "sub-003" not in set(inputs.frame["participant_id"].iloc[TwoGroups.of(inputs, "FN", "TP").rows])


def test_someone_of_both_classes_is_a_patient_by_those_scans():
    scans = people(6)
    predictions = predictions_of(scans)
    twice = predictions.index[predictions["participant_id"] == "sub-003"]
    predictions.loc[twice[0], ["target", "outcome"]] = [0, "TN"]
    inputs = inputs_of(scans, only("positive/negative"), predictions=predictions)
    two = TwoGroups.of(inputs, "positive", "negative")
    assert twice[0] not in two.rows
    assert set(twice[1:]) <= set(two.rows)
    row = hippocampus(table_of(inputs))
    assert (row["n_first"], row["n_second"], row["n_both"]) == (6, 6, 1)
    assert "counted as AD, by those scans" in row["note"]
    reverse = TwoGroups.of(inputs, "negative", "positive")
    np.testing.assert_array_equal(reverse.rows, two.rows)
    np.testing.assert_array_equal(reverse.is_first, ~two.is_first)
    assert (reverse.n_both, reverse.note) == (two.n_both, two.note)


def test_other_metrics_and_comparisons_do_not_change_the_density_of_the_classes():
    """One hypothesis, one family: what else is compared must not change its p values."""
    first, others = "positive/negative", {"metrics": ["gain", "density", "sum"]}
    alone = table_of(inputs_of(people(8), only(first, group_comparisons={"metrics": ["density"]})))
    table = table_of(inputs_of(people(8), only("TP/TN", first, group_comparisons=others)))
    table = table[table["comparison"] == "AD/CN"]
    own = table[table["metric"] == "density"].reset_index(drop=True)
    assert own["p"].notna().any()
    for column in ("map", "group", "t", "df", "p", "p_fwe", "p_fdr", "difference", "hedges_g", "n_permutations"):
        np.testing.assert_array_equal(own[column], alone[column], err_msg=column)
    assert set(table["family"]) == {f"{own['p'].notna().sum()} regions x maps: {m}" for m in ("density", "sum", "gain")}


def test_a_group_of_one_has_rows_that_say_so():
    predictions = predictions_of(people(6), wrong=("sub-004",))
    table = table_of(inputs_of(people(6), only("FP/TN"), predictions=predictions))
    assert len(table) == 12
    assert table["note"].eq("1 participant of FP; at least 2 are needed").all()
    assert table["p"].isna().all()
    assert table["mean_second"].notna().all()


def test_an_infinite_gain_is_named_and_the_floor_used():
    scans = people(6)
    relevance = relevance_of(scans)
    controls = relevance["participant_id"].isin([s.participant_id for s in scans if s.label == "CN"])
    amygdala = relevance["group"] == "Amygdala"
    relevance.loc[controls & amygdala, ["sum", "density"]] = 0.0
    relevance.loc[controls & (relevance["group"] == "Lateral ventricle"), ["sum", "density"]] *= -1
    table = table_of(inputs_of(scans, only("positive/negative", covariates=""), relevance=relevance)).set_index(
        ["map", "group"]
    )
    row = table.loc[(MAPS[0], "Amygdala")]
    assert np.isnan(row["ratio"])
    assert row["note"] == (
        f"{MOSTLY_ALIKE.format(OF_P)}; {OF_RANKS}; infinite ratio: the mean of CN is 0; log_gain uses the floor instead"
    )
    means = table.loc[MAPS[0], "mean_second"]
    assert row["floor"] == pytest.approx(0.05 * means.abs().mean())
    assert row["log_gain"] == pytest.approx(np.log(row["mean_first"] / row["floor"]))
    assert row[["log_gain_low", "log_gain_high"]].isna().all()  # the floor has no error
    negative = table.loc[(MAPS[0], "Lateral ventricle")]
    assert np.isnan(negative["ratio"])
    assert "below the floor" in negative["note"]


def test_log_gain_by_hand():
    gains = log_gain(np.array([4.0, 0.1, 0.1, 4.0]), np.array([2.0, 2.0, 0.1, -3.0]), np.array(0.5))
    assert gains.tolist() == pytest.approx([np.log(2), np.log(0.25), np.nan, np.log(8)], nan_ok=True)
    assert np.isnan(gain_floor(np.array([np.nan]), 0.05))


def test_variance_between_regions_is_that_of_statsmodels():
    rng = np.random.default_rng(0)
    for spread in (0.0, 0.5, 2.0):
        errors = rng.uniform(0.1, 1, 20)
        values = rng.normal(0, spread, 20) + errors * rng.normal(size=20)
        oracle = combine_effects(values, errors**2, method_re="dl").tau2
        assert between_variance(values, errors**2) == pytest.approx(max(0.0, oracle))


def test_shrinkage_by_hand():
    """With equal errors: the spread about the mean less the error, kept in that proportion."""
    rng = np.random.default_rng(1)
    gains = np.array([0.0, 1.0, 2.0, 3.0, np.nan])
    draws = np.column_stack([rng.normal(g, 0.5, 100_000) for g in gains[:4]] + [np.full(100_000, np.nan)])
    result = shrink(gains, draws, 0.95)
    error = 0.25 * 3 / 4  # of the deviation from the mean of four
    between = np.var(gains[:4], ddof=1) - error
    keep = between / (between + error)
    assert result.variance == pytest.approx(between, rel=0.01)
    assert result.estimate[:4] == pytest.approx(1.5 + keep * (gains[:4] - 1.5), rel=0.02)
    half = 1.96 * np.sqrt(keep * error + 0.25 / 4)
    assert result.high[:4] - result.estimate[:4] == pytest.approx(half, rel=0.02)
    assert np.isnan(result.estimate[4])


def test_what_regions_share_is_not_shrunken():
    """More relevance in the whole map, the same in every region: each region keeps it, with its error."""
    rng = np.random.default_rng(2)
    common = rng.normal(1.0, 0.3, size=(4000, 1))
    draws = common + rng.normal(0, 0.01, size=(4000, 30))
    result = shrink(np.full(30, 1.0) + rng.normal(0, 0.01, 30), draws, 0.95)
    assert result.estimate == pytest.approx(np.ones(30), abs=0.02)
    assert (result.high - result.low) == pytest.approx(2 * 1.96 * 0.3, rel=0.05)


def test_hedges_g_by_hand():
    a, b = np.array([1.0, 2, 3, 4]), np.array([2.0, 4, 6])
    values, first = np.concatenate([a, b])[:, None], np.array([True] * 4 + [False] * 3)
    pooled = np.sqrt((3 * a.var(ddof=1) + 2 * b.var(ddof=1)) / 5)
    exact = scipy.special.gamma(2.5) / (np.sqrt(2.5) * scipy.special.gamma(2))
    assert hedges_g(values, first)[0] == pytest.approx(exact * (a.mean() - b.mean()) / pooled)
    assert np.isnan(hedges_g(np.ones((7, 1)), first)[0])


def test_unusable_covariates_leave_the_plain_test():
    table = table_of(inputs_of(people(3, (1,)), only("positive/negative", covariates="age + C(age, Treatment)")))
    assert table["p"].notna().all()
    assert table["p_adjusted"].isna().all()
    assert table["note"].str.contains("not adjusted: ").all()


@pytest.mark.parametrize("draw", ["exponential", "normal"])
@pytest.mark.parametrize(("patients", "caveat"), [(12, True), (99, True), (100, False)])
def test_a_small_group_has_a_caveat_by_design_and_not_by_what_its_values_look_like(patients, caveat, draw):
    scans = [scan for scan in people(patients, scans_each=(1,)) if scan.label == "AD"]
    scans += [scan for scan in people(104, scans_each=(1,)) if scan.label == "CN"]
    relevance, random = relevance_of(scans, effect=0), np.random.default_rng(8)
    values = getattr(random, draw)(size=len(relevance))
    inputs = inputs_of(scans, only("positive/negative"), relevance=relevance.assign(sum=values, density=values))
    notes = table_of(inputs)["note"].fillna("")
    said = SMALL_GROUPS.format(FEW_OF_GROUP, OF_P) if caveat else "a group has fewer"
    assert notes.str.contains(said, regex=False).eq(caveat).all()
    assert notes.str.contains(OF_RANKS, regex=False).eq(caveat).all()


# Groups of one fold, values without variance, covariates equal to the group, nobody converts: n/a and why, never a p.
#
# Each test of the stage, as its table calls it, on 40 people in two folds: group and covariate given, one value each.

N = 40
FOLD = np.arange(N) % 2
GROUP = np.arange(N) // 2 % 2 == 0
HALF = np.arange(N) % 2 == 0
VALUES = np.random.default_rng(1).normal(size=N)
COVARIATE = np.random.default_rng(2).normal(size=N)
SETTINGS = FAST.statistics
Found = tuple[Sequence[float], Sequence[object]]
"""P values and what their rows say."""
Test = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], Found]


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def two_groups(values, group, fold, covariate) -> Found:
    frame = pd.DataFrame({"group": group.astype(float), "fold": fold, "c": covariate})
    model = model_within_folds("c + group", "group", frame, True, group.tolist())
    test = freedman_lane(values, model.design, model.exchange, Resampling(99, rng()), group.tolist())
    return test.p, [test.problems[0] or model.design.note]


def correlation(values, group, fold, covariate) -> Found:
    frame = pd.DataFrame({"x": group.astype(float), "fold": fold, "c": covariate})
    model = model_within_folds("c + x", "x", frame, True)
    test = partial_correlation(values, model.design, model.exchange, Resampling(99, rng()), "pearson")
    return test.p, test.problems


def sites(effect) -> Test:
    def test(values, group, fold, covariate) -> Found:
        frame, names = pd.DataFrame({"fold": fold, "c": covariate}), [f"s{int(one)}" for one in group]
        found, _ = site_effect(effect, values[:, None], names, "c", frame, Resampling(99, rng()), True)
        return found.p, found.problems

    return test


def change(values, group, fold, covariate) -> Found:
    visits = np.stack([np.zeros(len(values)), values], axis=1).ravel()[:, None]
    person, years = np.repeat(np.arange(len(values)), 2), np.tile([0.0, 1.0], len(values))
    found = change_test(
        visits, years, person, np.repeat(group.astype(int), 2), np.repeat(fold, 2), Resampling(99, rng())
    )
    return found.p, found.notes


def shortcuts(values, group, fold, covariate) -> Found:
    row = _difference(values, group, fold, SETTINGS, rng())
    return [row.get("p", np.nan)], [row["note"]]


def fairness(values, group, fold, covariate) -> Found:
    target = np.arange(len(values)) // 4 % 2
    called = np.where(values > 0, "P", "N")
    outcome = [("T" if (one == "P") == bool(true) else "F") + one for one, true in zip(called, target, strict=True)]
    people = np.arange(len(values)).astype(str)
    frame = pd.DataFrame({"participant_id": people, "target": target, "outcome": outcome, "fold": fold})
    table = _of_level(frame.assign(probability=1 / (1 + np.exp(-values))), group, SETTINGS, rng())
    return table["p"].tolist(), table["note"].tolist()


def subtypes(values, group, fold, covariate) -> Found:
    people = tuple(map(str, range(len(values))))
    nothing = np.zeros((len(values), 2))
    one = Subtypes("volume", people, nothing, 1 + group.astype(int), np.ones(len(values)), pd.DataFrame())
    fold_of = dict(zip(people, map(str, fold), strict=True))
    row = _compared(one, "probability", pd.Series(values), fold_of, FAST)
    return [row.get("p", np.nan)], [row["note"]]


def site_prediction(values, group, fold, covariate) -> Found:
    scans = Scans(np.arange(len(values)), group.astype(np.intp), (covariate > 0.5).astype(np.intp))
    rows = _predictions("site", {"lrp": scaled_within(values[:, None], fold)}, scans, SETTINGS, 3)
    return [row.get("p", np.nan) for row in rows], [row["note"] for row in rows]


def welch_alone(values, group, fold, covariate) -> Found:
    row = welch(pd.Series(values[group]), pd.Series(values[~group]))
    return [row["p"]], [row["note"]]


def fisher(values, group, fold, covariate) -> Found:
    row = _fisher(pd.Series((values[group] > 0).astype(float)), pd.Series((values[~group] > 0).astype(float)))
    return [row["p"]], [row["note"]]


def conversions(values, fold, covariate, event) -> Conversions:
    frame = pd.DataFrame({"time": 6.0 + np.arange(len(values)), "event": event, "competing": np.nan, "age": covariate})
    frame = frame.assign(sex="F", mmse=27.0, field_strength=1.5, hippocampus_mm3=values, tiv_mm3=1.0, probability=0.5)
    frame = frame.assign(progression=np.where(event, "pMCI", "sMCI"), networks=fold.astype(str))
    return Conversions(frame, values[:, None, None], ("lrp",), ("region",), {})


def cox(values, group, fold, covariate, event=HALF) -> Found:
    table = cox_table(conversions(values, fold, covariate, event[: len(values)]), SETTINGS, 3)
    rows = table[(table["predictor"] == "relevance") & (table["model"] == "adjusted")]
    return rows[["p", "p_wald", "p_proportional"]].to_numpy(float).ravel(), rows["note"].tolist()


def prediction(values, group, fold, covariate, event=HALF) -> Found:
    table = progression_table(conversions(values, fold, covariate, event[: len(values)]), SETTINGS, 3, 36)
    rows = table[table["predictor"].eq("hippocampus/tiv") & table["measure"].isin(["concordance", "auc"])]
    return rows["p"].tolist(), rows["note"].tolist()


OF_GROUPS: dict[str, Test] = {
    "two groups": two_groups, "correlation": correlation, "location of sites": sites("location"),
    "scale of sites": sites("scale"), "change": change, "shortcuts": shortcuts, "subtypes": subtypes,
}  # fmt: skip
EVERY: dict[str, Test] = OF_GROUPS | {
    "fairness": fairness, "site prediction": site_prediction, "Welch": welch_alone, "Fisher": fisher, "Cox": cox,
    "prediction of conversion": prediction,
}  # fmt: skip


def require_none(test: Test, *data: np.ndarray, said: str = "") -> None:
    """No p, and a reason in every row; a refusal names the reason too."""
    try:
        p, notes = test(*data)
    except BadInputError as error:
        p, notes = [np.nan], [str(error)]
    assert np.isnan(np.asarray(p, float)).all(), p
    assert notes
    assert all(isinstance(note, str) and said in note for note in notes), notes


@pytest.mark.parametrize("name", EVERY)
def test_each_test_has_a_p_where_there_is_nothing_wrong(name: str) -> None:
    assert np.isfinite(np.asarray(EVERY[name](VALUES, GROUP, FOLD, COVARIATE)[0], float)).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("rounding", [0.0, 1e-17])
@pytest.mark.parametrize("name", EVERY)
def test_values_without_variance_have_no_p(name: str, rounding: float) -> None:
    values = 0.3 + 5 * rounding * (np.arange(N) % 3 == 0)
    require_none(EVERY[name], values, GROUP, FOLD, COVARIATE)


@pytest.mark.parametrize("name", sorted(set(EVERY) - {"Welch", "Fisher", "prediction of conversion"}))
def test_values_that_vary_with_the_network_alone_have_no_p(name: str) -> None:
    require_none(EVERY[name], 1.0 + FOLD, GROUP, FOLD, COVARIATE)


@pytest.mark.parametrize("n", [N, 8])
@pytest.mark.parametrize("name", OF_GROUPS)
def test_groups_that_are_folds_cannot_be_told_from_networks_however_few_people(name: str, n: int) -> None:
    require_none(OF_GROUPS[name], VALUES[:n], FOLD[:n] == 0, FOLD[:n], COVARIATE[:n])


@pytest.mark.parametrize("name", ["two groups", "correlation", "location of sites", "scale of sites"])
def test_a_covariate_that_equals_the_group_leaves_nothing_to_test(name: str) -> None:
    require_none(OF_GROUPS[name], VALUES, GROUP, FOLD, GROUP.astype(float), said="collinear")


@pytest.mark.parametrize("name", ["two groups", "change", "shortcuts", "subtypes", "scale of sites", "Welch"])
def test_a_group_of_one_has_no_variance_and_no_p(name: str) -> None:
    require_none(EVERY[name], VALUES, np.arange(N) == 3, FOLD, COVARIATE)


@pytest.mark.parametrize("name", sorted(set(OF_GROUPS) - {"change"} | {"fairness", "Welch", "Fisher"}))
def test_one_group_is_no_comparison(name: str) -> None:
    require_none(EVERY[name], VALUES, np.ones(N, bool), FOLD, COVARIATE)


def test_sites_that_go_with_the_class_cannot_be_exchanged() -> None:
    require_none(site_prediction, VALUES, COVARIATE > 0.5, FOLD, COVARIATE, said="none can change places")


@pytest.mark.parametrize("test", [cox, prediction])
def test_where_all_are_censored_there_is_no_p(test: Callable[..., Found]) -> None:
    p, notes = test(VALUES, GROUP, FOLD, COVARIATE, event=np.zeros(N, bool))
    assert np.isnan(np.asarray(p, float)).all()
    assert all(isinstance(note, str) for note in notes)


def test_a_covariate_that_equals_the_predictor_leaves_no_hazard_to_test() -> None:
    within = VALUES - np.array([VALUES[one == FOLD].mean() for one in (0, 1)])[FOLD]
    within /= np.array([within[one == FOLD].std(ddof=1) for one in (0, 1)])[FOLD]  # both networks have one spread
    p, notes = cox(within, GROUP, FOLD, within)
    assert np.isnan(p).all()
    assert "collinear" in str(notes[0])


def test_with_too_few_permutations_for_any_p_of_5_percent_there_is_no_interval() -> None:
    frame = pd.DataFrame({"group": [1.0, 1, 0, 0]})
    model = model_within_folds("group", "group", frame, True)
    test = freedman_lane(VALUES[:4], model.design, Exchangeability.free(4), Resampling(99, rng()), [1, 1, 0, 0])
    assert test.p[0] >= 1 / 6
    assert test.exact
    assert np.isnan([test.low[0], test.high[0]]).all()


@pytest.mark.parametrize("known", ["all", "one of each network"])
def test_people_alone_with_their_networks_have_no_hazard_of_relevance(known: str) -> None:
    """Nobody can change places: each has networks of their own, or only one of each pair has a known covariate."""
    network = np.arange(N) if known == "all" else np.arange(N) // 2
    covariate = COVARIATE if known == "all" else np.where(np.arange(N) % 2, np.nan, COVARIATE)
    p, notes = cox(VALUES, GROUP, network, covariate, np.arange(N) % 4 < 2)
    assert np.isnan(p).all()
    assert "none can change places" in notes[0]


def test_relevance_is_centred_among_those_whose_covariates_are_known() -> None:
    """The network's level in people who are left out is no part of the test."""
    covariate = np.where(np.arange(N) < 6, np.nan, COVARIATE)
    levels = np.where((np.arange(N) < 6) & (FOLD == 0), 100.0, 0.0)
    event = np.arange(N) % 4 < 2
    one, other = (cox(values, GROUP, FOLD, covariate, event)[0] for values in (VALUES, VALUES + levels))
    np.testing.assert_allclose(one, other, rtol=1e-9)
