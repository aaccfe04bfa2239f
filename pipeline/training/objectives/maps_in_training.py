"""Maps that a loss may depend on: made within the graph of the training step, so that gradients reach the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pipeline.attribution.entry import last_spatial_stage
from pipeline.attribution.network_view import split_layers
from pipeline.attribution.upsampling import interpolated
from pipeline.models.contract import StagedModel
from pipeline.run.errors import UsageError
from pipeline.training.objectives.twice import TwiceDifferentiable, gradients_of_features

MapOf = Callable[[Tensor, Tensor], Tensor]
"""From features and gradient, both (B, C, d, h, w), to a map (B, 1, d, h, w)."""


def input_times_gradient(features: Tensor, gradient: Tensor) -> Tensor:
    """Features times gradient, summed over channels."""
    return (features * gradient).sum(1, keepdim=True)


def grad_cam(features: Tensor, gradient: Tensor) -> Tensor:
    """Channels weighted by their mean gradient, positive part (Selvaraju et al. 2017)."""
    weights = gradient.mean((2, 3, 4), keepdim=True)
    return (weights * features).sum(1, keepdim=True).clamp(min=0)


MAPS: Mapping[str, MapOf] = {"input-x-gradient": input_times_gradient, "grad-cam": grad_cam}
"""By the name in ``[objective] map``."""


@dataclass(frozen=True)
class Explained:
    """Logits (B, K) of a batch, and a map (B, D, H, W) of each volume; both differentiable in the weights."""

    logits: Tensor
    maps: Tensor


def explained_batch(
    model: nn.Module, volumes: Tensor, targets: Tensor, kind: str, stage: int, learning: bool = True
) -> Explained:
    """One forward pass, and the map of one output for each volume, at a boundary between stages.

    The output explained is the evidence: its logit minus the mean of the others; of a single output, itself. Nothing is
    detached, so that a loss of the map can be differentiated again.

    Parameters
    ----------
    model : nn.Module
        A `StagedModel`, in training mode or not.
    volumes : Tensor
        (B, 1, D, H, W).
    targets : Tensor of int64
        Output explained, (B,).
    kind : str
        One of `MAPS`.
    stage : int
        Boundary: 0 the input, -1 the last stage with voxels.
    learning : bool
        Whether a loss of the maps is to be differentiated; False for a network that stays as it is, such as a teacher
        whose weights are frozen.

    Raises
    ------
    UsageError
        If the network is not made of stages, the stage does not exist, or its map cannot be differentiated twice.
    """
    if not isinstance(model, StagedModel):
        raise UsageError(
            f"{type(model).__name__} is not made of stages; maps in training need a network of a family, on one device "
            "(training.devices = 1)."
        )
    place = last_spatial_stage(model) if stage == -1 else stage
    if not 0 <= place <= last_spatial_stage(model):
        raise UsageError(
            f"objective.stage = {stage}: this network has voxels at stages 0 to {last_spatial_stage(model)} (-1: the "
            "last)."
        )
    features = volumes
    for one in model.stages[:place]:
        features = one(features)
    if place == 0 or not learning:
        features = features.detach().requires_grad_()
    logits = features
    with TwiceDifferentiable():
        for one in model.stages[place:]:
            logits = one(logits)
    with gradients_of_features():
        (gradient,) = torch.autograd.grad(evidence_of(logits, targets).sum(), features, create_graph=learning)
    if learning and not gradient.requires_grad:
        raise UsageError(
            f"the {kind} map at stage {stage} does not depend on the weights in a way that can be differentiated "
            "twice; choose an earlier stage."
        )
    maps = MAPS[kind](features, gradient)
    if place:
        maps = interpolated(maps, split_layers(model, place)[0], volumes.shape[2:])
    return Explained(logits, maps[:, 0])


def evidence_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Logit of each volume's target minus the mean of its others, (B,); of one output, itself."""
    if logits.shape[1] == 1:
        return logits[:, 0]
    own = logits.gather(1, targets[:, None])[:, 0]
    return own - (logits.sum(1) - own) / (logits.shape[1] - 1)
