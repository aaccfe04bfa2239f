"""Scores against controls: as statsmodels predicts, and standard normal in new controls however few made the norm."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats

from heatlas.pipeline.statistics.normative.w_scores import fit_norm


def controls_of(n, rng, n_features=1):
    covariates = np.column_stack([rng.uniform(60, 85, n), np.arange(n) % 2])
    return covariates, 3 + covariates @ np.array([[-0.1], [2.0]]) + 1.7 * rng.normal(size=(n, n_features))


def test_w_and_z_are_those_of_a_regression():
    rng = np.random.default_rng(0)
    covariates, values = controls_of(25, rng, 3)
    others, theirs = controls_of(4, rng, 3)
    norm = fit_norm(values, covariates, 5)
    w, z = norm.scores(theirs, others)
    for i in range(3):
        model = sm.OLS(values[:, i], sm.add_constant(covariates)).fit()
        predicted = model.get_prediction(sm.add_constant(others, has_constant="add"))
        residual = theirs[:, i] - predicted.predicted_mean
        np.testing.assert_allclose(w[:, i], residual / np.sqrt(model.scale), rtol=1e-9)
        t = residual / np.sqrt(predicted.var_pred_mean + model.scale)
        np.testing.assert_allclose(z[:, i], stats.norm.ppf(stats.t.cdf(t, model.df_resid)), rtol=1e-7)
        assert norm.freedom[i] == model.df_resid
        assert norm.deviation[i] == pytest.approx(np.sqrt(model.scale))


@pytest.mark.parametrize("n", [9, 60])
def test_new_controls_are_standard_normal_by_z_and_not_by_w_when_norms_are_made_of_few(n):
    rng = np.random.default_rng(1)
    w, z = [], []
    for _ in range(1500):
        covariates, values = controls_of(n, rng)
        one, theirs = controls_of(1, rng)
        scores = fit_norm(values, covariates, 5).scores(theirs, one)
        w.append(scores[0].item())
        z.append(scores[1].item())
    beyond = np.mean(np.abs(z) > 1.96)
    assert 0.035 < beyond < 0.065
    assert stats.kstest(z, "norm").pvalue > 0.001
    assert (np.mean(np.abs(w) > 1.96) > 0.12) == (n == 9)


def test_far_out_scores_stay_finite_and_keep_their_sign():
    rng = np.random.default_rng(2)
    covariates, values = controls_of(40, rng)
    _, z = fit_norm(values, covariates, 5).scores(values[:2] + np.array([[1e3], [-1e3]]), covariates[:2])
    assert np.isfinite(z).all()
    assert z[0] > 8 > -8 > z[1]


def test_missing_values_cost_only_their_rows():
    rng = np.random.default_rng(3)
    covariates, values = controls_of(20, rng, 2)
    holed = values.copy()
    holed[:3, 1] = np.nan
    norm, without = fit_norm(holed, covariates, 5), fit_norm(values[3:], covariates[3:], 5)
    others, theirs = controls_of(2, rng, 2)
    np.testing.assert_allclose(norm.scores(theirs, others)[1][:, 1], without.scores(theirs, others)[1][:, 1])
    np.testing.assert_allclose(norm.coefficients[:, 0], fit_norm(values, covariates, 5).coefficients[:, 0])
    assert norm.controls.tolist() == [20, 17]
    theirs[0, 0] = np.nan
    assert np.isnan(norm.scores(theirs, others)[1]).tolist() == [[True, False], [False, False]]


def test_too_few_controls_and_controls_that_do_not_differ_make_no_norm():
    rng = np.random.default_rng(4)
    covariates, values = controls_of(8, rng, 3)
    values[0, 1] = np.nan
    values[:, 2] = 5.0
    norm = fit_norm(values, covariates, 5)
    assert norm.problems == (None, "7 controls for 3 coefficients; 8 or more are needed", "the controls are constant")
    assert np.isnan(norm.scores(values, covariates)[1]).all(axis=0).tolist() == [False, True, True]


def test_covariates_that_hang_together_where_values_are_known_make_no_norm():
    rng = np.random.default_rng(5)
    covariates, values = controls_of(12, rng)
    covariates[:, 1] = 0
    covariates[0, 1] = 1
    values[0] = np.nan
    assert fit_norm(values, covariates, 5).problems[0].startswith("covariates are collinear")
