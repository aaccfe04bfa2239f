"""Cox models and prediction of conversion against hand-made likelihoods; concordance against counting pairs."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import FAST, of_one_spread, people
from mci_cohort import GROUPS, applied_to, inputs_of, mci_people, with_settings
from scipy.optimize import minimize_scalar
from scipy.stats import chi2, mannwhitneyu, norm
from sklearn.metrics import roc_auc_score
from statsmodels.duration.hazard_regression import PHReg

from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.statistics.data.members import log_odds, years_since_first
from heatlas.pipeline.statistics.linear.permutations import two_sided_p
from heatlas.pipeline.statistics.progression.cox import conversions, cox_table
from heatlas.pipeline.statistics.progression.hazards import (
    class_pairs,
    comparable_pairs,
    concordance,
    hazard_per_sd,
    martingale_residuals,
    permuted_concordance,
    proportionality,
    schoenfeld,
    score_statistics,
)
from heatlas.pipeline.statistics.progression.prediction import progression_table, progression_tables

NONE = np.zeros((40, 0))


def survival(n: int = 40, seed: int = 0, effect: float = 0.7) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times (rounded, so tied), events and a predictor."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    time = np.ceil(rng.exponential(10 * np.exp(-effect * x)))
    censored = rng.integers(4, 25, n).astype(float)
    return np.minimum(time, censored), time <= censored, x


def efron(beta: float, time: np.ndarray, event: np.ndarray, x: np.ndarray) -> float:
    """Log partial likelihood by the definition of Efron (1977), event time by event time."""
    risk, total = np.exp(beta * x), 0.0
    for moment in np.unique(time[event]):
        dying = event & (time == moment)
        at_risk, d = risk[time >= moment].sum(), int(dying.sum())
        total += beta * x[dying].sum() - sum(np.log(at_risk - i / d * risk[dying].sum()) for i in range(d))
    return total


def test_hazard_ratio_and_interval_are_those_of_the_partial_likelihood() -> None:
    time, event, x = survival()
    z = (x - x.mean()) / x.std(ddof=1)

    def likelihood(beta: float) -> float:
        return efron(beta, time, event, z)

    best = minimize_scalar(lambda beta: -likelihood(beta), bounds=(-4, 4), method="bounded", options={"xatol": 1e-9})
    h = 1e-4
    curvature = (2 * likelihood(best.x) - likelihood(best.x + h) - likelihood(best.x - h)) / h**2
    bounds = best.x + np.array([-1, 1]) * 1.959964 / np.sqrt(curvature)
    found = hazard_per_sd(time, event, x, NONE, 0.95)
    np.testing.assert_allclose(np.log(found.ratio), best.x, atol=1e-6)
    np.testing.assert_allclose(np.log([found.low, found.high]), bounds, atol=1e-4)

    np.testing.assert_allclose(found.p_wald, 2 * norm.sf(abs(best.x) * np.sqrt(curvature)), rtol=1e-3)


@pytest.mark.parametrize("tied", [True, False])
def test_proportionality_is_the_score_test_of_a_coefficient_that_goes_with_time(tied: bool) -> None:
    """Brute force: derivatives of Efron's likelihood whose coefficients are beta + theta g(t), at theta = 0."""
    time, event, x = survival(seed=8)
    other = 0.5 * x + np.random.default_rng(2).normal(size=40)
    time = time if tied else time + 1e-3 * np.arange(40)
    columns = np.column_stack([x, other])
    fit = PHReg(time, columns, status=event.astype(int), ties="efron").fit(disp=0)
    moments, surviving = np.unique(time[event]), [1.0]
    for moment in moments:
        surviving.append(surviving[-1] * (1 - (event & (time == moment)).sum() / (time >= moment).sum()))
    of_time = 1 - np.array(surviving[:-1])
    statistic, p = proportionality(time, event, columns, np.asarray(fit.params))
    for j in range(2):

        def likelihood(at: np.ndarray, j: int = j) -> float:
            total = 0.0
            for g, moment in zip(of_time, moments, strict=True):
                beta = at[:2] + at[2] * g * (np.arange(2) == j)
                risk, dying = np.exp(columns @ beta), event & (time == moment)
                d = int(dying.sum())
                total += (columns[dying] @ beta).sum()
                total -= sum(np.log(risk[time >= moment].sum() - i / d * risk[dying].sum()) for i in range(d))
            return total

        best, h, unit = np.append(fit.params, 0.0), 1e-4, np.eye(3)
        slope = (likelihood(best + h * unit[2]) - likelihood(best - h * unit[2])) / (2 * h)
        information = -np.array([
            [sum(s * t * likelihood(best + h * (s * unit[a] + t * unit[b])) for s in (1, -1) for t in (1, -1))
             / (4 * h * h) for b in range(3)] for a in range(3)
        ])  # fmt: skip
        np.testing.assert_allclose(statistic[j], slope**2 * np.linalg.inv(information)[2, 2], rtol=1e-4)
    np.testing.assert_allclose(p, chi2.sf(statistic, 1))


def test_schoenfeld_residuals_are_those_of_statsmodels_and_their_variances_its_information() -> None:
    time, event, x = survival(seed=9)
    time = time + 1e-3 * np.arange(40)
    columns = np.column_stack([x, np.random.default_rng(2).normal(size=40)])
    fit = PHReg(time, columns, status=event.astype(int), ties="breslow").fit(disp=0)
    moments, residuals, variances = schoenfeld(time, event, columns, np.asarray(fit.params))
    order = np.argsort(time[event])
    np.testing.assert_allclose(residuals, np.asarray(fit.schoenfeld_residuals)[event][order], atol=1e-10)
    np.testing.assert_allclose(np.linalg.inv(variances.sum(axis=0)), fit.cov_params(), rtol=1e-6)
    np.testing.assert_array_equal(moments, np.sort(time[event]))


def test_a_ratio_that_reverses_with_time_is_found_not_proportional() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=300)
    early = rng.exponential(10 * np.exp(-1.2 * x))
    time = np.where(early < 6, early, 6 + rng.exponential(10 * np.exp(1.2 * x)))
    everyone = np.ones(300, bool)
    assert hazard_per_sd(time, everyone, x, np.zeros((300, 0)), 0.95).p_proportional < 1e-6
    steady = rng.exponential(10 * np.exp(-0.7 * x))
    assert hazard_per_sd(steady, everyone, x, np.zeros((300, 0)), 0.95).p_proportional > 0.05


def test_units_do_not_matter() -> None:
    time, event, x = survival(seed=2)
    covariate = 0.8 * x + np.random.default_rng(1).normal(size=40)
    adjusted = hazard_per_sd(time, event, x, covariate[:, None], 0.95)
    scaled = hazard_per_sd(time, event, 1e-6 * x + 3, 1e4 * covariate[:, None], 0.95)
    np.testing.assert_allclose([adjusted.ratio, adjusted.low], [scaled.ratio, scaled.low], rtol=1e-6)


def test_a_predictor_that_separates_has_no_ratio() -> None:
    time, event, _ = survival()
    found = hazard_per_sd(time, event, event.astype(float), NONE, 0.95)
    assert np.isnan(found.ratio)
    assert "almost perfectly" in str(found.note)


@pytest.mark.parametrize("few", [1, 2, 5])
@pytest.mark.parametrize("side", [True, False])
def test_a_predictor_that_differs_only_in_people_without_an_event_has_no_ratio(few: int, side: bool) -> None:
    """The likelihood rises to a ratio of 0 for ever; the interval would be 0 to infinity."""
    time, event, _ = survival()
    x = np.isin(np.arange(40), np.flatnonzero(~event & (time > np.median(time[event])))[:few])
    found = hazard_per_sd(time, event, np.where(x, 1.0, 0.0) if side else np.where(x, 0.0, 1.0), NONE, 0.95)
    assert np.isnan([found.ratio, found.low, found.high, found.p_wald, found.p_proportional]).all()
    assert found.note


def test_events_at_one_time_say_that_proportionality_is_not_checked() -> None:
    _, event, x = survival()
    found = hazard_per_sd(np.where(event, 12.0, 24.0), event, x, NONE, 0.95)
    assert np.isfinite([found.ratio, found.p_wald]).all()
    assert np.isnan(found.p_proportional)
    assert "same time" in str(found.note)


def test_constant_predictor_and_collinear_covariates_are_named() -> None:
    time, event, x = survival()
    assert "constant" in str(hazard_per_sd(time, event, np.ones(40), NONE, 0.95).note)
    assert "collinear" in str(hazard_per_sd(time, event, x, np.column_stack([time, 2 * time]), 0.95).note)
    with pytest.raises(np.linalg.LinAlgError, match="collinear"):
        martingale_residuals(time, event, np.column_stack([time, 2 * time]))


def test_martingale_residuals_are_events_less_the_hazard_of_the_covariates() -> None:
    time, event, x = survival(seed=5)
    np.testing.assert_allclose(martingale_residuals(time, event, NONE).sum(), 0, atol=1e-10)
    by_hand = []
    for one, died in zip(time, event, strict=True):
        hazard = sum(1 / (time >= moment).sum() for moment in time[event] if moment <= one)
        by_hand.append(died - hazard)
    np.testing.assert_allclose(martingale_residuals(time, event, NONE), by_hand)
    # Without ties Efron's likelihood is Breslow's, whose equations say that residuals and covariates are orthogonal.
    distinct = martingale_residuals(time + 1e-3 * np.arange(40), event, x[:, None])
    np.testing.assert_allclose([distinct.sum(), distinct @ x], 0, atol=1e-6)
    assert abs(martingale_residuals(time, event, NONE) @ x) > 1


def test_score_is_the_slope_of_the_partial_likelihood_and_permuting_it_is_permuting_the_predictor() -> None:
    time, event, x = survival(seed=6)
    time = time + 1e-3 * np.arange(40)
    residuals = martingale_residuals(time, event, NONE)
    rows = np.array([np.random.default_rng(i).permutation(40) for i in range(5)])
    observed, null = score_statistics(residuals, x[:, None], NONE, rows)
    slope = (efron(1e-5, time, event, x) - efron(-1e-5, time, event, x)) / 2e-5
    scale = np.linalg.norm(x - x.mean()) * np.linalg.norm(residuals)

    def studentised(score: float, order: np.ndarray) -> float:
        """Score in units of its standard deviation where residuals of people far from the mean of x may be small."""
        e2, x2 = (part**2 / (part**2).sum() for part in (residuals[order] - residuals.mean(), x - x.mean()))
        return score / scale / np.sqrt(40 * (e2 * x2).sum() * (1 - (score / scale) ** 2))

    np.testing.assert_allclose(observed[0], studentised(slope, np.arange(40)), rtol=1e-5)
    for order, value in zip(rows, null[:, 0], strict=True):
        moved = np.empty(40)
        moved[order] = x  # whoever had row i of the residuals has them in row order[i]
        permuted = (
            efron(1e-5, time, event, x[np.argsort(order)]) - efron(-1e-5, time, event, x[np.argsort(order)])
        ) / 2e-5
        np.testing.assert_allclose(value, studentised(permuted, order), rtol=1e-4)
        np.testing.assert_array_equal(moved, x[np.argsort(order)])


def test_what_covariates_explain_of_a_predictor_is_no_part_of_its_score() -> None:
    time, event, x = survival(seed=7)
    covariate = np.random.default_rng(3).normal(size=(40, 1))
    residuals = martingale_residuals(time, event, covariate)
    rows = np.array([np.random.default_rng(4).permutation(40)])
    plain = score_statistics(residuals, x[:, None], covariate, rows)
    shifted = score_statistics(residuals, x[:, None] + 5 * covariate + 2, covariate, rows)
    for one, other in zip(plain, shifted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9)
    assert np.isnan(score_statistics(residuals, covariate * 3, covariate, rows)[0]).all()


@pytest.mark.slow
def test_permutation_p_holds_its_level_at_the_fewest_events_allowed() -> None:
    """Some 20 conversions, three covariates that matter and go with the predictor; 2,000 data sets."""
    rng = np.random.default_rng(7)
    n, rejected, tried = 60, 0, 0
    while tried < 2000:
        covariates = rng.normal(size=(n, 3))
        time = rng.exponential(np.exp(-0.5 * covariates[:, 0]))
        end = rng.exponential(0.6, size=n)
        event = time <= end
        if not 20 <= event.sum() <= 25:
            continue
        x = 0.6 * covariates[:, [0]] + rng.normal(size=(n, 1))
        residuals = martingale_residuals(np.minimum(time, end), event, covariates)
        rows = rng.permuted(np.tile(np.arange(n), (199, 1)), axis=1)
        observed, null = score_statistics(residuals, x, covariates, rows)
        rejected += bool(two_sided_p(observed, null, exact=False)[0] <= 0.05)
        tried += 1
    assert 0.035 <= rejected / tried <= 0.065, rejected / tried


@pytest.fixture
def cohort():
    scans, clinical, risk = mci_people()
    return conversions(applied_to(scans, clinical, 2 * risk, risk))


def test_planted_hazard_is_found_where_it_is_and_not_where_it_is_not(cohort) -> None:
    table = cox_table(cohort, FAST.statistics, 3)
    regions = table[(table["predictor"] == "relevance") & (table["map"] == "lrpB000") & (table["model"] == "alone")]
    row = regions.set_index("group").loc["Hippocampus"]
    assert row["ci_low"] < np.e < row["ci_high"]  # a log hazard of 1 per SD was planted
    assert row["p"] <= row["p_fwe"] == 1 / 200
    assert regions.set_index("group").loc["Cuneus", "p_fwe"] > 0.05
    assert regions.set_index("group").loc["Empty", "note"] == "the predictor is constant"
    assert row["n_participants"] == 60
    assert row["n_events"] == int(cohort.event.sum())
    assert set(regions["family"]) == {"4 tests: regions and maps, alone"}


def test_the_output_of_several_networks_is_compared_within_their_people(cohort) -> None:
    """Their levels are no part of the test, and the hazard ratio is that of outputs centred and of one spread."""
    network = np.arange(60) % 3
    frame = cohort.frame.assign(networks=network.astype(str))
    shifted = frame.assign(logit_positive=frame["logit_positive"] + 40.0 * network)
    tables = [cox_table(dataclasses.replace(cohort, frame=one), FAST.statistics, 3) for one in (frame, shifted)]
    one, other = (table[(table["predictor"] == "model") & (table["model"] == "alone")].iloc[0] for table in tables)
    for name in ("hazard_ratio", "ci_low", "ci_high", "p_wald", "p", "concordance"):
        assert one[name] == pytest.approx(other[name], rel=1e-9)
    assert "same networks" in one["note"]
    x = of_one_spread(cohort.scalar("model"), network)
    x = x - pd.Series(x).groupby(network).transform("mean").to_numpy()
    fit = PHReg(cohort.time, x[:, None] / x.std(ddof=1), status=cohort.event.astype(int), ties="efron").fit(disp=0)
    assert np.log(one["hazard_ratio"]) == pytest.approx(fit.params[0], abs=1e-6)
    age = [table[(table["predictor"] == "age") & (table["model"] == "alone")].iloc[0]["p"] for table in tables]
    assert age[0] == age[1]


def test_sum_and_model_agree_where_they_are_one_thing(cohort) -> None:
    table = cox_table(cohort, FAST.statistics, 3)
    adjusted = {row["predictor"]: row for _, row in table[table["model"] == "adjusted"].iterrows()}
    model, other = adjusted["model"], adjusted["hippocampus/tiv"]
    assert model["covariates"] == "age + sex + mmse"
    np.testing.assert_allclose(
        model["hazard_ratio"] * other["hazard_ratio"], 1, rtol=1e-6
    )  # the volume falls with risk
    np.testing.assert_allclose(model["concordance"] + other["concordance"], 1)
    assert adjusted["mmse"]["covariates"] == "age + sex"


def test_too_few_events_are_refused_and_few_are_flagged(cohort) -> None:
    few = dataclasses.replace(cohort, frame=cohort.frame.assign(event=np.arange(60) < 12))
    table = cox_table(few, FAST.statistics, 3)
    model = table[table["predictor"] == "model"].set_index("model")
    assert np.isfinite(model.loc["alone", "hazard_ratio"])
    assert np.isnan(model.loc["adjusted", "hazard_ratio"])
    assert model.loc["adjusted", "note"].startswith("12 conversions; 20 are needed for 4 variables; ")
    flagged = dataclasses.replace(cohort, frame=cohort.frame.assign(event=np.arange(60) < 7))
    table = cox_table(flagged, FAST.statistics, 3)
    assert "few events: 7 per variable" in str(table[table["predictor"] == "model"].iloc[0]["note"])


def test_missing_and_constant_covariates_are_counted_and_named(cohort) -> None:
    frame = cohort.frame.assign(sex="F")
    frame.loc[frame.index[:4], "mmse"] = np.nan
    table = cox_table(dataclasses.replace(cohort, frame=frame), FAST.statistics, 3)
    row = table[(table["predictor"] == "model") & (table["model"] == "adjusted")].iloc[0]
    assert (row["n_participants"], row["n_missing"]) == (56, 4)
    assert row["covariates"] == "age + mmse"
    assert "sex: constant" in row["note"]
    nobody = cox_table(dataclasses.replace(cohort, frame=frame.assign(mmse=np.nan)), FAST.statistics, 3)
    row = nobody[(nobody["predictor"] == "model") & (nobody["model"] == "adjusted")].iloc[0]
    assert row["n_participants"] == 60
    assert "mmse: unknown for all participants" in row["note"]


def test_covariates_are_those_of_the_settings_and_the_predictor_is_none_of_its_own(cohort) -> None:
    settings = with_settings(
        covariates="age*sex", progression=dataclasses.replace(FAST.statistics.progression, further_covariates="")
    )
    table = cox_table(cohort, settings.statistics, 3)
    adjusted = table[table["model"] == "adjusted"].set_index("predictor")
    assert adjusted.loc["model", "covariates"] == "age + sex"
    assert adjusted.loc["age", "covariates"] == "sex"
    frame, x = cohort.frame, cohort.scalar("model")
    male = (frame["sex"] == "M").to_numpy(float)
    columns = np.column_stack([x, frame["age"], male, frame["age"] * male])
    columns = (columns - columns.mean(axis=0)) / columns.std(axis=0, ddof=1)
    fit = PHReg(cohort.time, columns, status=cohort.event.astype(int), ties="efron").fit(disp=0)
    np.testing.assert_allclose(np.log(adjusted.loc["model", "hazard_ratio"]), fit.params[0], atol=1e-6)
    np.testing.assert_allclose(adjusted.loc["model", "p_wald"], fit.pvalues[0], rtol=1e-5)


def test_a_row_whose_hazards_are_not_proportional_says_so(cohort) -> None:
    table = cox_table(cohort, FAST.statistics, 3)
    known = table[table["p_proportional"].notna()]
    assert len(known) == table["hazard_ratio"].notna().sum() > 5
    said = known["note"].str.contains("hazards are not proportional", na=False)
    assert (said == (known["p_proportional"] < 0.05)).all()
    fixed = table["ci_low"].notna()
    excludes = (table["ci_low"] > 1) | (table["ci_high"] < 1)
    assert ((table["p_wald"] < 0.05) == excludes)[fixed].all()


def test_regions_known_of_fewer_people_are_a_family_of_their_own_and_say_so(cohort) -> None:
    assert not cox_table(cohort, FAST.statistics, 3)["note"].str.contains("p_fwe").any()
    relevance = cohort.relevance.copy()
    relevance[0, :, list(cohort.groups).index("Cuneus")] = np.nan
    table = cox_table(dataclasses.replace(cohort, relevance=relevance), FAST.statistics, 3)
    own = table[(table["predictor"] == "relevance") & (table["model"] == "alone")].set_index("group")
    assert own.loc["Cuneus", "note"].str.contains("p_fwe covers only the regions").all()
    assert own.loc["Hippocampus", "note"].str.contains("p_fwe covers only the regions").all()
    assert not table.loc[table["predictor"] == "age", "note"].str.contains("p_fwe", na=False).any()


def test_prediction_of_conversion_is_the_roc_area_and_its_rank_test(cohort) -> None:
    table = progression_table(cohort, with_settings(permutations=1999).statistics, 3, 36)
    table = table.set_index(["predictor", "measure"])
    course, logit = cohort.frame["progression"], cohort.scalar("model")
    up, down = logit[course == "pMCI"], logit[course == "sMCI"]
    row = table.loc[("model", "auc")]
    np.testing.assert_allclose(row["estimate"], mannwhitneyu(up, down).statistic / (len(up) * len(down)))
    assert row["n_missing"] == (course == "uMCI").sum() > 0
    assert row["ci_low"] < row["estimate"] < row["ci_high"]
    age, p = table.loc[("age", "auc")], None
    years = cohort.frame["age"]
    p = mannwhitneyu(years[course == "pMCI"], years[course == "sMCI"], method="asymptotic").pvalue
    np.testing.assert_allclose(age["p"], p, atol=0.04)
    shares = table.loc["model"]["estimate"]
    np.testing.assert_allclose(shares["sensitivity"], (up > 0).mean())
    np.testing.assert_allclose(shares["specificity"], (down <= 0).mean())
    np.testing.assert_allclose(shares["balanced_accuracy"], ((up > 0).mean() + (down <= 0).mean()) / 2)
    np.testing.assert_allclose(table.loc[("hippocampus/tiv", "auc"), "estimate"], row["estimate"])


def test_without_both_courses_the_rows_say_so(cohort) -> None:
    one_sided = dataclasses.replace(cohort, frame=cohort.frame.assign(progression="pMCI"))
    table = progression_table(one_sided, FAST.statistics, 3, 36).set_index(["predictor", "measure"])
    assert table.loc[("model", "auc"), "note"] == "60 pMCI and 0 sMCI; both are needed"
    assert np.isnan(table.loc[("model", "specificity"), "estimate"])
    undecided = dataclasses.replace(cohort, frame=cohort.frame.assign(progression="uMCI"))
    table = progression_table(undecided, FAST.statistics, 3, 36).set_index(["predictor", "measure"])
    assert "0 pMCI and 0 sMCI" in table.loc[("model", "sensitivity"), "note"]


def test_one_scan_per_participant_the_first_and_whoever_has_no_time_is_counted() -> None:
    scans, clinical, risk = mci_people(20)
    again = [dataclasses.replace(s, session_id="ses-M012", scan_id=f"{s.scan_id}b", age=s.age + 1) for s in scans[:5]]
    later = clinical.iloc[:5].assign(years_since_first_scan=1.0)
    later.index = pd.Index([s.scan_id for s in again], name="scan_id")
    clinical = pd.concat([clinical, later])
    clinical.loc["J7", ["converted", "months_to_conversion", "months_followed"]] = np.nan
    clinical.loc["J8", ["converted", "months_to_conversion", "months_followed"]] = [0, np.nan, 0]
    clinical.loc["J9", ["converted", "months_to_conversion", "months_followed"]] = [0, 12, 48]  # AD withdrawn
    applied = applied_to([*scans, *again], clinical, np.tile(risk, 2)[:25], np.tile(risk, 2)[:25])
    cohort = conversions(applied)
    assert sorted(cohort.frame["scan_id"]) == sorted(s.scan_id for s in scans if s.scan_id not in ("J7", "J8"))
    withdrawn = cohort.frame.set_index("scan_id").loc["J9"]
    assert (withdrawn["time"], bool(withdrawn["event"])) == (48, False)
    place = list(cohort.frame["scan_id"]).index("J9")
    assert cohort.relevance[place, 0, GROUPS.index("Hippocampus")] == pytest.approx(5 + risk[9])
    assert cohort.note is not None
    assert cohort.note.startswith("1 participant left out: neither conversion")
    assert "; 1 participant left out: no time" in cohort.note


def test_nobody_with_mci_and_no_times_are_named(tmp_path) -> None:
    with pytest.raises(BadInputError, match=r"predictions_applied\.tsv"):
        progression_tables(inputs_of(tmp_path, people(), np.zeros(len(people()))))
    scans, clinical, risk = mci_people(12)
    with pytest.raises(BadInputError, match=r"clinical\.tsv: column converted, months_followed"):
        conversions(applied_to(scans, clinical[["years_since_first_scan"]], risk, risk))
    others = [dataclasses.replace(scan, diagnosis="CN") for scan in scans]
    with pytest.raises(BadInputError, match="has MCI"):
        conversions(applied_to(others, clinical, risk, risk))


def test_where_nobody_converted_everybody_is_censored_and_the_rows_say_so(tmp_path) -> None:
    """clinical.tsv has no months_to_conversion then: a column without a value is left out of it."""
    scans, clinical, risk = mci_people(20)
    none = clinical.assign(converted=0.0).drop(columns="months_to_conversion")
    cohort = conversions(applied_to(scans, none, risk, risk))
    assert not cohort.event.any()
    assert cohort.time.tolist() == none["months_followed"].tolist()
    table = cox_table(cohort, FAST.statistics, 0)
    assert table["p"].isna().all()
    assert (table["n_events"] == 0).all()
    assert (table["n_censored"] == table["n_participants"]).all()
    assert table["n_competing"].isna().all()  # this clinical table does not tell
    assert table["note"].str.contains("0 conversions").all(), table["note"].unique()


def test_one_age_at_several_visits_dates_none_of_them() -> None:
    frame = pd.DataFrame(
        {
            "participant_id": ["a", "a", "b", "b", "c", "d", "d"],
            "session_id": ["ses-1", "ses-2", "ses-1", "ses-2", "ses-1", "ses-1", "ses-2"],
            "age": [70.0, 70.0, 70.0, 71.0, 80.0, 90.0, 90.0],
            "years_since_first_scan": [np.nan] * 5 + [0.0, 1.5],
        }
    )
    np.testing.assert_allclose(years_since_first(frame), [np.nan, np.nan, 0, 1, 0, 0, 1.5])


def test_logits_are_taken_where_they_are_and_probabilities_where_not() -> None:
    frame = pd.DataFrame(
        {"probability": [1.0, 0.8], "logit_positive": [30.0, np.nan], "logit_negative": [-30.0, np.nan]}
    )
    np.testing.assert_allclose(log_odds(frame), [60, np.log(4)])
    assert log_odds(frame[["probability"]])[0] > 80  # saturated, and still finite
    assert np.isfinite(log_odds(frame[["probability"]])).all()


def test_same_seed_same_table(cohort) -> None:
    one, two, other = (progression_table(cohort, FAST.statistics, seed, 36) for seed in (3, 3, 4))
    pd.testing.assert_frame_equal(one, two)
    assert not one["ci_low"].equals(other["ci_low"])


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UsageError, match=r"progression\.min_events_per_variable"):
        load_config(overrides={"statistics": {"progression": {"min_events_per_variable": 0}}})


ROWS = st.lists(st.tuples(st.integers(1, 5), st.booleans(), st.integers(0, 4)), min_size=2, max_size=12)


def counted(rows: list[tuple[int, bool, int]]) -> float:
    """Pair by pair, in the words of Harrell et al. (1982)."""
    right = total = 0.0
    for (t1, e1, x1), (t2, e2, x2) in itertools.permutations(rows, 2):
        if e1 and (t1 < t2 or (t1 == t2 and not e2)):
            total += 1
            right += 1.0 if x1 > x2 else 0.5 if x1 == x2 else 0.0
    return right / total if total else np.nan


def arrays(rows: list[tuple[int, bool, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    time, event, x = zip(*rows, strict=True)
    return np.array(time, float), np.array(event), np.array(x, float)


@settings(max_examples=150, deadline=None)
@given(ROWS)
def test_concordance_is_what_counting_gives(rows: list[tuple[int, bool, int]]) -> None:
    time, event, x = arrays(rows)
    np.testing.assert_allclose(concordance(x, comparable_pairs(time, event))[0], counted(rows), atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(ROWS, st.data())
def test_a_participant_drawn_twice_counts_as_two_people(rows, data) -> None:
    times = data.draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows)))
    time, event, x = arrays(rows)
    repeated = [row for row, k in zip(rows, times, strict=True) for _ in range(k)]
    # Two copies of one person are tied in time and event, so they are no comparable pair.
    expected = counted(repeated) if len(repeated) > 1 else np.nan
    weighted = concordance(x, comparable_pairs(time, event), np.array([times], float))[0]
    np.testing.assert_allclose(weighted, expected, atol=1e-12)


def test_class_pairs_give_the_area_under_the_roc_curve() -> None:
    rng = np.random.default_rng(3)
    positive, score = rng.random(40) < 0.4, rng.integers(0, 8, 40).astype(float)
    np.testing.assert_allclose(concordance(score, class_pairs(positive))[0], roc_auc_score(positive, score))


def test_permuting_the_predictor_is_recomputing_it() -> None:
    rng = np.random.default_rng(4)
    time, event, x = rng.integers(1, 9, 15).astype(float), rng.random(15) < 0.6, rng.normal(size=15)
    rows = np.array([rng.permutation(15) for _ in range(20)])
    pairs = comparable_pairs(time, event)
    expected = [concordance(x[order], pairs)[0] for order in rows]
    np.testing.assert_allclose(permuted_concordance(x, pairs, rows), expected)


def test_without_a_comparable_pair_there_is_no_concordance() -> None:
    pairs = comparable_pairs(np.array([1.0, 2.0]), np.array([False, False]))
    assert np.isnan(concordance(np.array([1.0, 2.0]), pairs)).all()
    assert np.isnan(permuted_concordance(np.array([1.0, 2.0]), pairs, np.array([[1, 0]]))).all()
