"""Few people whose values lie almost on a line, or fall almost apart in groups: rounding must not decide p."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from heatlas.pipeline.statistics.arrays import Floats
from heatlas.pipeline.statistics.linear.correlation import partial_correlation
from heatlas.pipeline.statistics.linear.design import Design
from heatlas.pipeline.statistics.linear.freedman_lane import PermutationTest, freedman_lane
from heatlas.pipeline.statistics.linear.permutations import Exchangeability

M = 500
Test = Callable[[Floats, Design, Exchangeability, np.random.Generator], PermutationTest]

TESTS: dict[str, Test] = {
    "pearson": lambda y, design, units, rng: partial_correlation(y, design, units, M, rng, "pearson"),
    "spearman": lambda y, design, units, rng: partial_correlation(y, design, units, M, rng, "spearman"),
    "robust t": lambda y, design, units, rng: freedman_lane(y, design, units, M, rng),
    "plain t": lambda y, design, units, rng: freedman_lane(y, design, units, M, rng, equal_variances=True),
    "groups": lambda y, design, units, rng: freedman_lane(
        y, design, units, M, rng, (design.tested[:, 0] > 0).astype(int).tolist()
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
        freedman_lane(y[:, columns], design, units, 99, np.random.default_rng(0), group.tolist(), kinds=columns)
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
    found = freedman_lane(y, design, Exchangeability.free(24), 99, rng, group.tolist())
    assert abs(found.statistic[0]) < 1e-12
    assert found.p[0] > 0.9
