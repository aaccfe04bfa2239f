"""The engines that `lrp_speed.py` compares, each as a function from (model, volume) to maps; and what they explain.

To add a peer: one function with the signature of `Engine.explain`, one line in `ENGINES`.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import torch
from torch import Tensor, nn

from heatlas.pipeline.models.families.founding import FoundingCNN

TARGET = 1
BETAS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Answer:
    """Maps by β, and per map the share of the logit that no account explains."""

    maps: dict[float, Tensor]
    unexplained: dict[float, float]


@dataclass(frozen=True)
class Engine:
    """One row of the table."""

    title: str
    betas: tuple[float, ...]  # β of the maps that one run makes; empty for runs that make none
    package: str | None  # distribution that must be installed
    explain: Callable[[nn.Module, Tensor, tuple[float, ...]], Answer | None]  # None where the run makes no map
    note: str = ""

    @property
    def installed(self) -> str | None:
        """Version of the peer; ``""`` for what needs none, None where it is absent."""
        if self.package is None:
            return ""
        try:
            return version(self.package)
        except PackageNotFoundError:
            return None


def seeded_network(volume: Tensor, seed: int) -> FoundingCNN:
    """The founding CNN in evaluation mode, weights at random, normalisation as training would leave it.

    Running statistics are those of `volume` itself, scales in 0.5..1.5 and shifts around 0, so that about half of the
    units are active, as in a trained network. All scales are positive: then the β-rule gives one map whether batch
    normalisation is merged or passed, and peers that can do only one of the two are comparable.
    """
    torch.manual_seed(seed)
    net = FoundingCNN(tuple(volume.shape[2:]), dropout=0.0)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm3d):
            module.weight.data.uniform_(0.5, 1.5)
            module.bias.data.normal_(std=0.2)
            module.momentum = 1.0
    with torch.no_grad():
        net.train()(volume)
    return net.eval().requires_grad_(False)


def brain_volume(grid: tuple[int, int, int]) -> Tensor:
    """The 2009c template brain in [0, 1] with zeros outside, resampled to any grid; (1, 1, D, H, W)."""
    from heatlas.atlases.templates import load_template

    brain = np.array(load_template(1.0).t1w)
    volume = torch.from_numpy(brain)[None, None]
    if tuple(volume.shape[2:]) != grid:
        volume = nn.functional.interpolate(volume, grid, mode="trilinear", align_corners=False)
    return (volume - volume.min()) / (volume.max() - volume.min())


def forward(model: nn.Module, volume: Tensor, betas: tuple[float, ...]) -> None:
    with torch.no_grad():
        model(volume)


def forward_backward(model: nn.Module, volume: Tensor, betas: tuple[float, ...]) -> None:
    """The yardstick: one gradient of the logit with respect to the volume."""
    volume = volume.detach().requires_grad_()
    torch.autograd.grad(model(volume)[0, TARGET], volume)


def heatlas(model: nn.Module, volume: Tensor, betas: tuple[float, ...]) -> Answer:
    from heatlas.pipeline.attribution.lrp.relevance import lrp
    from heatlas.pipeline.attribution.lrp.rules import founding

    answers = dict(zip(betas, lrp(model, volume, TARGET, [founding(beta) for beta in betas]), strict=True))
    unexplained = {b: float((a.ledger.residual / a.start_value).abs().max()) for b, a in answers.items()}
    return Answer({b: a.values for b, a in answers.items()}, unexplained)


def zennit(model: nn.Module, volume: Tensor, betas: tuple[float, ...]) -> Answer:
    """One pass per β; biases zero, batch normalisation passed."""
    stub_torchvision()
    from zennit.attribution import Gradient
    from zennit.composites import LayerMapComposite, layer_map_base
    from zennit.rules import AlphaBeta, ZPlus
    from zennit.types import Convolution, Linear

    maps, unexplained = {}, {}
    for beta in betas:
        settings = {"stabilizer": 1e-12, "zero_params": "bias"}
        rule = AlphaBeta(1 + beta, beta, **settings) if beta else ZPlus(**settings)
        composite = LayerMapComposite([*layer_map_base(1e-12), (Linear, rule), (Convolution, rule)])
        with Gradient(model=model, composite=composite) as attributor:
            logits, relevance = attributor(volume.detach().requires_grad_(), only_target)
        maps[beta] = relevance.detach()
        unexplained[beta] = missing_share(logits, relevance)
    return Answer(maps, unexplained)


def captum(model: nn.Module, volume: Tensor, betas: tuple[float, ...]) -> Answer:
    """α = 1, β = 0 is the only one it has; it knows no rule for Conv3d and BatchNorm3d until told, before each call."""
    from captum.attr import LRP
    from captum.attr._utils.lrp_rules import Alpha1_Beta0_Rule, EpsilonRule, IdentityRule

    for module in model.modules():
        if isinstance(module, nn.Conv3d | nn.Linear):
            module.rule = Alpha1_Beta0_Rule(set_bias_to_zero=True)
        elif isinstance(module, nn.BatchNorm3d):
            module.rule = IdentityRule()
        elif isinstance(module, nn.Flatten):
            module.rule = EpsilonRule()
    relevance = LRP(model).attribute(volume.detach().requires_grad_(), target=TARGET).detach()
    return Answer({0.0: relevance}, {0.0: missing_share(model(volume), relevance)})


def only_target(logits: Tensor) -> Tensor:
    mask = torch.zeros_like(logits)
    mask[:, TARGET] = 1
    return logits * mask


def missing_share(logits: Tensor, relevance: Tensor) -> float:
    """Share of the logit that is not in the map (an engine without ledger cannot say where it went)."""
    start = float(logits[0, TARGET].detach())
    return abs(1 - float(relevance.detach().sum(dtype=torch.float64)) / start)


def stub_torchvision() -> None:
    """Zennit imports torchvision for a few classes not used here; give it empty ones where it is not installed."""
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision") is not None:
        return
    wanted = {
        "torchvision": (),
        "torchvision.models": (),
        "torchvision.models.resnet": ("Bottleneck", "BasicBlock", "ResNet"),
        "torchvision.models.vgg": ("VGG",),
        "torchvision.ops": (),
        "torchvision.ops.misc": ("FrozenBatchNorm2d",),
    }
    for name, classes in wanted.items():
        sys.modules[name] = types.ModuleType(name)
        for kind in classes:
            setattr(sys.modules[name], kind, type(kind, (nn.Module,), {}))


YARDSTICK = "f+b"
WARM_UP_GRID = (78, 78, 78)  # the smallest the network takes

ENGINES = {
    YARDSTICK: Engine("forward + backward to input (f+b)", (), None, forward_backward),
    "forward": Engine("forward", (), None, forward),
    "heatlas-0": Engine("Heatlas, β = 0", (0.0,), None, heatlas),
    "heatlas-1": Engine("Heatlas, one β", (0.5,), None, heatlas),
    "heatlas-5": Engine("Heatlas, five β", BETAS, None, heatlas),
    "zennit-0": Engine("zennit ZPlus, β = 0", (0.0,), "zennit", zennit),
    "zennit-1": Engine("zennit AlphaBeta, one β", (0.5,), "zennit", zennit),
    "zennit-5": Engine("zennit AlphaBeta, five β", BETAS, "zennit", zennit, "one pass per β"),
    "captum-0": Engine("captum Alpha1_Beta0, β = 0", (0.0,), "captum", captum, "rules set by hand"),
}
