"""The permutation engine against statsmodels, scipy, nilearn and brute force; its designs and exchanges."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import statsmodels.formula.api as smf
from hypothesis import given, settings
from hypothesis import strategies as st
from nilearn.mass_univariate import permuted_ols
from numpy.testing import assert_allclose
from sklearn.utils import check_random_state
from statsmodels.stats.oneway import anova_oneway

from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.statistics.arrays import Resampling
from heatlas.pipeline.statistics.linear.correlation import partial_correlation
from heatlas.pipeline.statistics.linear.design import design_of
from heatlas.pipeline.statistics.linear.fold_effect import model_within_folds
from heatlas.pipeline.statistics.linear.freedman_lane import LinearModel, freedman_lane, permutation_test
from heatlas.pipeline.statistics.linear.permutations import (
    Exchangeability,
    Permutations,
    add_false_discovery_rate,
    p_value,
)
from heatlas.pipeline.statistics.linear.studentised import HomoscedasticModel, StudentisedModel, plain_counts, tally


def table(n=60, seed=0):
    """People with correlated covariates of very different sizes."""
    rng = np.random.default_rng(seed)
    age = rng.normal(75, 6, n)
    sex = rng.choice(["F", "M"], n)
    return pd.DataFrame(
        {
            "participant_id": [f"sub-{i:03d}" for i in range(n)],
            "age": age,
            "sex": sex,
            "site": rng.choice(list("abc"), n),
            "hippocampus_mm3": 7000 - 40 * (age - 75) + rng.normal(0, 500, n),
            "tiv_mm3": 1.5e6 + 1e5 * (sex == "M") + rng.normal(0, 5e4, n),
        }
    )


def values_of(frame, columns=4, seed=1):
    noise = np.random.default_rng(seed).normal(size=(len(frame), columns))
    return noise + 0.05 * frame["age"].to_numpy()[:, None] + 0.4 * (frame["sex"] == "M").to_numpy()[:, None]


COVARIATES = "age + sex + site"


def test_coefficient_t_and_partial_r_equal_statsmodels():
    frame = table()
    values = values_of(frame)
    design = design_of(f"hippocampus_mm3/tiv_mm3 + {COVARIATES}", "hippocampus_mm3/tiv_mm3", frame)
    test = freedman_lane(
        values, design, Exchangeability.free(60), Resampling(19, np.random.default_rng(0)), equal_variances=True
    )
    name = "I(hippocampus_mm3 / tiv_mm3)"
    for i in range(values.shape[1]):
        fit = smf.ols(f"y ~ {name} + {COVARIATES}", frame.assign(y=values[:, i])).fit()
        assert_allclose(test.statistic[i], fit.tvalues[name], rtol=1e-10)
        assert_allclose(test.estimate[i], fit.params[name], rtol=1e-10)
        assert_allclose(test.standard_error[i], fit.bse[name], rtol=1e-10)
        assert test.df[i] == fit.df_resid
        residuals = [smf.ols(f"z ~ {COVARIATES}", frame.assign(z=z)).fit().resid for z in (
            values[:, i], frame["hippocampus_mm3"] / frame["tiv_mm3"])]  # fmt: skip
        assert_allclose(test.partial_r[i], np.corrcoef(*residuals)[0, 1], rtol=1e-10)


@pytest.mark.parametrize(("formula", "term", "hypothesis"), [
    ("age + sex + site", "site", "site[T.b] = 0, site[T.c] = 0"),
    ("age * site + sex", "age:site", "age:site[T.b] = 0, age:site[T.c] = 0"),
])  # fmt: skip
def test_f_of_several_columns_equals_statsmodels(formula, term, hypothesis):
    frame = table()
    values = values_of(frame)
    draws = Resampling(19, np.random.default_rng(0))
    test = freedman_lane(values, design_of(formula, term, frame), Exchangeability.free(60), draws)
    for i in range(values.shape[1]):
        fit = smf.ols(f"y ~ {formula}", frame.assign(y=values[:, i])).fit()
        expected = fit.f_test(hypothesis)
        assert_allclose(test.statistic[i], expected.fvalue, rtol=1e-9)
        assert test.df[i] == fit.df_resid
        own = [part.strip().split(" ")[0] for part in hypothesis.split(",")]
        assert_allclose(test.coefficients[:, i], fit.params[own], rtol=1e-8)
    assert test.df_tested == 2
    assert np.isnan(test.estimate).all()


def test_without_covariates_groups_give_welch_t_and_f():
    frame = table()
    values = values_of(frame) * np.where(frame["sex"] == "M", 3.0, 1.0)[:, None]
    rng = np.random.default_rng(0)
    test = freedman_lane(
        values, design_of("sex", "sex", frame), Exchangeability.free(60), Resampling(19, rng), frame["sex"]
    )
    male = (frame["sex"] == "M").to_numpy()
    oracle = scipy.stats.ttest_ind(values[male], values[~male], equal_var=False)
    assert_allclose(test.statistic, oracle.statistic, rtol=1e-9)
    assert_allclose(test.df, oracle.df, rtol=1e-9)
    assert_allclose(test.estimate, values[male].mean(axis=0) - values[~male].mean(axis=0), rtol=1e-9)
    test = freedman_lane(
        values, design_of("site", "site", frame), Exchangeability.free(60), Resampling(19, rng), frame["site"]
    )
    for i in range(values.shape[1]):
        oracle = anova_oneway(values[:, i], frame["site"], use_var="unequal")
        assert_allclose([test.statistic[i], test.df[i]], [oracle.statistic, oracle.df[1]], rtol=1e-9)


def direct_statistics(values, tested, nuisance, rows, groups=None):
    """t, F or their studentised kin by refitting the full model to permuted residuals.

    Without groups as Freedman and Lane wrote; with groups, residuals are divided by the standard deviation of their
    group and multiplied by that of the group where they arrive.
    """
    full = np.column_stack([tested, nuisance])
    k, n = tested.shape[1], len(values)
    onto = nuisance @ np.linalg.pinv(nuisance)
    fit = onto @ values
    residuals, spread, stretch = values - fit, np.ones_like(values), np.ones(values.shape[1])
    if groups is not None:
        for g in np.unique(groups):
            own = groups == g
            spread[own] = np.sqrt((residuals[own] ** 2).sum(axis=0) / (1 - np.diag(onto))[own].sum())
        residuals = residuals / spread
        residuals = residuals - onto @ residuals
        x = np.linalg.qr(full[:, ::-1])[0][:, -k:]  # orthonormal, residualised for the nuisance columns
        # The variance of a sum of n permuted values with weights is that of independent ones times n / (n - 1), without
        # the weights' mean.
        weights = x[:, :, None] * spread[:, None]
        stretch = np.sqrt((weights**2).sum(axis=(0, 1)) / ((weights - weights.mean(axis=0)) ** 2).sum(axis=(0, 1)))
    inverse = np.linalg.inv(full.T @ full)
    hat = full @ inverse @ full.T
    found = []
    for order in rows:
        permuted = np.empty_like(values)
        permuted[order] = residuals  # the engine rearranges the model's rows: the inverse permutation of the data
        data = fit + permuted * spread
        beta = inverse @ full.T @ data
        rest = data - full @ beta
        row = []
        for i in range(values.shape[1]):
            if groups is None:
                middle = full.T @ full * (rest[:, i] ** 2).sum() / (n - full.shape[1])
            else:
                middle = sum(
                    full[groups == g].T @ full[groups == g]
                    * (rest[groups == g, i] ** 2).sum() / (1 - np.diag(hat))[groups == g].sum()
                    for g in np.unique(groups)
                )  # fmt: skip
            covariance = (inverse @ middle @ inverse)[:k, :k]
            row.append(abs(beta[0, i]) / math.sqrt(covariance[0, 0]) * stretch[i] if k == 1
                       else beta[:k, i] @ np.linalg.inv(covariance) @ beta[:k, i] / k)  # fmt: skip
        found.append(row)
    return np.array(found)


@pytest.mark.parametrize("term", ["age", "site"])
def test_every_permuted_statistic_equals_refitting_the_model(term):
    frame = table(24)
    values = values_of(frame, 3)
    design = design_of(f"hippocampus_mm3 + {COVARIATES}", term, frame)
    exchange = Exchangeability.free(24)
    model = LinearModel.of(design, exchange)
    rows = exchange.permutations(50, np.random.default_rng(1)).rows
    statistics = direct_statistics(values, design.tested, design.nuisance, rows)
    observed = direct_statistics(values, design.tested, design.nuisance, [np.arange(24)])[0]
    test = permutation_test(values, model, Permutations(rows, False), equal_variances=True)
    assert_allclose(np.abs(test.statistic), observed, rtol=1e-9)
    assert_allclose(test.p, ((statistics >= observed - 1e-9).sum(axis=0) + 1) / 51)
    assert_allclose(test.p_fwe, ((statistics.max(axis=1)[:, None] >= observed - 1e-9).sum(axis=0) + 1) / 51)
    pooled = ((statistics[:, :, None] >= observed - 1e-9).sum(axis=(0, 1)) + 1) / (50 * 3 + 1)  # of all three columns
    assert_allclose(test.p_fdr, np.maximum(scipy.stats.false_discovery_control(pooled), test.p))


@pytest.mark.parametrize("term", ["sex", "age"])
def test_every_permuted_studentised_statistic_equals_refitting_the_model(term):
    frame = table(40)
    values = values_of(frame, 3)
    design = design_of(f"hippocampus_mm3 + {COVARIATES}", term, frame)
    exchange = Exchangeability.free(40)
    groups = np.unique(frame["sex"], return_inverse=True)[1]
    model = LinearModel.of(design, exchange, frame["sex"].tolist())
    rows = exchange.permutations(30, np.random.default_rng(1)).rows
    residuals = values - model.nuisance @ (model.nuisance.T @ values)
    studentised = StudentisedModel(model.tested, model.nuisance, groups, model.stays)
    own = studentised.size(rows, *studentised.standardised(residuals / np.linalg.norm(residuals, axis=0)))
    assert_allclose(own, direct_statistics(values, design.tested, design.nuisance, rows, groups), rtol=1e-8)


def test_every_permuted_studentised_f_equals_welch():
    """Of residuals that were brought to one spread, permuted, and have the spread of the site where they arrive."""
    frame = table(40)
    values = values_of(frame, 3) * np.where(frame["site"] == "a", 3.0, 1.0)[:, None]
    model = LinearModel.of(design_of("site", "site", frame), Exchangeability.free(40), frame["site"].tolist())
    rows = Exchangeability.free(40).permutations(10, np.random.default_rng(1)).rows
    residuals = values - values.mean(axis=0)
    studentised = StudentisedModel(model.tested, model.nuisance, model.groups, model.stays)
    own = studentised.size(rows, *studentised.standardised(residuals / np.linalg.norm(residuals, axis=0)))
    sites = frame["site"].to_numpy()
    of_site = {one: np.sqrt((residuals[sites == one] ** 2).mean(axis=0)) for one in np.unique(sites)}
    spread = np.array([of_site[one] for one in sites])
    alike = residuals / spread - (residuals / spread).mean(axis=0)
    for order, row in zip(rows, own, strict=True):
        permuted = np.empty_like(alike)
        permuted[order] = alike
        for i in range(3):
            # Covariance of the two coefficients, of independent values and of permuted ones, which add up to 0.
            weights = model.tested * spread[:, [i]]
            stretch = (weights**2).sum() / ((weights - weights.mean(axis=0)) ** 2).sum()
            oracle = anova_oneway((permuted * spread)[:, i], sites, use_var="unequal").statistic
            assert_allclose(row[i], oracle * stretch, rtol=1e-8)


@pytest.mark.ci
def test_family_wise_p_holds_where_the_smaller_group_varies_more_and_values_are_skewed():
    """The data of issue 36: 30 and 90 people, SD 2:1, lognormal. With mixed variances 20 % of 200 were found."""
    found = 0
    for seed in range(160):
        rng = np.random.default_rng(seed)
        group, fold = np.repeat([1, 0], [30, 90]), rng.permutation(120) % 5
        values = (rng.lognormal(0, 0.6, (120, 20)) - np.exp(0.18)) * np.where(group, 2, 1)[:, None]
        frame = pd.DataFrame({"group": group.astype(float), "fold": fold})
        model = model_within_folds("group", "group", frame, True, group.tolist())
        test = freedman_lane(values, model.design, model.exchange, Resampling(99, rng), group.tolist())
        found += test.p_fwe.min() <= 0.05
    assert found <= 19  # of 160, at 6.5 % (26 of 400 with 199 permutations): 99 in 100 cases


def nilearn_permutations(n, m, seed):
    """The orders that permuted_ols draws with one job: it shuffles what it shuffled before."""
    rng = check_random_state(check_random_state(seed).randint(1, np.iinfo(np.int32).max - 1, size=1)[0])
    order, rows = np.arange(n), []
    for _ in range(m):
        order = order[rng.permutation(n)]
        rows.append(order)
    return Permutations(np.array(rows, np.int32), False)


@pytest.mark.parametrize("covariates", [None, "age + sex + site"])
def test_same_statistics_and_p_as_nilearn_for_the_same_permutations(covariates):
    frame = table(50)
    values = values_of(frame, 12)
    design = design_of(f"hippocampus_mm3 + {covariates or 1}", "hippocampus_mm3", frame)
    confounds = design.nuisance[:, 1:] if covariates else None
    theirs = permuted_ols(
        design.tested, values, confounds, model_intercept=True, n_perm=200, random_state=5, n_jobs=1, output_type="dict"
    )
    model = LinearModel.of(design, Exchangeability.free(50))
    own = permutation_test(values, model, nilearn_permutations(50, 200, 5), equal_variances=True)
    assert_allclose(own.statistic, theirs["t"][0], rtol=1e-10, atol=1e-12)
    assert_allclose(-np.log10(own.p_fwe), theirs["logp_max_t"][0], rtol=1e-12)


def robust_t(x, y, z=None, df=None):
    """Plain t over the root of n mean(x^2 e^2) / (mean(x^2) mean(e^2)), of what z leaves of x and y."""
    z = np.ones((len(x), 1)) if z is None else z
    x, e = (part - z @ np.linalg.lstsq(z, part, rcond=None)[0] for part in (x, y))
    r = (x @ e) / np.linalg.norm(x) / np.linalg.norm(e)
    kappa = np.mean(x**2 * e**2) / np.mean(x**2) / np.mean(e**2)
    return r * np.sqrt((len(x) - z.shape[1] - 1 if df is None else df) / (1 - r**2) / kappa)


def test_robust_t_of_one_column_is_t_over_the_root_of_kappa():
    """By hand, with covariates; plain t for the same data is that of statsmodels."""
    frame = table(40)
    values = values_of(frame, 3) * np.where(frame["sex"] == "M", 3.0, 1.0)[:, None]
    design = design_of(COVARIATES, "age", frame)
    test = freedman_lane(values, design, Exchangeability.free(40), Resampling(99, np.random.default_rng(0)))
    expected = [robust_t(design.tested[:, 0], values[:, i], design.nuisance) for i in range(3)]
    assert_allclose(test.statistic, expected, rtol=1e-9)
    assert ((test.low < test.estimate) & (test.estimate < test.high)).all()


def test_permuted_robust_t_takes_out_the_covariates_again():
    """Exactly where covariates are balanced over what moves (here: a factor held as blocks), so by brute force."""
    rng = np.random.default_rng(8)
    frame = pd.DataFrame({"x": rng.normal(size=12), "fold": np.repeat(["a", "b", "c"], 4)})
    values = rng.normal(size=(12, 2)) * np.where(frame["fold"] == "a", 3.0, 1.0)[:, None]
    design = design_of("x + fold", "x", frame)
    exchange = Exchangeability.free(12).in_blocks(frame["fold"].tolist())
    model = LinearModel.of(design, exchange)
    permutations = exchange.permutations(40, rng)
    test = permutation_test(values, model, permutations)
    left = values - design.nuisance @ np.linalg.lstsq(design.nuisance, values, rcond=None)[0]
    null = np.array([[abs(robust_t(frame["x"].to_numpy()[rows], left[:, i], design.nuisance)) for i in range(2)]
                     for rows in permutations.rows])  # fmt: skip
    observed = np.abs(test.statistic) * (1 - 1e-5)
    assert_allclose(test.p, ((null >= observed).sum(axis=0) + 1) / 41)
    assert_allclose(test.p_fwe, ((null.max(axis=1)[:, None] >= observed).sum(axis=0) + 1) / 41)
    assert_allclose(test.critical, np.sort(null, axis=0)[-2], rtol=1e-5)  # two of 41 are the largest that 5 % allows


@pytest.mark.parametrize("groups", [False, True])
def test_an_interval_excludes_zero_exactly_where_p_is_small(groups):
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"label": rng.permutation([0.0] * 9 + [1.0] * 21), "age": rng.normal(size=30)})
    values = rng.normal(size=(30, 400)) + np.linspace(-1.5, 1.5, 400) * frame[["label"]].to_numpy()
    by = frame["label"].tolist() if groups else None
    test = freedman_lane(
        values, design_of("label + age", "label", frame), Exchangeability.free(30), Resampling(199, rng), by
    )
    outside = (test.low > 0) | (test.high < 0)
    assert 50 < outside.sum() < 350
    np.testing.assert_array_equal(outside, test.p <= 0.05)


def test_all_orders_are_used_when_there_are_no_more_and_p_is_exact():
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"x": rng.normal(size=6)})
    values = rng.normal(size=(6, 2))
    test = freedman_lane(values, design_of("x", "x", frame), Exchangeability.free(6), Resampling(720, rng))
    assert test.exact
    assert test.n_permutations == 720
    brute = np.array(
        [[abs(robust_t(np.array(order), y)) for y in values.T] for order in itertools.permutations(frame["x"])]
    )
    observed = np.array([abs(robust_t(frame["x"].to_numpy(), y)) for y in values.T]) * (1 - 1e-5)
    assert_allclose(test.p, (brute >= observed).mean(axis=0))
    assert_allclose(test.p_fwe, (brute.max(axis=1)[:, None] >= observed).mean(axis=0))
    assert not freedman_lane(values, design_of("x", "x", frame), Exchangeability.free(6), Resampling(719, rng)).exact


@pytest.mark.parametrize("columns", [1, 7, 40])
def test_the_observed_order_counts_in_the_family_too(columns):
    """Statistics in single precision depend on how many columns and orders are worked on together."""
    rng = np.random.default_rng(columns)
    for _ in range(40):
        frame = pd.DataFrame({"x": rng.normal(size=5)})
        test = freedman_lane(
            rng.normal(size=(5, columns)), design_of("x", "x", frame), Exchangeability.free(5), Resampling(200, rng)
        )
        assert test.exact
        assert (test.p >= 1 / 120).all()
        assert (test.p_fwe >= test.p - 1e-12).all()


def test_two_groups_of_equal_people_have_as_many_permutations_as_regroupings():
    rng = np.random.default_rng(4)
    frame = pd.DataFrame({"label": ["AD"] * 3 + ["CN"] * 4})
    values = rng.normal(size=(7, 3)) + [1.0, 0, 0] * (frame["label"] == "AD").to_numpy()[:, None]
    test = freedman_lane(
        values, design_of("label", "label", frame), Exchangeability.free(7), Resampling(10_000, rng), frame["label"]
    )
    assert (test.n_permutations, test.exact) == (35, True)
    patient = (frame["label"] == "AD").to_numpy()
    orders = [[*own, *np.delete(np.arange(7), own)] for own in itertools.combinations(range(7), 3)]
    every = direct_statistics(
        values, patient[:, None].astype(float), np.ones((7, 1)), np.argsort(orders, axis=1), patient
    )
    threshold = np.abs(scipy.stats.ttest_ind(values[:3], values[3:], equal_var=False).statistic)
    assert_allclose(np.abs(test.statistic), threshold)
    assert_allclose(test.p, ((every >= threshold).sum(axis=0) + 1) / 36)
    assert_allclose(test.p_fwe, ((every.max(axis=1)[:, None] >= threshold).sum(axis=0) + 1) / 36)


@pytest.mark.parametrize("kind", ["continuous", "tied", "hardly any freedom", "close calls", "factors"])
def test_counts_of_chunks_are_those_of_all_permutations_at_once(kind):
    rng = np.random.default_rng(7)
    n = 9 if kind == "hardly any freedom" else 40
    values = rng.integers(0, 2, (n, 60)) * 1.0 if kind == "tied" else rng.normal(size=(n, 60))
    nuisance = rng.normal(size=(n, 5))
    if kind == "factors":
        nuisance[:, :4] = rng.permutation(np.arange(n) % 5)[:, None] == np.arange(4)
    basis = np.linalg.qr(np.column_stack([np.ones(n), nuisance, rng.integers(0, 2, n)]))[0]
    values -= basis[:, :6] @ (basis[:, :6].T @ values)
    values = values / np.linalg.norm(values, axis=0)
    model = HomoscedasticModel(basis[:, 6:], basis[:, 1:6], n - 7)
    rows = np.argsort(rng.random((3000, n)), axis=1).astype(np.int32)
    size = model.size(rows, values)
    threshold = size[0] * (1 - 1e-9)
    if kind in ("close calls", "factors"):  # thresholds a single rounding beside the permuted values, and maxima
        threshold = size[np.arange(60), np.arange(60)] * (1 + 1e-8 * rng.choice([-1, 1], 60))
        threshold[:30] = np.sort(size.max(axis=1))[::100] * (1 + 1e-9)
    counts, largest = plain_counts(size, threshold)
    found, largest_of_chunks, _, pooled = tally(
        model.size, model.step(values, 20_000), Permutations(rows, False), values, threshold, 0.95, np.arange(60) % 2
    )
    assert (found == counts).all()
    assert ((largest_of_chunks[:, None] >= threshold) == (largest[:, None] >= threshold)).all()
    rounded = size.astype(np.float32)
    for column in range(60):
        beyond = (rounded[:, column % 2 :: 2] >= threshold[column] * (1 - 1e-6)).sum()
        assert_allclose(pooled[column], (beyond + 1) / (3000 * 30 + 1))


def test_chunks_do_not_change_the_result(monkeypatch):
    frame = table(30)
    values = values_of(frame)
    design = design_of(COVARIATES, "age", frame)

    def run(groups=None):
        return freedman_lane(
            values, design, Exchangeability.free(30), Resampling(100, np.random.default_rng(9)), groups
        )

    before = [run(), run(frame["sex"])]
    monkeypatch.setattr("heatlas.pipeline.statistics.linear.freedman_lane.CHUNK_BYTES", 3000)
    for whole, chunked in zip(before, [run(), run(frame["sex"])], strict=True):
        assert (whole.p == chunked.p).all()
        assert (whole.p_fwe == chunked.p_fwe).all()


@pytest.mark.parametrize("method", ["pearson", "spearman"])
def test_every_permutation_is_as_extreme_as_a_correlation_of_0(method):
    age = pd.DataFrame({"age": np.arange(1.0, 9)})
    values = np.array([6.0, 5, 3, 1, 4, 8, 7, 2])
    assert ((age["age"] - 4.5) * (values - 4.5)).sum() == 0
    found = partial_correlation(
        values, design_of("age", "age", age), Exchangeability.free(8), Resampling(999, np.random.default_rng(1)), method
    )
    assert found.p.tolist() == [1]


@pytest.mark.parametrize("method", ["pearson", "spearman"])
def test_correlations_equal_scipy_and_partial_ones_equal_the_inverse_correlation_matrix(method):
    frame = table(40)
    values = values_of(frame, 2)
    function = {"pearson": scipy.stats.pearsonr, "spearman": scipy.stats.spearmanr}[method]
    rng = np.random.default_rng(0)
    plain = partial_correlation(
        values, design_of("age", "age", frame), Exchangeability.free(40), Resampling(999, rng), method
    )
    for i in range(2):
        oracle = function(frame["age"], values[:, i])
        assert_allclose(plain.estimate[i], oracle.statistic, rtol=1e-10)
        assert plain.low[i] < oracle.statistic < plain.high[i]
    design = design_of("age + hippocampus_mm3 + tiv_mm3", "age", frame)
    partial = partial_correlation(values, design, Exchangeability.free(40), Resampling(99, rng), method)
    for i in range(2):
        every = np.column_stack([frame[["age", "hippocampus_mm3", "tiv_mm3"]].to_numpy(), values[:, i]])
        every = scipy.stats.rankdata(every, axis=0) if method == "spearman" else every
        precision = np.linalg.inv(np.corrcoef(every.T))
        expected = -precision[0, 3] / math.sqrt(precision[0, 0] * precision[3, 3])
        assert_allclose(partial.estimate[i], expected, rtol=1e-9)


def test_correlation_refuses_terms_of_several_columns():
    frame = table(30)
    rng = np.random.default_rng(0)
    with pytest.raises(BadInputError, match="2 columns cannot be correlated"):
        partial_correlation(
            values_of(frame), design_of("site", "site", frame), Exchangeability.free(30), Resampling(9, rng), "pearson"
        )


def test_columns_that_cannot_be_tested_say_why_and_leave_the_others_as_they_are():
    frame = table(30)
    values = values_of(frame, 5)
    design, draws = design_of(COVARIATES, "age", frame), Resampling(99, np.random.default_rng(0))
    alone = freedman_lane(values[:, :1], design, Exchangeability.free(30), draws)
    values[4, 1] = np.inf
    values[:, 2] = 0.1 + 0.2
    values[:, 3] = 5 - 2.0 * (frame["sex"] == "M")
    values[:, 4] = np.nan
    test = freedman_lane(
        values, design_of(COVARIATES, "age", frame), Exchangeability.free(30), Resampling(99, np.random.default_rng(0))
    )
    assert test.problems == (None, "no value in 1 of 30", "the values are constant",
                             "fully explained by the covariates", "no value in 30 of 30")  # fmt: skip
    for name in ("estimate", "standard_error", "statistic", "p", "p_fwe", "p_fdr", "partial_r", "df"):
        assert np.isnan(getattr(test, name)[1:]).all()
        assert getattr(test, name)[0] == pytest.approx(getattr(alone, name)[0], rel=1e-12)


def test_nothing_but_constant_columns_with_variance_groups_has_no_test():
    """Relevance that is the same in everyone: a row that says so, not a crash."""
    frame = pd.DataFrame({"group": list("AABBBB")})
    design, exchange = design_of("group", "group", frame), Exchangeability.free(6)
    test = freedman_lane(
        np.ones(6), design, exchange, Resampling(99, np.random.default_rng(0)), frame["group"].tolist()
    )
    assert test.problems == ("the values are constant",)
    assert np.isnan(test.p).all()


def test_a_perfect_fit_and_a_group_without_spread_are_the_most_extreme():
    frame = pd.DataFrame({"x": np.arange(8.0), "label": ["a"] * 4 + ["b"] * 4})
    rng = np.random.default_rng(0)
    perfect = freedman_lane(
        3 * frame["x"].to_numpy() - 1, design_of("x", "x", frame), Exchangeability.free(8), Resampling(99, rng)
    )
    assert abs(perfect.statistic[0]) > 1e6
    assert perfect.p[0] <= 0.02
    assert perfect.estimate[0] == pytest.approx(3)
    values = np.repeat([1.0, 2.0], 4)
    test = freedman_lane(
        values, design_of("label", "label", frame), Exchangeability.free(8), Resampling(99, rng), frame["label"]
    )
    assert test.statistic[0] == np.inf
    assert test.p[0] == pytest.approx(3 / 71)  # both orders that keep the groups apart, and the observed one


def test_too_small_designs_are_refused_by_name():
    frame = table(5)
    rng = np.random.default_rng(0)
    with pytest.raises(BadInputError, match=r"term age: 5 participants are too few for \d coefficients"):
        freedman_lane(values_of(frame), design_of("age + poly(hippocampus_mm3, 3)", "age", frame),
                      Exchangeability.free(5), Resampling(9, rng))  # fmt: skip
    lonely = pd.DataFrame({"label": ["a"] + ["b"] * 6})
    with pytest.raises(BadInputError, match="1 participant is too few for a variance"):
        freedman_lane(
            np.arange(7.0),
            design_of("label", "label", lonely),
            Exchangeability.free(7),
            Resampling(9, rng),
            lonely["label"],
        )
    nobody = pd.DataFrame({"x": [1.0, 2.0, 3.0]})
    test = freedman_lane(np.arange(3.0) ** 2, design_of("x", "x", nobody),
                         Exchangeability.whole_participants(["a", "b", "b"]), Resampling(9, rng))  # fmt: skip
    assert test.problems == ("only one permutation is possible",)
    assert np.isnan(test.p[0])


CODES = st.lists(st.integers(0, 5), min_size=1, max_size=14).map(lambda raw: np.unique(raw, return_inverse=True)[1])


@settings(deadline=None)  # the first call compiles
@given(CODES, st.integers(0, 100))
def test_whole_participants_move_to_participants_with_as_many_scans(codes, seed):
    exchange = Exchangeability.whole_participants(codes)
    own, sizes = exchange.codes, np.bincount(exchange.codes)
    for row in exchange.permutations(20, np.random.default_rng(seed)).rows:
        assert sorted(row) == list(range(len(codes)))
        for code in range(len(sizes)):
            source = row[own == code]
            (origin,) = np.unique(own[source])
            assert sizes[origin] == sizes[code]
            assert (source == np.flatnonzero(own == origin)).all()


@settings(deadline=None)  # the first call compiles
@given(st.lists(st.integers(0, 2), min_size=1, max_size=8), st.integers(0, 10))
def test_orders_of_things_partly_alike_are_complete_and_distinct(labels, seed):
    labels = np.array(labels)
    distinct = math.factorial(len(labels)) // math.prod(math.factorial(n) for n in np.bincount(labels))
    every = Exchangeability.free(len(labels)).permutations(distinct, np.random.default_rng(seed), labels)
    assert every.exact
    assert len({tuple(labels[row]) for row in every.rows}) == len(every) == distinct
    assert any((row == np.arange(len(labels))).all() for row in every.rows)
    assert all(sorted(row) == list(range(len(labels))) for row in every.rows)
    if distinct > 1:
        assert (
            not Exchangeability.free(len(labels)).permutations(distinct - 1, np.random.default_rng(seed), labels).exact
        )


def test_all_exchanges_of_whole_participants_are_used_when_there_are_no_more():
    exchange = Exchangeability.whole_participants([0, 0, 1, 2, 2, 3, 4])  # two pairs, three single scans: 2! x 3!
    some = exchange.permutations(12, np.random.default_rng(0))
    assert some.exact
    assert len({tuple(row) for row in some.rows}) == len(some) == 12
    assert not exchange.permutations(11, np.random.default_rng(0)).exact
    alike = exchange.permutations(12, np.random.default_rng(0), alike=[5, 6, 1, 5, 6, 1, 2])
    assert len(alike) == 3  # the pairs are alike, and two of the single scans


def test_random_permutations_are_uniform():
    rows = Exchangeability.free(4).permutations(20, np.random.default_rng(0)).rows
    assert rows.shape == (20, 4)
    many = Exchangeability.free(5).permutations(119, np.random.default_rng(1))
    assert not many.exact
    drawn = np.concatenate(
        [
            Exchangeability.free(5).permutations(119, np.random.default_rng(s)).rows @ 5 ** np.arange(5)
            for s in range(50)
        ]
    )
    assert scipy.stats.chisquare(np.unique(drawn, return_counts=True)[1]).pvalue > 1e-3
    assert len(np.unique(drawn)) == 120


def test_p_counts_the_observed_order_once():
    assert p_value(np.array([0, 1, 4]), 4, exact=False).tolist() == [1 / 5, 2 / 5, 1]
    assert p_value(np.array([1, 4]), 4, exact=True).tolist() == [1 / 4, 1]


def longitudinal():
    rng = np.random.default_rng(0)
    sizes = [1, 3, 2, 4, 3, 1, 5, 2, 3]
    who = np.repeat([f"sub-{i}" for i in range(len(sizes))], sizes)
    shuffled = rng.permutation(len(who))
    frame = pd.DataFrame({"participant_id": who, "years": rng.uniform(0, 5, len(who))})
    frame["mmse"] = rng.normal(27, 2, len(who))
    frame["sex"] = np.repeat(list("FMFMFMFMF"), sizes)
    y = rng.normal(size=len(who)) + np.repeat(rng.normal(0, 5, len(sizes)), sizes) - 0.3 * frame["years"].to_numpy()
    return frame.iloc[shuffled].reset_index(drop=True), y[shuffled]


def test_participant_means_is_the_model_of_averaged_columns():
    frame, y = longitudinal()
    frame["field_strength"] = np.where(np.arange(len(frame)) % 3 == 0, "1.5", "3")
    design = design_of("mmse + years + field_strength", "mmse", frame)
    exchange = Exchangeability.participant_means(frame["participant_id"])
    test = freedman_lane(y, design, exchange, Resampling(99, np.random.default_rng(0)), equal_variances=True)
    means = frame.assign(y=y, strong=(frame["field_strength"] == "3").astype(float))
    means = means.groupby("participant_id")[["y", "mmse", "years", "strong"]].mean()
    fit = smf.ols("y ~ mmse + years + strong", means).fit()
    assert_allclose([test.statistic[0], test.estimate[0]], [fit.tvalues["mmse"], fit.params["mmse"]], rtol=1e-9)
    assert (test.n_units, test.df[0]) == (9, fit.df_resid)
    assert exchange.groups_of_units(["a"] * len(frame)).tolist() == [0] * 9


def test_someone_with_scans_in_two_groups_has_the_variance_of_the_group_with_most():
    exchange = Exchangeability.participant_means(["x", "y", "x", "x", "y"])
    assert exchange.groups_of_units(["AD", "CN", "CN", "AD", "CN"]).tolist() == [0, 1]


def test_a_scan_of_nobody_is_refused_by_name():
    with pytest.raises(BadInputError, match="participant_id: row 2 has no value"):
        Exchangeability.participant_means(["sub-01", None, "sub-02"])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("apart", "names"),
    [(["map"], {"2 tests: gb", "1 tests: lrp"}), (["map", "n"], {"2 tests: gb, 1", "1 tests: lrp, 2"})],
)
def test_each_family_is_adjusted_by_itself(apart: list[str], names: set[str]) -> None:
    table = pd.DataFrame({"map": ["gb", "lrp", "gb"], "n": [1, 2, 1], "p": [0.01, 0.02, 0.04]})
    adjusted = add_false_discovery_rate(table, apart, "tests")
    assert adjusted["p_fdr"].tolist() == [0.02, 0.02, 0.04]
    assert set(adjusted["family"]) == names
