"""Subgroups, interactions and fairness: who is in which, small cells, planted differences."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from made_up import GROUPS, MAPS, inputs_of, means_in_one_spread, people, predictions_of, relevance_of, settings
from scipy.stats import ttest_ind
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from heatlas.pipeline.run.config.statistics import SubgroupsConfig
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.statistics.arrays import Resampling
from heatlas.pipeline.statistics.data.inputs import AppliedScans
from heatlas.pipeline.statistics.data.members import levels_of, welch_within
from heatlas.pipeline.statistics.data.values import RelevanceValues
from heatlas.pipeline.statistics.groups import fairness as subgroup_module
from heatlas.pipeline.statistics.groups.fairness import (
    FAIRNESS_TABLE,
    Answers,
    _caveat,
    fairness_tables,
    subgroup_difference,
)
from heatlas.pipeline.statistics.groups.subgroups import (
    INTERACTIONS_TABLE,
    SUBGROUPS_TABLE,
    _with_class_difference,
    interactions_tables,
    subgroups_tables,
)
from heatlas.pipeline.statistics.resampling.means import (
    FEW,
    FEW_OF_GROUP,
    MOSTLY_ALIKE,
    OF_INTERVAL,
    SMALL_GROUPS,
    caveats_of_groups,
)

HIPPOCAMPUS = GROUPS.index("Hippocampus")


def only(*variables, **more):
    return settings(subgroups={"variables": list(variables)} | more.pop("subgroups", {}), **more)


def checked(table, columns):
    assert list(table.columns) == list(columns)
    return table


def subgroups(inputs):
    return checked(subgroups_tables(inputs), SUBGROUPS_TABLE.meanings)


def interactions(inputs):
    return checked(interactions_tables(inputs), INTERACTIONS_TABLE.meanings)


def fairness(inputs):
    return checked(fairness_tables(inputs), FAIRNESS_TABLE.meanings)


def frame_of(*people_values, column="x"):
    rows = [(f"sub-{i}", value) for i, values in enumerate(people_values) for value in values]
    return pd.DataFrame(rows, columns=["participant_id", column])


def test_numbers_are_cut_into_tertiles_of_participants_not_of_scans():
    frame = frame_of(*[[float(i)] * (10 if i == 9 else 1) for i in range(1, 10)])
    levels = levels_of("x", frame, SubgroupsConfig())
    assert levels.names == ("below 3.67", "3.67 to below 6.33", "6.33 and above")
    people_in = frame.assign(level=levels.of_scan).groupby("level")["participant_id"].nunique()
    assert people_in.tolist() == [3, 3, 3]


def test_a_participant_is_in_one_subgroup():
    frame = frame_of(["a", "b", "b"], ["b", "a"], [None, "a"], [None])
    assert levels_of("x", frame, SubgroupsConfig()).of_scan.tolist() == ["b"] * 3 + ["b"] * 2 + ["a"] * 2 + [None]
    assert levels_of("x", frame, SubgroupsConfig()).note == "1 scan without x in no subgroup"
    numbers = frame_of([20.0, 30.0], [26.0], [np.nan], column="mmse")
    levels = levels_of("mmse", numbers, SubgroupsConfig())
    assert levels.of_scan.tolist() == ["24 to below 27"] * 3 + [None]
    field = frame_of([3.0, 1.5, 1.5], [3.0], column="field_strength")
    assert levels_of("field_strength", field, SubgroupsConfig()).of_scan.tolist() == ["1.5"] * 3 + ["3"]
    alleles = frame_of([0.0], [1.0], [2.0], column="apoe4")
    assert levels_of("apoe4", alleles, SubgroupsConfig()).of_scan.tolist() == ["no e4", "e4 carrier", "e4 carrier"]
    flags = frame_of([True], [False], column="x")
    assert levels_of("x", flags, SubgroupsConfig()).names == ("no", "yes")


@pytest.mark.parametrize("values", [[True, False, None, True], [True, False, np.nan, True], [True, False, True, True]])
def test_yes_and_no_are_levels_also_beside_unknown_ones(values):
    frame = frame_of(*[[value] for value in values])
    levels = levels_of("x", frame, SubgroupsConfig())
    assert levels.names == ("no", "yes")
    assert levels.of_scan[:2].tolist() == ["yes", "no"]
    assert (levels.note is None) == (values[2] is True)


def test_bounds_of_bands_belong_to_the_upper_band():
    frame = frame_of([23.9], [24.0], [26.9], [27.0], column="mmse")
    levels = levels_of("mmse", frame, SubgroupsConfig())
    assert levels.of_scan.tolist() == ["below 24", "24 to below 27", "24 to below 27", "27 and above"]


@pytest.mark.parametrize(
    ("frame", "why"), [(frame_of([1.0], column="y"), "no such column"), (frame_of([None]), "no scan has a value")]
)
def test_a_variable_that_is_not_there_is_named(frame, why):
    with pytest.raises(BadInputError, match=f"x: {why}"):
        levels_of("x", frame, SubgroupsConfig())


def test_means_and_counts_are_those_of_participants():
    inputs = inputs_of(people(12), only("sex", fold_effect=False))
    table = subgroups(inputs)
    for sex in "FM":
        own = inputs.frame.assign(density=inputs.values.densities[:, 1, HIPPOCAMPUS])
        own = own[own["sex"] == sex]
        means = own.groupby("participant_id")["density"].mean()
        (row,) = table[(table["level"] == sex) & (table["map"] == MAPS[1]) & (table["group"] == "Hippocampus")].to_dict(
            "records"
        )
        assert (row["n_participants"], row["n_scans"]) == (len(means), len(own))
        assert row["mean_density"] == pytest.approx(means.mean())
        assert row["sd_density"] == pytest.approx(means.std())
        assert row["ci_low"] < row["mean_density"] < row["ci_high"]
        patients = means[own.groupby("participant_id")["target"].first() == 1]
        controls = means.drop(patients.index)
        assert (row["n_positive"], row["n_negative"]) == (len(patients), len(controls))
        if min(len(patients), len(controls)) >= 5:
            assert row["class_difference"] == pytest.approx(patients.mean() - controls.mean())
            if not row["fold_held"]:
                bounds = ttest_ind(patients, controls, equal_var=False).confidence_interval(0.95)
                low, high = row["class_difference_low"], row["class_difference_high"]
                assert (low, high) == (pytest.approx(bounds.low), pytest.approx(bounds.high))
                assert row["class_difference_interval"] == "Welch"
                if np.isfinite(row["class_hedges_g"]):
                    g_low, g_high = row["class_hedges_g_low"], row["class_hedges_g_high"]
                    assert g_low < row["class_hedges_g"] < g_high
                    assert (g_low > 0 or g_high < 0) == (low > 0 or high < 0)
        else:
            assert "suppressed" in row["note"]
    assert table["class_difference"].notna().any()


def test_small_cells_are_suppressed_with_their_number():
    scans = [dataclasses.replace(s, site="B" if s.participant_id < "sub-004" else "A") for s in people(8)]
    table = subgroups(inputs_of(scans, only("site")))
    (small,) = table[table["level"] == "B"].to_dict("records")
    n_scans = sum(s.site == "B" for s in scans)
    assert small["note"] == "suppressed: 4 participants, fewer than 5"
    assert (small["n_participants"], small["n_scans"]) == (4, n_scans)
    assert np.isnan(small["mean_density"])
    assert table.loc[table["level"] == "A", "mean_density"].notna().all()
    larger = subgroups(inputs_of(scans, only("site", subgroups={"minimum_participants": 4})))
    assert larger["mean_density"].notna().all()


def test_course_takes_in_scans_outside_the_contrast():
    scans = people(6)
    mci = [
        dataclasses.replace(s, participant_id=f"sub-m{i:02d}", scan_id=f"X{i}", label=None, diagnosis="MCI",
                            progression="pMCI" if i < 5 else "sMCI")
        for i, s in enumerate(people(6, (1,)))
    ]  # fmt: skip
    relevance, predictions = relevance_of(mci, seed=9), predictions_of(mci).drop(columns=["target", "outcome"])
    values = RelevanceValues.of(relevance, predictions)
    applied = AppliedScans(tuple(mci), predictions, values, pd.DataFrame(index=pd.Index([], name="scan_id")))
    table = subgroups(inputs_of(scans, only("course"), applied=applied))
    assert table["level"].unique().tolist() == ["CN", "sMCI", "pMCI", "AD"]
    (row,) = table.query("level == 'pMCI' and map == @MAPS[2] and group == 'Hippocampus'").to_dict("records")
    assert (row["n_participants"], row["n_positive"], row["n_negative"]) == (5, 0, 0)
    assert row["mean_density"] == pytest.approx(values.densities[:5, 2, HIPPOCAMPUS].mean())
    assert row["note"] == FEW  # of participants: the only caveat


def test_an_unknown_variable_is_a_row_that_says_why():
    inputs = inputs_of(mixed_sexes(), only("handedness", "sex"))
    for table in (subgroups(inputs), interactions(inputs), fairness(inputs)):
        (row,) = table[table["variable"] == "handedness"].to_dict("records")
        assert "handedness: no such column" in row["note"]
        assert (table["variable"] == "sex").sum() > 1


def with_interaction(scans, size):
    """The class difference of hippocampal density is larger by ``size`` in women."""
    relevance = relevance_of(scans)
    sex = {s.scan_id: s.sex for s in scans}
    label = {s.scan_id: s.label for s in scans}
    women = relevance["scan_id"].map(sex).eq("F") & relevance["scan_id"].map(label).eq("AD")
    relevance.loc[women & (relevance["group"] == "Hippocampus"), "density"] += size
    return relevance


def mixed_sexes(n=12):
    return [dataclasses.replace(s, sex="FM"[(int(s.participant_id[-3:]) // 2) % 2]) for s in people(n)]


def test_interaction_is_the_coefficient_of_least_squares():
    scans = mixed_sexes()
    inputs = inputs_of(scans, only("sex", covariates="age"), relevance=with_interaction(scans, 0.3))
    table = interactions(inputs)
    (row,) = table[(table["map"] == MAPS[0]) & (table["group"] == "Hippocampus")].to_dict("records")
    frame = inputs.frame.assign(density=inputs.values.densities[:, 0, HIPPOCAMPUS])
    means = frame.groupby("participant_id").agg(
        density=("density", "mean"), target=("target", "first"), age=("age", "mean"), sex=("sex", "first"),
        fold=("fold", "first"),
    )  # fmt: skip
    means["density"] = means_in_one_spread(inputs, inputs.values.densities[:, 0], means.index)["Hippocampus"]
    fit = smf.ols("density ~ target * C(sex) + age + C(fold)", means).fit()
    assert row["estimate"] == pytest.approx(fit.params["target:C(sex)[T.M]"])
    assert row["levels"] == "F, M"
    assert row["covariates"] == "fold, age"
    assert row["estimate"] < 0


def test_a_planted_interaction_is_found_and_equal_differences_are_not():
    scans = mixed_sexes(14)
    found = interactions(inputs_of(scans, only("sex"), relevance=with_interaction(scans, 0.3)))
    planted = found["group"] == "Hippocampus"
    assert (found.loc[planted, "p_fwe"] == 1 / 200).all()
    assert (found.loc[~planted, "p_fwe"] > 0.05).all()
    none = interactions(inputs_of(scans, only("sex"), relevance=with_interaction(scans, 0.0)))
    assert (none["p_fwe"] > 0.05).all()


def test_interaction_with_a_number_is_per_unit():
    scans = people(12)
    inputs = inputs_of(scans, only("age", covariates=""))
    (row,) = interactions(inputs).query("map == @MAPS[0] and group == 'Amygdala'").to_dict("records")
    frame = inputs.frame.assign(density=inputs.values.densities[:, 0, GROUPS.index("Amygdala")])
    means = frame.groupby("participant_id")[["density", "target", "age", "fold"]].mean()
    means["density"] = means_in_one_spread(inputs, inputs.values.densities[:, 0], means.index)["Amygdala"]
    assert row["estimate"] == pytest.approx(smf.ols("density ~ target * age", means).fit().params["target:age"])
    assert pd.isna(row["levels"])


def test_three_subgroups_give_an_f():
    scans = [dataclasses.replace(s, site="ABC"[(int(s.participant_id[-3:]) // 2) % 3]) for s in people(15)]
    table = interactions(inputs_of(scans, only("site", covariates="")))
    assert table["df_tested"].eq(2).all()
    assert table["estimate"].isna().all()
    assert table["statistic"].ge(0).all()
    assert table["p"].between(1 / 200, 1).all()


def test_subgroups_without_both_classes_have_no_interaction():
    scans = [dataclasses.replace(s, site="A" if s.label == "AD" else "B") for s in people(8)]
    (row,) = interactions(inputs_of(scans, only("site"))).to_dict("records")
    assert "0 subgroups with 5 participants of each class" in row["note"]
    assert "A (8 and 0), B (0 and 8)" in row["note"]


@pytest.mark.parametrize("held", [False, True])
def test_performance_in_a_subgroup_is_sklearn_s(held):
    scans = mixed_sexes()
    predictions = predictions_of(scans, wrong=("sub-000", "sub-005", "sub-009"))
    predictions["probability"] = np.random.default_rng(0).uniform(size=len(predictions))
    inputs = inputs_of(scans, only("sex", fold_effect=held), predictions=predictions)
    table = fairness(inputs).set_index(["level", "metric"])
    called = inputs.frame["outcome"].isin(["TP", "FP"]).astype(int)
    for level in "FM":
        own, rest = inputs.frame["sex"] == level, inputs.frame["sex"] != level
        for metric, score in (("balanced_accuracy", balanced_accuracy_score), ("auc", roc_auc_score)):
            second = called if metric == "balanced_accuracy" else inputs.frame["probability"]
            inside, outside = (score(inputs.frame.loc[m, "target"], second[m]) for m in (own, rest))
            row = table.loc[(level, metric)]
            assert (row["estimate"], row["rest"]) == pytest.approx((inside, outside))
            if not held and metric == "balanced_accuracy":
                right = (called == inputs.frame["target"]).groupby(
                    [own, inputs.frame["target"], inputs.frame["participant_id"]]
                ).mean().groupby(level=[0, 1]).mean().groupby(level=0).mean()  # fmt: skip
                assert row["difference"] == pytest.approx(right[True] - right[False])
            assert row["n_participants"] == inputs.frame.loc[own, "participant_id"].nunique()
    assert table.loc["F", "p"].tolist() == table.loc["M", "p"].tolist()  # two subgroups mirror each other


def answers(n=24, folds=3, seed=0):
    """Answers on one to three scans of people in folds, with the scans themselves."""
    rng = np.random.default_rng(seed)
    codes = np.repeat(np.arange(n), rng.integers(1, 4, n))
    fold, target = (codes % folds).astype(np.intp), (codes // folds % 2).astype(float)
    score = rng.normal(size=len(codes)).round(1) + target
    right = ((score > 0.5) == (target == 1)).astype(float)
    return Answers.of(codes, fold, target, right, score), codes, fold, target, right, score


def test_differences_within_folds_and_their_errors_by_hand():
    """Every participant counts once, with the share of their scans, or of their pairs of scans, that is right."""
    found, codes, fold, target, right, score = answers()
    inside = np.random.default_rng(1).random(24) < 0.5
    difference, error = (each[0] for each in found.differences(inside[None].astype(float)))
    people = pd.DataFrame({"code": codes, "fold": fold, "target": target, "right": right}).groupby("code").mean()
    parts = {}
    for of_class, metric in ((1, 1), (0, 2)):
        total, weights = 0.0, 0.0
        for one in range(3):
            own = people[(people["fold"] == one) & (people["target"] == of_class)]
            sides = [own["right"][inside[own.index] == side] for side in (True, False)]
            weight = len(sides[0]) * len(sides[1]) / len(own)
            total, weights = total + weight * (sides[0].mean() - sides[1].mean()), weights + weight
        assert difference[metric] == pytest.approx(total / weights)
        influence = np.zeros(24)
        for one in range(3):
            own = people[(people["fold"] == one) & (people["target"] == of_class)]
            share = inside[own.index].mean()
            influence[own.index] = (inside[own.index] - share) * (own["right"] - own["right"].mean()) / weights
        assert error[metric] == pytest.approx(np.linalg.norm(influence))
        parts[metric] = influence
    assert difference[0] == pytest.approx((difference[1] + difference[2]) / 2)
    assert error[0] == pytest.approx(np.linalg.norm(parts[1] + parts[2]) / 2)
    areas, influence = [], np.zeros(24)
    for side in (True, False):
        of_side = people[inside[people.index] == side]
        pairs = [(i, j) for i in of_side.index[of_side["target"] == 1] for j in of_side.index[of_side["target"] == 0]
                 if people["fold"][i] == people["fold"][j]]  # fmt: skip
        wins = np.array([np.mean((np.sign(score[codes == i][:, None] - score[codes == j]) + 1) / 2) for i, j in pairs])
        areas.append(wins.mean())
        for (i, j), won in zip(pairs, wins, strict=True):
            for k in (i, j):
                influence[k] += (won - wins.mean()) / len(pairs)
    assert difference[3] == pytest.approx(areas[0] - areas[1])
    assert error[3] == pytest.approx(np.linalg.norm(influence))


@pytest.mark.ci
def test_few_people_with_many_scans_alike_are_found_as_often_as_p_says():
    """The subgroup has five scans a person, all right or all wrong, the rest one; over scans 33 % and 13 % at 5 %."""
    rng = np.random.default_rng(8)
    small = []
    for _ in range(150):
        inside, positive = np.arange(60) < 14, np.arange(60) % 2 == 0
        codes = np.repeat(np.arange(60), np.where(inside, 5, 1))
        score = (0.8 * np.where(positive, 1, -1) + rng.normal(size=60))[codes]
        target = positive[codes].astype(float)
        one = Answers.of(codes, np.zeros(60, np.intp)[codes], target, ((score > 0) == (target == 1)) * 1.0, score)
        small.append(subgroup_difference(one, inside, Resampling(99, rng)).p <= 0.05)
    assert (np.mean(small, axis=0) <= 0.12).all()


def test_few_people_with_fewer_scans_than_the_others_have_a_caveat():
    answered, *_ = answers(60, 1)
    inside = np.arange(60) < 12
    scans = np.where(np.arange(60) < 12, 1.0, 5.0) * (answered.scans > 0)
    said = [_caveat(dataclasses.replace(answered, scans=scans), inside, metric) for metric in range(4)]
    assert all("in the subgroup" in one for one in said)
    assert _caveat(dataclasses.replace(answered, scans=scans[:, ::-1]), ~inside[::-1], 1) is not None
    assert _caveat(answered, inside, 1) is None
    reverse = _caveat(dataclasses.replace(answered, scans=6.0 * (scans > 0) - scans), inside, 1)  # sensitivity
    assert "outside the subgroup" in reverse  # 24 patients
    assert _caveat(dataclasses.replace(answered, scans=1.2 * scans.clip(0, 1)), inside, 1) is None


@pytest.mark.ci
def test_a_worse_network_is_no_unfairness():
    """Most of the subgroup is in the fold of a network that knows nothing; in each fold all are classified alike."""
    rng = np.random.default_rng(5)
    small = []
    for _ in range(150):
        fold = np.arange(80) // 5 % 4
        positive, inside = np.arange(80) % 5 < 2, rng.random(80) < np.array([0.1, 0.2, 0.2, 0.8])[fold]
        score = np.array([1.4, 1.2, 1.2, 0.0])[fold] * np.where(positive, 1, -1) + rng.normal(size=80)
        right = ((score > 0) == positive).astype(float)
        found = Answers.of(np.arange(80), fold, positive.astype(float), right, score)
        small.append(subgroup_difference(found, inside, Resampling(99, rng)).p <= 0.05)
    assert (np.mean(small, axis=0) < 0.11).all(), np.mean(small, axis=0)  # 25 to 50 % with fold left out


def test_a_subgroup_that_is_a_fold_has_no_p_and_says_why():
    found, *_ = answers()
    result = subgroup_difference(found, np.arange(24) % 3 == 1, Resampling(99, np.random.default_rng(0)))
    assert np.isnan(result.p).all()
    assert result.n_permutations == 0


def test_unfairness_is_found_and_class_mix_is_not_taken_for_it():
    scans = mixed_sexes(14)
    women = tuple(dict.fromkeys(s.participant_id for s in scans if s.sex == "F"))
    unfair = fairness(inputs_of(scans, only("sex"), predictions=predictions_of(scans, wrong=women)))
    assert unfair.loc[unfair["metric"] == "balanced_accuracy", "p"].eq(1 / 200).all()
    # AllScans is classified alike; sites differ in how many patients they have.
    scans = [dataclasses.replace(s, site="A" if int(s.participant_id[-3:]) < 16 or s.label == "AD" else "B")
             for s in people(14)]  # fmt: skip
    fair = fairness(inputs_of(scans, only("site"), predictions=predictions_of(scans, wrong=())))
    assert fair["difference"].dropna().eq(0).all()
    assert fair["p"].dropna().eq(1).all()


def test_permutations_are_worked_on_in_parts_and_the_parts_change_nothing(monkeypatch):
    found, *_ = answers()
    inside = np.random.default_rng(1).random(24) < 0.5
    whole, parts = [], []
    for made, at_once in ((whole, 500), (parts, 7)):
        monkeypatch.setattr(subgroup_module, "AT_ONCE", at_once)
        made.append(subgroup_difference(found, inside, Resampling(99, np.random.default_rng(0))))
    np.testing.assert_array_equal(whole[0].p, parts[0].p)
    np.testing.assert_array_equal(whole[0].low, parts[0].low)


def test_metrics_of_few_participants_of_a_class_are_suppressed():
    scans = [
        dataclasses.replace(s, site="B" if s.label == "CN" or s.participant_id < "sub-005" else "A") for s in people(8)
    ]
    table = fairness(inputs_of(scans, only("site"))).set_index(["level", "metric"])
    row = table.loc[("B", "sensitivity")]
    assert row["n_positive"] == 2
    assert np.isnan(row["estimate"])
    assert row["note"] == "suppressed: fewer than 5 participants of the positive class"
    assert table.loc[("B", "specificity"), "estimate"] == pytest.approx(7 / 8, abs=0.1)
    assert table.loc[("A", "specificity"), "note"] == "a class that the metric needs has no scan in the subgroup"
    assert np.isfinite(table.loc[("A", "sensitivity"), "estimate"])


@pytest.mark.parametrize("sizes", [[(12, 48)], [(3, 9), (4, 4), (2, 7)], [(3, 9), (4, 4), (2, 0)]])
def test_the_error_of_a_difference_within_folds_is_that_of_welch(sizes):
    """One fold: scipy's. Several: the variance of the weighted sum of differences, by hand."""
    rng = np.random.default_rng(len(sizes))
    fold = np.concatenate([np.full(sum(n), k) for k, n in enumerate(sizes)])
    first = np.concatenate([np.arange(sum(n)) < n[0] for n in sizes])
    values = rng.normal(size=(len(fold), 3)) * np.where(first, 3.0, 1.0)[:, None] + 10 * fold[:, None]
    error, df = welch_within(values, first, fold)
    both = [k for k, n in enumerate(sizes) if min(n)]
    weights = np.array([sizes[k][0] * sizes[k][1] / sum(sizes[k]) for k in both])
    parts, freedom = [], []
    for place, side in enumerate((first, ~first)):
        left = np.concatenate([values[(fold == k) & side] - values[(fold == k) & side].mean(axis=0) for k in both])
        freedom.append(len(left) - len(both))
        variance = (left**2).sum(axis=0) / freedom[-1]
        parts.append(
            sum(w**2 * variance / sizes[k][place] for w, k in zip(weights, both, strict=True)) / weights.sum() ** 2
        )
    np.testing.assert_allclose(error, np.sqrt(parts[0] + parts[1]))
    below = parts[0] ** 2 / freedom[0] + parts[1] ** 2 / freedom[1]
    np.testing.assert_allclose(df, (parts[0] + parts[1]) ** 2 / below)
    if len(sizes) == 1:
        known = ttest_ind(values[first], values[~first], equal_var=False)
        np.testing.assert_allclose(df, known.df)
        difference = values[first].mean(axis=0) - values[~first].mean(axis=0)
        np.testing.assert_allclose(difference / error, known.statistic)


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.filterwarnings("error")
def test_a_difference_without_deviations_has_no_error(alike):
    """All values alike within a class, or one participant of a class in each fold."""
    first, fold = np.array([True, False, True, False]), np.array([0, 0, 1, 1]) * (not alike)
    values = np.where(first, 2.0, 1.0)[:, None] if alike else np.arange(4.0)[:, None]
    assert np.isnan(welch_within(values, first, fold)[0]).all()


@pytest.mark.parametrize("draw", ["lognormal", "standard_normal"])
@pytest.mark.parametrize(
    ("sizes", "folds", "caveat"), [((12, 48), 1, True), ((15, 45), 4, True), ((100, 110), 1, False)]
)
def test_an_interval_of_few_of_a_class_has_a_caveat_whatever_its_values_look_like(sizes, folds, caveat, draw):
    n, rng = sum(sizes), np.random.default_rng(0)
    positive = np.arange(n) < sizes[0]
    scans = pd.DataFrame({"participant_id": [f"sub-{i:02}" for i in range(n)], "target": positive.astype(float)})
    scans["fold"] = (np.arange(n) % folds).astype(str)
    values = getattr(rng, draw)(size=(n, 50))
    table = pd.DataFrame({"note": [None] * 50})
    made = _with_class_difference(table, scans, values, settings().statistics)
    said = f"class difference: {SMALL_GROUPS.format(FEW_OF_GROUP, OF_INTERVAL)}"
    assert made["note"].tolist() == [said if caveat else None] * 50
    assert np.isfinite(made["class_difference_low"]).all()


def test_values_that_are_mostly_the_same_have_a_caveat_in_groups_of_any_size():
    every = np.arange(220.0)
    values = np.column_stack([every, np.where(every % 10 < 6, 0, every), np.zeros(220)])
    groups = np.repeat([0, 1], [100, 120])
    alike = MOSTLY_ALIKE.format(OF_INTERVAL)
    assert caveats_of_groups(values, groups, OF_INTERVAL) == [None, alike, alike]
    few = SMALL_GROUPS.format(FEW_OF_GROUP, OF_INTERVAL)
    assert caveats_of_groups(values[:45], np.repeat([0, 1], [15, 30]), OF_INTERVAL)[0] == few
