"""Features of inner layers: which of them a network relies on, and what each stands for in the volume.

A direction of the activations at a boundary is a feature; the network in front of the boundary is dynamic linear too,
so the strength of a feature at a place has contributions of its own. Source: Böhle, Singh, Fritz & Schiele 2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pipeline.models.dynamic.linear_map import Value, dynamic_weights

Place = tuple[int, int, int]


@dataclass(frozen=True)
class Feature:
    """A feature vector that a value relies on.

    Parameters
    ----------
    place : tuple of int
        Voxel of the layer's grid.
    contribution : float
        What it adds to the value.
    direction : Tensor
        Of the activations there, (C,), of norm 1.
    """

    place: Place
    contribution: float
    direction: Tensor


def strongest_features(weights: Tensor, activations: Tensor, count: int) -> tuple[Feature, ...]:
    """The feature vectors of one volume that contribute most, largest first.

    Parameters
    ----------
    weights, activations : Tensor
        Row of W of the value, and the activations it belongs to, (C, d, h, w).
    count : int
        At most so many; fewer where the layer has fewer voxels.
    """
    shares = (weights * activations).sum(0)
    top = torch.topk(shares.flatten(), min(count, shares.numel()))
    found = []
    for value, index in zip(top.values.tolist(), top.indices.tolist(), strict=True):
        place = _place(index, shares.shape)
        vector = activations[:, place[0], place[1], place[2]]
        found.append(Feature(place, value, vector / torch.linalg.vector_norm(vector)))
    return tuple(found)


def _place(index: int, shape: Sequence[int]) -> Place:
    return index // (shape[1] * shape[2]), index // shape[2] % shape[1], index % shape[2]


def strength(activations: Tensor, direction: Tensor) -> Tensor:
    """Strength (B, d, h, w) of a feature at every voxel: activations (B, C, d, h, w) along its direction (C,)."""
    return torch.einsum("bcdhw,c->bdhw", activations, direction)


def strength_at(before: nn.Module, direction: Tensor, place: Place) -> Value:
    """The strength of a feature at one voxel as a value, (B,), of the input of the layers before it."""
    return lambda features: strength(before(features), direction)[:, place[0], place[1], place[2]]


def feature_weights(before: nn.Module, features: Tensor, feature: Feature, place: Place | None = None) -> Tensor:
    """Row of W of a feature, which times the input of the layers before it sums to the feature's strength.

    Parameters
    ----------
    before : nn.Module
        The layers from the pairs to the feature.
    features : Tensor
        Pairs, (B, 2, D, H, W).
    feature : Feature
    place : tuple of int, optional
        Another voxel than that of the feature.
    """
    return dynamic_weights(before, strength_at(before, feature.direction, place or feature.place), features)


def ranked(strengths: Tensor, count: int) -> tuple[tuple[int, Place, float], ...]:
    """Scans that show a feature most: number of the scan, voxel where it is strongest, strength there; largest first.

    Parameters
    ----------
    strengths : Tensor
        (scans, d, h, w), by `strength`.
    count : int

    Examples
    --------
    >>> ranked(torch.tensor([[[[0.0, 2.0]]], [[[5.0, 1.0]]]]), 2)
    ((1, (0, 0, 0), 5.0), (0, (0, 0, 1), 2.0))
    """
    largest, where = strengths.flatten(1).max(1)
    top = torch.topk(largest, min(count, len(largest)))
    return tuple(
        (scan, _place(int(where[scan]), strengths.shape[1:]), value)
        for scan, value in zip(top.indices.tolist(), top.values.tolist(), strict=True)
    )
