"""Adaptive gradient clipping: no unit changes by more than a share of its own size in one step.

Gradients of B-cos networks are smaller than those of others, by an amount that depends on B; a share of the weights
needs no tuning. Source: Brock, De, Smith & Simonyan 2021.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

LEAST_NORM = 1e-3
"""Smaller weights count as this large, so that a unit can leave 0."""


def unit_norms(values: Tensor) -> Tensor:
    """Norm of each output unit, (units, 1, ...): over all axes but the first; of a vector (1,), its own.

    Examples
    --------
    >>> unit_norms(torch.tensor([[3.0, 4.0], [0.0, 2.0]])).tolist()
    [[5.0], [2.0]]
    """
    rows = values.flatten(1) if values.dim() > 1 else values[None]
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms.view(-1, *[1] * (values.dim() - 1))


@torch.no_grad()
def clip_units(parameters: Iterable[nn.Parameter], share: float) -> None:
    """Scale gradients down so that of no unit ``|g| > share * max(|w|, 0.001)``."""
    for weight in parameters:
        if weight.grad is not None:
            most = share * unit_norms(weight).clamp(min=LEAST_NORM)
            norms = unit_norms(weight.grad)
            weight.grad.mul_(torch.where(norms > most, most / norms.clamp(min=1e-12), torch.ones_like(norms)))
