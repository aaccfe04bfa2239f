"""Two networks that the field trains on brain scans: SFCN (Peng et al. 2021) and Conv5-FC3 (Wen et al. 2020).

Blocks of convolution (3x3x3, zero padding), batch normalisation and max-pooling of two voxels halve the grid. Where a
side is odd the last window holds what is left, so no voxel is lost: Wen et al. pad for it, and the grid of Peng et al.
(160x192x160) divides evenly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Literal

from heatlas.pipeline.models.families.family import HIDDEN_LAYER, Architecture, Family, Shape, padded_family
from heatlas.pipeline.run.config.networks import ModelConfig
from heatlas.pipeline.run.config.ranges import Counts, Fraction, at_least, naming

if TYPE_CHECKING:
    from torch import nn

    from heatlas.pipeline.models.contract import StagedModel


@dataclass(frozen=True)
class SFCNConfig(ModelConfig):
    """The fully convolutional network of Peng et al. (2021)."""

    architecture: Literal["sfcn"] = "sfcn"
    channels: Annotated[tuple[int, ...], naming(2, "block"), at_least(1)] = (32, 64, 128, 256, 256, 64)
    """Channels of each block; all but the last, which has filters of one voxel, halve the grid."""
    dropout: Fraction = 0.5
    """Before the last layer."""


@dataclass(frozen=True)
class Conv5FC3Config(ModelConfig):
    """The network of five convolutions and three linear layers of Wen et al. (2020)."""

    architecture: Literal["conv5-fc3"] = "conv5-fc3"
    channels: Counts = (8, 16, 32, 64, 128)
    """Channels of each block, which halves the grid."""
    hidden_units: Counts = (1300, 50)
    """Units of each linear layer but the last."""
    dropout: Fraction = 0.5
    """Before the first linear layer."""


def sfcn(shape: Shape, settings: SFCNConfig, outputs: int, images: int = 1) -> StagedModel:
    """SFCN. Stages: the blocks, of which the last keeps the grid and has filters of one voxel; the head."""
    from torch import nn

    from heatlas.pipeline.models.contract import StagedModel

    *pooled, last = settings.channels
    blocks = [
        nn.Sequential(*_convolution(before, after), nn.MaxPool3d(2, ceil_mode=True), nn.ReLU())
        for before, after in pairwise((images, *pooled))
    ]
    blocks.append(nn.Sequential(nn.Conv3d(pooled[-1], last, 1), nn.BatchNorm3d(last), nn.ReLU()))
    # A linear layer after pooling is the last convolution of the paper, of one voxel.
    head = nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Dropout(settings.dropout), nn.Linear(last, outputs))
    model = StagedModel([*blocks, head])
    model.architecture = Architecture(settings, shape)
    return model


def conv5_fc3(shape: Shape, settings: Conv5FC3Config, outputs: int, images: int = 1) -> StagedModel:
    """Conv5-FC3. Stages: the blocks, each hidden layer, the last layer."""
    from torch import nn

    from heatlas.pipeline.models.contract import StagedModel

    blocks = [
        nn.Sequential(*_convolution(before, after), nn.ReLU(), nn.MaxPool3d(2, ceil_mode=True))
        for before, after in pairwise((images, *settings.channels))
    ]
    halved = 2 ** len(settings.channels)
    features = settings.channels[-1] * math.prod(-(-side // halved) for side in shape)
    hidden = [
        nn.Sequential(nn.Linear(before, after), nn.ReLU())
        for before, after in pairwise((features, *settings.hidden_units))
    ]
    hidden[0] = nn.Sequential(nn.Flatten(), nn.Dropout(settings.dropout), *hidden[0])
    model = StagedModel([*blocks, *hidden, nn.Linear(settings.hidden_units[-1], outputs)])
    model.architecture = Architecture(settings, shape)
    return model


def _convolution(before: int, after: int) -> list[nn.Module]:
    from torch import nn

    return [nn.Conv3d(before, after, 3, padding=1), nn.BatchNorm3d(after)]


def _sfcn_text(settings: SFCNConfig) -> str:
    return (
        "was the simple fully convolutional network (SFCN) [@sfcn]: blocks of convolution, batch normalisation, "
        f"max-pooling and ReLU ({_channels(settings.channels)}; the last without pooling), global average pooling and "
        f"a linear layer, dropout {settings.dropout:g}"
    )


def _conv5_fc3_text(settings: Conv5FC3Config) -> str:
    return (
        "followed the Conv5-FC3 [@conv5fc3]: blocks of a 3×3×3 convolution, batch normalisation, ReLU and max-pooling "
        f"({_channels(settings.channels)}), then linear layers of "
        f"{' and '.join(map(str, settings.hidden_units))} units, dropout {settings.dropout:g}"
    )


def _channels(channels: Sequence[int]) -> str:
    return f"channels {', '.join(map(str, channels))}"


HALVING_FAMILIES: Sequence[Family] = (
    padded_family(
        "sfcn",
        SFCNConfig,
        sfcn,
        lambda settings: 2 ** (len(settings.channels) - 1) + 1,
        _sfcn_text,
        several_images=True,
    ),
    padded_family(
        "conv5-fc3",
        Conv5FC3Config,
        conv5_fc3,
        lambda settings: 2 ** len(settings.channels) + 1,
        _conv5_fc3_text,
        refused=HIDDEN_LAYER,
        several_images=True,
    ),
)
