"""The part of a probe that was trained before: the first stages of a network, kept as they are or trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.dynamic import dynamic_layers
from heatlas.pipeline.models.families.family import Shape
from heatlas.pipeline.run.errors import UsageError


class Backbone(nn.Sequential):
    """Stages of a network, as one stage.

    `frozen`: weights have no gradients, and the stages stay in evaluation mode whatever the network is set to, so that
    running statistics stay what they are.
    """

    was_trained: ClassVar[bool] = True
    """Its constants are not taken from data again (`pipeline.models.dynamic`)."""

    def __init__(self, stages: Sequence[nn.Module], frozen: bool = True) -> None:
        super().__init__(*stages)
        self.frozen = frozen
        if frozen:
            self.requires_grad_(False)
            self.eval()

    @property
    def is_dynamic(self) -> bool:
        """Whether contributions can be followed through it: its layers are dynamic linear."""
        return bool(dynamic_layers(self))

    def train(self, mode: bool = True) -> Backbone:
        """Set the mode, unless frozen."""
        super().train(mode and not self.frozen)
        return self


def conventional_stem(model: StagedModel) -> Backbone | None:
    """The stem of a hybrid: a conventional backbone below dynamic linear layers. None for any other network."""
    stem = model.stages[0]
    return stem if isinstance(stem, Backbone) and not stem.is_dynamic and dynamic_layers(model) else None


def features_of_stages(network: StagedModel, volumes: Tensor) -> list[Tensor]:
    """What each stage but the last gives, without gradients, as long as it has voxels."""
    found: list[Tensor] = []
    with torch.no_grad():
        for stage in network.stages[:-1]:
            volumes = stage(volumes)
            if volumes.dim() != 5:
                break
            found.append(volumes)
    return found


def kept_stages(network: StagedModel, shape: Shape, count: int = 0) -> tuple[tuple[nn.Module, ...], tuple[int, ...]]:
    """The first stages of a network, all that give features with voxels unless a number is given; channels after each.

    `shape`: voxels of its input. `count`: 0 for all. Raises UsageError if there are not so many.
    """
    weight = next(network.parameters())
    was_training = network.training
    empty = torch.zeros(1, 1, *shape, dtype=weight.dtype, device=weight.device)
    features = features_of_stages(network.eval(), empty)
    network.train(was_training)
    if not features or count > len(features):
        raise UsageError(
            f"model.stages = {count}: {len(features)} stages of the backbone give features with voxels; keep 1 to "
            f"{len(features)} of them, or 0 for all."
            if features
            else "model.backbone: no stage of the backbone gives features with voxels, so no probe can stand on it."
        )
    number = count or len(features)
    return tuple(network.stages[:number]), tuple(one.shape[1] for one in features[:number])
