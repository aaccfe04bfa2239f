"""Down to which depth a network explains itself: contributions at every stage, and what they leave to constants.

Of a hybrid the head is dynamic linear, and its contributions add up; where the stages below take part, their biases
take a share of the value that no voxel carries, and gradients through them are not held. Source: Böhle 2024, section
5.3.4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from heatlas.pipeline.attribution.network_view import NetworkView, explaining, open_parts
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.dynamic.linear_map import dynamic_weights


@dataclass(frozen=True)
class AtDepth:
    """Contributions of the features behind one layer.

    Parameters
    ----------
    layer : str
    map : Tensor
        (B, 1, d, h, w), on the grid of the layer.
    constants : Tensor
        (B,), logit less the sum of the map.
    """

    layer: str
    map: Tensor
    constants: Tensor


def contributions_by_depth(model: StagedModel, volumes: Tensor, target: int) -> Iterator[AtDepth]:
    """Contributions to a logit at the boundary behind each layer that gives features with voxels, first to last.

    Parameters
    ----------
    model : StagedModel
        In evaluation mode.
    volumes : Tensor
        (B, 1, D, H, W).
    target : int
    """
    for layer, _ in open_parts(model)[:-1]:
        with explaining(model, volumes, target, layer) as view:
            if view.features.dim() == 5:
                yield _at(view, layer)


def _at(view: NetworkView, layer: str) -> AtDepth:
    found = dynamic_weights(view.model, view.score, view.features) * view.features
    with torch.no_grad():
        return AtDepth(layer, found.sum(1, keepdim=True), view.own_score - found.flatten(1).sum(1))
