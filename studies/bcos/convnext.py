"""B-cos ConvNeXt-tiny: depthwise convolutions over 7 x 7 x 7 voxels and two layers over channels, added to the input.

Source: Liu, Mao, Wu, Feichtenhofer, Darrell & Xie 2022, as B-cos by Böhle, Singh, Fritz & Schiele 2024: no GELU and
no bias.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.family import Shape
from heatlas.studies.bcos.layers import BcosConv3d
from heatlas.studies.bcos.parts import ENCODED, Residual, head, normalisation, normalised, staged
from heatlas.studies.bcos.records import BcosConvNeXtConfig

STEM = 4
WIDTHS = (96, 192, 384, 768)
KERNEL, EXPANSION = 7, 4
LAYER_SCALE = 1e-6
"""First factor of each channel of a block, so small that blocks begin as nothing."""


class LayerScale(nn.Module):
    """A trained factor for each channel."""

    keeps_places: ClassVar[bool] = True

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((channels, 1, 1, 1), LAYER_SCALE))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def build(shape: Shape, settings: BcosConvNeXtConfig, outputs: int) -> StagedModel:
    """The network for a grid. Stages: the encoding, four groups of blocks, each behind its stem, and the head."""
    widths = [max(1, round(width * settings.width)) for width in WIDTHS]
    stages, before = [], ENCODED
    for number, (channels, depth) in enumerate(zip(widths, settings.depths, strict=True)):
        edge = 2 if number else STEM
        stem = normalised(BcosConv3d(before, channels, edge, edge, b=settings.b), channels, settings)
        stages.append(nn.Sequential(stem, *[_block(channels, settings) for _ in range(depth)]))
        before = channels
    return staged([*stages, head(before, outputs, settings)], shape, settings)


def _block(channels: int, settings: BcosConvNeXtConfig) -> nn.Module:
    b, wide = settings.b, EXPANSION * channels
    return Residual(
        nn.Sequential(
            BcosConv3d(channels, channels, KERNEL, 1, KERNEL // 2, groups=channels, b=b),
            normalisation(channels, settings),
            BcosConv3d(channels, wide, 1, b=b),
            BcosConv3d(wide, channels, 1, b=b),
            LayerScale(channels),
        )
    )
