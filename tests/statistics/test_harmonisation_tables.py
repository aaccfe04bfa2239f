"""ComBat fold by fold: nothing of a test fold reaches its model, a planted site effect goes, what was done is told."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
from folded_cohort import GROUPS, MAPS, inputs_of, quick_config, scans_of, with_applied

from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.config.statistics import SubgroupsConfig
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.statistics.data.inputs import one_name_per_person
from heatlas.pipeline.statistics.data.region_features import FoldedScans
from heatlas.pipeline.statistics.groups.levels import levels_of
from heatlas.pipeline.statistics.harmonisation.fold_wise import fold_model, harmonise
from heatlas.pipeline.statistics.harmonisation.site_effect import site_effect, spread_test
from heatlas.pipeline.statistics.harmonisation.tables import HARMONISATION_TABLES, harmonisation_tables
from heatlas.pipeline.statistics.linear.covariates import CovariateColumns
from heatlas.pipeline.statistics.linear.design import design_of


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
    test, _ = site_effect("location", values, site, "age", frame, 99, np.random.default_rng(0))
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
    test, _ = site_effect("scale", values, list(site), "", frame, 99, np.random.default_rng(0))
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
    found = [site_effect("scale", own, list(site), "age", frame, 199, np.random.default_rng(0))[0]
             for own in (values, shifted)]  # fmt: skip
    assert found[0].n_units == 36  # those of d take no part
    assert found[0].p[1] == found[0].p_fwe[1] == 1 / 200
    assert (found[0].p[[0, 2]] > 0.05).all()
    np.testing.assert_allclose(found[0].p, found[1].p)
    np.testing.assert_allclose(found[0].statistic, found[1].statistic)
    with pytest.raises(BadInputError, match="1 site with 10 or more participants"):
        site_effect("scale", values[:20], list(site[:20]), "age", frame[:20], 9, np.random.default_rng(0))


def test_spread_of_classes_is_not_that_of_sites_that_go_with_them():
    """Patients vary three times as much and most are from one site: over everyone that is found in all 20 columns."""
    rng = np.random.default_rng(3)
    patient = np.arange(80) % 2 == 0
    site = np.where(rng.random(80) < 0.75, patient, rng.random(80) < 0.5)
    frame = pd.DataFrame({"label": np.where(patient, "AD", "CN")})
    values = rng.normal(size=(80, 20)) * np.where(patient, 3.0, 1.0)[:, None]

    def of(own, column):
        names, table = np.where(site, "a", "b").tolist(), frame.rename(columns={"label": column})
        return site_effect("scale", own, names, column, table, 199, np.random.default_rng(0))[0]

    assert (of(values, "not_the_class").p <= 0.05).all()
    assert (of(values, "label").p <= 0.05).sum() <= 3
    assert np.median(of(values * np.where(site, 3.0, 1.0)[:, None], "label").p) <= 0.05


def test_sites_that_are_classes_have_no_test_of_spread():
    frame = pd.DataFrame({"label": ["AD"] * 20 + ["CN"] * 20})
    values = np.random.default_rng(0).normal(size=(40, 2))
    test, _ = site_effect("scale", values, ["a"] * 20 + ["b"] * 20, "", frame, 99, np.random.default_rng(0))
    assert np.isnan(test.p).all()
    assert test.problems == ("only one permutation is possible",) * 2


def test_exact_spread_counts_what_was_observed_among_all_orders():
    """Two sites of 2 and 10 people have 66 orders; the table would not compare them, the test itself can."""
    values = np.random.default_rng(5).normal(size=(12, 2)) * np.r_[9.0, np.full(11, 1.0)][:, None]
    site = ["a"] * 2 + ["b"] * 10
    model = np.column_stack([np.ones(12), np.array(site) == "a"])
    test = spread_test(values, model, site, np.zeros(12, np.intp), 1000, np.random.default_rng(0))
    assert (test.n_permutations, test.exact) == (66, True)
    assert (test.p * 66 >= 1 - 1e-9).all()
    np.testing.assert_allclose(test.p * 66, np.round(test.p * 66))
