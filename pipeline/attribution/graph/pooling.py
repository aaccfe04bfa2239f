"""Max-pooling for LRP: all relevance goes to the winner of each window.

The winners are those of the forward pass that is explained: a second pass with different rounding could choose another
winner and move relevance by a whole receptive field.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def triple(value: int | tuple[int, ...]) -> tuple[int, ...]:
    """Size, stride or padding per axis, from any form that PyTorch accepts."""
    return (value,) * 3 if isinstance(value, int) else tuple(value)


@dataclass(frozen=True)
class MaxPool:
    """Geometry of a 3D max-pooling, one integer per axis; see `torch.nn.MaxPool3d`."""

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] = (0, 0, 0)
    dilation: tuple[int, ...] = (1, 1, 1)
    ceil_mode: bool = False

    def apply(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Pooled values, and winners as flat voxel indices into the spatial axes of `x`. Both (B, C, d, h, w)."""
        pooled, winners = F.max_pool3d(
            x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, return_indices=True
        )
        return pooled, winners


@dataclass(frozen=True)
class AdaptiveMaxPool:
    """Max-pooling to a given size; see `torch.nn.AdaptiveMaxPool3d`."""

    output_size: Any

    def apply(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """As `MaxPool.apply`."""
        pooled, winners = F.adaptive_max_pool3d(x, self.output_size, return_indices=True)
        return pooled, winners


def gather(x: Tensor, winners: Tensor) -> Tensor:
    """Values of `x` (B, C, D, H, W) at the winners; shape of `winners`."""
    return x.flatten(2).gather(2, winners.flatten(2)).view_as(winners)


def scatter(values: Tensor, winners: Tensor, shape: Sequence[int]) -> Tensor:
    """Return values to the winning voxels; a voxel that won several overlapping windows gets their sum.

    `values`, `winners`: (B, C, d, h, w). `shape`: of the tensor that was pooled, (B, C, D, H, W).

    Examples
    --------
    >>> winners = torch.tensor([1, 1]).reshape(1, 1, 1, 1, 2)
    >>> scatter(torch.tensor([2.0, 3.0]).view_as(winners), winners, (1, 1, 1, 1, 3)).flatten().tolist()
    [0.0, 5.0, 0.0]
    """
    empty = torch.zeros(tuple(shape), dtype=values.dtype, device=values.device).flatten(2)
    return empty.scatter_add_(2, winners.flatten(2), values.flatten(2)).view(tuple(shape))
