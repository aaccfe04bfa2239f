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
    """Keep the weights of all passes, in the order of computation and with their graph; hooks are removed on exit.

    Yields filled by each pass: (B, heads, queries, keys) of each layer.
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
