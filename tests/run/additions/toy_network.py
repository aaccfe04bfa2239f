"""A family of networks in one file: its settings, how it is built, and its record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from heatlas.pipeline.models.families.family import Architecture, Shape, padded_family
from heatlas.pipeline.run.config.networks import ModelConfig
from heatlas.pipeline.run.config.ranges import between

if TYPE_CHECKING:
    from heatlas.pipeline.models.contract import StagedModel


@dataclass(frozen=True)
class ToyConfig(ModelConfig):
    """One convolution."""

    architecture: Literal["toy-network"] = "toy-network"
    filters: Annotated[int, between(1, 64)] = 4
    """Of the convolution."""


def build(shape: Shape, settings: ToyConfig, outputs: int) -> StagedModel:
    from torch import nn

    from heatlas.pipeline.models.contract import StagedModel

    filters = nn.Sequential(nn.Conv3d(1, settings.filters, 3, 2, 1), nn.ReLU())
    head = nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(settings.filters, outputs))
    model = StagedModel([filters, head])
    model.architecture = Architecture(settings, shape)
    return model


TOY = padded_family("toy-network", ToyConfig, build, lambda _: 3, "was one convolution [@founding]")
