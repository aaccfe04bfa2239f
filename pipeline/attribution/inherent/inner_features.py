"""What inner layers of a dynamic linear network respond to (Böhle, Singh, Fritz & Schiele 2024).

A direction in the features of a layer is a unit like any other: its answer is one linear map of the input, too.
Explained are the directions of those places that contribute most to a class.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heatlas.pipeline.models.dynamic.linear_map import Value, dynamic_weights


@dataclass(frozen=True)
class Place:
    """A place in the features of a layer: its contribution to the class, and the direction of its features (C,)."""

    position: tuple[int, int, int]
    contribution: float
    direction: Tensor


def leading_places(model: nn.Module, value: Value, features: Tensor, count: int) -> list[Place]:
    """The places of one volume's features (1, C, d, h, w) that contribute most to a value, the largest first."""
    each = (dynamic_weights(model, value, features) * features.detach()).sum(1)[0]
    largest = each.flatten().topk(min(count, each.numel())).indices
    places = []
    for d, h, w in torch.stack(torch.unravel_index(largest, each.shape), dim=1).tolist():
        vector = features.detach()[0, :, d, h, w]
        places.append(Place((d, h, w), float(each[d, h, w]), vector / vector.norm()))
    return places


def along(direction: Tensor, position: tuple[int, int, int]) -> Value:
    """How far the features of a place point in a direction, as a value (B,) to be explained."""
    d, h, w = position
    return lambda features: features[:, :, d, h, w] @ direction
