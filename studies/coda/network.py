"""CoDA networks: stacks of dynamic alignment units, the sum over voxels, and logits; no norms, no activations.

Source: Böhle, Fritz & Schiele 2021, whose tables of layers are here; the defaults of a run are narrower, with a first
layer that takes whole brains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor, nn

from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.dynamic import LogitLayer, bias_of_chance
from heatlas.pipeline.models.families.family import Architecture, Shape
from heatlas.studies.coda.dau import Bound, CodaConv3d
from heatlas.studies.coda.embedding import PatchEmbedding
from heatlas.studies.coda.records import CodaConfig
from heatlas.studies.dynamic.encoding import InputEncoding

ENCODED = 2
"""Channels of an encoded volume."""


@dataclass(frozen=True)
class Layers:
    """The layers of a network, first to last.

    `units`: of all layers but the last, which has one per output. `ranks`, `kernels`, `strides`: of all layers.
    """

    units: tuple[int, ...]
    ranks: tuple[int, ...]
    kernels: tuple[int, ...]
    strides: tuple[int, ...]


_SMALL = ((16, 16, 32, 32, 32, 64, 64, 64), (3, 3, 3, 3, 3, 3, 3, 3, 1), (1, 1, 2, 1, 1, 2, 1, 1, 1))
PUBLISHED: Mapping[str, Layers] = MappingProxyType(
    {
        "S": Layers(_SMALL[0], (32, 32, 64, 64, 64, 64, 64, 64, 64), *_SMALL[1:]),
        "S-WB": Layers(_SMALL[0], (16, 16, 16, 16, 32, 32, 32, 32, 32), *_SMALL[1:]),
        "L": Layers(
            (16, 32, 32, 64, 64, 64, 64, 64), (64, 64, 64, 128, 128, 128, 256, 256, 256),
            (7, 3, 3, 3, 3, 3, 3, 3, 3), (3, 1, 1, 2, 1, 1, 2, 1, 1),
        ),
        "XL": Layers(
            (16, 32, 32, 64, 64, 64, 64, 64), (64, 64, 128, 128, 128, 256, 256, 256, 256),
            (5, 3, 3, 3, 3, 3, 3, 3, 3), (1, 1, 2, 1, 1, 2, 1, 1, 2),
        ),
    }
)  # fmt: skip
"""Layers of the source, for natural images; a temperature belongs to each, see the source."""


class SumPool(nn.Module):
    """Sum over voxels: (B, C, D, H, W) to (B, C). A larger grid has a larger sum; the temperature allows for it."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).sum(2)


def stack(layers: Layers, before: int, outputs: int, bound: Bound, flat: bool = False) -> list[CodaConv3d]:
    """The layers of a network.

    `before`: channels of the input. `flat`: with kernels and strides of two dimensions, as in the source; volumes then
    have one slice.
    """
    made = []
    for units, rank, kernel, stride in zip(
        (*layers.units, outputs), layers.ranks, layers.kernels, layers.strides, strict=True
    ):
        depth = (1, 1) if flat else (kernel, stride)
        sides, steps = (depth[0], kernel, kernel), (depth[1], stride, stride)
        made.append(CodaConv3d(before, units, sides, steps, rank, bound))
        before = units
    return made


def _head(last: nn.Module, outputs: int, settings: CodaConfig, positions: int) -> nn.Sequential:
    """The last layer, the sum over so many voxels, and logits."""
    bias = bias_of_chance(outputs) if outputs > 1 else 0.0
    if settings.temperature > 0:
        return nn.Sequential(last, SumPool(), LogitLayer(settings.temperature * positions, bias))
    return nn.Sequential(last, SumPool(), LogitLayer(bias=bias, initial_size=settings.initial_logits))


def build(shape: Shape, settings: CodaConfig, outputs: int) -> StagedModel:
    """The network for a grid. Stages: the encoding or embedding, one per layer, the head with the last layer."""
    layers = Layers(settings.units, settings.ranks, settings.kernels, settings.strides)
    first: nn.Module = PatchEmbedding(settings.embedding) if settings.embedding else InputEncoding(settings.background)
    *body, last = stack(layers, settings.embedding or ENCODED, outputs, settings.bound)
    positions = math.prod(-(-side // math.prod(settings.strides)) for side in shape)
    model = StagedModel([first, *body, _head(last, outputs, settings, positions)])
    model.architecture = Architecture(settings, shape)
    return model
