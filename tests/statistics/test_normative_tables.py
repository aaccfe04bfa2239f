"""Scores against controls, subtypes, and the clustering behind them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from folded_cohort import GROUPS, MAPS, inputs_of, quick_config, scans_of, with_applied
from scipy import stats
from scipy.cluster.hierarchy import linkage
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import adjusted_rand_score

from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.statistics.normative.clustering import (
    adjusted_rand,
    consensus,
    gap_statistic,
    stability,
    ward_labels,
    within_squares,
)
from heatlas.pipeline.statistics.normative.subtypes import NORMATIVE_TABLES, Subtypes, _compared, normative_tables
from heatlas.pipeline.statistics.normative.w_scores import fit_norm
from heatlas.pipeline.statistics.resampling.means import FEW_OF_GROUP, OF_P, SMALL_GROUPS

# Scores against controls, as statsmodels predicts, and subtypes: planted ones are found, none where there are none.


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


@pytest.mark.sample(1)
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


HIPPOCAMPUS = GROUPS.index("Hippocampus")


def cohort(n=72, subtypes=0.0, config=None, seed=5, fold_habit=0.0):
    """Patients shrink in the hippocampus and are explained by it; half of them differ by `subtypes` in pattern."""
    rng = np.random.default_rng(seed)
    scans = scans_of(n, seed=seed)
    number = np.array([int(s.participant_id[4:]) for s in scans])
    patient = np.array([s.label == "AD" for s in scans], float)
    age = np.array([s.age for s in scans])
    values = rng.normal(size=(len(scans), len(MAPS) + 1, len(GROUPS))) + 0.1 * (age - 70)[:, None, None] + 10
    values[:, :-1, HIPPOCAMPUS] += 3 * patient[:, None]
    values[:, -1, HIPPOCAMPUS] -= 3 * patient
    kind = (number // 2) % 2
    pattern = np.array([1, 1, 1, -1, -1, -1]) * subtypes
    values += (patient * (2 * kind - 1))[:, None, None] * pattern
    fold = number // 6 % 3
    values[:, :-1] += fold_habit * np.random.default_rng(1).normal(size=(3, 1, len(GROUPS)))[fold]
    scans = [
        dataclasses.replace(s, mmse=s.mmse + 8 * (subtypes > 0) * k * (s.label == "AD"))
        for s, k in zip(scans, kind, strict=True)
    ]
    return inputs_of(scans, values[:, :-1], values[:, -1], config or quick_config()), kind


@pytest.fixture(scope="module")
def plain():
    return normative_tables(cohort()[0])


@pytest.fixture(scope="module")
def small():
    return normative_tables(cohort(n=36)[0])


@pytest.fixture(scope="module")
def planted():
    inputs, kind = cohort(subtypes=4.0)
    kind_of = dict(zip(inputs.frame["participant_id"], kind, strict=True))
    return normative_tables(inputs), kind_of


def test_tables_have_the_columns_they_describe(small):
    for table in NORMATIVE_TABLES:
        assert list(small[table.name].columns) == list(table.meanings)


def test_patients_stand_out_where_it_was_planted_and_controls_nowhere(plain):
    prints = plain["w_fingerprints"]
    mean = prints.groupby(["source", "label", "group"])["z"].mean()
    assert mean["gb", "AD", "Hippocampus"] > 2
    assert mean["volume", "AD", "Hippocampus"] < -2
    rest = mean.drop("Hippocampus", level="group")
    assert rest.abs().max() < 0.6
    first = prints[(prints["rank"] == 1) & (prints["label"] == "AD")]
    assert (first["group"] == "Hippocampus").mean() > 0.7


def test_controls_scored_against_others_are_standard_normal(plain):
    of_folds = plain["w_calibration"]
    calibration = of_folds[of_folds["fold"] == "all"]
    assert (calibration["n_controls"] == 36).all()
    assert calibration["mean_z"].abs().max() < 0.6
    assert calibration["sd_z"].mean() == pytest.approx(1, abs=0.1)
    assert calibration["beyond"].mean() < 0.1
    scores = plain["w_scores"]
    scores = scores[(scores["label"] == "CN") & ~scores.duplicated(["participant_id", "source", "group"])]
    means = scores.groupby(["source", "fold", "group"])["z"].mean()
    own = of_folds[of_folds["fold"] != "all"].set_index(["source", "fold", "group"])
    assert (own["n_controls"] == 12).all()
    assert len(own) == len(means)
    np.testing.assert_allclose(own["mean_z"], means[own.index], atol=1e-12)


def test_nobody_is_normed_against_themselves(small):
    inputs, _ = cohort(n=36)
    before = small["w_scores"]
    own = (inputs.frame["participant_id"] == "sub-001").to_numpy()
    values = dataclasses.replace(
        inputs.values, densities=np.where(own[:, None, None], inputs.values.densities + 7, inputs.values.densities)
    )
    after = normative_tables(dataclasses.replace(inputs, values=values))["w_scores"]
    rows = (before["participant_id"] == "sub-001") & (before["source"] == "gb")
    norms = small["w_norms"]
    sd = norms[(norms["source"] == "gb") & (norms["fold"] == "0")]["residual_sd"].to_numpy()
    # Seven more in the values is seven residual deviations more: the norm has not moved.
    np.testing.assert_allclose((after[rows]["w"] - before[rows]["w"]).to_numpy(), np.tile(7 / sd, 2), rtol=1e-9)
    same_fold = (before["fold"] == "0") & (before["participant_id"] != "sub-001")
    assert after[same_fold]["w"].equals(before[same_fold]["w"])
    other = before["fold"] == "1"
    assert not after[other & (before["source"] == "gb")]["w"].equals(before[other & (before["source"] == "gb")]["w"])


def test_norms_say_who_made_them(plain):
    norms = plain["w_norms"]
    assert (norms["n_controls"] == 24).all()
    assert (norms.loc[norms["source"] == "volume", "covariates"] == "age, sex[T.M], tiv_mm3").all()
    assert (norms.loc[norms["source"] == "gb", "covariates"] == "age, sex[T.M]").all()
    assert norms["note"].eq("covariate field_strength left out: constant").all()


def test_planted_subtypes_are_found_and_compared(planted):
    tables, kind_of = planted
    numbers = tables["subtype_numbers"]
    assert numbers[numbers["chosen"]]["k"].tolist() == [2, 2, 2]
    assert (numbers[numbers["chosen"]]["rand"] > 0.9).all()
    for _, own in tables["subtypes"].groupby("source"):
        assert adjusted_rand_score(own["subtype"], own["participant_id"].map(kind_of)) > 0.9
        assert own["consensus"].min() > 0.8
    compared = tables["subtype_comparison"].set_index(["source", "compared"])
    assert compared.loc[("gb", "mmse"), "p_fdr"] < 0.05
    assert compared.loc[("gb", "mmse"), "value"] > 0.6
    assert compared.loc[("gb", "age"), "p_fdr"] > 0.05
    assert compared.loc[("gb", "subtypes by volume"), "value"] > 0.8
    assert np.isnan(compared.loc[("gb", "level"), "p"])
    # Explained by the very network whose output it is; not so for volumes.
    assert compared.loc[[("gb", "probability"), ("lrpB050", "probability")], "p"].isna().all()
    assert compared.loc[("gb", "probability"), "note"].endswith("this output, so p would be meaningless")
    assert "(n 18)" in compared.loc[("gb", "mmse"), "means"]


@pytest.mark.ci
def test_subtypes_that_vary_unequally_are_compared_by_a_studentised_f():
    """Six people who vary three times as much: with one variance for all, F rejects in a fifth."""
    labels, names = np.repeat([1, 2, 3], [6, 14, 20]), tuple(f"sub-{i}" for i in range(40))
    one = Subtypes("gb", names, np.zeros((40, 2)), labels, np.ones(40), pd.DataFrame())
    config, rng = quick_config(), np.random.default_rng(0)
    made = [pd.Series(rng.normal(size=40) * np.array([3, 1, 1])[labels - 1]) for _ in range(200)]
    p = [_compared(one, "mmse", values, dict.fromkeys(names, "0"), config)["p"] for values in made]
    assert np.mean(np.array(p) <= 0.05) < 0.11  # 0.064 and 2.7 standard errors


@pytest.mark.parametrize("sizes", [(6, 14, 20), (100, 105, 110)])
def test_subtypes_of_few_carry_a_caveat(sizes):
    """Whatever the values look like; p is still given."""
    n = sum(sizes)
    labels, names = np.repeat([1, 2, 3], sizes), tuple(f"sub-{i}" for i in range(n))
    one = Subtypes("gb", names, np.zeros((n, 2)), labels, np.ones(n), pd.DataFrame())
    values = pd.Series(np.random.default_rng(0).normal(size=n))
    row = _compared(one, "mmse", values, dict.fromkeys(names, "0"), quick_config(permutations=19))
    assert row["note"] == (SMALL_GROUPS.format(FEW_OF_GROUP, OF_P) if min(sizes) < FEW_OF_GROUP else None)
    assert row["p"] > 0


def test_an_output_of_networks_is_compared_within_folds_and_a_score_of_people_is_not():
    names = tuple(f"sub-{i}" for i in range(40))
    labels = np.where(np.random.default_rng(1).random(40) < np.where(np.arange(40) % 2, 0.8, 0.2), 1, 2)
    one = Subtypes("volume", names, np.zeros((40, 2)), labels, np.ones(40), pd.DataFrame())
    fold_of = {name: str(i % 2) for i, name in enumerate(names)}
    values = pd.Series(np.random.default_rng(2).normal(size=40) + 5 * (np.arange(40) % 2))
    rows = {name: _compared(one, name, values, fold_of, quick_config()) for name in ("probability", "mmse")}
    assert rows["probability"]["p"] > 0.05 > rows["mmse"]["p"]  # networks differ, subtypes are unevenly spread
    assert rows["probability"]["note"].endswith("within test folds")
    assert "within test folds" not in str(rows["mmse"]["note"])


def test_without_subtypes_there_is_one_group_and_no_comparison(plain):
    numbers = plain["subtype_numbers"]
    assert numbers[numbers["chosen"]]["k"].tolist() == [1, 1, 1]
    assert (plain["subtypes"]["subtype"] == 1).all()
    assert plain["subtype_comparison"]["note"].eq("one group: no subtypes to compare").all()
    assert numbers["k"].tolist() == [1, 2, 3] * 3  # what was tried is told


def test_habits_of_a_network_are_no_subtype():
    inputs, _ = cohort(fold_habit=6.0)
    numbers = normative_tables(inputs)["subtype_numbers"]
    assert (numbers[numbers["chosen"]]["k"] == 1).all()


def test_a_group_of_outliers_is_no_subtype():
    inputs, _ = cohort()
    far = inputs.frame["participant_id"].isin(["sub-000", "sub-014"]).to_numpy()
    shift = 40 * far[:, None, None] * np.array([1, 1, 1, -1, -1, -1])
    values = dataclasses.replace(inputs.values, densities=inputs.values.densities + shift)
    numbers = normative_tables(dataclasses.replace(inputs, values=values))["subtype_numbers"]
    own = numbers[numbers["source"] == "gb"]
    assert own[own["chosen"]]["k"].tolist() == [1]
    assert own["note"].str.startswith("the gap statistic selects 2, but the smallest has 2: outliers").all()


def test_too_few_patients_are_not_searched():
    numbers = normative_tables(cohort(n=18, config=quick_config(normative={"min_freedom": 2}))[0])["subtype_numbers"]
    assert numbers["note"].str.startswith("9 participants and 6 regions; 10").all()
    assert (numbers["k"] == 1).all()


def test_too_few_controls_make_no_norm_and_say_so():
    made = normative_tables(cohort(n=9)[0])
    scores = made["w_scores"]
    assert scores["z"].isna().all()
    assert scores["note"].str.contains(r"\d controls? for \d coefficients?").all()
    assert len(made["w_fingerprints"]) == 0
    assert made["w_calibration"]["note"].notna().all()


def test_a_scan_that_cannot_be_scored_says_why():
    inputs, _ = cohort(n=36)
    lost = {"sub-004": {"tiv_mm3": None}, "sub-006": {"sex": None}}
    scans = tuple(dataclasses.replace(s, **lost.get(s.participant_id, {})) for s in inputs.scans)
    made = normative_tables(dataclasses.replace(inputs, scans=scans))
    notes = made["w_scores"].set_index(["participant_id", "source"])["note"].sort_index()
    assert notes["sub-004", "volume"].eq("tiv_mm3 is n/a").all()
    assert notes["sub-004", "gb"].isna().all()
    assert notes["sub-006"].eq("sex is n/a").all()
    found = made["subtype_numbers"].set_index("source")["note"]
    assert found["volume"].str.contains("2 participants without scores left out").all()


def test_volumes_that_are_missing_are_missing():
    inputs, _ = cohort(n=36)
    volumes = inputs.volumes.copy()
    volumes.loc[(volumes["scan_id"] == "I40") & (volumes["name"] == "left Putamen"), "volume_mm3"] = np.nan
    scores = normative_tables(dataclasses.replace(inputs, volumes=volumes))["w_scores"]
    own = scores[(scores["scan_id"] == "I40") & (scores["source"] == "volume")].set_index("group")
    assert own.index[own["note"] == "no value"].tolist() == ["Putamen"]
    assert np.isnan(own.loc["Putamen", "z"])
    none = normative_tables(dataclasses.replace(inputs, volumes=volumes.iloc[:0]))["w_scores"]
    assert set(none["source"]) == set(MAPS)


def test_scans_outside_the_contrast_are_scored_and_are_in_no_norm(small):
    inputs, _ = cohort(n=36)
    mci = [
        Scan("sub-900", None, "M1", None, "MCI", None, age=70.0, sex="F", field_strength=1.5),
        Scan("sub-001", "ses-M024", "M2", None, "MCI", None, age=80.0, sex="F", field_strength=1.5),
    ]
    more = with_applied(inputs, mci, np.full((2, 2, 6), 30.0))
    assert more.applied is not None
    seen = more.applied.values.scans.assign(n_networks=[3, 1])
    values = dataclasses.replace(more.applied.values, scans=seen)
    more = dataclasses.replace(more, applied=dataclasses.replace(more.applied, values=values))
    before, after = small, normative_tables(more)
    scores = after["w_scores"]
    new = scores[scores["scan_id"].isin(["M1", "M2"]) & (scores["source"] != "volume")]
    assert new.groupby("scan_id")["fold"].first().to_dict() == {"M1": "all", "M2": "0"}
    assert (new["z"] > 3).all()
    notes = new.set_index("scan_id")["note"]
    assert notes["M1"].str.startswith("mean over 3 networks, scored against maps of single networks").all()
    assert notes["M2"].isna().all()
    labelled = scores[~scores["scan_id"].isin(["M1", "M2"])].reset_index(drop=True)
    key = ["scan_id", "source", "group"]
    assert labelled.sort_values(key)["w"].tolist() == before["w_scores"].sort_values(key)["w"].tolist()
    norms = after["w_norms"]
    assert (norms.loc[norms["fold"] == "all", "n_controls"] == 18).all()
    assert after["subtypes"].equals(before["subtypes"])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"relevance_covariates": "age + label"}, "normative.relevance_covariates = 'age . label': label contains"),
        ({"volume_covariates": "age + brain"}, "no column 'brain'"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(settings, said):
    with pytest.raises(BadInputError, match=said):
        normative_tables(cohort(n=36, config=quick_config(normative=settings))[0])


def test_one_fold_only_leaves_no_norm():
    inputs, _ = cohort(n=36)
    values = dataclasses.replace(inputs.values, scans=inputs.values.scans.assign(fold=0))
    one = dataclasses.replace(inputs, values=values, split=dataclasses.replace(inputs.split, folds=()))
    with pytest.raises(BadInputError, match="no participant of CN outside a test fold"):
        normative_tables(one)


def test_two_runs_give_the_same_numbers(small):
    again = normative_tables(cohort(n=36)[0])
    for name in small:
        assert small[name].equals(again[name]), name


# Groups: brute force, the libraries, planted groups found, and none where there are none.

NUMBERS = range(1, 7)


def cloud(n=40, n_features=30, seed=0):
    """Correlated normal data without groups."""
    rng = np.random.default_rng(seed)
    loadings = rng.normal(size=(3, n_features)) * np.array([[2.0], [1.0], [0.5]])
    return rng.normal(size=(n, 3)) @ loadings + rng.normal(size=(n, n_features))


def two_groups(n=40, distance=4.0, seed=0):
    rng = np.random.default_rng(seed)
    group = np.arange(n) % 4 == 0
    return rng.normal(size=(n, 10)) + distance * np.outer(group, np.arange(10) < 4), group.astype(int)


def test_within_squares_are_those_of_the_groups():
    points = cloud()
    labels = ward_labels(points, NUMBERS)
    for i, k in enumerate(NUMBERS):
        groups = [points[labels[:, i] == own] for own in np.unique(labels[:, i])]
        expected = sum(((own - own.mean(0)) ** 2).sum() for own in groups)
        assert within_squares(points, [k])[0] == pytest.approx(expected)
        assert len(groups) == k


def test_groups_are_those_of_scikit_learn():
    points = cloud(seed=2)
    for i, k in enumerate(NUMBERS):
        theirs = AgglomerativeClustering(k, linkage="ward").fit_predict(points)
        assert adjusted_rand_score(ward_labels(points, NUMBERS)[:, i], theirs) == 1


def test_adjusted_rand_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    for _ in range(50):
        one, other = rng.integers(1, 5, 20), rng.integers(1, 4, 20)
        assert adjusted_rand(one, other) == pytest.approx(adjusted_rand_score(one, other))
    assert adjusted_rand(np.ones(5, int), np.ones(5, int)) == 1


def test_gap_is_what_tibshirani_and_others_wrote():
    points = cloud(n=12, n_features=3, seed=3)
    found = gap_statistic(points, 3, 40, np.random.default_rng(9))
    rng = np.random.default_rng(9)
    centred = points - points.mean(0)
    u, s, v = np.linalg.svd(centred, full_matrices=False)
    axes = u * s
    null = []
    for _ in range(40):
        reference = rng.uniform(axes.min(0), axes.max(0), axes.shape) @ v
        squares = []
        for k in (1, 2, 3, 4):
            labels = ward_labels(reference, [k])[:, 0]
            # D_r over 2 n_r, from all pairs
            squares.append(
                sum(
                    ((own[:, None] - own[None]) ** 2).sum() / (2 * len(own))
                    for own in (reference[labels == name] for name in np.unique(labels))
                )
            )
        null.append(np.log(squares))
    null = np.array(null)
    observed = np.log(within_squares(points, [1, 2, 3, 4]))
    gap, error = null.mean(0) - observed, null.std(0) * np.sqrt(1 + 1 / 40)
    np.testing.assert_allclose(found.gap, gap[:3], rtol=1e-9)
    np.testing.assert_allclose(found.error, error[:3], rtol=1e-9)
    expected = next((k + 1 for k in range(3) if gap[k] >= gap[k + 1] - error[k + 1]), 3)
    assert found.number == expected


def test_no_groups_are_found_where_there_are_none():
    numbers = [gap_statistic(cloud(n, seed=seed), 5, 40, np.random.default_rng(seed)).number
               for n in (12, 40) for seed in range(30)]  # fmt: skip
    assert np.mean(np.array(numbers) == 1) > 0.9


@pytest.mark.parametrize("k", [2, 3])
def test_planted_groups_are_found(k):
    rng = np.random.default_rng(k)
    group = np.arange(60) % k
    points = rng.normal(size=(60, 20)) + 3.5 * np.kron(np.eye(k, 4), np.ones(5))[group]
    assert gap_statistic(points, 6, 60, rng).number == k
    one = consensus(points, [k], 40, rng)[0]
    assert adjusted_rand_score(one.labels, group) == 1
    assert one.ambiguous < 0.05
    assert stability(points, [one.labels], 40, rng).mean() > 0.95


def test_consensus_counts_how_often_two_are_together():
    points, group = two_groups()
    one = consensus(points, [2], 50, np.random.default_rng(0))[0]
    same = group[:, None] == group[None, :]
    assert one.together[same].min() > 0.9 > 0.1 > one.together[~same].max()
    assert one.labels[group == 0].tolist() == [1] * 30  # the larger group is the first
    pairs = one.together[np.triu_indices(40, 1)]
    grid = np.linspace(0, 1, 20001)
    area = np.trapezoid([(pairs <= x).mean() for x in grid], grid)
    assert one.area == pytest.approx(area, abs=1e-3)
    own = one.item_consensus()
    others = [j for j in range(40) if group[j] == group[0] and j != 0]
    assert own[0] == pytest.approx(one.together[0, others].mean())


def test_groups_in_noise_are_not_stable():
    points = np.random.default_rng(5).normal(size=(40, 30))
    one = consensus(points, [3], 40, np.random.default_rng(0))[0]
    assert stability(points, [one.labels], 40, np.random.default_rng(1)).mean() < 0.5
    assert one.ambiguous > 0.3


def test_a_group_of_one_has_no_company():
    points = np.vstack([np.random.default_rng(0).normal(size=(9, 3)), [[50.0, 50.0, 50.0]]])
    one = consensus(points, [2], 30, np.random.default_rng(0))[0]
    assert np.isnan(one.item_consensus()[9])
    assert one.item_consensus()[:9].min() > 0.5


def test_participants_who_are_alike_are_not_told_apart():
    points = np.repeat([[0.0, 0.0], [5.0, 5.0]], 4, axis=0)
    assert len(np.unique(ward_labels(points, [3])[:, 0])) == 2
    assert within_squares(points, [2, 3]).tolist() == [0, 0]
    assert linkage(points, "ward")[-1, 2] > 0
