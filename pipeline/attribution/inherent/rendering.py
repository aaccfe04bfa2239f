"""Pictures of W(x): which intensities its weights look for, and how strongly.

The pair of weights of a voxel points at an intensity, as the pair of an input does. So weights are shown as that
intensity, and their size as opacity (Böhle, Fritz & Schiele 2022). This is the pattern that a network answers to, not
how much a voxel contributes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pipeline.models.dynamic.encoding import decoded

PERCENTILE = 99.9
"""Of the sizes of all voxels; from there on weights are opaque."""


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

    Opacity is the norm of a voxel's weights, 1 from the percentile of its own volume on, and 0 where the voxel speaks
    against the class, that is, where its contribution is not above 0.
    """
    sizes = weights.norm(dim=1)
    most = torch.stack([size_at(one, percentile) for one in sizes]).view(-1, 1, 1, 1)
    speaks = (weights * pairs).sum(1) > 0
    opacity = torch.where(speaks & (most > 0), (sizes / most.clamp(min=torch.finfo(sizes.dtype).tiny)).clamp(max=1), 0)
    return torch.cat([decoded(weights), opacity[:, None]], dim=1)
