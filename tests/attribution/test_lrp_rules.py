"""The β-rule on single layers against dense float64 matrices, and its decisions one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heatlas.pipeline.attribution.graph.linear_maps import Convolution
from heatlas.pipeline.attribution.lrp.contributions import Rule, contribution_floor, merge_copies, products
from heatlas.pipeline.attribution.lrp.rules import (
    BetaRule,
    EpsilonRule,
    GammaRule,
    ZPlusRule,
)


@given(
    st.lists(st.tuples(*[st.floats(0, 1e6)] * 2, st.floats(-1e3, 1e3)), min_size=1, max_size=20),
    st.floats(-2, 3).map(lambda beta: round(beta, 2)),
)
@settings(max_examples=200, deadline=None)
def test_every_unit_keeps_or_reports_its_relevance(units: list[tuple[float, float, float]], beta: float) -> None:
    positive, negative, relevance = torch.tensor(units, dtype=torch.float64).T.clone()
    messages = BetaRule(beta).messages(positive, -negative, None, relevance)
    kept = positive * messages.positive
    if messages.negative is not None:
        kept = kept - negative * messages.negative
    np.testing.assert_allclose(kept + messages.lost, relevance, rtol=1e-12, atol=1e-290)


@pytest.mark.parametrize(
    ("beta", "kept", "lost"),
    [
        # units: both signs, positive only, negative only, none
        (0.0, [1, 1, 0, 0], [0, 0, 1, 1]),
        (0.5, [1, 1, 1, 0], [0, 0, 0, 1]),
        (-1.0, [1, 0, 1, 0], [0, 1, 0, 1]),
    ],
)
def test_one_signed_units(beta: float, kept: list[float], lost: list[float]) -> None:
    positive, negative = torch.tensor([4.0, 4.0, 0.0, 0.0]), torch.tensor([-2.0, 0.0, -2.0, 0.0])
    messages = BetaRule(beta).messages(positive, negative, None, torch.ones(4))
    through = positive * messages.positive
    if messages.negative is not None:
        through = through + negative * messages.negative
    assert through.tolist() == kept
    assert messages.lost.tolist() == lost


def test_sums_below_the_floor_are_no_contribution_and_give_no_infinity() -> None:
    for dtype in (torch.float32, torch.float64):
        floor = contribution_floor(dtype)
        sums = torch.tensor([floor, 2 * floor], dtype=dtype)
        messages = BetaRule(0.25).messages(sums, torch.zeros_like(sums), None, torch.full((2,), 1e6, dtype=dtype))
        assert messages.lost.tolist() == [1e6, 0.0]
        assert torch.isfinite(messages.positive).all()


def test_beta_other_than_zero_needs_negative_sums() -> None:
    with pytest.raises(ValueError, match="negative"):
        BetaRule(0.5).messages(torch.ones(1), None, None, torch.ones(1))


@pytest.mark.parametrize("groups", [1, 3])
def test_splitting_signs_gives_the_four_products(groups: int) -> None:
    torch.manual_seed(5)
    linear = Convolution(groups=groups)
    x, weight = torch.randn(2, 6, 3, 4, 5), torch.randn(9, 6 // groups, 2, 2, 2)
    contributors = products(x, weight, linear)
    product = linear.apply(contributors.x, contributors.weight.clamp(min=0))
    four_term = linear.apply(x.clamp(min=0), weight.clamp(min=0)) + linear.apply(x.clamp(max=0), weight.clamp(max=0))
    torch.testing.assert_close(product, four_term)
    merged = merge_copies(contributors.x, contributors.copies, linear)
    torch.testing.assert_close(merged, x.abs(), rtol=0, atol=0)


@pytest.mark.parametrize(
    "rule",
    [
        EpsilonRule(0.25),
        EpsilonRule(0.0, bias=False),
        GammaRule(0.5),
        GammaRule(0.1, bias=True),
        ZPlusRule(),
        ZPlusRule(bias=True),
        BetaRule(-0.4),
    ],
)
@given(st.lists(st.tuples(st.floats(0, 1e3), st.floats(0, 1e3), *[st.floats(-1e2, 1e2)] * 2), min_size=1, max_size=9))
@settings(max_examples=50, deadline=None)
def test_every_rule_accounts_for_all_relevance(rule: Rule, units: list[tuple[float, float, float, float]]) -> None:
    positive, below, bias, relevance = torch.tensor(units, dtype=torch.float64).T.clone()
    messages = rule.messages(positive, -below, bias, relevance)
    parts = [positive * messages.positive]
    if messages.negative is not None:
        parts.append(-below * messages.negative)
    parts += [part for part in (messages.lost, messages.bias, messages.stabiliser) if part is not None]
    size = torch.stack([part.abs() for part in parts]).sum(0) + relevance.abs()
    assert bool(((torch.stack(parts).sum(0) - relevance).abs() <= 1e-12 * size + 1e-290).all())
