"""Normalise maps to [0, 1], one volume at a time, so that they can serve as masks.

Stretching a constant map would amplify rounding errors to a full mask, so a range within rounding error counts as zero.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Normalisation = Literal["range", "max", "sigmoid"]
SPACE = (1, 2, 3, 4)
ROUNDINGS = 64
"""A range of at most this many rounding units counts as zero."""


def by_range(maps: Tensor) -> Tensor:
    """``(A - min A) / (max A - min A)`` of each map, 0 for a constant one; ties share the gradient of min and max.

    `maps`: (B, 1, D, H, W). Returns same shape.

    Examples
    --------
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
