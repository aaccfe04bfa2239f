"""Which scans show a feature of an inner layer most, and where (Böhle, Singh, Fritz & Schiele 2024).

A feature is a direction of the activations of a layer; `pipeline.attribution.inherent.inner_features` finds those that
lead to a class.
"""

from __future__ import annotations

import torch
from torch import Tensor

Position = tuple[int, int, int]


def strengths(features: Tensor, direction: Tensor) -> Tensor:
    """Strength (B, d, h, w) of a feature at every place: features (B, C, d, h, w) along its direction (C,)."""
    return torch.einsum("bcdhw,c->bdhw", features, direction)


def ranked(strength: Tensor, count: int) -> tuple[tuple[int, Position, float], ...]:
    """Number of the scan, place where the feature is strongest, and its strength there; the strongest scan first.

    Parameters
    ----------
    strength : Tensor
        (scans, d, h, w), of `strengths`.
    count : int
        At most so many scans.

    Examples
    --------
    >>> ranked(torch.tensor([[[[0.0, 2.0]]], [[[5.0, 1.0]]]]), 2)
    ((1, (0, 0, 0), 5.0), (0, (0, 0, 1), 2.0))
    """
    largest, where = strength.flatten(1).max(1)
    top = torch.topk(largest, min(count, len(largest))).indices
    places = torch.stack(torch.unravel_index(where[top], strength.shape[1:]), dim=1).tolist()
    return tuple((int(scan), (d, h, w), float(largest[scan])) for scan, (d, h, w) in zip(top, places, strict=True))
