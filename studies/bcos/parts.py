"""Parts that the B-cos networks are put together from: one convolution with its norm, and the last stage."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.dynamic import LogitLayer, Scaled, bias_of_chance
from heatlas.pipeline.models.families.family import Architecture, Shape
from heatlas.studies.bcos.layers import BcosConv3d, Sides
from heatlas.studies.bcos.records import BcosConfig
from heatlas.studies.dynamic.encoding import InputEncoding
from heatlas.studies.dynamic.norms import DynamicNorm

ENCODED = 2
"""Channels of an encoded volume."""


def normalisation(channels: int, settings: BcosConfig) -> nn.Module:
    """The norm of a run's settings; nothing for ``none``."""
    if settings.norm == "none":
        return nn.Identity()
    groups = math.gcd(2, channels)
    return DynamicNorm(settings.norm, channels, settings.norm_bias or None, settings.norm_bias, groups)


def normalised(layer: nn.Module, channels: int, settings: BcosConfig) -> nn.Module:
    """A layer and the norm of its output, or a gain that keeps its signals alive where there is no norm."""
    if settings.norm == "none":
        return Scaled(layer)
    return nn.Sequential(layer, normalisation(channels, settings))


class Residual(nn.Module):
    """A block added to its own input."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)  # type: ignore[no-any-return]


def head(channels: int, outputs: int, settings: BcosConfig, max_out: int = 1, window: Sides = 1) -> nn.Sequential:
    """Classify each voxel of the last features, then average, then make logits; B-cos layers need this order.

    With the grid of the last features as `window`, there is one classifier of them all and nothing to average.
    """
    classifier = BcosConv3d(channels, outputs, window, b=settings.b, max_out=max_out)
    bias = bias_of_chance(outputs) if outputs > 1 else 0.0
    logits = LogitLayer(bias=bias, initial_size=settings.initial_logits)
    return nn.Sequential(classifier, nn.AdaptiveAvgPool3d(1), nn.Flatten(), logits)


def staged(stages: Sequence[nn.Module], shape: Shape, settings: BcosConfig) -> StagedModel:
    """The network: the encoding of intensities first, then the stages."""
    model = StagedModel([InputEncoding(settings.background), *stages])
    model.architecture = Architecture(settings, shape)
    return model
