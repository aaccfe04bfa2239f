"""Few people, or people alike: no interval without width, no effect size of a standard deviation that nobody knows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from made_up import GROUPS, inputs_of, people, predictions_of, relevance_of, settings
from mci_cohort import applied_to, mci_people
from scipy.stats import beta

from heatlas.pipeline.regions.effect_size import hedges_g
from heatlas.pipeline.statistics.data.members import reported_g
from heatlas.pipeline.statistics.groups.comparisons import comparisons_tables
from heatlas.pipeline.statistics.groups.fairness import FLAT_ERROR, fairness_tables
from heatlas.pipeline.statistics.groups.subgroups import subgroups_tables
from heatlas.pipeline.statistics.progression.cox import conversions
from heatlas.pipeline.statistics.progression.prediction import progression_table
from heatlas.pipeline.statistics.resampling.bootstrap import FLAT, Intervals, with_exact_shares
from heatlas.pipeline.statistics.resampling.means import ALIKE, HALL

FEW = "no Hedges' g: fewer than 8 degrees of freedom"


@pytest.mark.parametrize("n", [1, 5, 40])
def test_exact_bounds_are_quantiles_of_the_beta_distribution(n: int) -> None:
    found = with_exact_shares(Intervals.absent(3), {0: (1.0, n), 1: (0.0, n), 2: (0.5, n)}, 0.9)
    np.testing.assert_allclose(found.low[:2], [beta.ppf(0.05, n, 1), 0])
    np.testing.assert_allclose(found.high[:2], [1, beta.ppf(0.95, 1, n)])
    assert np.isnan(found.low[2])
    assert found.method.tolist() == ["Clopper-Pearson", "Clopper-Pearson", "none"]


def test_g_needs_eight_degrees_of_freedom_in_tables_and_two_by_its_formula() -> None:
    rng = np.random.default_rng(0)
    values, first = rng.normal(size=(10, 2)), np.arange(10) < 5
    together, folds = np.zeros(10, np.intp), np.arange(10, dtype=np.intp) % 3
    g, why = reported_g(values, first, together)
    np.testing.assert_array_equal(g, hedges_g(values, first))
    assert why == [None, None]
    g, why = reported_g(values, first, folds)
    assert np.isnan(g).all()
    assert why == [f"{FEW} (6)"] * 2
    assert np.isfinite(hedges_g(values, first, folds)).all()
    assert np.isnan(hedges_g(values[:3], first[3:6])).all()  # one degree of freedom: its correction is 0
    assert np.isfinite(hedges_g(values[:4], first[3:7])).all()


def test_g_of_people_alike_but_for_rounding_is_missing_and_said() -> None:
    first = np.arange(12) < 6
    alike = np.where(first, 0.3, 0.1) + 1e-16 * np.arange(12)
    g, why = reported_g(np.column_stack([alike, np.full(12, np.nan)]), first, np.zeros(12, np.intp))
    assert np.isnan(g).all()
    assert why == ["no Hedges' g: participants do not differ within the groups", None]


def test_small_subgroups_and_comparisons_say_why_there_is_no_g() -> None:
    config = settings(subgroups={"variables": ("sex",), "minimum_participants": 2})
    scans = people(4, (1,))
    table = comparisons_tables(inputs_of(scans, config)).query("comparison == 'AD/CN'")
    assert table["hedges_g"].isna().all()
    assert table["note"].str.contains(FEW).all()
    assert table[["difference", "ci_low", "t", "p"]].notna().all().all()
    inside = subgroups_tables(inputs_of(people(8), config))
    small = inside[inside["class_difference"].notna() & (inside["n_participants"] < 10)]
    assert len(small)
    assert small["class_hedges_g"].isna().all()
    assert small["note"].str.contains(FEW).all()


@pytest.mark.filterwarnings("error")
def test_a_region_that_is_the_same_in_everybody_has_no_interval_and_no_g() -> None:
    scans = people(8, (1,))
    relevance = relevance_of(scans)
    relevance.loc[relevance["group"] == "Amygdala", ["sum", "density"]] = [7.0, 0.35]
    inputs = inputs_of(scans, settings(subgroups={"variables": ("sex",)}), relevance=relevance)
    table = comparisons_tables(inputs)
    own = table[(table["group"] == "Amygdala") & (table["metric"] == "density") & (table["comparison"] == "AD/CN")]
    assert own["hedges_g"].isna().all()
    assert own["ci_low"].isna().all()
    assert (own["interval"] == "none").all()
    assert own["note"].str.contains("values are constant", regex=False).all()
    inside = subgroups_tables(inputs)
    own = inside[inside["group"] == "Amygdala"]
    assert (own["interval"] == "none").all()
    assert own["mean_density"].to_numpy() == pytest.approx(np.full(len(own), 0.35))
    assert own["note"].str.contains(ALIKE, regex=False).all()
    assert (inside.loc[inside["group"] != "Amygdala", "interval"] == HALL).all()
    assert len(GROUPS) * 3 * 2 == len(inside)


def test_a_subgroup_classified_without_error_has_exact_intervals() -> None:
    scans = people(15, (1,))
    wrong = [s.participant_id for s in scans if s.sex == "M"][:3]
    config = settings(subgroups={"variables": ("sex",)})
    table = fairness_tables(inputs_of(scans, config, predictions=predictions_of(scans, wrong)))
    rows = table[table["level"] == "F"].set_index("metric")
    for metric, n in {"sensitivity": "n_positive", "specificity": "n_negative"}.items():
        row = rows.loc[metric]
        assert (row["estimate"], row["ci_high"], row["interval"]) == (1, 1, "Clopper-Pearson")
        assert row["ci_low"] == pytest.approx(0.025 ** (1 / row[n]))
    assert rows.loc["balanced_accuracy", "interval"] == "none"
    assert FLAT in rows.loc["balanced_accuracy", "note"]
    perfect = fairness_tables(inputs_of(scans, config, predictions=predictions_of(scans, ())))
    assert (perfect["difference"] == 0).all()
    assert (perfect["difference_interval"] == "none").all()
    assert perfect["note"].str.contains(f"difference: {FLAT_ERROR}", regex=False).all()


def test_a_predictor_that_orders_everybody_right_has_no_interval_of_no_width() -> None:
    scans, clinical, risk = mci_people(20)
    order = np.argsort(np.argsort(clinical["months_to_conversion"].fillna(999.0).to_numpy(), kind="stable"))
    cohort = conversions(applied_to(scans, clinical, -order.astype(float) + 8.5, risk))
    course = np.where(order < 8, "pMCI", "sMCI")
    cohort = dataclasses.replace(cohort, frame=cohort.frame.assign(progression=course))
    table = progression_table(cohort, settings().statistics, 3, 36).set_index(["predictor", "measure"])
    for measure in ("concordance", "auc"):
        row = table.loc[("model", measure)]
        assert (row["estimate"], row["interval"]) == (1, "none")
        assert np.isnan(row["ci_low"])
        assert FLAT in row["note"]
        assert row["p"] < 0.05
    sensitivity = table.loc[("model", "sensitivity")]
    assert (sensitivity["estimate"], sensitivity["interval"]) == (1, "Clopper-Pearson")
    assert sensitivity["ci_low"] == pytest.approx(0.025 ** (1 / 8))
    assert table.loc[("age", "auc"), "interval"] == "BCa"
