"""Norms that an export gives away: of one age and sex as a regression of the controls says, of regions and answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy import stats
from scipy.special import expit

from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.explaining.controls import NORMS_TABLE
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.statistics.data.inputs import AppliedScans
from heatlas.pipeline.statistics.data.values import RelevanceValues
from heatlas.pipeline.statistics.normative.shared_norms import (
    ANSWER,
    SharedNorms,
    answer_table,
    answers_of,
    norm_rows,
)
from heatlas.pipeline.statistics.stage import ControlNorms, applied_scores

GROUPS = ("Amygdala", "Hippocampus", "Putamen")
SOURCE = "deeplift"


def controls(n: int = 40, seed: int = 1) -> tuple[pd.DataFrame, np.ndarray]:
    """Controls whose values change by 0.5, -0.2 and 0 per year, and are 3 higher in men."""
    rng = np.random.default_rng(seed)
    facts = pd.DataFrame({"age": rng.uniform(60.2, 88.9, n), "sex": rng.choice(["F", "M"], n)})
    man = (facts["sex"] == "M").to_numpy(float)
    values = facts["age"].to_numpy()[:, None] * np.array([0.5, -0.2, 0.0]) + 3 * man[:, None]
    return facts, values + 1.7 * rng.normal(size=(n, len(GROUPS)))


def shared(facts: pd.DataFrame, values: np.ndarray, folder: Path, source: str = SOURCE) -> SharedNorms:
    """The norms as an export writes and reads them."""
    groups = GROUPS if values.shape[1] == len(GROUPS) else (ANSWER,)
    path = NORMS_TABLE.write(folder / "norms.tsv", norm_rows(source, groups, values, facts))
    return SharedNorms(source, NORMS_TABLE.read(path, list(NORMS_TABLE.meanings)))


def person(age: float | None = 71.5, sex: str | None = "M") -> pd.DataFrame:
    return pd.DataFrame({"age": [age], "sex": [sex]})


def scores(norms: SharedNorms | ControlNorms, values: np.ndarray, facts: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    norm, covariates, _ = norms.for_scan(facts)
    w, z = norm.scores(values[None], covariates)
    return w[0], z[0]


def test_a_planted_norm_is_recovered_from_many_controls(tmp_path) -> None:
    facts, values = controls(4000)
    rows = shared(facts, values, tmp_path).rows.set_index("group")
    np.testing.assert_allclose(rows["age_slope"], [0.5, -0.2, 0.0], atol=0.02)
    np.testing.assert_allclose(rows["men_less_women"], 3.0, atol=0.25)
    np.testing.assert_allclose(rows["residual_sd"], 1.7, rtol=0.05)
    assert set(rows["age_low"]) == {61.0}
    assert set(rows["age_high"]) == {88.0}


@pytest.mark.parametrize("sex", ["F", "M"])
def test_scores_are_those_of_a_regression_of_the_controls(tmp_path, sex) -> None:
    facts, values = controls()
    theirs, age = np.array([40.0, -10.0, 2.0]), 83.0
    w, z = scores(shared(facts, values, tmp_path), theirs, person(age, sex))
    design = sm.add_constant(np.column_stack([facts["age"], facts["sex"] == "M"]).astype(float))
    for place in range(len(GROUPS)):
        model = sm.OLS(values[:, place], design).fit()
        predicted = model.get_prediction(np.array([[1.0, age, float(sex == "M")]]))
        residual = theirs[place] - predicted.predicted_mean[0]
        assert w[place] == pytest.approx(residual / np.sqrt(model.scale), rel=1e-9)
        t = residual / np.sqrt(predicted.var_pred_mean[0] + model.scale)
        assert z[place] == pytest.approx(stats.norm.ppf(stats.t.cdf(t, model.df_resid)), rel=1e-7)


def test_an_export_scores_a_person_as_its_run_does(tmp_path) -> None:
    facts, values = controls()
    facts = facts.assign(field_strength=1.5)
    facts.loc[3, "age"], facts.loc[4, "sex"], values[5, 1] = np.nan, None, np.nan
    of_run = ControlNorms(SOURCE, GROUPS, values, facts, "age + sex + field_strength", 5)
    theirs, who = np.array([40.0, -10.0, 2.0]), person().assign(field_strength=np.nan)
    ours, wanted = (scores(norms, theirs, who) for norms in (shared(facts, values, tmp_path), of_run))
    np.testing.assert_allclose(ours, wanted, rtol=1e-9)


def test_without_age_or_sex_the_norm_is_that_of_all_controls(tmp_path) -> None:
    facts, values = controls()
    norms = shared(facts, values, tmp_path)
    for who, why in ((person(None), "age is n/a"), (person(None, None), "age is n/a; sex is n/a")):
        w, _ = scores(norms, values[0], who)
        np.testing.assert_allclose(w, (values[0] - values.mean(0)) / values.std(0, ddof=1))
        assert norms.for_scan(who)[2] == f"norm without age and sex ({why})"


@pytest.mark.parametrize(("age", "known"), [(61, True), (60, False), (88, True), (89, False), (20, False)])
def test_outside_the_ages_of_the_controls_there_is_no_norm(tmp_path, age, known) -> None:
    facts, values = controls(400)
    norm, covariates, _ = shared(facts, values, tmp_path).for_scan(person(age))
    assert np.isfinite(norm.scores(values[:1], covariates)[0]).all() == known
    said = None if known else f"age {age} is outside those of the controls, 61 to 88"
    assert norm.problems == (said,) * len(GROUPS)


def test_few_of_one_sex_leave_mean_and_spread_alone(tmp_path) -> None:
    facts, values = controls(30)
    facts["sex"] = ["M"] * 4 + ["F"] * 26
    norms = shared(facts, values, tmp_path)
    assert norms.rows[["women", "age_mean", "age_men", "age_low"]].isna().all(axis=None)
    w, _ = scores(norms, values[0], person())
    np.testing.assert_allclose(w, (values[0] - values.mean(0)) / values.std(0, ddof=1))
    assert len(norm_rows(SOURCE, GROUPS, values[:4], facts[:4])) == 0


def test_a_region_that_few_have_is_scored_without_age_and_sex_beside_others_with_them(tmp_path) -> None:
    facts, values = controls()
    values[7:, 1] = np.nan
    norms = shared(facts, values, tmp_path)
    norm, covariates, _ = norms.for_scan(person())
    w, z = norm.scores(np.array([[40.0, -10.0, 2.0]]), covariates)
    few = values[:7, 1]
    assert w[0, 1] == pytest.approx((-10.0 - few.mean()) / few.std(ddof=1))
    t = w[0, 1] / np.sqrt(1 + 1 / 7)
    assert z[0, 1] == pytest.approx(stats.norm.ppf(stats.t.cdf(t, 6)))
    assert norm.problems == (None, "norm without age and sex: too few controls with both", None)
    np.testing.assert_allclose(w[0, 0], scores(norms, np.array([40.0, 0, 0]), person())[0][0])


def applied(predictions: pd.DataFrame, ages: list[float | None]) -> AppliedScans:
    names = [f"sub-{place}" for place in range(len(predictions))]
    predictions = predictions.assign(participant_id=names, session_id=None, scan_id=names, n_networks=5)
    keys = pd.DataFrame({"scan_id": names, "map": SOURCE, "group": "Amygdala", "sum": 1.0, "density": 1.0, "gain": 1.0})
    scans = tuple(Scan(name, None, name, None, age=age, sex="F") for name, age in zip(names, ages, strict=True))
    clinical = pd.DataFrame(index=pd.Index([], name="scan_id", dtype=object))
    return AppliedScans(scans, predictions, RelevanceValues.of(keys, predictions, "predictions_applied.tsv"), clinical)


def test_the_answer_has_a_norm_like_a_region(tmp_path) -> None:
    facts, values = controls()
    norms = shared(facts, values[:, :1], tmp_path, ANSWER)
    scans = applied(pd.DataFrame({"prediction": [42.0, 42.0, 42.0]}), [70.0, None, 20.0])
    table = answer_table(scans, norms)
    young, unknown, outside = table.astype(object).where(table.notna(), None).to_dict("records")
    w, z = scores(norms, np.array([42.0]), person(70.0, "F"))
    assert (young["answer"], young["w"], young["z"], young["n_controls"]) == (42.0, w[0], z[0], 40)
    assert (young["covariates"], young["note"]) == ("age, sex", None)
    assert young["mean"] + young["w"] * young["sd"] == pytest.approx(42.0)
    assert unknown["mean"] == pytest.approx(values[:, 0].mean())
    assert (unknown["covariates"], unknown["note"]) == (None, "norm without age and sex (age is n/a)")
    assert (outside["mean"], outside["sd"], outside["w"], outside["answer"]) == (None, None, None, 42.0)
    assert "outside those of the controls" in outside["note"]
    assert applied_scores(RunLayout(tmp_path), scans, [norms]).empty  # no region


def test_the_answer_of_two_classes_is_their_logit_and_of_several_none() -> None:
    logits = pd.DataFrame({"logit_negative": [1.0, -0.5], "logit_positive": [0.2, 2.0]})
    chances = expit(answers_of(logits))
    both = np.exp(logits.to_numpy())
    np.testing.assert_allclose(chances, both[:, 1] / both.sum(1))
    assert answers_of(pd.DataFrame({"logit_CN": [1.0], "logit_MCI": [0.0], "probability": [0.2]})) is None


def test_controls_that_are_all_alike_give_no_score() -> None:
    unknown = pd.DataFrame({"age": [np.nan] * 30, "sex": [None] * 30})
    shared = SharedNorms("lrp", norm_rows("lrp", ["Amygdala"], np.full((30, 1), 0.1), unknown))
    norm, x, _ = shared.for_scan(pd.DataFrame({"age": [70.0], "sex": ["F"]}))
    assert np.isnan(norm.scores(np.array([[0.5]]), x)[0]).all()
