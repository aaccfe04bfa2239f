"""Families of plain layers: SFCN (Peng et al. 2021), Conv5-FC3 (Wen et al. 2020), and ridge regression on voxels.

The first two are trained on brain scans by the field. Blocks of convolution (3x3x3, zero padding), batch normalisation
and max-pooling of two voxels halve the grid. Where a side is odd the last window holds what is left, so no voxel is
lost: Wen et al. pad for it, and the grid of Peng et al. (160x192x160) divides evenly.

Ridge regression is one linear layer over the image, smoothed by a fixed Gaussian if wanted. For classes the layer gives
logits (logistic regression). It is solved, not trained (`pipeline.training.exact`), and its maps are exact: the
evidence of a voxel is its weight times its difference from the controls.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Literal

from heatlas.pipeline.models.families.family import HIDDEN_LAYER, Architecture, Family, Shape, padded_family
from heatlas.pipeline.run.config.networks import ModelConfig
from heatlas.pipeline.run.config.ranges import Counts, Fraction, at_least, between, naming

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


TRUNCATE = 4.0
"""Standard deviations after which the Gaussian ends: that of `scipy.ndimage.gaussian_filter`."""
ONE_CHANNEL = (
    "it weights the channels of the last stage with voxels, and this network has none but the image. Its exact map is "
    "that of expected-gradients"
)


@dataclass(frozen=True)
class LinearConfig(ModelConfig):
    """Ridge regression on the voxels, logistic for classes, solved exactly."""

    architecture: Literal["linear"] = "linear"
    fwhm_voxels: Annotated[float, between(0, 64)] = 0.0
    """Full width at half maximum of a Gaussian by which the image is smoothed first, in voxels; 0 for none."""
    step: Annotated[int, between(1, 64)] = 1
    """Every which voxel of the smoothed image counts. A width of 8 mm and a step of 4 mm are those of the baseline
    `voxels`."""

    def checks(self) -> list[tuple[bool, str]]:
        fine = self.step <= max(self.fwhm_voxels, 1)
        return [(fine, "model.step must not be larger than model.fwhm_voxels, or voxels are skipped")]


def linear(shape: Shape, settings: LinearConfig, outputs: int) -> StagedModel:
    """A linear network, of one stage: there are no features between the image and its output."""
    from torch import nn

    from heatlas.pipeline.models.contract import StagedModel

    columns = math.prod(-(-side // settings.step) for side in shape)
    layers = [*_smoothing(settings), nn.Flatten(), nn.Linear(columns, outputs)]
    model = StagedModel([nn.Sequential(*layers)])
    model.architecture = Architecture(settings, shape)
    return model


def _smoothing(settings: LinearConfig) -> list[nn.Module]:
    """A Gaussian along each axis in turn, zero beyond the image, of which every `step`-th voxel is kept; or nothing."""
    import torch
    from torch import nn

    if not settings.fwhm_voxels:
        return []
    sd = settings.fwhm_voxels / math.sqrt(8 * math.log(2))
    radius = int(TRUNCATE * sd + 0.5)
    kernel = torch.exp(-(torch.arange(-radius, radius + 1, dtype=torch.float64) ** 2) / (2 * sd**2))
    layers: list[nn.Module] = []
    for axis in range(3):
        size, stride, padding = (
            _along(axis, value, other) for value, other in ((len(kernel), 1), (settings.step, 1), (radius, 0))
        )
        layer = nn.Conv3d(1, 1, size, stride, padding, bias=False).requires_grad_(False)
        layer.weight.copy_((kernel / kernel.sum()).reshape(layer.weight.shape))
        layers.append(layer)
    return layers


def _along(axis: int, value: int, other: int) -> Shape:
    """A value for one axis, and another for the two others."""
    left, back, top = (value if place == axis else other for place in range(3))
    return left, back, top


def _text(settings: LinearConfig) -> str:
    smoothed = (
        f"of the image smoothed by a Gaussian (full width at half maximum {settings.fwhm_voxels:g} voxels, every "
        f"{settings.step} voxels)"
        if settings.fwhm_voxels
        else "of the image"
    )
    return (
        f"was one linear layer over the voxels {smoothed}, solved as a ridge regression, logistic for classes [@ridge]"
    )


LINEAR = replace(
    padded_family(
        "linear",
        LinearConfig,
        linear,
        lambda settings: settings.step + 1,
        _text,
        refused=dict.fromkeys(
            ("cam", "grad-cam", "grad-cam++", "xgrad-cam", "score-cam", "ablation-cam", "opti-cam"), ONE_CHANNEL
        ),
    ),
    fitted_by="ridge",
)
