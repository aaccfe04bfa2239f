"""Settings of the networks, one record per family; chosen by ``[model] architecture``.

`pipeline.models.families` builds the families. A new family adds a record here and one there.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints


@dataclass(frozen=True)
class ModelConfig:
    """The network and what it sees; each family adds its own settings."""

    architecture: str
    field_of_view: Literal["brain", "template"] = "brain"

    @property
    def own(self) -> dict[str, Any]:
        """The settings that the family adds."""
        shared = {field.name for field in dataclasses.fields(ModelConfig)}
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in shared}

    @property
    def usual(self) -> Mapping[str, Mapping[str, Any]]:
        """Settings of other sections that suit the family better than their defaults, by section."""
        return {}

    def checks(self) -> list[tuple[bool, str]]:
        """Checks of values: whether each passes, and the message if it fails."""
        return []


@dataclass(frozen=True)
class FoundingConfig(ModelConfig):
    """The CNN of the founding study."""

    architecture: Literal["founding"] = "founding"
    channels: tuple[int, ...] = (8, 16, 32, 64)
    pools: tuple[int, ...] = (2, 3, 2, 3)
    hidden_units: int = 128
    dropout: float = 0.4

    def checks(self) -> list[tuple[bool, str]]:
        return [
            (len(self.channels) == len(self.pools), "model.channels and model.pools must be equally long"),
            (_all_positive(self.channels), "model.channels must name at least one block, each 1 or more"),
            (_all_positive(self.pools), "model.pools must name at least one block, each 1 or more"),
            (self.hidden_units >= 1, "model.hidden_units must be 1 or more"),
            _is_share("dropout", self.dropout),
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
    growth: int = 32
    """Channels that each layer adds."""
    dropout: float = 0.0

    def checks(self) -> list[tuple[bool, str]]:
        return [
            (1 <= self.first_channels <= 512, "model.first_channels must lie between 1 and 512"),
            (1 <= self.growth <= 128, "model.growth must lie between 1 and 128"),
            _is_share("dropout", self.dropout),
        ]


@dataclass(frozen=True)
class SEResNetConfig(ModelConfig):
    """MONAI's SE-ResNet-50."""

    architecture: Literal["seresnet50"] = "seresnet50"
    dropout: float = 0.0
    """Before the last layer."""

    def checks(self) -> list[tuple[bool, str]]:
        return [_is_share("dropout", self.dropout)]


@dataclass(frozen=True)
class EfficientNetConfig(ModelConfig):
    """MONAI's EfficientNet-B0."""

    architecture: Literal["efficientnet-b0"] = "efficientnet-b0"
    dropout: float = 0.2
    """Before the last layer."""
    drop_connect: float = 0.2
    """Probability of skipping the last block during training; earlier blocks are skipped less often."""

    def checks(self) -> list[tuple[bool, str]]:
        return [_is_share("dropout", self.dropout), _is_share("drop_connect", self.drop_connect)]


Norm = Literal["none", "batch", "layer", "instance", "group", "position", "all"]
"""Normalisations of dynamic linear networks; see `pipeline.models.dynamic.norms`."""


@dataclass(frozen=True)
class BcosConfig(ModelConfig):
    """What the B-cos families share."""

    b: float = 2.0
    """Exponent of all layers. 1 is linear; the larger, the less a unit answers to what is not along its weights."""
    norm: Norm = "batch"
    """Normalisation after each layer; ``none`` multiplies by constants that are measured before training."""
    norm_bias: bool = False
    """Whether norms add a trained constant and subtract running means. Maps then no longer add up."""
    background: Literal["null", "dark"] = "null"
    """What intensities of 0 become, as everywhere outside the brain: [0, 0], or [0, 1] as in the source."""
    initial_logits: float = 0.5
    """Root mean square of the logits before training, from which the temperature follows: half is twice as warm."""

    @property
    def usual(self) -> Mapping[str, Mapping[str, Any]]:
        return {
            "training": {
                "learning_rate": 1e-3, "learning_rate_schedule": "cosine", "weight_decay": 0.0, "clip_gradients": 0.01,
            },
            "attribution": {"methods": ("inherent",)},
        }  # fmt: skip

    def checks(self) -> list[tuple[bool, str]]:
        return [
            (1 <= self.b <= 8, "model.b must lie between 1 and 8"),
            (1e-3 <= self.initial_logits <= 10, "model.initial_logits must lie between 0.001 and 10"),
            (not (self.norm == "none" and self.norm_bias), 'model.norm_bias needs a model.norm other than "none"'),
        ]


@dataclass(frozen=True)
class BcosSimpleConfig(BcosConfig):
    """The plain B-cos network: a stack of convolutions."""

    architecture: Literal["bcos-simple"] = "bcos-simple"
    channels: tuple[int, ...] = (8, 8, 16, 16, 32, 32)
    strides: tuple[int, ...] = (3, 1, 2, 1, 2, 1)
    max_out: int = 1
    """Units per channel, of which the largest counts (MaxOut)."""

    @property
    def layers(self) -> int:
        """Convolutions, the classifier included."""
        return len(self.channels) + 1

    def checks(self) -> list[tuple[bool, str]]:
        return [
            *super().checks(),
            (len(self.channels) == len(self.strides), "model.channels and model.strides must be equally long"),
            (_all_positive(self.channels), "model.channels must name at least one layer, each 1 or more"),
            (_all_positive(self.strides), "model.strides must name at least one layer, each 1 or more"),
            (1 <= self.max_out <= 16, "model.max_out must lie between 1 and 16"),
        ]


@dataclass(frozen=True)
class BcosResNetConfig(BcosConfig):
    """The B-cos ResNet of 18 layers."""

    architecture: Literal["bcos-resnet18"] = "bcos-resnet18"
    width: float = 0.125
    """Factor on the channels of every layer; 1 gives 64, 128, 256 and 512."""
    stem_stride: int = 2

    def checks(self) -> list[tuple[bool, str]]:
        return [*super().checks(), _is_width(self.width), (1 <= self.stem_stride <= 4, "model.stem_stride must lie "
                "between 1 and 4")]  # fmt: skip


@dataclass(frozen=True)
class BcosDenseNetConfig(BcosConfig):
    """The B-cos DenseNet-121."""

    architecture: Literal["bcos-densenet121"] = "bcos-densenet121"
    first_channels: int = 16
    growth: int = 8
    """Channels that each layer adds."""

    def checks(self) -> list[tuple[bool, str]]:
        return [
            *super().checks(),
            (1 <= self.first_channels <= 512, "model.first_channels must lie between 1 and 512"),
            (1 <= self.growth <= 128, "model.growth must lie between 1 and 128"),
        ]


@dataclass(frozen=True)
class BcosConvNeXtConfig(BcosConfig):
    """The B-cos ConvNeXt-tiny."""

    architecture: Literal["bcos-convnext-tiny"] = "bcos-convnext-tiny"
    norm: Norm = "position"
    width: float = 0.125
    """Factor on the channels; 1 gives 96, 192, 384 and 768."""
    depths: tuple[int, ...] = (3, 3, 9, 3)
    """Blocks of the four groups."""

    def checks(self) -> list[tuple[bool, str]]:
        four = len(self.depths) == 4 and _all_positive(self.depths)
        return [*super().checks(), _is_width(self.width), (four, "model.depths must be four numbers, each 1 or more")]


@dataclass(frozen=True)
class BcosVggConfig(BcosConfig):
    """The B-cos VGG-11."""

    architecture: Literal["bcos-vgg11"] = "bcos-vgg11"
    width: float = 0.125
    """Factor on the channels; 1 gives 64 to 512, and 4096 in the hidden layers."""

    def checks(self) -> list[tuple[bool, str]]:
        return [*super().checks(), _is_width(self.width)]


@dataclass(frozen=True)
class BcosViTConfig(BcosConfig):
    """B-cos vision transformers."""

    architecture: Literal["bcos-vit", "bcos-vit-c"] = "bcos-vit-c"
    norm: Norm = "position"
    patch: int = 8
    """Voxels along each axis of a token; of bcos-vit-c a power of 2."""
    dim: int = 48
    """Channels of a token, a multiple of 6 and of `heads`."""
    depth: int = 4
    """Blocks; bcos-vit-c has one less, and a stem of convolutions."""
    heads: int = 3

    def checks(self) -> list[tuple[bool, str]]:
        power = self.patch & (self.patch - 1) == 0
        return [
            *super().checks(),
            (2 <= self.patch <= 64, "model.patch must lie between 2 and 64"),
            (self.architecture == "bcos-vit" or power, "model.patch must be a power of 2 for bcos-vit-c"),
            (self.dim >= 6 and self.dim % 6 == 0, "model.dim must be a multiple of 6, for positions along three axes"),
            (self.heads >= 1 and self.dim % self.heads == 0, "model.dim must be a multiple of model.heads"),
            (2 <= self.depth <= 64, "model.depth must lie between 2 and 64"),
        ]


@dataclass(frozen=True)
class CodaConfig(ModelConfig):
    """What the CoDA families share: layers of dynamic alignment units."""

    bound: Literal["sq", "l2", "wb"] = "sq"
    """How the norm of weights is bounded: ``sq`` below 1 and less for weak responses, ``l2`` to 1; ``wb`` at most 1."""
    units: tuple[int, ...] = (8, 8, 16, 16, 16, 32, 32, 32)
    """Of all layers but the last, which has one per output."""
    ranks: tuple[int, ...] = (8, 8, 8, 8, 8, 8, 8, 8, 8)
    """Of the maps that make weights; it bounds how many patterns a unit can hold."""
    kernels: tuple[int, ...] = (5, 3, 3, 3, 3, 3, 3, 3, 1)
    strides: tuple[int, ...] = (3, 1, 2, 1, 1, 2, 1, 1, 1)
    background: Literal["null", "dark"] = "null"
    """What intensities of 0 become, as everywhere outside the brain: [0, 0], or [0, 1] as in the source."""
    embedding: int = 0
    """Filters of a learnt embedding of patches in place of the pair [v, 1 - v]; maps are then not of voxels."""
    temperature: float = 0.0
    """Of the logits, per voxel of the last layer: the warmer, the more weights must align. 0 sets it from data."""
    initial_logits: float = 0.5
    """Root mean square of the logits before training where the temperature is set from data."""

    @property
    def usual(self) -> Mapping[str, Mapping[str, Any]]:
        return {
            "training": {"learning_rate": 1e-3, "learning_rate_schedule": "cosine", "weight_decay": 0.0},
            "attribution": {"methods": ("inherent",)},
        }

    def checks(self) -> list[tuple[bool, str]]:
        layers = (self.ranks, self.kernels, self.strides)
        reached = all(kernel // 2 >= stride - 1 for kernel, stride in zip(self.kernels, self.strides, strict=False))
        wb = self.architecture == "coda-s-wb"
        bounds = 'must be "wb"' if wb else 'must be "sq" or "l2"; for "wb" choose the architecture coda-s-wb'
        return [
            ((self.bound == "wb") == wb, f"model.bound of {self.architecture} {bounds}"),
            (
                all(len(layer) == len(self.units) + 1 for layer in layers),
                "model.ranks, model.kernels and model.strides must each have one value more than model.units",
            ),
            *(
                (_all_positive(getattr(self, name)), f"model.{name} must name at least one layer, each 1 or more")
                for name in ("units", "ranks", "kernels", "strides")
            ),
            (all(kernel % 2 for kernel in self.kernels), "model.kernels must be odd"),
            (reached, "model.kernels must be at least twice the stride less one, or voxels between them go unseen"),
            (0 <= self.embedding <= 512, "model.embedding must lie between 0 and 512"),
            (0 <= self.temperature < math.inf, "model.temperature must be 0 or more"),
            (1e-6 <= self.initial_logits <= 10, "model.initial_logits must lie between 0.000001 and 10"),
        ]


@dataclass(frozen=True)
class CodaSConfig(CodaConfig):
    """A CoDA network in which all units of a layer share what they reduce."""

    architecture: Literal["coda-s"] = "coda-s"


@dataclass(frozen=True)
class CodaSWbConfig(CodaConfig):
    """A CoDA network whose weights are bounded by those of their maps, and whose units reduce patches on their own."""

    architecture: Literal["coda-s-wb"] = "coda-s-wb"
    bound: Literal["sq", "l2", "wb"] = "wb"


NETWORKS: Mapping[str, type[ModelConfig]] = {
    name: record
    for record in (
        FoundingConfig,
        ResNetConfig,
        DenseNetConfig,
        SEResNetConfig,
        EfficientNetConfig,
        BcosSimpleConfig,
        BcosResNetConfig,
        BcosDenseNetConfig,
        BcosConvNeXtConfig,
        BcosVggConfig,
        BcosViTConfig,
        CodaSConfig,
        CodaSWbConfig,
    )
    for name in get_args(get_type_hints(record)["architecture"])
}
"""The record of settings of every family, by the name in ``[model] architecture``."""


def _all_positive(values: tuple[int, ...]) -> bool:
    return len(values) > 0 and min(values) >= 1


def _is_width(value: float) -> tuple[bool, str]:
    return 1 / 64 <= value <= 4, "model.width must lie between 0.015625 and 4"


def _is_share(name: str, value: float) -> tuple[bool, str]:
    return 0 <= value < 1, f"model.{name} must lie in [0, 1)"
