"""Zennit 0.5.1 as an oracle for LRP-beta, where it is installed (LGPL: imported in tests only, never a dependency)."""

from __future__ import annotations

import importlib.util
import sys
import types

import pytest
import torch
from torch import nn


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
