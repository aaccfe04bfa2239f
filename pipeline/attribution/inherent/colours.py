"""Grey pictures of W(x): the pattern that a dynamic linear network weighs the pair [v, 1 - v] with, as an intensity.

Weights along the pair of an intensity decode to this intensity, so the picture shows what the network looks for in
its own units. Opacity says how strongly. Only voxels that speak for the class are drawn. Source: Böhle, Fritz & Schiele
2022, for colours.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pipeline.models.dynamic.encoding import decoded
from pipeline.run.errors import UsageError


def rendered(weights: Tensor, pairs: Tensor, percentile: float = 99.9) -> Tensor:
    """Red, green, blue and opacity (B, 4, D, H, W), each in [0, 1]; the three colours are one grey.

    Opacity is the norm of a voxel's weights over the percentile of this norm in the whole brain, at most 1, and 0 where
    the contribution is not positive.

    Parameters
    ----------
    weights : Tensor
        W(x), (B, 2, D, H, W).
    pairs : Tensor
        Encoded volumes of the same shape, [0, 0] outside the brain.
    percentile : float
        Above 0, at most 100.

    Raises
    ------
    UsageError
        For weights of anything but pairs, or a percentile out of range.
    """
    if weights.shape != pairs.shape or weights.dim() != 5 or weights.shape[1] != 2:
        raise UsageError(
            f"weights {tuple(weights.shape)} of features {tuple(pairs.shape)} cannot be drawn: they must be of pairs "
            "[v, 1 - v], (B, 2, D, H, W), the features after stage 1 of a network without an embedding."
        )
    if not 0 < percentile <= 100:
        raise UsageError(f"percentile = {percentile!r}: it must lie above 0 and be at most 100.")
    speaks = (weights * pairs).sum(1, keepdim=True) > 0
    sizes = torch.linalg.vector_norm(weights, dim=1, keepdim=True)
    inside = (pairs != 0).any(1, keepdim=True)
    tops = [_percentile(size[where], percentile) for size, where in zip(sizes, inside, strict=True)]
    full = torch.stack(tops).view(-1, 1, 1, 1, 1)
    opacity = torch.where(speaks, (sizes / full.clamp(min=torch.finfo(sizes.dtype).tiny)).clamp(max=1), 0.0)
    grey = torch.where(speaks, decoded(weights), 0.0)
    return torch.cat([grey, grey, grey, opacity.to(grey.dtype)], dim=1)


def _percentile(values: Tensor, percentile: float) -> Tensor:
    """The value with at least this share at or below it; `torch.quantile` takes no whole brain at 1 mm."""
    if not values.numel():
        return values.new_zeros(())
    return torch.kthvalue(values, max(1, math.ceil(values.numel() * percentile / 100))).values
