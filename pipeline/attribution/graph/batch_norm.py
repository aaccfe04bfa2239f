"""Batch normalisation in LRP: folded into the preceding convolution, or passed through as identity.

In evaluation mode ``BN(W x + b) = γ/σ (W x + b - μ) + β_BN`` is linear, so convolution and normalisation are one
convolution with weights ``W γ/σ`` and bias ``(b - μ) γ/σ + β_BN``. The β-rule is invariant to positive factors per
channel: folding and identity give the same map if every γ > 0, and differ where a γ is negative, since the unit's
positive contributions then *decrease* its activation before the sign change.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def folded(weight: Tensor, bias: Tensor | None, norm: nn.BatchNorm3d) -> tuple[Tensor, Tensor]:
    """Weights and bias of the convolution equivalent to convolution followed by batch normalisation.

    The modules are not changed.

    `weight`: (C_out, C_in / groups, k, k, k). `bias`: (C_out,). `norm`: with running statistics.
    """
    if norm.running_var is None or norm.running_mean is None:
        raise ValueError("batch normalisation without running statistics cannot be folded.")
    scale = torch.rsqrt(norm.running_var + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight
    centred = -norm.running_mean if bias is None else bias - norm.running_mean
    shift = centred * scale if norm.bias is None else centred * scale + norm.bias
    return weight * scale.reshape(-1, *(1,) * (weight.dim() - 1)), shift
