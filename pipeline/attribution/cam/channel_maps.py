"""What class activation maps share: weighted sums of feature maps, maps as masks, and checks of the boundary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from heatlas.pipeline.attribution.network_view import NetworkView
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.work.host import on_host


def weighted_sum(weights: Tensor, features: Tensor) -> Tensor:
    """``sum_k w_k A^k`` of each volume, (B, 1, d, h, w), of weights (B, K) and features (B, K, d, h, w).

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


Normalisation = Literal["range", "max", "sigmoid"]
SPACE = (1, 2, 3, 4)
ROUNDINGS = 64
"""A range of at most this many rounding units counts as zero."""


def by_range(maps: Tensor) -> Tensor:
    """``(A - min A) / (max A - min A)`` of maps (B, 1, D, H, W), 0 for a constant one; ties share the gradient.

    >>> by_range(torch.tensor([2.0, 3.0, 6.0]).view(1, 1, 1, 1, 3)).flatten().tolist()
    [0.0, 0.25, 1.0]
    >>> by_range(torch.full((1, 1, 1, 1, 2), 7.0)).flatten().tolist()
    [0.0, 0.0]
    """
    low, high = maps.amin(SPACE, keepdim=True), maps.amax(SPACE, keepdim=True)
    flat = high - low <= ROUNDINGS * torch.finfo(maps.dtype).eps * torch.maximum(low.abs(), high.abs())
    return torch.where(flat, 0, (maps - low) / torch.where(flat, 1, high - low))


def by_max(maps: Tensor) -> Tensor:
    """``A / max A`` of each map, 0 for an empty one; for non-negative maps. Shapes as in `by_range`."""
    high = maps.amax(SPACE, keepdim=True)
    return torch.where(high == 0, 0, maps / torch.where(high == 0, 1, high))


def normalised(maps: Tensor, how: Normalisation) -> Tensor:
    """Maps in [0, 1] by one of three rules; ``sigmoid`` gives at least 0.5 for non-negative maps."""
    if how == "range":
        return by_range(maps)
    return by_max(maps) if how == "max" else torch.sigmoid(maps)
