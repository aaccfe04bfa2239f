"""Where attention weights pass in a network, so that they can be read, with their gradients, without changing it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn


class AttentionWeights(nn.Dropout):
    """Passes attention weights (B, heads, queries, keys) on; rows sum to 1. Dropout in training, as in the sources."""


def attention_layers(network: nn.Module) -> tuple[AttentionWeights, ...]:
    """Places of a network where attention weights pass, in the order of its modules."""
    return tuple(module for module in network.modules() if isinstance(module, AttentionWeights))


@runtime_checkable
class PoolsByAttention(Protocol):
    """A module whose features are weighted by an attention that is the same for every class."""

    def pooling_weights(self, volumes: Tensor) -> Tensor:
        """Weights of the voxels of its features, (B, d, h, w), of volumes (B, 1, D, H, W); they sum to 1."""
        ...


@contextmanager
def kept_attention(network: nn.Module) -> Iterator[list[Tensor]]:
    """Keep the weights of all passes, in the order of computation and with their graph; hooks are removed on exit.

    Yields
    ------
    list of Tensor
        Filled by each pass: (B, heads, queries, keys) of each layer.
    """
    kept: list[Tensor] = []

    def keep(_: nn.Module, given: tuple[Any, ...]) -> None:
        kept.append(given[0])

    hooks = [layer.register_forward_pre_hook(keep) for layer in attention_layers(network)]
    try:
        yield kept
    finally:
        for hook in hooks:
            hook.remove()
