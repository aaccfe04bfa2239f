"""ComBat against neuroCombat 0.2.12 and planted site effects, and fold by fold as a run harmonises."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from folded_cohort import GROUPS, MAPS, inputs_of, quick_config, scans_of, with_applied

from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.config.statistics import SubgroupsConfig
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.statistics.arrays import Resampling
from heatlas.pipeline.statistics.data.features import CovariateColumns, FoldedScans
from heatlas.pipeline.statistics.data.inputs import one_name_per_person
from heatlas.pipeline.statistics.data.members import levels_of
from heatlas.pipeline.statistics.harmonisation.combat import POOL, fit, inverse_gamma_prior, posterior
from heatlas.pipeline.statistics.harmonisation.sites import fold_model, harmonise, site_effect, spread_test
from heatlas.pipeline.statistics.harmonisation.tables import HARMONISATION_TABLES, harmonisation_tables
from heatlas.pipeline.statistics.linear.design import design_of

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
    return dict(values=kept + shift[number] + stretch[number] * noise, site=[f"s{i}" for i in number]) | dict(
        number=number, age=age, patient=patient, slope=slope, disease=disease
    )


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
    assert model.unadjusted == {3: "constant at site s0", 5: "constant at site s1"}
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


def site_cohort(n=90, shift=2.0, stretch=2.0, config=None, seed=5):
    """Site 101 adds to every density and volume and stretches it; patients have more in the hippocampus."""
    rng = np.random.default_rng(seed)
    scans = scans_of(n)
    there = np.array([s.site == "101" for s in scans], float)
    patient = np.array([s.label == "AD" for s in scans], float)
    age = np.array([s.age for s in scans])
    noise = rng.normal(size=(len(scans), len(MAPS) + 1, len(GROUPS)))
    stretches = stretch * np.exp(0.1 * rng.normal(size=noise.shape[1:]))
    values = 10 + 0.1 * (age - 70)[:, None, None] + np.where(there[:, None, None] > 0, stretches, 1) * noise
    values += there[:, None, None] * (shift + rng.normal(0, 0.3, noise.shape[1:]))
    values[:, :, GROUPS.index("Hippocampus")] += 3 * patient[:, None]
    return inputs_of(scans, values[:, :-1], 1000 * values[:, -1], config or quick_config())


@pytest.fixture(scope="module")
def tables():
    return harmonisation_tables(site_cohort())


@pytest.fixture(scope="module")
def small():
    return harmonisation_tables(site_cohort(n=36))


@pytest.mark.ci
def test_tables_have_the_columns_they_describe(small):
    for table in HARMONISATION_TABLES:
        assert list(small[table.name].columns) == list(table.meanings)


def test_planted_shift_and_stretch_are_found_before_and_gone_after(tables):
    effects = tables["site_effects"].set_index("effect")
    assert (effects.loc["location", "p_fwe_before"] <= 0.05).mean() > 0.9
    assert (effects.loc["scale", "p_before"] <= 0.05).mean() > 0.6
    assert (effects["p_fwe_after"] > 0.05).all()
    assert (effects.loc["location", "r2_after"] < 0.2 * effects.loc["location", "r2_before"]).all()


def test_the_disease_stays(tables):
    found = tables["harmonised_relevance"]
    labels = {s.scan_id: s.label for s in scans_of(90)}
    own = found[(found["map"] == "gb") & (found["group"] == "Hippocampus")]
    distance = {}
    for column in ("density", "harmonised"):
        classes = own[column].groupby(own["scan_id"].map(labels))
        means, spread = classes.mean(), np.sqrt(classes.var().mean())
        distance[column] = (means["AD"] - means["CN"]) / spread
    assert distance["harmonised"] > 1.2 * distance["density"] > 1.2


def test_without_a_site_effect_nothing_is_found_and_little_changes():
    made = harmonisation_tables(site_cohort(shift=0.0, stretch=1.0, seed=8))
    effects = made["site_effects"]
    assert (effects["p_fwe_before"] > 0.01).mean() > 0.9
    found = made["harmonised_relevance"]
    assert np.corrcoef(found["density"], found["harmonised"])[0, 1] > 0.9


def test_networks_of_other_level_and_scale_change_nothing_but_their_level_and_scale():
    """Sites are unbalanced over folds, so ComBat without the fold takes the networks' levels for effects of site."""
    inputs = site_cohort(n=60)
    scans = FoldedScans.of(inputs)
    settings, features = inputs.config.statistics.harmonisation, scans.sources[0]
    frame = scans.frame.copy()
    fold = np.array([int(one) for one in scans.fold])
    rng = np.random.default_rng(0)
    person, codes = np.unique(frame["participant_id"], return_inverse=True)
    own = np.array([fold[codes == i][0] for i in range(len(person))]) % 2
    frame["site"] = np.where(rng.random(len(person)) < 0.7, own, 1 - own)[codes].astype(str)
    scans = dataclasses.replace(scans, frame=frame)
    scale, level = 1 + fold[:, None], 5.0 * fold[:, None] * (1 + np.arange(features.values.shape[1]))
    other = dataclasses.replace(features, values=features.values * scale + level)
    held, plain = (
        [harmonise(one, scans, settings, hold).values for one in (features, other)] for hold in (True, False)
    )
    np.testing.assert_allclose(held[1], held[0] * scale + level, rtol=1e-6, atol=1e-6)
    assert np.abs(plain[1] - (plain[0] * scale + level)).max() > 1
    assert np.abs(held[0] - features.values).max() > 0.5  # effects of site are removed all the same


def test_where_sites_are_folds_the_network_is_not_held_and_the_model_says_so():
    inputs = site_cohort(n=60)
    scans = FoldedScans.of(inputs)
    scans = dataclasses.replace(scans, frame=scans.frame.assign(site=[f"of {fold}" for fold in scans.fold]))
    done = harmonise(scans.sources[0], scans, inputs.config.statistics.harmonisation, True)
    assert done.models
    assert not any(model.held for model in done.models.values())
    assert all("fold is collinear with the site" in str(model.not_held) for model in done.models.values())


def test_rows_say_what_a_comparison_of_classes_needs(tables):
    models = tables["harmonisation_models"]
    assert models["note"].str.contains("classes compared in these values: hold site").all()
    assert models["fold_held"].eq(models["source"] != "volume").all()


def test_nothing_of_a_test_fold_reaches_its_model():
    inputs = site_cohort()
    scans = FoldedScans.of(inputs)
    tested = scans.tested("1")
    changed_frame = scans.frame.copy()
    changed_frame.loc[tested, ["age", "tiv_mm3"]] = [20.0, 9e6]
    changed_frame.loc[tested, ["site", "sex", "label"]] = ["elsewhere", "F", "CN"]
    changed = dataclasses.replace(
        scans,
        frame=changed_frame,
        sources=tuple(
            dataclasses.replace(one, values=np.where(tested[:, None], 1e6 * one.values**2, one.values))
            for one in scans.sources
        ),
    )
    settings = inputs.config.statistics.harmonisation
    for before, after in zip(scans.sources, changed.sources, strict=True):
        models = [fold_model(one, of, "1", settings).combat for one, of in ((before, scans), (after, changed))]
        for field in dataclasses.fields(models[0]):
            one, other = (getattr(model, field.name) for model in models)
            assert np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other, field.name
        elsewhere = [fold_model(one, of, "0", settings).combat for one, of in ((before, scans), (after, changed))]
        assert not np.array_equal(elsewhere[0].alpha, elsewhere[1].alpha)  # the change is seen where it may be seen


def test_a_person_counts_once_in_training_by_their_first_scan():
    scans = FoldedScans.of(site_cohort())
    assert scans.first.sum() == 90
    assert scans.frame.loc[scans.first, "session_id"].eq("ses-M000").all()
    assert set(scans.frame.loc[scans.training("2"), "participant_id"]).isdisjoint(
        scans.frame.loc[scans.tested("2"), "participant_id"]
    )


def test_one_person_under_two_names_is_one_and_never_trains_their_own_model():
    scans = scans_of(12, second_scans=0)
    names = {"sub-000": "sub-ADNI002S0295", "sub-003": "sub-ADNI131S0295"}
    inputs = inputs_of(scans, np.zeros((12, 2, 6)), None, quick_config())
    renamed = tuple(dataclasses.replace(s, participant_id=names.get(s.participant_id, s.participant_id)) for s in scans)
    frame = inputs.values.scans.assign(participant_id=[s.participant_id for s in renamed])
    values = dataclasses.replace(inputs.values, scans=frame)
    split = dataclasses.replace(inputs.split, folds=())
    changed = dataclasses.replace(inputs, scans=renamed, predictions=frame, values=values, split=split)
    folded = FoldedScans.of(one_name_per_person(changed))
    own = [i for i, s in enumerate(renamed) if s.participant_id in names.values()]
    assert len({folded.fold[i] for i in own}) == 1
    assert folded.first[own].sum() == 1


def test_what_each_site_was_treated_as(tables):
    models = tables["harmonisation_models"]
    one = models[(models["source"] == "gb") & (models["fold"] == "0")].set_index("site")
    assert (one["treatment"] == "own parameters").all()
    assert one["n_training"].sum() == 60
    assert one["covariates"].iloc[0] == "age, sex[T.M]"
    assert one.loc["101", "scale"] > 1.3 * one.loc["100", "scale"]
    assert one.loc["101", "gamma"] > 0 > one.loc["100", "gamma"]


def with_a_lonely_site(inputs):
    scans = tuple(dataclasses.replace(s, site="lonely") if s.participant_id == "sub-000" else s for s in inputs.scans)
    return dataclasses.replace(inputs, scans=scans)


def test_a_site_of_one_participant_stays_as_it_is_and_is_named():
    made = harmonisation_tables(with_a_lonely_site(site_cohort(n=36)))
    found = made["harmonised_relevance"]
    own = found[found["participant_id"] == "sub-000"]
    assert np.array_equal(own["density"], own["harmonised"])
    assert own["note"].eq("no parameters for site lonely in this fold: unchanged").all()
    treatment = made["harmonisation_models"].query("site == 'lonely'")["treatment"]
    assert treatment.eq("unchanged").all()
    assert made["site_effects"]["note"].eq("1 participant of small sites left out").all()


@pytest.mark.parametrize("setting", ["unseen_site", "small_site"])
def test_a_site_of_one_participant_is_refused_by_option(setting):
    config = quick_config(harmonisation={setting: "refuse"})
    made = harmonisation_tables(with_a_lonely_site(site_cohort(n=36, config=config)))
    models, values = made["harmonisation_models"], made["harmonised_relevance"]
    refused = models["note"].str.contains("site lonely", na=False)
    # Fold 0 tests the participant: its scans are refused, or those of the folds that train with them.
    assert set(models.loc[refused, "fold"]) == ({"0"} if setting == "unseen_site" else {"1", "2"})
    in_refused = values["fold"].isin(set(models.loc[refused, "fold"]))
    assert values.loc[in_refused, "harmonised"].isna().all()
    assert values.loc[in_refused, "note"].str.contains("site lonely").all()
    assert values.loc[~in_refused, "harmonised"].notna().all()
    assert made["site_effects"]["note"].str.contains(r"fold \d left out: .*site lonely").all()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"site_column": "scanner"}, "site_column = 'scanner': scans have no such column"),
        ({"relevance_covariates": "age + label"}, "relevance_covariates = 'age . label': label contains the class"),
        (
            {"volume_covariates": "age + diagnosis"},
            "volume_covariates = 'age . diagnosis': diagnosis contains",
        ),
        ({"relevance_covariates": "age + smoking"}, "no column 'smoking'"),
        ({"reference_site": "Mars"}, "reference site Mars"),
        (
            {"relevance_covariates": "age + site", "volume_covariates": "age + site"},
            "site.T.10.. is collinear with the site",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(settings, said):
    with pytest.raises(BadInputError, match=said):
        harmonisation_tables(site_cohort(n=36, config=quick_config(harmonisation=settings)))


def test_a_cohort_without_sites_or_with_one_says_so():
    inputs = site_cohort(n=36)
    for site, said in ((None, "site is n/a in every scan"), ("here", "1 site to compare")):
        scans = tuple(dataclasses.replace(s, site=site) for s in inputs.scans)
        with pytest.raises(BadInputError, match=said):
            harmonisation_tables(dataclasses.replace(inputs, scans=scans))


def test_a_scan_without_site_or_covariate_is_named():
    inputs = site_cohort(n=36)
    lost = {"sub-005": {"site": None}, "sub-006": {"age": None}}
    scans = tuple(dataclasses.replace(s, **lost.get(s.participant_id, {})) for s in inputs.scans)
    made = harmonisation_tables(dataclasses.replace(inputs, scans=scans))
    found = made["harmonised_volumes"].set_index("participant_id")
    assert found.loc["sub-005", "note"].eq("site is n/a").all()
    assert found.loc["sub-006", "note"].eq("age is n/a").all()
    assert found.loc[["sub-005", "sub-006"], "harmonised"].isna().all()
    assert found.drop(index=["sub-005", "sub-006"])["harmonised"].notna().all()
    notes = made["harmonisation_models"].query("source == 'gb' and fold == '2'")["note"]
    assert notes.str.startswith("1 participant left out: age is n/a; 1 participant left out: site is n/a; ").all()


def test_one_fold_only_leaves_nobody_to_fit_on():
    inputs = site_cohort(n=36)
    frame = inputs.values.scans.assign(fold=0)
    values = dataclasses.replace(inputs.values, scans=frame)
    split = dataclasses.replace(inputs.split, folds=())
    with pytest.raises(BadInputError, match="no participant outside the fold"):
        harmonisation_tables(dataclasses.replace(inputs, values=values, split=split))


def test_scans_outside_the_contrast_are_given_a_model_of_everybody_and_change_none(small):
    inputs = site_cohort(n=36)
    mci = [
        Scan("sub-900", None, "M1", None, "MCI", None, age=70.0, sex="F", site="101", tiv_mm3=1.4e6),
        Scan("sub-002", "ses-M024", "M2", None, "MCI", None, age=80.0, sex="F", site="101", tiv_mm3=1.4e6),
    ]
    more = with_applied(inputs, mci, np.full((2, 2, 6), 12.0))
    before, after = (made["harmonised_relevance"] for made in (small, harmonisation_tables(more)))
    new = after[after["scan_id"].isin(["M1", "M2"])]
    assert after[~after["scan_id"].isin(["M1", "M2"])].reset_index(drop=True).equals(before.reset_index(drop=True))
    assert new.groupby("scan_id")["fold"].first().to_dict() == {"M1": "all", "M2": "0"}
    assert (new["harmonised"] < 12).all()


@pytest.mark.ci
def test_two_runs_give_the_same_numbers(small):
    again = harmonisation_tables(site_cohort(n=36))
    for name in small:
        assert small[name].equals(again[name]), name


def test_sites_named_by_numbers_are_names():
    inputs = site_cohort(n=60)
    frame = inputs.frame[FoldedScans.of(inputs).first].reset_index(drop=True)
    values = np.random.default_rng(0).normal(size=(60, 2))
    site = frame["site"].tolist()
    test, _ = site_effect("location", values, site, "age", frame, Resampling(99, np.random.default_rng(0)))
    assert test.df_tested == 2


def test_a_source_that_cannot_be_fitted_costs_no_other_its_rows(small):
    """Volumes are known at one site only, so there is nothing to harmonise them over."""
    inputs = site_cohort(n=36)
    known = {s.scan_id for s in inputs.scans if s.site == "100"}
    volumes = inputs.volumes.assign(
        volume_mm3=inputs.volumes["volume_mm3"].where(inputs.volumes["scan_id"].isin(known))
    )
    made = harmonisation_tables(dataclasses.replace(inputs, volumes=volumes))
    pd.testing.assert_frame_equal(made["harmonised_relevance"], small["harmonised_relevance"])
    for name in ("harmonisation_models", "site_effects"):
        one, all_sources = made[name], small[name]
        lost = one[one["source"] == "volume"]
        assert lost["note"].notna().all(), name
        kept = all_sources[all_sources["source"] != "volume"]
        own = one[one["source"] != "volume"]
        pd.testing.assert_frame_equal(
            own.reset_index(drop=True), kept.reset_index(drop=True), check_dtype=False, check_categorical=False
        )
    volumes_made = made["harmonised_volumes"]
    assert volumes_made["harmonised"].isna().all()
    assert volumes_made["note"].notna().all()


def test_a_fold_that_cannot_be_fitted_costs_no_other_its_values():
    """All people outside fold 0 are from one site; fold 0 has the other one."""
    inputs = site_cohort(n=36)
    fold = dict(zip(inputs.predictions["scan_id"], inputs.predictions["fold"], strict=True))
    scans = tuple(dataclasses.replace(s, site="A" if fold[s.scan_id] else "AB"[int(s.participant_id[4:]) // 2 % 2])
                  for s in inputs.scans)  # fmt: skip
    made = harmonisation_tables(dataclasses.replace(inputs, scans=scans))
    values, models = made["harmonised_relevance"], made["harmonisation_models"]
    lost = values["fold"] == "0"
    assert values.loc[lost, "harmonised"].isna().all()
    assert values.loc[lost, "note"].str.contains("1 site to compare").all()
    assert values.loc[~lost, "harmonised"].notna().all()
    assert models.loc[models["fold"] == "0", "note"].str.contains("1 site to compare").all()
    assert made["site_effects"]["note"].str.contains("1 site to compare").all()


def test_serial_numbers_of_scanners_are_told_apart_to_the_last_digit():
    """Told by seven digits: 4177011 and 4177012 are two scanners, also in a column that is read as numbers."""
    inputs = site_cohort(n=36, config=quick_config(harmonisation={"site_column": "serial"}))
    serial = [4177010.0 + int(s.site) - 100 for s in inputs.scans]
    clinical = pd.DataFrame({"serial": serial}, index=pd.Index([s.scan_id for s in inputs.scans], name="scan_id"))
    inputs = dataclasses.replace(inputs, clinical=clinical)
    models = harmonisation_tables(inputs)["harmonisation_models"]
    assert set(models["site"]) == {"4177010", "4177011", "4177012"}
    frame = inputs.frame.assign(site=serial)
    assert design_of("~ site + age", "site", frame).tested.shape[1] == 2
    columns = CovariateColumns.of("site", frame)
    assert len(columns.names) == 2
    assert columns.matrix(frame.assign(site=4177019.0))[1][0] == "site 4177019 was not seen in training"
    assert levels_of("site", frame, SubgroupsConfig()).names == ("4177010", "4177011", "4177012")
    assert levels_of("serial", frame, SubgroupsConfig()).names == ("4177010", "4177011", "4177012")


def test_scale_is_brown_and_forsythe_without_covariates():
    from scipy.stats import levene

    inputs = site_cohort(n=60)
    frame = inputs.frame[FoldedScans.of(inputs).first].reset_index(drop=True).drop(columns="label")
    values = np.random.default_rng(1).normal(size=(60, 3))
    site = frame["site"].to_numpy()
    test, _ = site_effect("scale", values, list(site), "", frame, Resampling(99, np.random.default_rng(0)))
    for i in range(3):
        expected = levene(*(values[site == name, i] for name in sorted(set(site))), center="median")
        assert test.statistic[i] == pytest.approx(expected.statistic)


def test_spread_is_not_told_from_location_and_needs_ten_people_at_two_sites():
    rng = np.random.default_rng(3)
    sizes = [14, 12, 10, 9]
    site = np.repeat(["a", "b", "c", "d"], sizes)
    frame = pd.DataFrame({"age": rng.uniform(60, 85, sum(sizes))})
    values = rng.normal(size=(sum(sizes), 3))
    values[:, 1] *= np.where(site == "a", 6.0, 1.0)
    shifted = values + 50.0 * (site == "b")[:, None] + 0.3 * frame[["age"]].to_numpy()
    found = [site_effect("scale", own, list(site), "age", frame, Resampling(199, np.random.default_rng(0)))[0]
             for own in (values, shifted)]  # fmt: skip
    assert found[0].n_units == 36  # those of d take no part
    assert found[0].p[1] == found[0].p_fwe[1] == 1 / 200
    assert (found[0].p[[0, 2]] > 0.05).all()
    np.testing.assert_allclose(found[0].p, found[1].p)
    np.testing.assert_allclose(found[0].statistic, found[1].statistic)
    with pytest.raises(BadInputError, match="1 site with 10 or more participants"):
        site_effect("scale", values[:20], list(site[:20]), "age", frame[:20], Resampling(9, np.random.default_rng(0)))


def test_spread_of_classes_is_not_that_of_sites_that_go_with_them():
    """Patients vary three times as much and most are from one site: over everyone that is found in all 20 columns."""
    rng = np.random.default_rng(3)
    patient = np.arange(80) % 2 == 0
    site = np.where(rng.random(80) < 0.75, patient, rng.random(80) < 0.5)
    frame = pd.DataFrame({"label": np.where(patient, "AD", "CN")})
    values = rng.normal(size=(80, 20)) * np.where(patient, 3.0, 1.0)[:, None]

    def of(own, column):
        names, table = np.where(site, "a", "b").tolist(), frame.rename(columns={"label": column})
        return site_effect("scale", own, names, column, table, Resampling(199, np.random.default_rng(0)))[0]

    assert (of(values, "not_the_class").p <= 0.05).all()
    assert (of(values, "label").p <= 0.05).sum() <= 3
    assert np.median(of(values * np.where(site, 3.0, 1.0)[:, None], "label").p) <= 0.05


def test_sites_that_are_classes_have_no_test_of_spread():
    frame = pd.DataFrame({"label": ["AD"] * 20 + ["CN"] * 20})
    values = np.random.default_rng(0).normal(size=(40, 2))
    test, _ = site_effect("scale", values, ["a"] * 20 + ["b"] * 20, "", frame, Resampling(99, np.random.default_rng(0)))
    assert np.isnan(test.p).all()
    assert test.problems == ("only one permutation is possible",) * 2


def test_exact_spread_counts_what_was_observed_among_all_orders():
    """Two sites of 2 and 10 people have 66 orders; the table would not compare them, the test itself can."""
    values = np.random.default_rng(5).normal(size=(12, 2)) * np.r_[9.0, np.full(11, 1.0)][:, None]
    site = ["a"] * 2 + ["b"] * 10
    model = np.column_stack([np.ones(12), np.array(site) == "a"])
    test = spread_test(values, model, site, np.zeros(12, np.intp), Resampling(1000, np.random.default_rng(0)))
    assert (test.n_permutations, test.exact) == (66, True)
    assert (test.p * 66 >= 1 - 1e-9).all()
    np.testing.assert_allclose(test.p * 66, np.round(test.p * 66))
