"""Two cohorts side by side, and scans without labels against the norms of a run."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.stats import binomtest

from heatlas.pipeline.regions.effect_size import hedges_g
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.statistics.applied import ControlNorms, SharedNorms
from heatlas.pipeline.statistics.comparison.external import Cohorts, _of_shares, _performance, weighted_g
from heatlas.pipeline.statistics.normative.w_scores import Norm


def test_weighted_g_is_hedges_g_but_for_one_factor() -> None:
    rng = np.random.default_rng(1)
    values, first, block = rng.normal(size=(30, 5)), np.arange(30) % 2 == 0, np.repeat([0, 1, 2], 10)
    ratio = weighted_g(values, first, block, np.ones((1, 30)))[0] / hedges_g(values, first, block)
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-12)
    assert ratio[0] == pytest.approx(1 + 3 / (4 * 26 - 1), rel=1e-3)  # Hedges' approximation of his correction


def test_a_weight_of_two_counts_a_person_twice() -> None:
    rng = np.random.default_rng(2)
    values, first, block = rng.normal(size=(12, 3)), np.arange(12) % 3 == 0, np.repeat([0, 1], 6)
    weights = rng.integers(1, 4, 12)
    again = np.repeat(np.arange(12), weights)
    expected = weighted_g(values[again], first[again], block[again], np.ones((1, len(again))))
    np.testing.assert_allclose(weighted_g(values, first, block, weights[None].astype(float)), expected)


def test_a_region_that_does_not_vary_has_no_g() -> None:
    first = np.array([True, True, True, False, False, False])
    found = weighted_g(np.ones((6, 1)), first, np.zeros(6, np.intp), np.ones((1, 6)))
    assert np.isnan(found).all()


def test_shares_differ_as_newcombe_gives_it() -> None:
    found = _of_shares(48, 80, 56, 70, 0.95)  # Newcombe 1998, example (a) with the groups changed: 56/70 - 48/80
    assert found["estimate"] == pytest.approx(-0.2)
    assert (round(found["ci_low"], 4), round(found["ci_high"], 4)) == (-0.3339, -0.0524)
    assert "note" in _of_shares(0, 0, 3, 5, 0.95)


def answers(n: int, patients: int, right: int, seed: int) -> pd.DataFrame:
    """Scans of people, one each, in two folds; `right` patients and all but two controls are called correctly."""
    target = (np.arange(n) < patients).astype(int)
    called = np.where(target == 1, np.arange(n) < right, np.arange(n) < patients + 2)
    outcome = np.where(called, np.where(target == 1, "TP", "FP"), np.where(target == 1, "FN", "TN"))
    probability = np.where(called, 0.6, 0.2) + 0.3 * np.random.default_rng(seed).random(n)
    frame = pd.DataFrame({"participant_id": [f"sub-{i}" for i in range(n)], "target": target, "outcome": outcome})
    return frame.assign(fold=np.arange(n) % 2, probability=probability)


def test_differences_of_cohorts_are_combined_from_the_interval_of_each() -> None:
    run, new = answers(40, 20, 15, 1), answers(20, 8, 7, 2)
    config = load_config(overrides={"statistics": {"bootstrap_samples": 400}})
    sides = [SimpleNamespace(predictions=one, config=config, seed=3) for one in (run, new)]
    rows = pd.DataFrame(_performance(Cohorts(*sides))).set_index("measure")
    by_count = _of_shares(7, 8, 15, 20, 0.95)
    for column in ("estimate", "ci_low", "ci_high"):
        assert rows.loc["sensitivity", column] == pytest.approx(by_count[column])
    assert set(rows["interval"]) == {"Newcombe"}
    perfect = new.assign(probability=0.1 + 0.8 * new["target"])
    area = pd.DataFrame(
        _performance(Cohorts(sides[0], SimpleNamespace(**vars(sides[1]) | {"predictions": perfect})))
    ).set_index("measure")
    row = area.loc["auc"]
    assert row["new"] == 1.0
    low = binomtest(8, 8).proportion_ci(0.95, method="exact").low  # of the smaller class
    assert row["ci_low"] <= row["estimate"] - (1 - low)
    assert row["estimate"] < row["ci_high"] < 1 - row["run"] + 0.5


CONTROLS = pd.DataFrame({
    "age": np.linspace(60, 80, 12), "sex": ["F", "M"] * 6, "field_strength": 1.5,
})  # fmt: skip


def norms(values: np.ndarray) -> ControlNorms:
    return ControlNorms("gb", ("Amygdala",), values, CONTROLS, "age + sex + field_strength", 5)


def test_a_scan_of_known_age_and_sex_is_scored_with_them() -> None:
    noise = np.random.default_rng(3).normal(0, 0.1, 12)
    values = (0.5 * CONTROLS["age"] + (CONTROLS["sex"] == "M") + noise).to_numpy()[:, None]
    norm, x, said = norms(values).for_scan(pd.DataFrame({"age": [70.0], "sex": ["M"], "field_strength": [1.5]}))
    assert said is None
    w, _ = norm.scores(np.array([[36.0]]), x)
    assert abs(w[0, 0]) < 3  # 35 for the age, 1 for the sex
    assert norm.freedom[0] == 12 - 3


def test_what_is_not_known_of_a_scan_is_left_out_of_its_norm_and_named() -> None:
    values = np.random.default_rng(4).normal(5, 2, (12, 1))
    unknown = pd.DataFrame({"age": [np.nan], "sex": [None], "field_strength": [np.nan]})
    norm, x, said = norms(values).for_scan(unknown)
    assert said == "norm without age, sex (age is n/a; sex is n/a)"  # the field is the same in all: nothing is lost
    w, z = norm.scores(np.array([[9.0]]), x)
    expected = (9.0 - values.mean()) / values.std(ddof=1)
    assert w[0, 0] == pytest.approx(expected)
    t = expected / np.sqrt(1 + 1 / 12)  # Crawford & Garthwaite 2006
    assert z[0, 0] == pytest.approx(stats.norm.isf(stats.t.sf(t, 11)))


def test_an_exported_norm_gives_the_scores_of_its_controls_without_covariates() -> None:
    values = np.random.default_rng(5).normal(5, 2, (12, 1))
    n, nothing = np.array([12.0]), (None,)
    made = Norm(values.mean(0)[None], (1 / n)[:, None, None], values.std(0, ddof=1), n, n - 1, nothing)
    shared = SharedNorms("gb", ("Amygdala",), made)
    facts = pd.DataFrame({"age": [np.nan], "sex": [None], "field_strength": [np.nan]})
    wanted, found = (one.for_scan(facts) for one in (norms(values), shared))
    for ours, theirs in zip(wanted[0].scores(np.array([[9.0]]), wanted[1]),
                            found[0].scores(np.array([[9.0]]), found[1]), strict=True):  # fmt: skip
        np.testing.assert_allclose(theirs, ours)
