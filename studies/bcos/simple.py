"""The plain B-cos network: a stack of B-cos convolutions, a classifier of voxels, and their average.

Source: Böhle, Fritz & Schiele 2022, who have nine layers with MaxOut of two and no normalisation (``norm = "none"``).
Here the first layer has a stride, for volumes, and layers are normalised: few scans do not train a deep stack
without.
"""

from __future__ import annotations

from torch import nn

from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.family import Shape
from heatlas.studies.bcos.layers import BcosConv3d
from heatlas.studies.bcos.parts import ENCODED, head, normalised, staged
from heatlas.studies.bcos.records import BcosSimpleConfig

KERNEL = 3


def build(shape: Shape, settings: BcosSimpleConfig, outputs: int) -> StagedModel:
    """The network for a grid. Stages: the encoding, one per convolution, the head."""
    layers: list[nn.Module] = []
    before, kernel, left = ENCODED, settings.stem_kernel, shape
    for channels, stride in zip(settings.channels, settings.strides, strict=True):
        layer = BcosConv3d(
            before, channels, kernel, stride, kernel // 2, b=settings.b, max_out=settings.max_out
        )  # fmt: skip
        layers.append(normalised(layer, channels, settings))
        before, kernel = channels, KERNEL
        left = (-(-left[0] // stride), -(-left[1] // stride), -(-left[2] // stride))
    window = left if settings.head == "places" else 1
    return staged([*layers, head(before, outputs, settings, settings.max_out, window)], shape, settings)
