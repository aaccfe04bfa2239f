"""Settings of the networks, one record per family; chosen by ``[model] architecture``.

`pipeline.models.families` builds the families. A new family adds a record here and one there.
"""

from __future__ import annotations

import dataclasses
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


@dataclass(frozen=True)
class BcosConfig(ModelConfig):
    """What the B-cos families share."""

    b: float = 2.0
    """Exponent of all layers. 1 is linear; the larger, the less a unit answers to what is not along its weights."""
    norm: Literal["none", "batch", "layer", "instance", "group", "position", "all"] = "position"
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
            "attribution": {"methods": ("inherent", "expected-gradients")},
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
    norm: Literal["none", "batch", "layer", "instance", "group", "position", "all"] = "none"
    channels: tuple[int, ...] = (8, 8, 16, 16, 16, 32, 32, 32)
    strides: tuple[int, ...] = (2, 1, 2, 1, 1, 2, 1, 1)
    max_out: int = 2
    """Units per channel, of which the largest counts; 1 for plain B-cos."""

    def checks(self) -> list[tuple[bool, str]]:
        return [
            *super().checks(),
            (len(self.channels) == len(self.strides), "model.channels and model.strides must be equally long"),
            (_all_positive(self.channels), "model.channels must name at least one layer, each 1 or more"),
            (_all_positive(self.strides), "model.strides must name at least one layer, each 1 or more"),
            (1 <= self.max_out <= 16, "model.max_out must lie between 1 and 16"),
        ]


NETWORKS: Mapping[str, type[ModelConfig]] = {
    name: record
    for record in (FoundingConfig, ResNetConfig, DenseNetConfig, SEResNetConfig, EfficientNetConfig, BcosSimpleConfig)
    for name in get_args(get_type_hints(record)["architecture"])
}
"""The record of settings of every family, by the name in ``[model] architecture``."""


def _all_positive(values: tuple[int, ...]) -> bool:
    return len(values) > 0 and min(values) >= 1


def _is_share(name: str, value: float) -> tuple[bool, str]:
    return 0 <= value < 1, f"model.{name} must lie in [0, 1)"
