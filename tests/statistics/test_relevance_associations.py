"""Associations: correlation over participants, relevance and biomarkers, volume against relevance."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import statsmodels.api as sm
import statsmodels.formula.api as smf
from made_up import FAST, GROUPS, MAPS, inputs_of, means_in_one_spread, people, predictions_of, relevance_of, settings

from heatlas.pipeline.registration.settled import JACOBIAN_SOURCE, NOT_MEASURED, RELIABILITY, not_measured
from heatlas.pipeline.run.config.settings import RegistrationConfig
from heatlas.pipeline.run.config.statistics import StatisticsConfig
from heatlas.pipeline.statistics.arrays import Resampling
from heatlas.pipeline.statistics.associations.associations import (
    ASSOCIATIONS_TABLE,
    SMALL_CLASS,
    ParticipantValues,
    associations_tables,
    rows_of,
    small_class,
)
from heatlas.pipeline.statistics.associations.volume_association import WITHIN, volume_association, volume_points
from heatlas.pipeline.statistics.data.values import RelevanceValues, shares
from heatlas.pipeline.statistics.linear.correlation import (
    clustered_t,
    correlation_interval,
    error_of_z,
    fisher_interval,
    is_constant,
    matched_test,
    standardised,
)
from heatlas.pipeline.statistics.linear.design import Design, design_of
from heatlas.pipeline.statistics.linear.freedman_lane import LinearModel, freedman_lane, permutation_test
from heatlas.pipeline.statistics.linear.permutations import Exchangeability, benjamini_hochberg, two_sided_p
from heatlas.pipeline.statistics.linear.studentised import critical_values
from heatlas.pipeline.statistics.requested import Biomarker
from heatlas.pipeline.statistics.resampling.means import sign_flip_test, transformed_t


@pytest.mark.parametrize(
    ("estimator", "oracle"), [("pearson", scipy.stats.pearsonr), ("spearman", scipy.stats.spearmanr)]
)
def test_r_is_that_of_scipy_and_t_sums_products_over_participants(estimator, oracle):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=15).round(1), rng.lognormal(size=15)
    codes = np.array([0, 0, 1, 2, 2, 2, 3, 4, 5, 5, 6, 7, 1, 8, 9])
    a, b = (standardised(values, estimator) for values in (x, y))
    rows = np.array([np.arange(15), rng.permutation(15)])
    r, t = clustered_t(a, b, codes, 8, rows)
    assert r[0] == pytest.approx(oracle(x, y).statistic, abs=1e-12)
    for order, found, studentised in zip(rows, r, t, strict=True):
        sums = [sum(a[order][i] * b[i] for i in range(15) if codes[i] == person) for person in range(10)]
        assert found == pytest.approx(sum(sums))
        by_hand = found * np.sqrt(8 / ((1 - found**2) * 10 * np.square(sums).sum()))
        assert studentised == pytest.approx(by_hand)


def test_constant_is_meant_up_to_rounding():
    assert is_constant(np.array([0.1 + 0.2, 0.3, 0.3]))
    assert is_constant(np.zeros(3))
    assert not is_constant(np.array([1.0, 1.0 + 1e-6]))


def test_critical_values_are_what_p_takes():
    sizes = np.arange(1.0, 100.0)[None]  # of 99 permutations p is at most 5 % if 4 or fewer are as large
    assert critical_values(sizes, 0.95, exact=False)[0] == 95  # above it there are 4
    assert critical_values(sizes, 0.95, exact=True)[0] == 95  # 4 of 99
    assert np.isnan(critical_values(sizes[:, :18], 0.95, exact=False)).all()
    assert np.isnan(critical_values(sizes[:, :19], 0.95, exact=True)).all()  # the observed one alone is 1 of 19
    assert critical_values(sizes[:, :20], 0.95, exact=True)[0] == 19
    assert critical_values(sizes[:, :19], 0.95, exact=False)[0] == 19


@pytest.mark.sample(2)
@pytest.mark.parametrize(("truth", "n", "spread"), [(0.0, 20, 1.0), (0.5, 40, 1.0), (0.8, 60, 1.0), (0.0, 60, 2.0)])
def test_the_interval_of_a_correlation_covers_it_and_agrees_with_p(truth, n, spread):
    """400 data sets; a quarter of the people vary `spread` times as much in both variables."""
    rng = np.random.default_rng(int(100 * truth + n + spread))
    wide = np.where(np.arange(n) < n / 4, spread, 1.0)
    misses = 0
    for _ in range(400):
        x = rng.normal(size=n)
        y = truth * x + np.sqrt(1 - truth**2) * rng.normal(size=n)
        a, b = (standardised(values * wide, "pearson") for values in (x, y))
        codes = np.arange(n)
        (r,), (t,) = clustered_t(a, b, codes, n - 2, codes[None])
        rows = Exchangeability.free(n).permutations(199, rng).rows
        null = clustered_t(a, b, codes, n - 2, rows)[1]
        p = np.array([float(two_sided_p(np.array(t), null, False))])
        critical = critical_values(np.abs(null)[None], 0.95, False)
        _, low, high = correlation_interval(np.array([r]), np.array([t]), critical, p, 0.05)
        assert (low[0] > 0 or high[0] < 0) == (p[0] <= 0.05)
        misses += not low[0] <= truth <= high[0]
    assert 0.025 <= misses / 400 <= 0.08, misses


def test_the_error_of_a_correlation_is_about_that_of_leaving_participants_out():
    """The jackknife of Fisher's z, with participants of one to three rows; and 1 / sqrt(n) for many normal pairs."""
    rng = np.random.default_rng(0)
    codes = np.repeat(np.arange(40), rng.integers(1, 4, 40))
    x = rng.lognormal(size=len(codes))
    y = x + rng.lognormal(size=len(codes))

    def z(rows):
        return np.arctanh(np.corrcoef(x[rows], y[rows])[0, 1])

    left_out = np.array([z(codes != one) for one in range(40)])
    jackknife = np.sqrt(39 / 40 * ((left_out - left_out.mean()) ** 2).sum())
    found = error_of_z(standardised(x, "pearson"), standardised(y, "pearson"), codes, 39)
    assert found == pytest.approx(jackknife, rel=0.1)
    a = rng.normal(size=20_000)
    b = 0.8 * a + 0.6 * rng.normal(size=20_000)
    many = error_of_z(standardised(a, "pearson"), standardised(b, "pearson"), np.arange(20_000), 20_000)
    assert many == pytest.approx(1 / np.sqrt(20_000), rel=0.05)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("kind", "truth"), [("normal", 0.8), ("ranks", 0.8), ("lognormal", 0.5)])
def test_intervals_away_from_zero_miss_about_as_often_as_they_say(kind, truth):
    """600 data sets of 30 people; with the error of t 12 % (ranks) and 9 % (lognormal, sigma .6) missed."""
    rng, estimator = np.random.default_rng(9), "spearman" if kind == "ranks" else "pearson"
    true = dict(
        normal=truth, ranks=6 / np.pi * np.arcsin(truth / 2), lognormal=np.expm1(truth * 0.36) / np.expm1(0.36)
    )[kind]
    misses, codes = 0, np.arange(30)
    for _ in range(600):
        x = rng.normal(size=30)
        y = truth * x + np.sqrt(1 - truth**2) * rng.normal(size=30)
        x, y = (np.exp(0.6 * x), np.exp(0.6 * y)) if kind == "lognormal" else (x, y)
        a, b = standardised(x, estimator), standardised(y, estimator)
        (r,), (t,) = clustered_t(a, b, codes, 28, codes[None])
        p, critical = 2 * scipy.stats.t.sf(abs(t), 28), scipy.stats.t.isf(0.025, 28)
        low, high = fisher_interval(r, t, error_of_z(a, b, codes, 28), 28, critical, p, 0.95)
        misses += not low <= true <= high
    assert 0.02 <= misses / 600 <= 0.08, misses


def test_the_interval_of_a_correlation_agrees_with_its_p():
    for sign in (1, -1):  # t reaches its critical value: the bound near 0 gives way, the other does not
        near, far = np.arctanh(np.abs(fisher_interval(sign * 0.4, sign * 2.5, 0.3, 20, 2.1, 0.02, 0.95)[::sign]))
        assert near == pytest.approx(np.arctanh(0.4) * (1 - 2.1 / 2.5))
        assert far == pytest.approx(np.arctanh(0.4) + scipy.stats.t.isf(0.025, 20) * 0.3)
    low, high = fisher_interval(0.4, 2.0, 0.1, 20, 2.1, 0.06, 0.95)
    assert low == 0  # z excludes 0, p does not
    assert high == pytest.approx(np.tanh(np.arctanh(0.4) + scipy.stats.t.isf(0.025, 20) * 0.1))
    assert np.isnan(fisher_interval(0.4, 2.0, 0.1, 20, np.nan, 0.25, 0.95)).all()


def hall(t, g, n):
    return t + g * t**2 / (3 * np.sqrt(n)) + g**2 * t**3 / (27 * n) + g / (6 * np.sqrt(n))


def test_hall_s_t_by_hand_and_its_interval_solves_it():
    rng = np.random.default_rng(3)
    values = rng.exponential(size=(12, 1)) - 0.4
    u = values / np.linalg.norm(values)
    found, skewness = transformed_t(u.sum(axis=0), (u**3).sum(axis=0), 12)
    t, g = scipy.stats.ttest_1samp(values[:, 0], 0).statistic, scipy.stats.skew(values[:, 0])
    assert skewness[0] == pytest.approx(g)
    assert found[0] == pytest.approx(hall(t, g, 12))
    weights = rng.uniform(0.5, 2, size=(12, 1))
    test = sign_flip_test(values, weights, 999, rng)
    assert test.estimate[0] == pytest.approx(np.average(values[:, 0], weights=weights[:, 0]))
    weighted = values[:, 0] * weights[:, 0]
    sizes = []
    for bound in (test.low[0], test.high[0]):
        t = (weighted.mean() - bound * weights.mean()) / (weighted.std(ddof=1) / np.sqrt(12))
        sizes.append(abs(hall(t, scipy.stats.skew(weighted), 12)))
    assert sizes[0] == pytest.approx(sizes[1], rel=1e-6)  # both are the critical value


def test_sign_flips_are_exact_for_symmetric_values_and_near_it_for_skewed_ones():
    rng = np.random.default_rng(6)
    normal = sign_flip_test(rng.normal(size=(9, 2000)), np.ones((9, 2000)), 199, rng)
    assert 0.035 <= (normal.p <= 0.05).mean() <= 0.065
    outside = (normal.low > 0) | (normal.high < 0)
    assert (outside <= (normal.p <= 0.05)).all()
    skewed = rng.lognormal(size=(40, 2000)) - np.exp(0.5)
    plain = scipy.stats.ttest_1samp(skewed, 0).pvalue
    assert (plain <= 0.05).mean() > 0.085
    assert (sign_flip_test(skewed, np.ones((40, 2000)), 199, rng).p <= 0.05).mean() <= 0.08


def table_of(inputs):
    table = associations_tables(inputs)
    assert list(table.columns) == list(ASSOCIATIONS_TABLE.meanings)
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
    classes = freedman_lane(
        values, design, Exchangeability.free(n), Resampling(99, np.random.default_rng(1)), few.tolist()
    )
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


KEYS = ["map", "volume", "unit", "estimator"]


def associate(scans, relevance=None, predictions=None, has_region=True):
    relevance = relevance_of(scans) if relevance is None else relevance
    predictions = predictions_of(scans) if predictions is None else predictions
    points = volume_points(RelevanceValues.of(relevance, predictions), scans)
    true = points[points["outcome"] == "TP"]
    table = volume_association(true, MAPS, has_region, FAST.statistics, 3)
    assert len(table) == len(MAPS) * 2 * (2 + 2 + 1)  # units, estimators of each
    return points, table.set_index(KEYS)


def test_coefficients_by_hand():
    points, table = associate(people())
    false_positives = points[(points["map"] == "gb") & (points["outcome"] == "FP")]
    assert set(false_positives["participant_id"]) == {"sub-004"}  # drawn beside the true ones, correlated nowhere
    assert set(false_positives["hippocampus_mm3"]) == {
        scan.hippocampus_mm3 for scan in people() if scan.participant_id == "sub-004"
    }
    own = points[(points["map"] == "gb") & (points["outcome"] == "TP")]
    assert set(own["participant_id"]) == {f"sub-{i:03d}" for i in range(1, 16, 2)} - {"sub-003"}
    means = own.groupby("participant_id")[["relevance_sum", "hippocampus_mm3", "hippocampus_per_tiv"]].mean()
    for volume, column in (("hippocampus_mm3", "hippocampus_mm3"), ("hippocampus/tiv", "hippocampus_per_tiv")):
        for unit, frame in (("participant", means), ("scan", own)):
            for name, oracle in (("pearson", scipy.stats.pearsonr), ("spearman", scipy.stats.spearmanr)):
                row = table.loc[("gb", volume, unit, name)]
                expected = oracle(frame[column], frame["relevance_sum"]).statistic
                assert row["r"] == pytest.approx(expected, abs=1e-12)
                assert row["n_participants"] == 7
                assert row["n_scans"] == len(own) == 13
                if abs(row["r"]) < 1 - 1e-12:
                    assert row["ci_low"] <= row["r"] <= row["ci_high"]
                else:
                    assert row["interval"] == "none"
                    assert "no interval: all points lie on one line" in row["note"]


def test_planted_association_is_found_and_none_is_not():
    _, found = associate(people())
    primary = found.xs("participant", level="unit")
    assert (primary["r"] < -0.8).all()
    assert (primary.xs("hippocampus_mm3", level="volume")["p"] == 1 / 200).all()
    _, none = associate(people(per_class=12), relevance_of(people(per_class=12), seed=1, effect=0.0))
    assert (none.xs("participant", level="unit")["p_fdr"] > 0.05).all()


def test_correction_is_over_the_maps_of_one_volume_unit_and_estimator():
    _, table = associate(people(), relevance_of(people(), effect=0.03))
    family = table.xs(("hippocampus_mm3", "participant", "pearson"), level=["volume", "unit", "estimator"])
    assert family["p_fdr"].tolist() == pytest.approx(scipy.stats.false_discovery_control(family["p"]).tolist())
    assert set(family["family"]) == {"3 maps: hippocampus_mm3, participant, pearson"}
    assert len(set(family["p"])) > 1


def test_not_computed_tests_are_no_part_of_a_family():
    assert benjamini_hochberg(np.array([np.nan, 0.03])).tolist() == pytest.approx([np.nan, 0.03], nan_ok=True)
    assert np.isnan(benjamini_hochberg(np.array([np.nan]))).all()


def test_few_scans_of_each_kind_are_permuted_exactly():
    _, table = associate(people())
    row = table.loc[("gb", "hippocampus_mm3", "scan", "pearson")]
    assert row["exact"]
    assert row["n_permutations"] == 24  # 7 participants: 3 with one scan, 2 with two, 2 with three: 3! x 2! x 2!
    assert row["p"] * 24 == pytest.approx(round(row["p"] * 24))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hippocampus_mm3": None}, "no true-positive scan has a known hippocampal volume"),
        ({"hippocampus_mm3": 5000.0, "tiv_mm3": 1e6}, "the volume is constant"),
    ],
)
def test_unusable_volumes_say_so(change, said):
    scans = [dataclasses.replace(scan, **change) for scan in people()]
    _, table = associate(scans, relevance_of(people()))
    rows = table.xs("participant", level="unit")
    assert rows["r"].isna().all()
    assert rows["p"].isna().all()
    assert rows.xs("hippocampus_mm3", level="volume")["note"].str.contains(said).all()


def test_without_intracranial_volume_the_plain_volume_still_counts():
    scans = [dataclasses.replace(scan, tiv_mm3=None if i % 2 else 0.0) for i, scan in enumerate(people())]
    _, table = associate(scans)
    assert table.xs("hippocampus_mm3", level="volume")["r"].notna().all()
    adjusted = table.xs("hippocampus/tiv", level="volume")
    assert adjusted["r"].isna().all()
    assert adjusted["note"].str.contains("intracranial").all()


def test_partly_known_volumes_and_mixed_sources_are_said():
    scans = people()
    scans = [
        dataclasses.replace(
            scan,
            hippocampus_mm3=None if scan.scan_id == "I502" else scan.hippocampus_mm3,
            hippocampus_source="FreeSurfer" if i < 10 else "warp",
        )
        for i, scan in enumerate(scans)
    ]
    _, table = associate(scans, relevance_of(people()))
    row = table.loc[("gb", "hippocampus_mm3", "participant", "pearson")]
    assert row["n_scans"] == 12
    assert "1 true-positive scan without a known volume" in row["note"]
    assert "FreeSurfer, warp" in row["note"]


def test_own_volumes_carry_their_reliability():
    source = f"{JACOBIAN_SOURCE}, cat12 ({RELIABILITY})"
    points, table = associate([dataclasses.replace(scan, hippocampus_source=source) for scan in people()])
    assert set(points["hippocampus_source"]) == {source}
    assert table["note"].str.contains(f"volumes: {source}", regex=False).all()


def test_why_there_is_no_volume_is_said():
    why = not_measured(RegistrationConfig(resolution_mm=4.0))
    scans = [dataclasses.replace(scan, hippocampus_mm3=None, hippocampus_source=why) for scan in people()]
    _, table = associate(scans, relevance_of(people()))
    assert table["r"].isna().all()
    assert table["note"].str.contains(why, regex=False).all()


def test_too_few_true_positives_constant_relevance_and_another_atlas():
    scans = people(per_class=3)
    _, few = associate(scans)
    between = few.drop(WITHIN, level="unit")
    assert between["note"].str.contains("2 participants; at least 3").all()
    change = few.xs(WITHIN, level="unit")["note"]
    assert change.str.contains("1 participant with several scans; at least 3").all()
    relevance = relevance_of(people())
    relevance.loc[relevance["map"] == "gb", "sum"] = 0.0
    _, flat = associate(people(), relevance)
    assert flat.loc["gb"]["note"].str.contains("relevance is constant").all()
    assert flat.loc["lrpB000"]["r"].notna().all()
    nobody = predictions_of(people()).replace({"outcome": {"TP": "FN"}})
    _, none = associate(people(), predictions=nobody)
    assert (none["note"] == "no true-positive scan").all()
    renamed = relevance_of(people()).replace({"group": {"Hippocampus": "CA1"}})
    points, other = associate(people(), renamed, has_region=False)
    assert len(points) == 0
    assert other["note"].str.contains("no bilateral group named Hippocampus").all()


def test_participants_who_cannot_be_exchanged_have_no_p_over_scans():
    scans = [scan for scan in people(per_class=3, scans_each=(1, 2, 3)) if scan.label == "AD"]
    _, table = associate(scans, predictions=predictions_of(scans, wrong=()))
    row = table.loc[("gb", "hippocampus_mm3", "scan", "pearson")]
    assert np.isfinite(row["r"])
    assert np.isnan(row["p"])
    assert "none can be permuted" in row["note"]


def test_change_within_participants_is_the_repeated_measures_correlation():
    """r of Bakdash and Marusich: from t of the slope beside one intercept for each person with several scans."""
    points, table = associate(people(per_class=12))
    points = points[points["outcome"] == "TP"]
    own = points[(points["map"] == "gb") & points.groupby(["map", "participant_id"])["scan_id"].transform("size").gt(1)]
    fitted = smf.ols("relevance_sum ~ C(participant_id) + hippocampus_mm3", own).fit()
    t = fitted.tvalues["hippocampus_mm3"]
    row = table.loc[("gb", "hippocampus_mm3", WITHIN, "pearson")]
    assert row["r"] == pytest.approx(t / np.sqrt(t**2 + fitted.df_resid), abs=1e-12)
    assert (row["n_participants"], row["n_scans"]) == (own["participant_id"].nunique(), len(own)) == (7, 18)


def test_levels_of_people_are_no_change_and_change_is_not_hidden_by_them():
    scans = [scan for scan in people(per_class=12, scans_each=(3, 2)) if scan.label == "AD"]
    rng = np.random.default_rng(4)
    change = rng.normal(size=len(scans))
    level = {scan.participant_id: 50 * rng.normal() for scan in scans}
    scans = [dataclasses.replace(s, hippocampus_mm3=6000 + 100 * x) for s, x in zip(scans, change, strict=True)]
    relevance = relevance_of(scans)
    found = {scan.scan_id: level[scan.participant_id] - x for scan, x in zip(scans, change, strict=True)}
    planted = relevance["group"].eq("Hippocampus") & relevance["map"].eq("gb")
    relevance.loc[planted, "sum"] = relevance.loc[planted, "scan_id"].map(found)
    _, table = associate(scans, relevance, predictions_of(scans, wrong=()))
    rows = table.xs(("gb", "hippocampus_mm3", "pearson"), level=["map", "volume", "estimator"])
    assert rows.loc[WITHIN, "r"] == pytest.approx(-1)
    assert rows.loc[WITHIN, "p"] == 1 / 200
    assert rows.loc["participant", "p"] > 0.05


def test_signs_of_few_participants_are_flipped_exactly():
    scans = [scan for scan in people(per_class=4, scans_each=(2, 3)) if scan.label == "AD"]
    points, table = associate(scans, predictions=predictions_of(scans, wrong=()))
    row = table.loc[("gb", "hippocampus_mm3", WITHIN, "pearson")]
    assert (row["n_permutations"], row["exact"]) == (8, True)
    own = points[points["map"] == "gb"].set_index("participant_id")[["hippocampus_mm3", "relevance_sum"]]
    own -= own.groupby(level=0).transform("mean")
    products = own.prod(axis=1).groupby(level=0).sum().to_numpy()
    every = [abs(signs @ products) for signs in itertools.product((1, -1), repeat=4)]
    assert row["p"] == pytest.approx(np.mean(np.array(every) >= abs(products.sum()) * (1 - 1e-9)))


@pytest.mark.ci
def test_random_drift_of_relevance_while_hippocampi_shrink_is_no_finding():
    """250 maps of which 5 % should reject; where visits change places, 14.6 % do."""
    rng, n, found = np.random.default_rng(5), 30, []
    settings, names = dataclasses.replace(FAST.statistics, permutations=99, bootstrap_samples=10), list("abcdefghij")
    for _ in range(25):
        person = np.repeat(np.arange(n), rng.integers(1, 5, n))
        years = 0.7 * (np.arange(len(person)) - np.searchsorted(person, person))
        volume = (6000 + 800 * rng.normal(size=n))[person] - (150 + 50 * rng.normal(size=n))[person] * years
        frame = pd.DataFrame({"participant_id": person.astype(str), "fold": 0, "hippocampus_mm3": volume})
        frame = frame.assign(hippocampus_per_tiv=np.nan, hippocampus_source="made up")
        drift = 0.6 * rng.normal(size=(10, n))[:, person] * years + 0.5 * rng.normal(size=(10, len(person)))
        blocks = [frame.assign(map=name, relevance_sum=own) for name, own in zip(names, drift, strict=True)]
        table = volume_association(pd.concat(blocks), names, True, settings, int(rng.integers(2**31)))
        found.append(table.loc[(table["unit"] == WITHIN) & table["p"].notna(), "p"])
    p = pd.concat(found)
    assert len(p) == 250
    assert 0.015 <= (p <= 0.05).mean() <= 0.095, (p <= 0.05).mean()
