"""Every LRP rule against dense matrices and independent libraries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lrp_branching_toys import DenseToy, ResidualToy, branching_toy
from lrp_rules_brute_force import (
    Account,
    Op,
    Rule,
    Unit,
    beta_rule,
    chain,
    epsilon_rule,
    explain_graph,
    flat_rule,
    gamma_rule,
    norm_terms,
    z_box_rule,
    z_plus_rule,
)
from lrp_toys import CONVOLUTIONS, SHAPE, everywhere, staged, toy_network, toy_volumes
from torch import Tensor, nn
from zennit_oracle import (
    FROZEN,
    MEANS,
    TARGET,
    bounds,
    cases,
    rules_network,
    rules_volume,
    stub_torchvision,
    zennit_lrp_beta,
    zennit_map,
)

from heatlas.pipeline.attribution.graph.layers import Convolution
from heatlas.pipeline.attribution.lrp.relevance import lrp
from heatlas.pipeline.attribution.lrp.rules import (
    BetaRule,
    Composite,
    EpsilonRule,
    GammaRule,
    Messages,
    ZBoxRule,
    ZPlusRule,
    composite,
    contribution_floor,
    focus,
    founding,
    merge_copies,
    products,
)
from heatlas.pipeline.attribution.lrp.rules import Rule as EngineRule
from heatlas.pipeline.attribution.lrp.rules import Rule as OraclesRule
from heatlas.pipeline.attribution.records import Attribution

# Every LRP rule, on units, on layers and through whole networks, against dense float64 matrices.


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
def test_every_rule_accounts_for_all_relevance(
    rule: EngineRule, units: list[tuple[float, float, float, float]]
) -> None:
    positive, below, bias, relevance = torch.tensor(units, dtype=torch.float64).T.clone()
    messages = rule.messages(positive, -below, bias, relevance)
    parts = [positive * messages.positive]
    if messages.negative is not None:
        parts.append(-below * messages.negative)
    parts += [part for part in (messages.lost, messages.bias, messages.stabiliser) if part is not None]
    size = torch.stack([part.abs() for part in parts]).sum(0) + relevance.abs()
    assert bool(((torch.stack(parts).sum(0) - relevance).abs() <= 1e-12 * size + 1e-290).all())


LOSSES = {"bias": "absorbed_by_bias", "stabiliser": "stabiliser", "lost": "lost_no_contribution"}

RULES = {
    **{f"beta {beta:g}": (BetaRule(beta), beta_rule(beta)) for beta in (0.0, 0.25, 0.5, 0.75, 1.0, 2.5, -0.3, -1.0)},
    "epsilon": (EpsilonRule(0.25), epsilon_rule(0.25)),
    "epsilon, bias out": (EpsilonRule(0.25, bias=False), epsilon_rule(0.25, bias=False)),
    "LRP-0": (EpsilonRule(0.0), epsilon_rule(0.0)),
    "gamma": (GammaRule(0.25, bias=True), gamma_rule(0.25)),
    "gamma, bias out": (GammaRule(0.25, bias=False), gamma_rule(0.25, bias=False)),
    "large gamma": (GammaRule(30.0, bias=True), gamma_rule(30.0)),
    "z+": (ZPlusRule(bias=False), z_plus_rule()),
    "z+ with bias": (ZPlusRule(bias=True), z_plus_rule(bias=True)),
}


def require_same(answer: Attribution, index: int, expected: Account, logit: float, what: str) -> None:
    """Map, start value and each kind of loss of one volume."""
    scale = np.abs(expected.below).max()
    np.testing.assert_allclose(answer.values[index], expected.below, rtol=0, atol=1e-10 * scale, err_msg=what)
    assert float(answer.start_value[index]) == pytest.approx(logit, rel=1e-11), what
    for ours, theirs in LOSSES.items():
        found = float(answer.ledger.total(theirs)[index])
        assert found == pytest.approx(getattr(expected, ours), rel=1e-9, abs=1e-10 * scale), f"{what}: {theirs}"
    assert float(answer.ledger.residual[index]) == pytest.approx(0, abs=1e-10 * scale), what


def input_volumes(signed: bool) -> torch.Tensor:
    """Two channels, two volumes, a background of zeros."""
    x = torch.rand(2, 2, 5, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(4)) - 0.5 * signed
    x[:, :, :3] = 0
    return x


@pytest.mark.parametrize("signed", [False, True], ids=["non-negative", "signed"])
@pytest.mark.parametrize("geometry", CONVOLUTIONS)
def test_every_rule_on_a_convolution_and_a_linear_layer(geometry: str, signed: bool) -> None:
    torch.manual_seed(3)
    conv = nn.Conv3d(2, 4, **CONVOLUTIONS[geometry]).double()
    with torch.no_grad():
        conv.weight[1].abs_()  # one-signed for non-negative inputs
        conv.weight[2] = -conv.weight[2].abs()
        conv.weight[3, 0, 0] = 0  # connected, by a weight of nothing
    x = input_volumes(signed)
    features = conv(x)[0].numel()
    net = nn.Sequential(conv, nn.Flatten(), nn.Linear(features, 2).double()).eval()
    answers = lrp(net, x, 1, [everywhere(engine) for engine, _ in RULES.values()])
    for (name, (_, reference)), answer in zip(RULES.items(), answers, strict=True):
        for index in range(2):
            expected, logit = explain_graph(chain(list(net)), x[index], 1, lambda *_, rule=reference: rule)
            require_same(answer, index, expected, logit, name)


@pytest.mark.parametrize("inside", [True, False], ids=["within bounds", "outside bounds"])
@pytest.mark.parametrize("geometry", CONVOLUTIONS)
def test_z_box_with_bounds_per_voxel(geometry: str, inside: bool) -> None:
    torch.manual_seed(8)
    conv = nn.Conv3d(2, 3 if "groups" not in CONVOLUTIONS[geometry] else 4, **CONVOLUTIONS[geometry]).double()
    x = input_volumes(signed=True)
    low, high = x.amin(0, keepdim=True) - 0.1, x.amax(0, keepdim=True) + 0.2
    low[:, :, :3], high[:, :, :3] = 0, 0
    if not inside:
        x = x.clone()
        x[0, 1, 4, 2, 1], x[1, 0, 3, 5, 3] = 3.0, -2.0
    net = nn.Sequential(conv, nn.Flatten(), nn.Linear(conv(x)[0].numel(), 2).double()).eval()
    head = BetaRule(0.0), beta_rule(0.0)
    bounds = z_box_rule(low[0].reshape(-1).numpy(), high[0].reshape(-1).numpy())
    (answer,) = lrp(net, x, 0, [Composite("box", ZBoxRule(low, high), head[0], head[0], head[0])])
    for index in range(2):
        expected, logit = explain_graph(chain(list(net)), x[index], 0, lambda _, first: bounds if first else head[1])
        require_same(answer, index, expected, logit, geometry)


# Whole networks. Bounds per voxel; in the background both are 0.

LOW, HIGH = toy_volumes(2).amin(0, keepdim=True), toy_volumes(2).amax(0, keepdim=True)


def by_kind(first: Rule, convolution: Rule, linear: Rule, unweighted: Rule) -> Callable[[nn.Module | str, bool], Rule]:
    def rule_of(do: nn.Module | str, sees_volume: bool) -> Rule:
        if not isinstance(do, nn.Conv3d | nn.Linear):
            return unweighted
        return first if sees_volume else convolution if isinstance(do, nn.Conv3d) else linear

    return rule_of


SAME = epsilon_rule(1e-6, bias=False)
BOX = z_box_rule(LOW.reshape(-1).numpy(), HIGH.reshape(-1).numpy())
FOUNDING = {f"founding {beta:g}": (founding(beta), by_kind(*[beta_rule(beta)] * 4)) for beta in (0, 0.25, 0.5, 0.75, 1)}
COMPOSITES = {
    "founding 0": FOUNDING["founding 0"],
    "founding 0.75": FOUNDING["founding 0.75"],
    "focus": (focus(0.25, LOW, HIGH), by_kind(BOX, z_plus_rule(), epsilon_rule(0.25, False), SAME)),
    "focus, bias": (focus(0.1, LOW, HIGH, bias=True), by_kind(BOX, z_plus_rule(True), epsilon_rule(0.1), SAME)),
    "composite": (
        composite(0.25, 0.25, LOW, HIGH),
        by_kind(BOX, gamma_rule(0.25, False), epsilon_rule(0.25, False), SAME),
    ),
    "composite, bias": (
        composite(0.1, 0.3, LOW, HIGH, bias=True),
        by_kind(BOX, gamma_rule(0.1), epsilon_rule(0.3), SAME),
    ),
}


def require_composites(
    net: nn.Module,
    ops: Callable[[], list[Op]],
    batch_norm: str = "fold",
    signed: bool = False,
    composites: Any = COMPOSITES,
) -> float:
    """The largest share of a logit that is lost."""
    volumes, lost = toy_volumes(2, signed=signed), 0.0
    answers = lrp(net, volumes, 1, [ours for ours, _ in composites.values()], batch_norm=batch_norm)
    for (name, (_, rule_of)), answer in zip(composites.items(), answers, strict=True):
        for index, volume in enumerate(volumes):
            expected, logit = explain_graph(ops(), volume, 1, rule_of, batch_norm == "fold")
            require_same(answer, index, expected, logit, name)
            lost = max(lost, abs(expected.lost / logit))
    return lost


@pytest.mark.sample(2)
@pytest.mark.parametrize("batch_norm", ["fold", "identity"])
@pytest.mark.parametrize("signed", [False, True], ids=["non-negative", "signed"])
def test_composites_of_the_toy_network(batch_norm: str, signed: bool) -> None:
    net = toy_network()
    composites = FOUNDING if signed else COMPOSITES | FOUNDING  # the bounds of the others are those of brains
    lost = require_composites(net, lambda: chain(list(net)), batch_norm, signed, composites)
    assert lost > 0.01, "the toy is meant to lose relevance, else this test says nothing about losses"


def test_composites_of_a_staged_model() -> None:
    net = toy_network(seed=5)
    require_composites(staged(net), lambda: chain(list(net)))


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("convolution", "pool"),
    [
        ({"kernel_size": 3, "padding": 1}, {"kernel_size": 2}),
        ({"kernel_size": (3, 2, 3), "padding": (0, 1, 1)}, {"kernel_size": 3, "stride": 2, "padding": 1}),
        ({"kernel_size": 2, "stride": (1, 2, 1)}, {"kernel_size": (3, 2, 2), "stride": (2, 1, 2)}),
        ({"kernel_size": 3, "dilation": (1, 2, 1)}, {"kernel_size": 2}),
        ({"kernel_size": 1}, {"kernel_size": (2, 3, 2), "stride": (3, 3, 2)}),
    ],
    ids=["padded", "overlapping padded pool", "strided", "dilated", "gaps between windows"],
)
def test_convolutions_whose_units_compete_in_a_pooling(convolution: dict, pool: dict) -> None:
    """The first and a later one, each followed by a pooling of several voxels: where the engine works on winners."""
    torch.manual_seed(11)
    body = [nn.Conv3d(1, 3, **convolution), nn.ReLU(), nn.MaxPool3d(**pool)]
    body += [nn.Conv3d(3, 4, 2, padding=1), nn.BatchNorm3d(4), nn.ReLU(), nn.MaxPool3d(2), nn.Flatten()]
    body[4].running_mean.normal_(std=0.2)
    body[4].running_var.uniform_(0.5, 2)
    body[4].weight.data.uniform_(-1, 1)
    features = nn.Sequential(*body).eval()(toy_volumes(1).float()).shape[1]
    net = nn.Sequential(*body, nn.Linear(features, 3)).double().eval()
    require_composites(net, lambda: chain(list(net)))


@pytest.mark.parametrize("kind", [ResidualToy, DenseToy])
def test_composites_of_branching_networks(kind: type[ResidualToy | DenseToy]) -> None:
    net = branching_toy(kind)
    assert net.ops()[-1].do is net.head
    require_composites(net, net.ops)


@pytest.mark.parametrize(
    ("rule", "inputs", "bias", "stabiliser"),
    [
        (epsilon_rule(0.25), [3 / 3.25, -1 / 3.25], 1 / 3.25, 0.25 / 3.25),
        (epsilon_rule(0.5, bias=False), [3 / 2.5, -1 / 2.5], 0, 0.5 / 2.5),
        (gamma_rule(0.5), [4.5 / 5, -1 / 5], 1.5 / 5, 0),
        (gamma_rule(0.5, bias=False), [4.5 / 3.5, -1 / 3.5], 0, 0),
        (z_plus_rule(), [1, 0], 0, 0),
        (z_plus_rule(bias=True), [3 / 4, 0], 1 / 4, 0),
        (beta_rule(0.5), [1.5, -0.5], 0, 0),
        (z_box_rule(np.array([0.0, 0.0]), np.array([3.0, 2.0])), [3 / 4, 1 / 4], 0, 0),
        (flat_rule, [1 / 2, 1 / 2], 0, 0),
    ],
)
def test_the_reference_by_hand(rule: Rule, inputs: list[float], bias: float, stabiliser: float) -> None:
    """A unit with contributions 2 * 1.5 = 3 and 1 * -1 = -1 and a bias of 1."""
    shares = rule(Unit(np.array([2.0, 1.0]), np.array([1.5, -1.0]), 1.0, np.array([0, 1])))
    np.testing.assert_allclose(shares.inputs, inputs, rtol=1e-15)
    assert (shares.bias, shares.stabiliser, shares.lost) == (pytest.approx(bias), pytest.approx(stabiliser), 0)


def test_the_reference_forwards_what_the_network_forwards() -> None:
    """The brute force would be no witness if it explained another function."""
    for net in (branching_toy(ResidualToy), branching_toy(DenseToy)):
        volume = torch.rand(1, 1, *SHAPE, dtype=torch.float64)
        _, logit = explain_graph(net.ops(), volume[0], 1, by_kind(*[flat_rule] * 4))
        assert logit == pytest.approx(net(volume)[0, 1].item(), rel=1e-12)


# LRP rules and composites against independent libraries: frozen float64 maps always, the libraries where installed.

CASES = cases(*bounds())


def require_close(ours: Tensor, theirs: Tensor, within: float = 1e-9) -> None:
    assert float(theirs.abs().max()) > 0
    torch.testing.assert_close(ours, theirs, rtol=0, atol=within * float(theirs.abs().max()))


@pytest.mark.parametrize("name", CASES)
def test_rules_equal_frozen_maps_of_zennit(name: str) -> None:
    """Maps of zennit 0.5.1 in float64, stabiliser 1e-12; made by `zennit_oracle.py`."""
    with np.load(FROZEN, allow_pickle=False) as frozen:
        arrays = {key: torch.from_numpy(frozen[key]) for key in frozen.files}
    net = rules_network()
    weights = {key.removeprefix("weights/"): a for key, a in arrays.items() if key.startswith("weights/")}
    net.load_state_dict(weights, strict=False)
    composite = cases(arrays["low"], arrays["high"])[name].ours
    (answer,) = lrp(net, arrays["volume"], TARGET, [composite])
    require_close(answer.values, arrays[f"map/{name}"])


@pytest.mark.oracle
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_rules_equal_zennit(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stub_torchvision(monkeypatch)
    pytest.importorskip("zennit")
    net = rules_network(seed)
    (answer,) = lrp(net, rules_volume(), TARGET, [CASES[name].ours])
    require_close(answer.values, zennit_map(net, rules_volume(), CASES[name].theirs()))


def merged(net: nn.Sequential) -> nn.Sequential:
    """The same function without normalisations: captum has no way to merge them."""
    modules: list[nn.Module] = []
    for module in net:
        if isinstance(module, nn.BatchNorm3d):
            conv, (scale, shift) = modules[-1], norm_terms(module)
            with torch.no_grad():
                conv.weight *= torch.from_numpy(scale).reshape(-1, 1, 1, 1, 1)
                conv.bias.copy_(conv.bias * torch.from_numpy(scale) + torch.from_numpy(shift))
        else:
            modules.append(module)
    return nn.Sequential(*modules).eval()


def captum_map(net: nn.Sequential, volume: Tensor, rule: Callable[[], Any]) -> Tensor:
    """Captum forgets the rules after every call, and has none for 3D convolutions, average poolings and flattening."""
    captum = pytest.importorskip("captum.attr")
    from captum.attr._utils.lrp_rules import EpsilonRule as Passing

    for module in net:
        if isinstance(module, nn.Conv3d | nn.Linear):
            module.rule = rule()
        elif isinstance(module, nn.AvgPool3d | nn.Flatten | nn.MaxPool3d):
            module.rule = Passing(epsilon=1e-14)
    return captum.LRP(net).attribute(volume.clone().requires_grad_(), target=TARGET).detach()


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("ours", "theirs", "settings", "with_bias"),
    [
        (EpsilonRule(0.25), "EpsilonRule", {"epsilon": 0.25}, True),
        (ZPlusRule(), "Alpha1_Beta0_Rule", {"set_bias_to_zero": True}, True),
        (GammaRule(0.3), "GammaRule", {"gamma": 0.3}, False),  # biases it adds as they are, where zennit favours them
    ],
    ids=["epsilon", "z+", "gamma"],
)
def test_rules_equal_captum(ours: OraclesRule, theirs: str, settings: dict[str, Any], with_bias: bool) -> None:
    """Non-negative volume: captum splits the weights only, which is wrong for negative inputs (its issue 1234)."""
    pytest.importorskip("captum.attr")
    from captum.attr._utils import lrp_rules

    net, volume = merged(rules_network()), rules_volume() + 0.3
    if not with_bias:
        net.load_state_dict({name: a * (not name.endswith("bias")) for name, a in net.state_dict().items()})
        net[-1].weight.data[TARGET] *= -1
    assert net(volume)[0, TARGET] > 0, "for negative units only the generalised gamma-rule of ours is right"
    (answer,) = lrp(net, volume, TARGET, [Composite("", ours, ours, ours, MEANS)])
    expected = captum_map(net, volume, lambda: getattr(lrp_rules, theirs)(**settings))
    require_close(answer.values, expected, within=1e-6)  # its stabiliser is 1e-9 and cannot be set for all rules


@pytest.mark.oracle
def test_lrp_0_equals_input_times_gradient_of_captum() -> None:
    captum = pytest.importorskip("captum.attr")
    net, volume = rules_network(), rules_volume()
    expected = captum.InputXGradient(net).attribute(volume.clone().requires_grad_(), target=TARGET).detach()
    rule = EpsilonRule(0.0)
    (answer,) = lrp(net, volume, TARGET, [Composite("", rule, rule, rule, EpsilonRule(0.0, bias=False))])
    require_close(answer.values, expected)


@dataclass(frozen=True)
class WithoutOneSigned(BetaRule):
    """The β-rule as zennit has it: units with one sign of contributions get no special treatment."""

    def messages(self, positive: Tensor, negative: Tensor | None, bias: Tensor | None, relevance: Tensor) -> Messages:
        up = torch.where(positive > 0, (1 + self.beta) * relevance / positive, 0)
        down = torch.where(negative < 0, -self.beta * relevance / negative, 0)
        return Messages(up, down, relevance - up * positive - down * negative)


@pytest.mark.oracle
def test_one_signed_units_are_the_whole_difference_to_zennit(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a volume with background, where peers and ours part: at its edge contributions often have one sign only."""
    stub_torchvision(monkeypatch)
    pytest.importorskip("zennit")
    net, volume = rules_network(), rules_volume()
    with torch.no_grad():
        net[0].weight[0].abs_()
        net[4].weight[2].abs_()
        volume[:, :, :, 4:] = 0
        volume += 0.3 * (volume != 0)
    theirs = zennit_lrp_beta(net, volume, TARGET, 0.5, fold=True)
    rules = BetaRule(0.5), WithoutOneSigned(0.5)
    ours, without = lrp(net, volume, TARGET, [Composite("", rule, rule, rule, MEANS) for rule in rules])
    require_close(without.values, theirs)
    assert float((ours.values - theirs).abs().max() / theirs.abs().max()) > 0.1
