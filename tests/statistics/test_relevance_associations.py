"""Associations of relevance and biomarkers against scipy, statsmodels and brute force."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import statsmodels.api as sm
from made_up import GROUPS, MAPS, inputs_of, means_in_one_spread, people, relevance_of, settings

from heatlas.pipeline.registration.settled import JACOBIAN_SOURCE, NOT_MEASURED, RELIABILITY, not_measured
from heatlas.pipeline.run.config.settings import RegistrationConfig
from heatlas.pipeline.run.config.statistics import StatisticsConfig
from heatlas.pipeline.statistics.associations.associations import (
    ASSOCIATIONS_COLUMNS,
    SMALL_CLASS,
    ParticipantValues,
    associations_tables,
    rows_of,
    small_class,
)
from heatlas.pipeline.statistics.data.values import shares
from heatlas.pipeline.statistics.linear.correlation import correlation_interval, matched_test
from heatlas.pipeline.statistics.linear.design import Design, design_of
from heatlas.pipeline.statistics.linear.freedman_lane import LinearModel, freedman_lane, permutation_test
from heatlas.pipeline.statistics.linear.permutations import Exchangeability, benjamini_hochberg
from heatlas.pipeline.statistics.requested import Biomarker


def table_of(inputs):
    table = associations_tables(inputs)
    assert list(table.columns) == list(ASSOCIATIONS_COLUMNS)
    return table


def only(biomarkers, scan_groups=("all",), **more):
    own = {"biomarkers": list(biomarkers), "scan_groups": list(scan_groups)} | more.pop("associations", {})
    return settings(associations=own, **more)


def person_means(inputs, *columns):
    frame = inputs.frame.assign(
        density=inputs.values.densities[:, 0, GROUPS.index("Hippocampus")],
        ratio=lambda t: t.hippocampus_mm3 / t.tiv_mm3,
    ).dropna(subset=list(columns))
    return frame.groupby("participant_id")[["density", *columns]].mean(), len(frame)


def row_of(table, **keys):
    for name, value in keys.items():
        table = table[table[name] == value]
    assert len(table) == 1
    return table.iloc[0]


def test_correlations_are_those_of_participant_means():
    inputs = inputs_of(people(10), only(["hippocampus/tiv", "mmse"], fold_effect=False))
    table = table_of(inputs)
    for biomarker, column in (("hippocampus/tiv", "ratio"), ("mmse", "mmse")):
        means, n_scans = person_means(inputs, column)
        for estimator, oracle in (("pearson", scipy.stats.pearsonr), ("spearman", scipy.stats.spearmanr)):
            row = row_of(table, biomarker=biomarker, estimator=estimator, map=MAPS[0], group="Hippocampus")
            assert row["r"] == pytest.approx(oracle(means["density"], means[column])[0], abs=1e-12)
            assert (row["n_participants"], row["n_scans"]) == (len(means), n_scans)
            assert row["ci_low"] <= row["r"] <= row["ci_high"]
        row = row_of(table, biomarker=biomarker, estimator="pearson", map=MAPS[0], group="Hippocampus")
        assert row["slope"] == pytest.approx(scipy.stats.linregress(means[column], means["density"]).slope)
    mmse = table["biomarker"] == "mmse"  # one participant has none
    assert table.loc[mmse, "n_participants"].eq(19).all()
    assert table.loc[~mmse, "n_participants"].eq(20).all()
    assert table.loc[mmse, "note"].str.contains("1 row without mmse").all()


def test_partial_correlation_is_that_of_residuals():
    inputs = inputs_of(people(10), only(["mmse"], covariates="age + sex"))  # and fold
    row = row_of(table_of(inputs), estimator="partial", map=MAPS[0], group="Hippocampus")
    frame = inputs.frame.assign(male=(inputs.frame["sex"] == "M").astype(float))
    frame["density"] = inputs.values.densities[:, 0, GROUPS.index("Hippocampus")]
    means = frame.dropna(subset=["mmse"]).groupby("participant_id")[["density", "mmse", "age", "male", "fold"]].mean()
    means["density"] = means_in_one_spread(inputs, inputs.values.densities[:, 0], means.index)["Hippocampus"]
    covariates = sm.add_constant(means[["age", "male", "fold"]])  # two folds, 0 and 1
    left = [sm.OLS(means[name], covariates).fit().resid for name in ("density", "mmse")]
    assert row["r"] == pytest.approx(np.corrcoef(*left)[0, 1], abs=1e-12)
    full = sm.OLS(means["density"], covariates.join(means["mmse"])).fit()
    assert row["slope"] == pytest.approx(full.params["mmse"])
    assert row["covariates"] == "fold, age, sex[T.M]"


def test_what_is_planted_is_found_and_nothing_else():
    table = table_of(inputs_of(people(12), only(["hippocampus/tiv"])))
    pearson = table[table["estimator"] == "pearson"]
    planted = pearson["group"] == "Hippocampus"
    assert (pearson.loc[planted, "p_fwe"] == 1 / 200).all()  # p = (b+1)/(m+1)
    assert (pearson.loc[~planted, "p_fwe"] > 0.05).all()
    assert (pearson["family"] == "12 regions x maps x metrics").all()


@pytest.mark.parametrize("biomarker", ["mmse", "own volume"])
def test_partial_spearman_is_the_partial_correlation_of_all_ranks(biomarker):
    scans = people(10)
    volumes = volumes_of(scans, np.random.default_rng(4))
    inputs = inputs_of(scans, only([biomarker], covariates="age + sex", fold_effect=False), volumes=volumes)
    row = row_of(table_of(inputs), estimator="partial spearman", map=MAPS[0], group="Hippocampus")
    own = volumes[volumes["group"] == "Hippocampus"].groupby("scan_id")["volume_mm3"].sum()
    frame = inputs.frame.assign(male=(inputs.frame["sex"] == "M").astype(float))
    frame["own volume"] = frame["scan_id"].map(own)
    frame["density"] = inputs.values.densities[:, 0, GROUPS.index("Hippocampus")]
    means = frame.dropna(subset=[biomarker]).groupby("participant_id")[["density", biomarker, "age", "male"]].mean()
    ranked = means.rank()
    covariates = sm.add_constant(ranked[["age", "male"]])
    left = [sm.OLS(ranked[name], covariates).fit().resid for name in ("density", biomarker)]
    assert row["r"] == pytest.approx(np.corrcoef(*left)[0, 1], abs=1e-12)
    assert np.isnan(row["slope"])
    assert row["interval"] == "permutation"
    assert row["covariates"] == "age, sex[T.M]"


def volumes_of(scans, rng):
    rows = [
        {"scan_id": scan.scan_id, "name": f"{side} {group}", "hemisphere": side, "group": group,
         "volume_mm3": 1000 + 100 * rng.normal()}
        for scan in scans for group in GROUPS for side in ("left", "right")
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_own_volume_is_that_of_both_sides_of_the_row_s_group():
    scans = people(8)
    volumes = volumes_of(scans, np.random.default_rng(0))
    inputs = inputs_of(scans, only(["own volume/tiv", "volume of Amygdala"], fold_effect=False), volumes=volumes)
    table = table_of(inputs)
    tiv = inputs.frame.set_index("scan_id")["tiv_mm3"]
    for g, group in enumerate(GROUPS):
        sums = volumes[volumes["group"] == group].groupby("scan_id")["volume_mm3"].sum() / tiv
        frame = inputs.frame.assign(y=inputs.values.densities[:, 1, g], v=inputs.frame["scan_id"].map(sums))
        means = frame.groupby("participant_id")[["y", "v"]].mean()
        row = row_of(table, biomarker="own volume/tiv", estimator="pearson", map=MAPS[1], group=group)
        assert row["r"] == pytest.approx(np.corrcoef(means["y"], means["v"])[0, 1], abs=1e-12)
        assert row["slope"] == pytest.approx(scipy.stats.linregress(means["v"], means["y"]).slope)
    amygdala = [
        row_of(table, biomarker=name, estimator="spearman", map=MAPS[1], group="Amygdala")["n_scans"]
        for name in ("own volume/tiv", "volume of Amygdala")
    ]
    assert amygdala == [len(scans)] * 2


def test_a_small_class_keeps_its_spread_and_spearman_and_own_volumes_say_that_it_does_not():
    """With the class itself as biomarker, p of Pearson's correlation is that of the comparison of classes."""
    rng, n = np.random.default_rng(5), 24
    few = np.arange(n) < 6
    values = rng.normal(size=(n, 3)) * np.where(few, 3.0, 1.0)[:, None]
    points = ParticipantValues(
        values, few[:, None].astype(float), np.ones((n, 1)), (), Exchangeability.free(n), n, None,
        small_class(few.astype(np.intp)), SMALL_CLASS,
    )  # fmt: skip
    of_test = dataclasses.replace(StatisticsConfig(), permutations=99)
    columns = pd.DataFrame({"map": "lrp", "group": list("abc"), "metric": "sum"})
    biomarker = Biomarker("mmse", few.astype(float))
    found = {name: rows_of(points, columns, biomarker, name, of_test, np.random.default_rng(1))
             for name in ("pearson", "spearman")}  # fmt: skip
    design = design_of("x", "x", pd.DataFrame({"x": few.astype(float)}))
    classes = freedman_lane(values, design, Exchangeability.free(n), 99, np.random.default_rng(1), few.tolist())
    np.testing.assert_array_equal(found["pearson"]["p"], classes.p)
    np.testing.assert_array_equal(found["pearson"]["p_fwe"], classes.p_fwe)
    excludes = (found["pearson"]["ci_low"] > 0) | (found["pearson"]["ci_high"] < 0)
    np.testing.assert_array_equal(excludes, found["pearson"]["p"] <= 0.05)
    assert found["pearson"]["note"].isna().all()
    assert found["spearman"]["note"].str.contains("p_fwe").all()
    assert small_class(np.repeat([0, 1], [12, 12])) is None
    assert small_class(np.repeat([0, 1], [60, 200])) is None


@pytest.mark.parametrize("q", [1, 3])
def test_matched_test_equals_the_engine_and_brute_force(q):
    rng = np.random.default_rng(q)
    n, m = 12, 60
    values, regressors = rng.normal(size=(n, 5)), rng.normal(size=(n, 2))
    nuisance = np.column_stack([np.ones(n), rng.normal(size=(n, q - 1))])
    permutations = Exchangeability.free(n).permutations(m, rng)
    same = matched_test(values, regressors[:, :1], np.zeros(5, int), nuisance, permutations)
    design = Design(regressors[:, :1], nuisance, np.arange(n), {}, ("x", *"z" * q), {})
    engine = permutation_test(values, LinearModel.of(design, Exchangeability.free(n)), permutations)
    np.testing.assert_allclose(same.partial_r, engine.partial_r, atol=1e-12)
    np.testing.assert_allclose(same.slope, engine.estimate, atol=1e-12)
    np.testing.assert_array_equal(same.p, engine.p)
    np.testing.assert_array_equal(same.p_fwe, engine.p_fwe)

    np.testing.assert_allclose(same.t, engine.statistic, rtol=1e-9)
    _, low, high = correlation_interval(engine.partial_r, engine.statistic, engine.critical, engine.p, 0.05)
    np.testing.assert_allclose([same.low, same.high], [low, high], rtol=1e-6)

    which = np.array([0, 1, 0, 1, 1])
    result = matched_test(values, regressors, which, nuisance, permutations)
    alone = [
        matched_test(values[:, [j]], regressors[:, [which[j]]], np.zeros(1, int), nuisance, permutations)
        for j in range(5)
    ]
    np.testing.assert_array_equal(result.p, [one.p[0] for one in alone])
    np.testing.assert_allclose(result.t, [one.t[0] for one in alone])
    assert (result.p_fwe >= result.p).all()
    apart = matched_test(values, regressors, which, nuisance, permutations, kinds=np.arange(5))
    np.testing.assert_allclose(apart.p_fdr, benjamini_hochberg(apart.p))  # each column's own permutations alone
    residuals = values - nuisance @ np.linalg.lstsq(nuisance, values, rcond=None)[0]
    expected = [partial(residuals[:, j], regressors[:, which[j]], nuisance) for j in range(5)]
    np.testing.assert_allclose(result.partial_r, expected)


def partial(y, x, z):
    left = [part - z @ np.linalg.lstsq(z, part, rcond=None)[0] for part in (y, x)]
    return left[0] @ left[1] / np.linalg.norm(left[0]) / np.linalg.norm(left[1])


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("abeta", "no such column"),
        ("sex", "not a numeric column"),
        ("apoe4", "no scan has a value"),
        ("own volume", "only in scans that the run registered"),
        ("volume of Elsewhere", "no bilateral group named Elsewhere"),
        ("mmse/nothing", "nothing: no such column"),
    ],
)
def test_a_biomarker_that_cannot_be_used_is_one_row_that_says_why(name, why):
    table = table_of(inputs_of(people(4), only([name, "mmse"])))
    row = row_of(table, biomarker=name)
    assert why in row["note"]
    assert np.isnan(row["p"])
    assert (table["biomarker"] == "mmse").sum() > 1


@pytest.mark.parametrize(
    ("source", "biomarker", "said"),
    [
        (f"{JACOBIAN_SOURCE}, cat12 ({RELIABILITY})", "hippocampus/tiv", True),
        (f"{JACOBIAN_SOURCE}, cat12 ({RELIABILITY})", "hippocampus_mm3", True),
        (f"{JACOBIAN_SOURCE}, cat12 ({RELIABILITY})", "mmse", False),
        ("ADNIMERGE (FreeSurfer 5.1)", "hippocampus/tiv", False),
        (not_measured(RegistrationConfig(resolution_mm=4.0)), "hippocampus/tiv", True),
    ],
)
def test_our_own_hippocampal_volumes_carry_their_reliability(source, biomarker, said):
    scans = [dataclasses.replace(scan, hippocampus_source=source) for scan in people(8)]
    if source.startswith(NOT_MEASURED):
        scans = [dataclasses.replace(scan, hippocampus_mm3=None) for scan in scans]
    own = table_of(inputs_of(scans, only([biomarker])))
    own = own[own["biomarker"] == biomarker]
    assert len(own)
    assert (own["note"].fillna("").str.contains(source, regex=False) == said).all()


def test_constant_collinear_and_scarce_values_are_named():
    scans = [dataclasses.replace(s, mmse=29.0, cdr=2 * s.age) for s in people(6)]
    scans = [dataclasses.replace(s, apoe4=1 if s.participant_id < "sub-003" else None) for s in scans]
    table = table_of(inputs_of(scans, only(["mmse", "cdr", "apoe4"])))
    assert table.loc[table["biomarker"] == "mmse", "note"].str.contains("constant").all()
    partial_row = row_of(table[table["biomarker"] == "cdr"], estimator="partial")
    assert "collinear with" in partial_row["note"]
    assert partial_row["note"].startswith("term cdr")
    assert table.loc[(table["biomarker"] == "cdr") & (table["estimator"] == "pearson"), "p"].notna().all()
    assert table.loc[table["biomarker"] == "apoe4", "note"].str.contains("3 participants with a value").all()


def test_few_participants_get_the_exact_p():
    scans = people(3, (1,))[:5]
    relevance = relevance_of(scans)
    row = row_of(
        table_of(inputs_of(scans, only(["age"], covariates=""), relevance=relevance)),
        estimator="pearson", map=MAPS[0], group="Amygdala",
    )  # fmt: skip
    y = relevance.query("map == @MAPS[0] and group == 'Amygdala'")["density"].to_numpy()
    oracle = scipy.stats.permutation_test(
        ([s.age for s in scans], y), lambda a, b: abs(np.corrcoef(a, b)[0, 1]), permutation_type="pairings",
        alternative="greater", n_resamples=np.inf,
    )  # fmt: skip
    assert bool(row["exact"])
    assert row["n_permutations"] == 120
    assert row["p"] == pytest.approx(oracle.pvalue)


def test_a_group_without_a_voxel_has_a_row_that_says_so():
    relevance = relevance_of(people(5))
    relevance.loc[relevance["group"] == "Amygdala", ["density", "gain"]] = np.nan
    table = table_of(inputs_of(people(5), only(["age"]), relevance=relevance))
    empty = table[table["group"] == "Amygdala"]
    assert len(empty) == 12
    assert empty["p"].isna().all()
    assert empty["note"].str.contains("no value in").all()
    assert (table.loc[table["group"] != "Amygdala", "family"] == "9 regions x maps x metrics").all()


def test_within_a_class_only_its_scans_count():
    inputs = inputs_of(people(8), only(["age"], ("positive", "TP")))
    table = table_of(inputs)
    n = inputs.frame.groupby("scan_id")[["target", "outcome"]].first()
    counts = dict(zip(table["scan_group"], table["n_scans"], strict=True))
    assert counts == {"AD": int((n["target"] == 1).sum()), "TP": int((n["outcome"] == "TP").sum())}


def test_shares_add_up_to_one():
    sums = np.random.default_rng(0).normal(size=(5, 3, 7))
    np.testing.assert_allclose(np.abs(shares(sums)).sum(axis=-1), 1)
    assert np.isnan(shares(np.zeros(3))).all()
