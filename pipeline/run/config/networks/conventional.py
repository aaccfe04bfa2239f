"""Settings of conventional networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from heatlas.pipeline.run.config.networks.base import ModelConfig, all_positive, is_share


@dataclass(frozen=True)
class FoundingConfig(ModelConfig):
    """The CNN of the founding study."""

    architecture: Literal["founding"] = "founding"
    channels: tuple[int, ...] = (8, 16, 32, 64)
    """Of each block."""
    pools: tuple[int, ...] = (2, 3, 2, 3)
    """Edge of the max-pooling after each block. The default suits 1 mm; at 2 mm use 3, 3, 2, 1."""
    hidden_units: int = 128
    """Of the first linear layer."""
    dropout: float = 0.4
    """Before each linear layer."""
    bias: bool = True
    """Biases and batch normalisation. Without, input × gradient adds up to the logit, which is a baseline for networks
    that explain themselves."""

    def checks(self) -> list[tuple[bool, str]]:
        return [
            (len(self.channels) == len(self.pools), "model.channels and model.pools must be equally long"),
            (all_positive(self.channels), "model.channels must name at least one block, each 1 or more"),
            (all_positive(self.pools), "model.pools must name at least one block, each 1 or more"),
            (self.hidden_units >= 1, "model.hidden_units must be 1 or more"),
            is_share("dropout", self.dropout),
        ]


@dataclass(frozen=True)
class LinearConfig(ModelConfig):
    """Ridge regression on the voxels, logistic for classes, solved exactly."""

    architecture: Literal["linear"] = "linear"
    fwhm_voxels: float = 0.0
    """Full width at half maximum of a Gaussian by which the image is smoothed first, in voxels; 0 for none."""
    step: int = 1
    """Every which voxel of the smoothed image counts. A width of 8 mm and a step of 4 mm are those of the baseline
    `voxels`."""

    def checks(self) -> list[tuple[bool, str]]:
        return [
            (0 <= self.fwhm_voxels <= 64, "model.fwhm_voxels must lie between 0 and 64"),
            (1 <= self.step <= 64, "model.step must lie between 1 and 64"),
            (
                self.step <= max(self.fwhm_voxels, 1),
                "model.step must not be larger than model.fwhm_voxels, or voxels are skipped",
            ),
        ]


@dataclass(frozen=True)
class SFCNConfig(ModelConfig):
    """The fully convolutional network of Peng et al. (2021)."""

    architecture: Literal["sfcn"] = "sfcn"
    channels: tuple[int, ...] = (32, 64, 128, 256, 256, 64)
    """Of each block; all but the last, which has filters of one voxel, halve the grid."""
    dropout: float = 0.5
    """Before the last layer."""

    def checks(self) -> list[tuple[bool, str]]:
        enough = len(self.channels) >= 2 and all_positive(self.channels)
        return [
            (enough, "model.channels must name at least two blocks, each 1 or more"),
            is_share("dropout", self.dropout),
        ]


@dataclass(frozen=True)
class Conv5FC3Config(ModelConfig):
    """The network of five convolutions and three linear layers of Wen et al. (2020)."""

    architecture: Literal["conv5-fc3"] = "conv5-fc3"
    channels: tuple[int, ...] = (8, 16, 32, 64, 128)
    """Of each block, which halves the grid."""
    hidden_units: tuple[int, ...] = (1300, 50)
    """Of each linear layer but the last."""
    dropout: float = 0.5
    """Before the first linear layer."""

    def checks(self) -> list[tuple[bool, str]]:
        return [
            (all_positive(self.channels), "model.channels must name at least one block, each 1 or more"),
            (all_positive(self.hidden_units), "model.hidden_units must name at least one layer, each 1 or more"),
            is_share("dropout", self.dropout),
        ]


@dataclass(frozen=True)
class ResNetConfig(ModelConfig):
    """MONAI's ResNet of 10 or 18 layers."""

    architecture: Literal["resnet10", "resnet18"] = "resnet10"
    width: float = 1.0
    """Factor on the channels of every layer; 1 gives 64, 128, 256 and 512."""
    stem_stride: int = 2
    """Stride of the first convolution: 2 as He et al. (2016); MONAI's default of 1 takes eight times the memory."""

    def checks(self) -> list[tuple[bool, str]]:
        return [
            (1 / 64 <= self.width <= 4, "model.width must lie between 0.015625 and 4"),
            (1 <= self.stem_stride <= 4, "model.stem_stride must lie between 1 and 4"),
        ]


@dataclass(frozen=True)
class DenseNetConfig(ModelConfig):
    """MONAI's DenseNet-121."""

    architecture: Literal["densenet121"] = "densenet121"
    first_channels: int = 64
    """Channels of the first convolution."""
    growth: int = 32
    """Channels that each layer adds."""
    dropout: float = 0.0
    """After each dense layer."""

    def checks(self) -> list[tuple[bool, str]]:
        return [
            (1 <= self.first_channels <= 512, "model.first_channels must lie between 1 and 512"),
            (1 <= self.growth <= 128, "model.growth must lie between 1 and 128"),
            is_share("dropout", self.dropout),
        ]


@dataclass(frozen=True)
class SEResNetConfig(ModelConfig):
    """MONAI's SE-ResNet-50."""

    architecture: Literal["seresnet50"] = "seresnet50"
    dropout: float = 0.0
    """Before the last layer."""

    def checks(self) -> list[tuple[bool, str]]:
        return [is_share("dropout", self.dropout)]


@dataclass(frozen=True)
class EfficientNetConfig(ModelConfig):
    """MONAI's EfficientNet-B0."""

    architecture: Literal["efficientnet-b0"] = "efficientnet-b0"
    dropout: float = 0.2
    """Before the last layer."""
    drop_connect: float = 0.2
    """Probability of skipping the last block during training; earlier blocks are skipped less often."""

    def checks(self) -> list[tuple[bool, str]]:
        return [is_share("dropout", self.dropout), is_share("drop_connect", self.drop_connect)]


@dataclass(frozen=True)
class ViTConfig(ModelConfig):
    """MONAI's vision transformer, which classifies the mean of its tokens."""

    architecture: Literal["vit"] = "vit"
    patch: int = 8
    """Voxels along each axis of a token. The default suits 2 mm; at 1 mm use 16, since attention needs memory for each
    pair of tokens."""
    dim: int = 48
    """Channels of a token, a multiple of `heads`."""
    depth: int = 4
    """Blocks of attention."""
    heads: int = 3
    """Of attention."""
    dropout: float = 0.0
    """Of tokens, attention weights and hidden units."""

    @property
    def usual(self) -> Mapping[str, Mapping[str, Any]]:
        """Without the methods of the default, which have no rule for attention."""
        return {"attribution": {"methods": ("expected-gradients", "cgw1")}}

    def checks(self) -> list[tuple[bool, str]]:
        return [
            (2 <= self.patch <= 64, "model.patch must lie between 2 and 64"),
            (self.heads >= 1 and self.dim >= 1, "model.dim and model.heads must be 1 or more"),
            (self.heads >= 1 and self.dim % self.heads == 0, "model.dim must be a multiple of model.heads"),
            (1 <= self.depth <= 64, "model.depth must lie between 1 and 64"),
            is_share("dropout", self.dropout),
        ]
