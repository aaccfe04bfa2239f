"""Zennit 0.5.1 as an oracle where it is installed (LGPL: imported in tests only, never a dependency).

LRP-beta, and composites of ours beside the same of zennit, with the frozen maps that it gave.

    python tests/attribution/zennit_oracle.py

makes the frozen maps anew (needs zennit). Zennit's choices that ours are set to here: biases take part and absorb
relevance (``bias=True``) unless zeroed; poolings and their like have a stabiliser of their own.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from heatlas.pipeline.attribution.lrp.rules import Composite, EpsilonRule, GammaRule, Rule, ZBoxRule, ZPlusRule

FROZEN = Path(__file__).parent / "data" / "zennit_lrp_rules.npz"
TARGET = 1
TINY = 1e-12
MEANS = EpsilonRule(TINY, bias=False)


def stub_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zennit imports torchvision for a few classes that are not used here; give it empty ones where it is absent."""
    if importlib.util.find_spec("torchvision") is not None:
        return
    names = {
        "torchvision": {},
        "torchvision.models": {},
        "torchvision.models.resnet": {"Bottleneck", "BasicBlock", "ResNet"},
        "torchvision.models.vgg": {"VGG"},
        "torchvision.ops": {},
        "torchvision.ops.misc": {"FrozenBatchNorm2d"},
    }
    for name, classes in names.items():
        module = types.ModuleType(name)
        for kind in classes:
            setattr(module, kind, type(kind, (nn.Module,), {}))
        monkeypatch.setitem(sys.modules, name, module)


def zennit_lrp_beta(model: nn.Sequential, x: torch.Tensor, target: int, beta: float, fold: bool) -> torch.Tensor:
    """Map of LRP-beta without biases by zennit, from the logit."""
    from zennit.attribution import Gradient
    from zennit.canonizers import SequentialMergeBatchNorm
    from zennit.composites import LayerMapComposite, layer_map_base
    from zennit.rules import AlphaBeta
    from zennit.types import Convolution, Linear

    def rule() -> AlphaBeta:
        return AlphaBeta(1 + beta, beta, stabilizer=1e-12, zero_params="bias")

    composite = LayerMapComposite(
        [*layer_map_base(1e-12), (Linear, rule()), (Convolution, rule())],
        canonizers=[SequentialMergeBatchNorm()] if fold else [],
    )
    with Gradient(model=model, composite=composite) as attributor:
        _, relevance = attributor(x.clone().requires_grad_(), lambda logits: logits * one_hot(logits, target))
    return relevance.detach()


def one_hot(logits: torch.Tensor, target: int) -> torch.Tensor:
    answer = torch.zeros_like(logits)
    answer[:, target] = 1
    return answer


def rules_network(seed: int = 12) -> nn.Sequential:
    """A small network with both poolings; next to no eps in its normalisation, see `lrp_toys.plain_network`."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv3d(1, 3, 3), nn.BatchNorm3d(3, eps=1e-12), nn.ReLU(), nn.MaxPool3d(2),
        nn.Conv3d(3, 4, 2, padding=1), nn.BatchNorm3d(4, eps=1e-12), nn.ReLU(), nn.AvgPool3d((1, 1, 2)),
        nn.Flatten(), nn.Linear(72, 6), nn.ReLU(), nn.Linear(6, 2),
    ).double().eval()  # fmt: skip
    with torch.no_grad():
        for norm in (net[1], net[5]):
            norm.weight.uniform_(0.5, 1.5)
            norm.weight[1] *= -1
            norm.bias.normal_(0.2, 0.3)
            norm.running_mean.normal_(std=0.2)
            norm.running_var.uniform_(0.5, 2)
        net[-1].bias[TARGET] += 1
    return net


def rules_volume() -> torch.Tensor:
    """Signed, so that the parts of negative inputs are tested too."""
    return torch.rand(1, 1, 6, 7, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(13)) - 0.3


def bounds() -> tuple[torch.Tensor, torch.Tensor]:
    """Bounds per voxel around the volume; at some voxels tight, at one violated."""
    spread = torch.rand(2, 1, 1, 6, 7, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(14)).round()
    low, high = rules_volume() - spread[0], rules_volume() + spread[1] + 0.1
    high[0, 0, 2, 3, 4] = rules_volume()[0, 0, 2, 3, 4] - 0.05
    return low, high


class Case(NamedTuple):
    """The same composite twice."""

    ours: Composite
    theirs: Callable[[], Any]


def cases(low: torch.Tensor, high: torch.Tensor) -> dict[str, Case]:
    """All composites, by name; zB with these bounds."""
    box = ZBoxRule(low, high)
    return {
        "epsilon": _everywhere(EpsilonRule(0.25), lambda z: z.Epsilon(0.25)),
        "epsilon_bias_out": _everywhere(EpsilonRule(0.25, False), lambda z: z.Epsilon(0.25, zero_params="bias")),
        "gamma": _everywhere(GammaRule(0.3, True), lambda z: z.Gamma(0.3, TINY)),
        "zplus": _everywhere(ZPlusRule(True), lambda z: z.ZPlus(TINY)),
        "zplus_bias_out": _everywhere(ZPlusRule(), lambda z: z.ZPlus(TINY, zero_params="bias")),
        "epsilon_gamma_box": Case(
            Composite("", box, GammaRule(0.25, True), EpsilonRule(0.1), MEANS),
            lambda: _made("EpsilonGammaBox", low, high, epsilon=0.1, gamma=0.25, stabilizer=TINY),
        ),
        "focus": Case(Composite("", box, ZPlusRule(), EpsilonRule(0.25, False), MEANS), lambda: _focus(low, high)),
    }


def zennit_map(net: nn.Module, volume: torch.Tensor, composite: Any) -> torch.Tensor:
    """Relevance of the volume from the logit of `TARGET`."""
    from zennit.attribution import Gradient

    with Gradient(model=net, composite=composite) as attributor:
        _, relevance = attributor(volume.clone().requires_grad_(), lambda logits: logits * one_hot(logits, TARGET))
    return relevance.detach()


def _everywhere(ours: Rule, theirs: Callable[[Any], Any]) -> Case:
    def make() -> Any:
        from zennit import rules
        from zennit.canonizers import SequentialMergeBatchNorm
        from zennit.composites import LayerMapComposite, layer_map_base
        from zennit.types import Convolution, Linear

        layers = [*layer_map_base(TINY), (Convolution, theirs(rules)), (Linear, theirs(rules))]
        return LayerMapComposite(layers, canonizers=[SequentialMergeBatchNorm()])

    return Case(Composite("", ours, ours, ours, MEANS), make)


def _made(name: str, *arguments: Any, **settings: Any) -> Any:
    from zennit import composites
    from zennit.canonizers import SequentialMergeBatchNorm

    return getattr(composites, name)(*arguments, **settings, canonizers=[SequentialMergeBatchNorm()])


def _focus(low: torch.Tensor, high: torch.Tensor) -> Any:
    """What the literature calls focus has no class in zennit."""
    from zennit.canonizers import SequentialMergeBatchNorm
    from zennit.composites import SpecialFirstLayerMapComposite, layer_map_base
    from zennit.rules import Epsilon, ZBox, ZPlus
    from zennit.types import Convolution

    without = {"zero_params": "bias"}
    layers = [
        *layer_map_base(TINY),
        (Convolution, ZPlus(TINY, **without)),
        (torch.nn.Linear, Epsilon(0.25, **without)),
    ]
    first = [(Convolution, ZBox(low, high, TINY))]
    return SpecialFirstLayerMapComposite(layers, first, canonizers=[SequentialMergeBatchNorm()])


def write_frozen() -> None:
    """Weights, volume and bounds are kept with the maps: random streams change between versions of PyTorch."""
    net, volume, (low, high) = rules_network(), rules_volume(), bounds()
    arrays = {f"weights/{name}": array for name, array in net.state_dict().items() if array.is_floating_point()}
    arrays |= {"volume": volume, "low": low, "high": high}
    for name, case in cases(low, high).items():
        arrays[f"map/{name}"] = zennit_map(net, volume, case.theirs())
    np.savez_compressed(FROZEN, **{name: array.numpy() for name, array in arrays.items()})
    print(f"{FROZEN}: {FROZEN.stat().st_size} bytes")


if __name__ == "__main__":
    stub_torchvision(pytest.MonkeyPatch())
    write_frozen()
