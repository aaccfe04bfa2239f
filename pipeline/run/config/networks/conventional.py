"""Settings of conventional networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from heatlas.pipeline.run.config.networks.base import ModelConfig, Width
from heatlas.pipeline.run.config.ranges import Count, Counts, Fraction, at_least, between, naming


@dataclass(frozen=True)
class FoundingConfig(ModelConfig):
    """The CNN of the founding study."""

    architecture: Literal["founding"] = "founding"
    channels: Counts = (8, 16, 32, 64)
    """Of each block."""
    pools: Counts = (2, 3, 2, 3)
    """Edge of the max-pooling after each block. The default suits 1 mm; at 2 mm use 3, 3, 2, 1."""
    hidden_units: Count = 128
    """Of the first linear layer."""
    dropout: Fraction = 0.4
    """Before each linear layer."""
    bias: bool = True
    """Biases and batch normalisation. Without, input × gradient adds up to the logit, which is a baseline for networks
    that explain themselves."""

    def checks(self) -> list[tuple[bool, str]]:
        return [(len(self.channels) == len(self.pools), "model.channels and model.pools must be equally long")]


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


@dataclass(frozen=True)
class SFCNConfig(ModelConfig):
    """The fully convolutional network of Peng et al. (2021)."""

    architecture: Literal["sfcn"] = "sfcn"
    channels: Annotated[tuple[int, ...], naming(2, "block"), at_least(1)] = (32, 64, 128, 256, 256, 64)
    """Of each block; all but the last, which has filters of one voxel, halve the grid."""
    dropout: Fraction = 0.5
    """Before the last layer."""


@dataclass(frozen=True)
class Conv5FC3Config(ModelConfig):
    """The network of five convolutions and three linear layers of Wen et al. (2020)."""

    architecture: Literal["conv5-fc3"] = "conv5-fc3"
    channels: Counts = (8, 16, 32, 64, 128)
    """Of each block, which halves the grid."""
    hidden_units: Counts = (1300, 50)
    """Of each linear layer but the last."""
    dropout: Fraction = 0.5
    """Before the first linear layer."""


@dataclass(frozen=True)
class ResNetConfig(ModelConfig):
    """MONAI's ResNet of 10 or 18 layers."""

    architecture: Literal["resnet10", "resnet18"] = "resnet10"
    width: Width = 1.0
    """Factor on the channels of every layer; 1 gives 64, 128, 256 and 512."""
    stem_stride: Annotated[int, between(1, 4)] = 2
    """Stride of the first convolution: 2 as He et al. (2016); MONAI's default of 1 takes eight times the memory."""


@dataclass(frozen=True)
class DenseNetConfig(ModelConfig):
    """MONAI's DenseNet-121."""

    architecture: Literal["densenet121"] = "densenet121"
    first_channels: Annotated[int, between(1, 512)] = 64
    """Channels of the first convolution."""
    growth: Annotated[int, between(1, 128)] = 32
    """Channels that each layer adds."""
    dropout: Fraction = 0.0
    """After each dense layer."""


@dataclass(frozen=True)
class SEResNetConfig(ModelConfig):
    """MONAI's SE-ResNet-50."""

    architecture: Literal["seresnet50"] = "seresnet50"
    dropout: Fraction = 0.0
    """Before the last layer."""


@dataclass(frozen=True)
class EfficientNetConfig(ModelConfig):
    """MONAI's EfficientNet-B0."""

    architecture: Literal["efficientnet-b0"] = "efficientnet-b0"
    dropout: Fraction = 0.2
    """Before the last layer."""
    drop_connect: Fraction = 0.2
    """Probability of skipping the last block during training; earlier blocks are skipped less often."""


@dataclass(frozen=True)
class ViTConfig(ModelConfig):
    """MONAI's vision transformer, which classifies the mean of its tokens."""

    architecture: Literal["vit"] = "vit"
    patch: Annotated[int, between(2, 64)] = 8
    """Voxels along each axis of a token. The default suits 2 mm; at 1 mm use 16, since attention needs memory for each
    pair of tokens."""
    dim: Count = 48
    """Channels of a token, a multiple of `heads`."""
    depth: Annotated[int, between(1, 64)] = 4
    """Blocks of attention."""
    heads: Count = 3
    """Of attention."""
    dropout: Fraction = 0.0
    """Of tokens, attention weights and hidden units."""

    @property
    def usual(self) -> Mapping[str, Mapping[str, Any]]:
        """Without the methods of the default, which have no rule for attention."""
        return {"attribution": {"methods": ("expected-gradients", "cgw1")}}

    def checks(self) -> list[tuple[bool, str]]:
        return [(self.dim % self.heads == 0, "model.dim must be a multiple of model.heads")]
