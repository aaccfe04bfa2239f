"""LRP rules and composites against independent libraries: frozen float64 maps always, the libraries where installed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from lrp_rules_brute_force import norm_terms
from torch import Tensor, nn
from zennit_oracle import stub_torchvision, zennit_lrp_beta
from zennit_rules import FROZEN, MEANS, TARGET, bounds, cases, rules_network, rules_volume, zennit_map

from heatlas.pipeline.attribution.lrp.relevance import lrp
from heatlas.pipeline.attribution.lrp.rules import (
    BetaRule,
    Composite,
    EpsilonRule,
    GammaRule,
    Messages,
    Rule,
    ZPlusRule,
)

CASES = cases(*bounds())


def require_close(ours: Tensor, theirs: Tensor, within: float = 1e-9) -> None:
    assert float(theirs.abs().max()) > 0
    torch.testing.assert_close(ours, theirs, rtol=0, atol=within * float(theirs.abs().max()))


@pytest.mark.parametrize("name", CASES)
def test_rules_equal_frozen_maps_of_zennit(name: str) -> None:
    """Maps of zennit 0.5.1 in float64, stabiliser 1e-12; made by `zennit_rules.py`."""
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
def test_rules_equal_captum(ours: Rule, theirs: str, settings: dict[str, Any], with_bias: bool) -> None:
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
