"""A family of networks: its settings, and what builds it. torch is imported inside, which keeps commands quick."""

from dataclasses import dataclass
from typing import Annotated, Literal

from heatlas.pipeline.models.families.family import Architecture, padded_family
from heatlas.pipeline.run.config.networks import ModelConfig
from heatlas.pipeline.run.config.ranges import between


@dataclass(frozen=True)
class OneConvolution(ModelConfig):
    """One convolution."""

    architecture: Literal["one-convolution"] = "one-convolution"
    filters: Annotated[int, between(1, 64)] = 4
    """Of the convolution."""


def build(shape, settings, outputs):
    from torch import nn

    from heatlas.pipeline.models.contract import StagedModel

    features = nn.Sequential(nn.Conv3d(1, settings.filters, 3, 2, 1), nn.ReLU())
    head = nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(settings.filters, outputs))
    model = StagedModel([features, head])
    model.architecture = Architecture(settings, shape)
    return model


NETWORK = padded_family("one-convolution", OneConvolution, build, lambda _: 3, "was one convolution")
