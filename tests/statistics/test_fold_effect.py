"""Fold as a nuisance: values by closed forms, and the level where networks differ and a covariate is unbalanced."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import statsmodels.formula.api as smf
from folded_cohort import GROUPS, MAPS, inputs_of, quick_config, scans_of
from made_up import of_one_spread

from heatlas.pipeline.regions.effect_size import hedges_g
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.statistics.arrays import Resampling
from heatlas.pipeline.statistics.associations.associations import associations_tables
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.data.members import difference_within
from heatlas.pipeline.statistics.groups.comparisons import comparisons_tables
from heatlas.pipeline.statistics.groups.subgroups import main_effects_tables
from heatlas.pipeline.statistics.linear.fold_effect import centred_within, model_within_folds
from heatlas.pipeline.statistics.linear.freedman_lane import freedman_lane
from heatlas.pipeline.statistics.linear.permutations import Exchangeability

DATA_SETS, PERMUTATIONS = 400, 199


def people(n_folds: int = 4, size: int = 8, seed: int = 0) -> pd.DataFrame:
    """Participants in folds; the scanner's field strength is unbalanced over folds as in the demo, the class is not."""
    rng = np.random.default_rng(seed)
    fold = np.repeat(np.arange(n_folds), size)
    at_3t = np.concatenate([rng.permutation(size) < size * (0.9 if k == n_folds - 1 else 0.1) for k in range(n_folds)])
    return pd.DataFrame(
        dict(participant_id=[f"sub-{i:03d}" for i in range(len(fold))], fold=fold)
        | dict(field_strength=np.where(at_3t, 3.0, 1.5), positive=np.arange(len(fold)) % 2.0)
        | dict(age=70 + 8 * rng.normal(size=len(fold)))
    )


def from_networks(frame: pd.DataFrame, columns: int, seed: int = 1) -> np.ndarray:
    """Relevance without any effect of a person: each fold has a level and a spread of its own, in every data set."""
    rng = np.random.default_rng(seed)
    n_folds, fold = frame["fold"].nunique(), frame["fold"].to_numpy()
    level, spread = 3 * rng.normal(size=(n_folds, columns)), rng.uniform(0.5, 1.5, size=(n_folds, columns))
    return level[fold] + spread[fold] * rng.normal(size=(len(frame), columns))


def rate_of_false_positives(hold: bool, variance_groups: bool = False) -> float:
    frame = people()
    values = from_networks(frame, DATA_SETS)
    groups = frame["field_strength"].tolist() if variance_groups else None
    model = model_within_folds("positive + age + field_strength", "field_strength", frame, hold, groups)
    rng = np.random.default_rng(2)
    test = freedman_lane(values, model.design, model.exchange, Resampling(PERMUTATIONS, rng), groups)
    return float((test.p <= 0.05).mean())


def test_with_fold_held_one_in_twenty_is_a_false_positive_and_without_it_many_are() -> None:
    """400 data sets: a rate of 5 % has a standard error of 1.1 %."""
    held, free = rate_of_false_positives(True), rate_of_false_positives(False)
    assert 0.02 <= held <= 0.085
    assert free > 0.2


def test_the_studentised_statistic_holds_its_level_too() -> None:
    assert 0.02 <= rate_of_false_positives(True, variance_groups=True) <= 0.09
    assert rate_of_false_positives(False, variance_groups=True) > 0.15


def test_a_real_effect_within_folds_is_found() -> None:
    frame = people()
    values = from_networks(frame, 50) + 3.0 * (frame["field_strength"].to_numpy() == 3)[:, None]
    model = model_within_folds("field_strength", "field_strength", frame, True)
    test = freedman_lane(values, model.design, model.exchange, Resampling(PERMUTATIONS, np.random.default_rng(2)))
    assert (test.p <= 0.05).mean() > 0.9
    assert test.estimate.mean() == pytest.approx(3.0, abs=0.3)


def test_permutations_stay_within_folds_and_leave_fold_where_it_is() -> None:
    frame = people()
    model = model_within_folds("age", "age", frame, True)
    permutations = model.exchange.permutations(100, np.random.default_rng(0))
    fold = frame["fold"].to_numpy()
    assert (fold[permutations.rows] == fold).all()
    assert not (permutations.rows == np.arange(len(fold))).all()
    assert (np.sort(permutations.rows, axis=1) == np.arange(len(fold))).all()
    assert model.covariates == ("fold",)


def test_few_within_folds_are_enumerated() -> None:
    exchange = Exchangeability.free(5).in_blocks(["a", "a", "a", "b", "b"])
    permutations = exchange.permutations(100, np.random.default_rng(0), [1, 0, 0, 1, 0])
    assert permutations.exact
    assert len(permutations) == 3 * 2


def test_the_test_equals_least_squares_with_fold() -> None:
    frame = people()
    frame["y"] = from_networks(frame, 1)[:, 0]
    model = model_within_folds("age + field_strength", "field_strength", frame, True)
    test = freedman_lane(
        frame[["y"]].to_numpy(),
        model.design,
        model.exchange,
        Resampling(99, np.random.default_rng(0)),
        equal_variances=True,
    )
    frame["y"] = of_one_spread(frame["y"], frame["fold"])
    fit = smf.ols("y ~ C(fold) + age + C(field_strength)", frame).fit()
    assert test.estimate[0] == pytest.approx(fit.params["C(field_strength)[T.3.0]"])
    assert test.statistic[0] == pytest.approx(fit.tvalues["C(field_strength)[T.3.0]"])
    assert test.df[0] == fit.df_resid


def test_folds_are_brought_to_one_spread_whoever_is_exchanged_within_them() -> None:
    rng = np.random.default_rng(0)
    fold = np.repeat([0, 1, 2], [12, 5, 2])
    values = (rng.normal(size=(19, 3)) + 1.2 * fold[:, None]) * 3.0 ** fold[:, None]
    exchange = Exchangeability.free(19).in_blocks(fold.tolist())
    apart = np.column_stack([of_one_spread(column, fold) for column in values.T])
    np.testing.assert_allclose(exchange.even(values, ["a", "b", "c"]), apart, rtol=1e-12)
    alike = exchange.even(values)
    np.testing.assert_allclose(alike, of_one_spread(values, fold), rtol=1e-12)
    two = exchange.even(values, ["a", "b", "a"])
    np.testing.assert_allclose(two, of_one_spread(values, fold, ["a", "b", "a"]), rtol=1e-12)
    np.testing.assert_allclose(two[:, 1], apart[:, 1], rtol=1e-12)
    constant = np.column_stack([values, np.full(19, 0.1 + 0.2)])  # has no say in the median
    np.testing.assert_allclose(exchange.even(constant)[:, :3], alike, rtol=1e-12)
    rows = exchange.permutations(20, rng).rows
    for order in rows:  # the factor of a fold depends on nobody's class
        np.testing.assert_allclose(exchange.even(values[order]), alike[order], rtol=1e-12)
    np.testing.assert_array_equal(Exchangeability.free(19).even(values), values)
    np.testing.assert_array_equal(exchange.even(np.full((19, 1), 0.1 + 0.2)), np.full((19, 1), 0.1 + 0.2))
    unknown = np.where(np.arange(19)[:, None] == 3, np.nan, values)
    np.testing.assert_array_equal(np.isnan(exchange.even(unknown)), np.isnan(unknown))


def test_the_network_of_the_widest_scale_does_not_decide() -> None:
    """Four networks, 1 to 9 in scale: without one spread, 56 % of these differences of .6 SD would be found."""
    rng = np.random.default_rng(4)
    group, fold = np.arange(120) < 40, np.arange(120) % 4
    values = (rng.normal(size=(120, 200)) + 0.6 * group[:, None]) * np.array([1.0, 3.0, 6.0, 9.0])[fold][:, None]
    frame = pd.DataFrame({"group": group.astype(float), "fold": fold})
    model = model_within_folds("group", "group", frame, True, group.tolist())
    test = freedman_lane(values, model.design, model.exchange, Resampling(199, rng), group.tolist())
    assert (test.p <= 0.05).mean() > 0.8


def test_difference_within_folds_is_the_coefficient_and_g_its_share_of_the_residual_spread() -> None:
    frame = people(seed=3)
    frame["y"] = from_networks(frame, 1)[:, 0]
    fold, first = frame["fold"].to_numpy(), frame["field_strength"].to_numpy() == 3
    values, once = frame[["y"]].to_numpy(), np.ones((1, len(frame)))
    fit = smf.ols("y ~ C(fold) + C(field_strength)", frame).fit()
    coefficient = fit.params["C(field_strength)[T.3.0]"]
    assert difference_within(values, first, fold, once)[0, 0] == pytest.approx(coefficient)
    uncorrected = coefficient / np.sqrt(fit.mse_resid)
    assert hedges_g(values, first, fold)[0] == pytest.approx(uncorrected * (1 - 3 / (4 * fit.df_resid - 1)), rel=1e-3)
    alone = difference_within(values, first, np.zeros(len(fold), np.intp), once)[0, 0]
    assert alone == pytest.approx(values[first].mean() - values[~first].mean())
    weights = np.random.default_rng(0).integers(1, 4, size=(1, len(frame))).astype(float)
    weighted = smf.wls("y ~ C(fold) + C(field_strength)", frame, weights=weights[0]).fit()
    assert difference_within(values, first, fold, weights)[0, 0] == pytest.approx(
        weighted.params["C(field_strength)[T.3.0]"]
    )


@pytest.mark.parametrize(("n_folds", "size", "held"), [(4, 2, False), (5, 1, False), (2, 5, True), (1, 10, False)])
def test_too_few_participants_go_without_fold_and_say_so(n_folds: int, size: int, held: bool) -> None:
    frame = people(n_folds, size)
    model = model_within_folds("age", "age", frame, True)
    assert model.held == held
    assert ("too few participants" in (model.design.note or "")) == (not held and n_folds > 1)
    assert len(model.design.rows) == len(frame)


def test_what_follows_from_fold_is_refused() -> None:
    frame = people().assign(site=lambda t: np.where(t["fold"] < 2, "a", "b"))
    with pytest.raises(BadInputError, match=r"site.*collinear with.*fold"):
        model_within_folds("site", "site", frame, True)
    assert not model_within_folds("site", "site", frame, False).held


def test_someone_alone_in_a_fold_is_left_out_and_named() -> None:
    frame = pd.concat([people(), people(1, 1).assign(fold=9, participant_id="sub-900", field_strength=3.0)])
    model = model_within_folds("age", "age", frame.reset_index(drop=True), True)
    assert len(model.design.rows) == len(frame) - 1
    assert "fold=9: one participant only" in (model.design.note or "")


def unbalanced(fold_effect: bool) -> tuple[StatisticsInputs, np.ndarray]:
    """A cohort without effects whose networks differ by ten standard deviations, 3 T in one fold mostly."""
    scans, rng = scans_of(48, second_scans=0), np.random.default_rng(5)
    number = np.array([int(s.participant_id[4:]) // 6 % 3 for s in scans])
    strong = rng.random(len(scans)) < np.where(number == 2, 0.85, 0.15)
    scans = [dataclasses.replace(s, field_strength=3.0 if own else 1.5) for s, own in zip(scans, strong, strict=True)]
    level = 10.0 * np.array([0.0, 1.0, 3.0])[number]
    densities = level[:, None, None] + rng.normal(size=(len(scans), len(MAPS), len(GROUPS)))
    volumes = 1000 + 50 * rng.normal(size=(len(scans), len(GROUPS)))
    main = {"variables": ["sex", "age", "field_strength"]}
    associations = {"biomarkers": ["tiv_mm3"], "scan_groups": ["all"]}
    config = quick_config(fold_effect=fold_effect, main_effects=main, associations=associations)
    return inputs_of(scans, densities, volumes, config), number


def test_a_difference_between_networks_is_no_effect_of_the_scanner() -> None:
    found = {}
    for hold in (True, False):
        inputs, _ = unbalanced(hold)
        table = main_effects_tables(inputs)
        own = table[table["variable"] == "field_strength"]
        found[hold] = own[own["source"] != "volume"]["p_fwe"]
        held = own.set_index("source")["covariates"].str.startswith("fold")
        assert held.drop("volume").eq(hold).all()
        assert not held.loc["volume"].any()
    assert (found[True] > 0.05).all()
    assert (found[False] <= 0.01).all()


def test_plain_correlations_and_class_differences_are_within_folds() -> None:
    inputs, number = unbalanced(True)
    density = inputs.values.densities[:, 0, 0]
    tiv = inputs.frame["tiv_mm3"].to_numpy(float)
    table = associations_tables(inputs)
    own = table[(table["map"] == MAPS[0]) & (table["group"] == GROUPS[0])].set_index("estimator")
    densities = inputs.values.densities[:, 0]
    density = of_one_spread(densities, number)[:, 0]
    centred = [centred_within(values, number) for values in (density, tiv)]
    assert own.loc["pearson", "r"] == pytest.approx(np.corrcoef(*centred)[0, 1])
    ranked = [centred_within(scipy.stats.rankdata(values).astype(float), number) for values in (density, tiv)]
    assert own.loc["spearman", "r"] == pytest.approx(np.corrcoef(*ranked)[0, 1])
    assert (own["covariates"].str.split(", ").str[0] == "fold").all()
    effects = comparisons_tables(inputs).query("comparison == 'AD/CN' and metric == 'density'")
    effects = effects.set_index(["map", "group"]).loc[(MAPS[0], GROUPS[0])]
    positive = inputs.frame["target"].to_numpy() == 1
    assert effects["fold_held"]
    expected = difference_within(density[:, None], positive, number, np.ones((1, len(number))))[0, 0]
    assert effects["difference"] == pytest.approx(expected)
    assert effects["ci_low"] < effects["difference"] < effects["ci_high"]
    assert abs(effects["difference"]) < 1
