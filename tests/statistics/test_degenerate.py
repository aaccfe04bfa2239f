"""Few people, people alike, or values almost on a line: no interval without width, and rounding does not decide p."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from made_up import GROUPS, inputs_of, people, predictions_of, relevance_of, settings
from mci_cohort import applied_to, mci_people
from scipy.stats import beta

from heatlas.pipeline.regions.effect_size import hedges_g
from heatlas.pipeline.statistics.arrays import Floats, Resampling
from heatlas.pipeline.statistics.data.members import reported_g
from heatlas.pipeline.statistics.groups.comparisons import comparisons_tables
from heatlas.pipeline.statistics.groups.fairness import FLAT_ERROR, fairness_tables
from heatlas.pipeline.statistics.groups.subgroups import subgroups_tables
from heatlas.pipeline.statistics.linear.correlation import partial_correlation
from heatlas.pipeline.statistics.linear.design import Design
from heatlas.pipeline.statistics.linear.freedman_lane import PermutationTest, freedman_lane
from heatlas.pipeline.statistics.linear.permutations import Exchangeability
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


M = 500
Test = Callable[[Floats, Design, Exchangeability, np.random.Generator], PermutationTest]

TESTS: dict[str, Test] = {
    "pearson": lambda y, design, units, rng: partial_correlation(y, design, units, Resampling(M, rng), "pearson"),
    "spearman": lambda y, design, units, rng: partial_correlation(y, design, units, Resampling(M, rng), "spearman"),
    "robust t": lambda y, design, units, rng: freedman_lane(y, design, units, Resampling(M, rng)),
    "plain t": lambda y, design, units, rng: freedman_lane(y, design, units, Resampling(M, rng), equal_variances=True),
    "groups": lambda y, design, units, rng: freedman_lane(
        y, design, units, Resampling(M, rng), (design.tested[:, 0] > 0).astype(int).tolist()
    ),
}


def almost(x: Floats, rng: np.random.Generator, covariate: bool) -> tuple[Floats, Design]:
    """Values that follow x but for noise of 1e-9 to 1 times its spread, a column for each."""
    n = len(x)
    y = x[:, None] + 10.0 ** np.arange(-9, 1) * rng.normal(size=(n, 10))
    nuisance = np.column_stack([np.ones(n), rng.normal(size=n)] if covariate else [np.ones(n)])
    names = ("x", "Intercept", "age")[: 1 + nuisance.shape[1]]
    return y, Design(x[:, None], nuisance, np.arange(n), {}, names, {})


@pytest.mark.parametrize("name", TESTS)
@pytest.mark.parametrize("covariate", [False, True])
@pytest.mark.parametrize("n", [5, 6, 8, 12])
def test_p_counts_the_observed_order_and_agrees_with_the_interval(name: str, covariate: bool, n: int) -> None:
    for seed in range(4):
        rng = np.random.default_rng(seed)
        x = np.where(np.arange(n) < n // 2, -1.0, 1.0) if name == "groups" else rng.normal(size=n)
        y, design = almost(x, rng, covariate)
        found = TESTS[name](y, design, Exchangeability.free(n), rng)
        orders = found.n_permutations
        for p in (found.p, found.p_fwe):
            least = 1 / orders if found.exact and name != "groups" else 1 / (orders + 1)
            assert (p >= least - 1e-12).all(), "the observed order counts"
        known = np.isfinite(found.low)
        outside = (found.low > 0) | (found.high < 0)
        assert (outside == (found.p <= 0.05))[known].all()


@pytest.mark.parametrize("noise", 10.0 ** np.arange(-12, 1, 2))
@pytest.mark.parametrize("name", ["pearson", "robust t", "plain t"])
def test_mirrored_groups_of_one_size_are_as_extreme_as_the_observed_ones(name: str, noise: float) -> None:
    """Exchanging all of two groups of four gives the same |t|: 2 of 70 orders, however small the noise."""
    x = np.repeat([-1.0, 1.0], 4)
    rng = np.random.default_rng(0)
    y = x + noise * rng.normal(size=8)
    design = Design(x[:, None], np.ones((8, 1)), np.arange(8), {}, ("x", "Intercept"), {})
    found = TESTS[name](y[:, None], design, Exchangeability.free(8), rng)
    assert (found.exact, found.n_permutations) == (True, 70)
    brute = 2 if noise < 0.1 else round(float(found.p[0]) * 70)
    assert float(found.p[0]) == pytest.approx(brute / 70)


def test_a_column_without_variance_to_divide_by_does_not_decide_for_the_others() -> None:
    """Two of four groups do not vary, differ, and are a block each: F has no error in any permutation."""
    rng = np.random.default_rng(0)
    group = np.repeat([0, 1, 2, 3], 6)
    y = rng.normal(size=(24, 3)) + (group == 1)[:, None]
    y[group > 1, 1] = group[group > 1] / 3
    tested = (group[:, None] == [1, 2, 3]).astype(float)
    design = Design(tested, np.ones((24, 1)), np.arange(24), {}, ("a", "b", "c", "Intercept"), {})
    units = Exchangeability.free(24).in_blocks(np.maximum(group, 1).tolist())
    both, alone = (
        freedman_lane(
            y[:, columns], design, units, Resampling(99, np.random.default_rng(0)), group.tolist(), kinds=columns
        )
        for columns in ([0, 1, 2], [0, 2])
    )
    assert np.isnan([both.p[1], both.statistic[1]]).all()
    assert "no variance" in str(both.problems[1])
    for name in ("statistic", "p", "p_fwe"):
        np.testing.assert_allclose(getattr(both, name)[[0, 2]], getattr(alone, name), rtol=1e-12)


def test_groups_that_neither_vary_nor_differ_are_no_effect() -> None:
    """Two of three groups are constant and equal, the third varies about the same mean: F is 0, not without bound."""
    rng = np.random.default_rng(0)
    group, third = np.repeat([0, 1, 2], 8), rng.normal(size=8)
    y = np.concatenate([np.zeros(16), third - third.mean()])
    design = Design((group[:, None] == [1, 2]).astype(float), np.ones((24, 1)), np.arange(24), {}, ("a", "b", "1"), {})
    found = freedman_lane(y, design, Exchangeability.free(24), Resampling(99, rng), group.tolist())
    assert abs(found.statistic[0]) < 1e-12
    assert found.p[0] > 0.9
