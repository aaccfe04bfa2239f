"""Pictures of W(x): which intensities its weights look for, and how strongly.

The pair of weights of a voxel points at an intensity, as the pair of an input does. So weights are shown as that
intensity, and their size as opacity (Böhle, Fritz & Schiele 2022). This is the pattern that a network answers to, not
how much a voxel contributes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from heatlas.pipeline.models.dynamic.encoding import decoded

PERCENTILE = 99.9
"""Of the sizes of the voxels inside the brain; from there on weights are opaque."""


def size_at(sizes: Tensor, percentile: float) -> Tensor:
    """The size that this percentage of voxels does not exceed; `torch.quantile` refuses volumes of full resolution.

    Examples
    --------
    >>> size_at(torch.arange(1.0, 1001.0), 99.9).item()
    999.0
    """
    flat = sizes.flatten()
    place = max(1, min(flat.numel(), round(percentile / 100 * flat.numel())))
    return flat.kthvalue(place).values


def grey_and_opacity(weights: Tensor, pairs: Tensor, percentile: float = PERCENTILE) -> Tensor:
    """Grey value and opacity (B, 2, D, H, W), each from 0 to 1, of weights (B, 2, D, H, W) on pairs.

    Opacity is the norm of a voxel's weights, 1 from the percentile of its own brain on, and 0 where the voxel speaks
    against the class, that is, where its contribution is not above 0. Voxels whose pair is [0, 0] are no brain: weights
    there, however large, change neither the picture nor its scale. An empty volume has opacity 0 everywhere.
    """
    sizes, inside = weights.norm(dim=1), (pairs != 0).any(1)
    within = [one[brain] for one, brain in zip(sizes, inside, strict=True)]
    each = [size_at(one, percentile) if len(one) else one.new_zeros(()) for one in within]
    most = torch.stack(each).view(-1, 1, 1, 1)
    speaks = (weights * pairs).sum(1) > 0
    opacity = torch.where(speaks & (most > 0), (sizes / most.clamp(min=torch.finfo(sizes.dtype).tiny)).clamp(max=1), 0)
    return torch.cat([decoded(weights), opacity[:, None]], dim=1)
