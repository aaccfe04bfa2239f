"""Shared parts of class activation maps: weighted sums of feature maps, and checks of the boundary."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from heatlas.pipeline.attribution.network_view import NetworkView
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.work.host import on_host


def weighted_sum(weights: Tensor, features: Tensor) -> Tensor:
    """``sum_k w_k A^k`` of each volume, (B, 1, d, h, w), of weights (B, K) and features (B, K, d, h, w).

    Examples
    --------
    >>> weighted_sum(torch.tensor([[2.0, -1.0]]), torch.tensor([[3.0, 4.0]]).view(1, 2, 1, 1, 1)).flatten().tolist()
    [2.0]
    """
    return torch.einsum("bk,bkdhw->bdhw", weights, features).unsqueeze(1)


def ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Quotient that is 0 where the denominator is 0."""
    empty = denominator == 0
    return torch.where(empty, 0, numerator / torch.where(empty, 1, denominator))


def channel_pairs(features: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """All (volume, channel) pairs of a batch, volume by volume, as index vectors of at most `size` pairs each."""
    batch, channels = features.shape[:2]
    for pairs in torch.split(torch.arange(batch * channels, device=features.device), size):
        yield pairs // channels, pairs % channels


def require_channels(view: NetworkView, method: str) -> None:
    """Refuse the input, whose single channel makes channel weights meaningless."""
    if view.at_input and view.features.shape[1] == 1:
        raise UsageError(
            f"{method} gives each channel one weight; the input has one channel, so the map there would be the volume "
            "times a number, whatever the network uses. Choose a later stage, or another method."
        )


def require_nonnegative(view: NetworkView, method: str) -> None:
    """Refuse negative features, for formulas that assume features are amounts."""
    lowest = float(on_host(view.features.min()))
    if lowest < 0:
        layer = view.before[-1][0] if view.before else "the input"
        raise UsageError(
            f"{method} needs non-negative features, but {layer} gives {lowest:g}; choose a stage that ends "
            "in a ReLU or a pooling after one."
        )
