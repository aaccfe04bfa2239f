"""ComBat against neuroCombat 0.2.12, against planted site effects, and on what cannot be harmonised."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.statistics.harmonisation.combat import POOL, fit, inverse_gamma_prior, posterior

GOLDEN = json.loads((Path(__file__).parent / "data" / "neurocombat.json").read_text())
COVARIATES = np.column_stack([GOLDEN["age"], GOLDEN["sex"]])


@pytest.mark.parametrize(
    ("case", "options", "limit"),
    [
        ("eb_converged", {}, 1e-10),
        ("no_eb", {"empirical_bayes": False}, 1e-10),
        ("reference", {"reference": "B"}, 1e-10),
        ("reference_no_eb", {"reference": "B", "empirical_bayes": False}, 1e-10),
        ("no_covariates", {"covariates": None}, 1e-10),
        # As published it stops when nothing changes by more than 1e-4; what we iterate on is the difference.
        ("eb", {}, 2e-5),
    ],
)
def test_agrees_with_neurocombat(case, options, limit):
    options = {"covariates": COVARIATES} | options
    values, expected = np.array(GOLDEN["values"]), GOLDEN[case]
    model = fit(values, GOLDEN["site"], **options)
    np.testing.assert_allclose(model.sigma**2, expected["pooled_variance"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(model.gamma, expected["gamma"], rtol=0, atol=limit)
    np.testing.assert_allclose(model.delta, expected["delta"], rtol=0, atol=limit)
    harmonised = model.transform(values, GOLDEN["site"], options["covariates"])
    np.testing.assert_allclose(harmonised, expected["harmonised"], rtol=0, atol=limit)


def planted(n=600, n_features=12, seed=1, share_of_patients=(0.5, 0.5, 0.5), stretch_sd=0.3):
    """Values of three sites, each with a shift and a stretch per feature."""
    rng = np.random.default_rng(seed)
    number = np.arange(n) % 3
    age = rng.normal(0, 1, n)
    patient = (rng.uniform(size=n) < np.array(share_of_patients)[number]).astype(float)
    slope, disease = rng.normal(0, 1, n_features), rng.normal(0, 1, n_features)
    noise = rng.normal(size=(n, n_features))
    shift = rng.normal(0, 1, (3, n_features))
    stretch = np.exp(rng.normal(0, stretch_sd, (3, n_features)))
    kept = 5 + np.outer(age, slope) + np.outer(patient, disease)
    return {
        "values": kept + shift[number] + stretch[number] * noise, "site": [f"s{i}" for i in number], "number": number,
        "age": age, "patient": patient, "slope": slope, "disease": disease,
    }  # fmt: skip


def slopes(values, *columns):
    design = np.column_stack([np.ones(len(values)), *columns])
    return np.linalg.lstsq(design, values, rcond=None)[0][1:]


def test_planted_shift_and_stretch_go_and_the_covariate_stays():
    cohort = planted()
    age = cohort["age"][:, None]
    covariates = np.column_stack([age, cohort["patient"]])
    harmonised = fit(cohort["values"], cohort["site"], covariates).transform(
        cohort["values"], cohort["site"], covariates
    )
    rest = {
        name: values - covariates @ slopes(values, covariates)
        for name, values in (("before", cohort["values"]), ("after", harmonised))
    }
    means = {name: np.array([v[cohort["number"] == i].mean(0) for i in range(3)]).std(0) for name, v in rest.items()}
    spreads = {name: np.array([v[cohort["number"] == i].std(0) for i in range(3)]).std(0) for name, v in rest.items()}
    assert means["after"].max() < 0.03 < 0.2 < np.median(means["before"])
    assert spreads["after"].max() < 0.05 < 0.1 < np.median(spreads["before"])
    error = 1 / np.sqrt(len(harmonised))
    np.testing.assert_allclose(slopes(harmonised, covariates)[0], cohort["slope"], atol=5 * error)


def test_a_reference_site_stays_and_the_others_become_like_it():
    cohort = planted()
    model = fit(cohort["values"], cohort["site"], cohort["age"][:, None], reference="s1")
    after = model.transform(cohort["values"], cohort["site"], cohort["age"][:, None])
    of = {i: after[cohort["number"] == i] for i in range(3)}
    assert np.array_equal(of[1], cohort["values"][cohort["number"] == 1])
    np.testing.assert_allclose(of[0].std(0), of[1].std(0), rtol=0.25)
    np.testing.assert_allclose(of[0].mean(0), of[1].mean(0), atol=0.3)


def test_training_covariates_save_the_disease_where_sites_differ_in_patients_and_transform_needs_no_label():
    cohort = planted(n=3000, share_of_patients=(0.1, 0.5, 0.9), stretch_sd=0)
    age, patient = cohort["age"][:, None], cohort["patient"][:, None]
    effect = {}
    for name, extra in (("known", patient), ("not known", None)):
        model = fit(cohort["values"], cohort["site"], age, training_covariates=extra)
        after = model.transform(cohort["values"], cohort["site"], age)
        effect[name] = slopes(after, age, patient)[1]
    lost = {name: np.abs(found - cohort["disease"]).mean() for name, found in effect.items()}
    assert lost["known"] < 0.05
    assert lost["not known"] > 0.2


def test_rows_are_transformed_one_by_one_and_the_model_does_not_change():
    cohort = planted(n=60)
    age = cohort["age"][:, None]
    model = fit(cohort["values"], cohort["site"], age)
    before = {field.name: np.copy(getattr(model, field.name)) for field in dataclasses.fields(model)}
    together = model.transform(cohort["values"], cohort["site"], age)
    alone = [model.transform(cohort["values"][[i]], [cohort["site"][i]], age[[i]])[0] for i in range(60)]
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-12)
    for name, value in before.items():
        assert np.array_equal(value, getattr(model, name), equal_nan=value.dtype == float), name


def test_posterior_solves_its_equations():
    rng = np.random.default_rng(0)
    gamma_hat, delta_hat, counts = rng.normal(1, 0.3, 20), rng.uniform(0.5, 2, 20), np.full(20, 6.0)
    gamma, delta = posterior(gamma_hat, delta_hat, counts)
    spread, (a, b) = gamma_hat.var(ddof=1), inverse_gamma_prior(delta_hat)
    squares = 5 * delta_hat + 6 * (gamma_hat - gamma) ** 2
    np.testing.assert_allclose(delta, (squares / 2 + b) / (6 / 2 + a - 1), rtol=1e-11)
    np.testing.assert_allclose(
        gamma, (spread * 6 * gamma_hat + delta * gamma_hat.mean()) / (spread * 6 + delta), rtol=1e-11
    )
    assert gamma.std() < gamma_hat.std()
    assert delta.std() < delta_hat.std()


def test_the_prior_has_the_moments_of_the_variances():
    variances = np.random.default_rng(1).uniform(0.5, 3, 200)
    a, b = inverse_gamma_prior(variances)
    assert b / (a - 1) == pytest.approx(variances.mean())
    assert b**2 / ((a - 1) ** 2 * (a - 2)) == pytest.approx(variances.var(ddof=1))


def test_equal_variances_over_features_need_no_prior():
    gamma, delta = posterior(np.array([0.5, 1.5, 1.0]), np.full(3, 0.7), np.full(3, 5.0))
    np.testing.assert_allclose(delta, 0.7, rtol=1e-12)
    assert gamma == pytest.approx([(0.25 * 5 * g + 0.7) / (0.25 * 5 + 0.7) for g in (0.5, 1.5, 1.0)])


def test_an_unseen_site_is_refused_by_name_or_pooled():
    cohort = planted(n=60)
    with pytest.raises(BadInputError, match=r"not fitted on site nowhere .*s0, s1, s2.*unseen_site"):
        fit(cohort["values"], cohort["site"]).transform(cohort["values"][:1], ["nowhere"])
    pooled = fit(cohort["values"], cohort["site"], unseen_site="pooled")
    assert np.array_equal(pooled.transform(cohort["values"][:1], ["nowhere"]), cohort["values"][:1])


def test_sites_of_one_participant_are_refused_by_name_or_pooled():
    cohort = planted(n=60)
    site = [*cohort["site"][:57], "x", "y", "z"]
    with pytest.raises(BadInputError, match=r"site x \(1\), y \(1\), z \(1\)"):
        fit(cohort["values"], site)
    model = fit(cohort["values"], site, small_site="pooled", unseen_site="pooled")
    assert model.members == ("x", "y", "z")
    assert model.counts[POOL] == 3
    joined = fit(cohort["values"], [*cohort["site"][:57], *["together"] * 3])
    after = model.transform(cohort["values"], site)
    np.testing.assert_allclose(
        after, joined.transform(cohort["values"], [*cohort["site"][:57], *["together"] * 3]), rtol=0, atol=1e-10
    )
    assert np.array_equal(model.transform(cohort["values"][57:58], ["new"]), after[57:58])


def test_one_small_site_alone_takes_no_part():
    cohort = planted(n=60)
    site = [*cohort["site"][:59], "x"]
    model = fit(cohort["values"], site, small_site="pooled", unseen_site="pooled")
    without = fit(cohort["values"][:59], site[:59])
    assert model.left_out == ("x",)
    assert np.array_equal(model.gamma, without.gamma)
    assert np.array_equal(model.transform(cohort["values"], site)[59], cohort["values"][59])


def test_a_constant_feature_and_one_without_spread_at_a_site_are_named_and_stay():
    cohort = planted(n=60)
    values = cohort["values"].copy()
    values[:, 3] = 7.0
    values[cohort["number"] == 1, 5] = 2.0
    model = fit(values, cohort["site"])
    assert model.unadjusted == {
        3: "constant at site s0", 5: "constant at site s1"
    }  # fmt: skip
    after = model.transform(values, cohort["site"])
    assert np.array_equal(after[:, [3, 5]], values[:, [3, 5]])
    others = [i for i in range(values.shape[1]) if i not in (3, 5)]
    alone = fit(values[:, others], cohort["site"]).transform(values[:, others], cohort["site"])
    np.testing.assert_allclose(after[:, others], alone, rtol=0, atol=1e-10)


def test_missing_values_stay_missing_and_cost_only_their_rows():
    cohort = planted(n=60)
    values = cohort["values"].copy()
    values[:4, 2] = np.nan
    age = cohort["age"][:, None]
    model = fit(values, cohort["site"], age, empirical_bayes=False)
    without = fit(values[4:], cohort["site"][4:], age[4:], empirical_bayes=False)
    after = model.transform(values, cohort["site"], age)
    assert np.isnan(after[:4, 2]).all()
    assert np.isnan(after).sum() == 4
    # Sites weigh in the grand mean by their rows, missing or not; everything else is as without these rows.
    difference = after[4:, 2] - without.transform(values[4:], cohort["site"][4:], age[4:])[:, 2]
    assert np.ptp(difference) < 1e-10
    assert model.sigma[2] == pytest.approx(without.sigma[2])


def test_a_row_without_covariate_has_no_harmonised_value():
    cohort = planted(n=60)
    age = cohort["age"][:, None].copy()
    model = fit(cohort["values"], cohort["site"], age)
    age[0] = np.nan
    after = model.transform(cohort["values"], cohort["site"], age)
    assert np.isnan(after[0]).all()
    assert not np.isnan(after[1:]).any()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"covariates": np.ones((60, 1)), "covariate_names": ["age"]}, "age is collinear with the site"),
        (
            {"covariates": (np.arange(60) % 3 == 1)[:, None], "covariate_names": ["tesla"]},
            "tesla is collinear with the site",
        ),
        ({"covariates": np.full((60, 1), np.nan)}, "contain n/a"),
        ({"reference": "s9"}, "reference site s9 is not among s0, s1, s2"),
        ({"site": ["one"] * 60}, "1 site to compare"),
        ({"values": np.arange(60.0)[:, None] ** 2}, "fewer than two features"),
        ({"covariates": np.random.default_rng(0).normal(size=(60, 57))}, "leave no residual variance"),
    ],
)
def test_what_cannot_be_fitted_is_refused_by_name(change, said):
    cohort = planted(n=60)
    arguments = {"values": cohort["values"], "site": cohort["site"]} | change
    with pytest.raises(BadInputError, match=said):
        fit(**arguments)


def test_other_columns_than_in_training_are_refused():
    cohort = planted(n=60)
    model = fit(cohort["values"], cohort["site"], cohort["age"][:, None])
    with pytest.raises(BadInputError, match="12 features and 0 covariates"):
        model.transform(cohort["values"], cohort["site"])
