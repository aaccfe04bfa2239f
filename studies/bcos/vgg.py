"""B-cos VGG-11: convolutions and average pooling, and a head of three B-cos layers that runs over every place.

Source: Simonyan & Zisserman 2015, as B-cos by Böhle, Singh, Fritz & Schiele 2024. The first layer of the head has a
kernel of 3 instead of 7 voxels, for the few that a brain has left there.
"""

from __future__ import annotations

from torch import nn

from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.family import Shape
from heatlas.studies.bcos.layers import BcosConv3d
from heatlas.studies.bcos.parts import ENCODED, head, normalised, staged
from heatlas.studies.bcos.records import BcosVggConfig

GROUPS = ((64,), (128,), (256, 256), (512, 512), (512, 512))
"""Channels of the convolutions before each pooling."""
HIDDEN = 4096


def build(shape: Shape, settings: BcosVggConfig, outputs: int) -> StagedModel:
    """The network for a grid. Stages: the encoding, five groups with their pooling, the hidden layers, the head."""
    stages: list[nn.Module] = []
    before = ENCODED
    for group in GROUPS:
        layers = []
        for width in group:
            channels = _scaled(width, settings)
            layers.append(_convolution(before, channels, 3, settings))
            before = channels
        stages.append(nn.Sequential(*layers, nn.AvgPool3d(2)))
    hidden = _scaled(HIDDEN, settings)
    stages.append(
        nn.Sequential(_convolution(before, hidden, 3, settings), _convolution(hidden, hidden, 1, settings))
    )  # fmt: skip
    return staged([*stages, head(hidden, outputs, settings)], shape, settings)


def _scaled(width: int, settings: BcosVggConfig) -> int:
    return max(1, round(width * settings.width))


def _convolution(before: int, after: int, kernel: int, settings: BcosVggConfig) -> nn.Module:
    return normalised(BcosConv3d(before, after, kernel, 1, kernel // 2, b=settings.b), after, settings)
