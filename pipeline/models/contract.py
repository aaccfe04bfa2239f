"""What attribution may know of a network: an ordered list of stages, and nothing else.

Words: a *stage* is one module of the ordered list; its output is the only input of the next one. A *layer* is a module
that does one operation (a convolution, a ReLU); a stage is a layer or an `nn.Sequential` of layers or stages.
`pipeline.attribution.network_view` looks at a network from the boundary between two of them.

An ensemble, networks of one family that learned the same fold from different seeds, is from outside a network of one
stage. Its output is the mean of its members' *logits* (not of their probabilities), so that everything that is linear
in the logits is the mean over members: the evidence of a scan, and every map that adds up to it. Methods that look into
a network look into each member (`pipeline.attribution.methods`). Attention weights pass through separate modules,
so that they can be read, with their gradients, without changing the network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from heatlas.pipeline.models.families.family import Architecture


class StagedModel(nn.Module):
    """A network that is the composition of its stages.

    No module may appear twice, so that a hook on a module means one place of the network, and none may work in place,
    so that the activation a hook saw stays what it was. `architecture`: family, settings and grid that it was built
    from; None for a network of no family, which cannot be stored. `monai_names`: of a network of MONAI, its names of
    weights by ours.
    """

    architecture: Architecture | None = None
    monai_names: Mapping[str, str] = MappingProxyType({})

    def __init__(self, stages: Sequence[nn.Module]) -> None:
        super().__init__()
        _require_hookable(stages)
        self._stages = nn.ModuleList(stages)

    @property
    def stages(self) -> Sequence[nn.Module]:
        return tuple(self._stages)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of a batch of volumes, shape (B, classes)."""
        for stage in self.stages:
            x = stage(x)
        return x


def _require_hookable(stages: Sequence[nn.Module]) -> None:
    if not stages:
        raise ValueError("a staged model needs at least one stage.")
    seen: set[int] = set()
    for number, stage in enumerate(stages):
        for name, module in stage.named_modules(remove_duplicate=False):
            where = f"stage {number}{'.' + name if name else ''} ({type(module).__name__})"
            if id(module) in seen:
                raise ValueError(f"{where} is used twice; give every place of the network a module of its own.")
            if getattr(module, "inplace", False):
                raise ValueError(f"{where} works in place; create it with inplace=False.")
            seen.add(id(module))


class MeanOfNetworks(nn.Module):
    """The mean of what several networks answer."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([network(x) for network in self.networks]).mean(0)


class Ensemble(StagedModel):
    """At least two networks of the same architecture, whose logits are averaged."""

    def __init__(self, members: Sequence[StagedModel]) -> None:
        super().__init__([MeanOfNetworks(members)])
        self.architecture = members[0].architecture


def members_of(model: nn.Module) -> tuple[nn.Module, ...]:
    """The members of an ensemble; any other network alone."""
    return tuple(model.stages[0].networks) if isinstance(model, Ensemble) else (model,)  # type: ignore[arg-type]


def ensemble_of(members: Sequence[StagedModel]) -> StagedModel:
    return members[0] if len(members) == 1 else Ensemble(members)


class AttentionWeights(nn.Dropout):
    """Passes attention weights (B, heads, queries, keys) on; rows sum to 1. Dropout in training, as in the sources."""


def attention_layers(network: nn.Module) -> tuple[AttentionWeights, ...]:
    """Places of a network where attention weights pass, in the order of its modules."""
    return tuple(module for module in network.modules() if isinstance(module, AttentionWeights))


@runtime_checkable
class PoolsByAttention(Protocol):
    """A module that weights its features by an attention, the same for every class or one of each.

    The attention depends on the features and, by its query, on the volume. The features before it are explained
    (Torres et al. 2024): the query stays what it is for the volume, and the gradient passes through the attention.
    """

    body: nn.Module
    """From volumes (B, 1, D, H, W) to the features (B, C, d, h, w)."""

    def before_pooling(self, volumes: Tensor) -> tuple[Tensor, nn.Module]:
        """Features of volumes, and the pooling of these volumes as a function of features."""
        ...

    def pooling_weights(self, volumes: Tensor, target: int = 0) -> Tensor:
        """Weights of the voxels of its features for a class, (B, d, h, w), of volumes (B, 1, D, H, W); sum to 1."""
        ...


@contextmanager
def kept_attention(network: nn.Module) -> Iterator[list[Tensor]]:
    """Keep the weights (B, heads, queries, keys) of all passes, in order and with their graph; hooks go on exit."""
    kept: list[Tensor] = []

    def keep(_: nn.Module, given: tuple[Any, ...]) -> None:
        kept.append(given[0])

    hooks = [layer.register_forward_pre_hook(keep) for layer in attention_layers(network)]
    try:
        yield kept
    finally:
        for hook in hooks:
            hook.remove()
