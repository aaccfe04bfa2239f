"""The B-cos families and their settings; without torch, see `pipeline.models.families.family`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from heatlas.pipeline.models.families.family import INHERENT, NO_ATTENTION, Family, Shape, dynamic_family
from heatlas.pipeline.run.config.networks import ModelConfig, Width
from heatlas.pipeline.run.config.ranges import ODD, Count, Counts, at_least, between

if TYPE_CHECKING:
    from heatlas.pipeline.models.contract import StagedModel


Norm = Literal["none", "batch", "layer", "instance", "group", "position", "all"]
"""Normalisations of dynamic linear networks; see `studies.dynamic`."""


@dataclass(frozen=True)
class BcosConfig(ModelConfig):
    """What the B-cos families share."""

    relatives = "B-cos"
    dynamic_linear = True

    b: Annotated[float, between(1, 8)] = 2.0
    """Exponent of all layers. 1 is linear; the larger, the less a unit answers to what is not along its weights."""
    norm: Norm = "batch"
    """Normalisation after each layer; ``none`` multiplies by constants that are measured before training."""
    norm_bias: bool = False
    """Whether norms add a trained constant and subtract running means. Maps then no longer add up."""
    background: Literal["null", "dark"] = "null"
    """What intensities of 0 become, as everywhere outside the brain: [0, 0], or [0, 1] as in the source."""
    initial_logits: Annotated[float, between(1e-3, 10)] = 0.5
    """Root mean square of the logits before training, from which the temperature follows: half is twice as warm."""

    @property
    def usual(self) -> Mapping[str, Mapping[str, Any]]:
        training = {"learning_rate": 1e-3, "learning_rate_schedule": "cosine", "weight_decay": 0.0}
        return {"training": {**training, "clip_gradients": 0.01}, "attribution": {"methods": ("inherent",)}}

    def checks(self) -> list[tuple[bool, str]]:
        return [(not (self.norm == "none" and self.norm_bias), 'model.norm_bias needs a model.norm other than "none"')]


@dataclass(frozen=True)
class BcosSimpleConfig(BcosConfig):
    """The plain B-cos network: a stack of convolutions."""

    architecture: Literal["bcos-simple"] = "bcos-simple"
    b: Annotated[float, between(1, 8)] = 1.5
    channels: Counts = (16, 16, 32, 32)
    """Channels of each layer but the last."""
    strides: Counts = (3, 1, 2, 1)
    """Stride of each layer but the last."""
    stem_kernel: Annotated[int, ODD, between(1, 15)] = 5
    """Edge of the filters of the first layer, odd; those of the others have 3 voxels."""
    head: Literal["places", "average"] = "places"
    """Last layer: a classifier with weights of its own for each place, or one for every place, averaged."""
    max_out: Annotated[int, between(1, 16)] = 1
    """Units per channel, of which the largest counts (MaxOut)."""

    @property
    def usual(self) -> Mapping[str, Mapping[str, Any]]:
        """With binary cross-entropy, by which maps of few scans find more than with off-targets."""
        usual = super().usual
        return {**usual, "training": {**usual["training"], "loss": "binary-cross-entropy"}}

    @property
    def layers(self) -> int:
        return len(self.channels) + 1

    def checks(self) -> list[tuple[bool, str]]:
        return [
            *super().checks(),
            (len(self.channels) == len(self.strides), "model.channels and model.strides must be equally long"),
        ]


@dataclass(frozen=True)
class BcosResNetConfig(BcosConfig):
    """The B-cos ResNet of 18 layers."""

    architecture: Literal["bcos-resnet18"] = "bcos-resnet18"
    width: Width = 0.125
    """Factor on the channels of every layer; 1 gives 64, 128, 256 and 512."""
    stem_stride: Annotated[int, between(1, 4)] = 2
    """Stride of the first convolution."""


@dataclass(frozen=True)
class BcosResNeXtConfig(BcosConfig):
    """The B-cos ResNeXt of 50 layers."""

    architecture: Literal["bcos-resnext50"] = "bcos-resnext50"
    width: Width = 0.125
    """Factor on the channels of every layer; 1 gives 64, 128, 256 and 512 within blocks, and four times as many after
    them."""
    groups: Count = 4
    """Groups of channels that the convolutions of 3×3×3 voxels keep apart; a divisor of their channels."""
    stem_stride: Annotated[int, between(1, 4)] = 2
    """Stride of the first convolution."""

    def checks(self) -> list[tuple[bool, str]]:
        inner = int(64 * self.width)
        divides = inner >= self.groups and inner % self.groups == 0
        return [
            *super().checks(),
            (divides, f"model.groups must divide the channels of the first blocks, {inner} at this model.width"),
        ]


@dataclass(frozen=True)
class BcosDenseNetConfig(BcosConfig):
    """The B-cos DenseNet-121."""

    architecture: Literal["bcos-densenet121"] = "bcos-densenet121"
    first_channels: Annotated[int, between(1, 512)] = 16
    """Channels of the first convolution."""
    growth: Annotated[int, between(1, 128)] = 8
    """Channels that each layer adds."""


@dataclass(frozen=True)
class BcosConvNeXtConfig(BcosConfig):
    """The B-cos ConvNeXt-tiny."""

    architecture: Literal["bcos-convnext-tiny"] = "bcos-convnext-tiny"
    norm: Norm = "position"
    width: Width = 0.125
    """Factor on the channels; 1 gives 96, 192, 384 and 768."""
    depths: Annotated[tuple[int, int, int, int], at_least(1)] = (3, 3, 9, 3)
    """Blocks of the four groups."""


@dataclass(frozen=True)
class BcosVggConfig(BcosConfig):
    """The B-cos VGG-11."""

    architecture: Literal["bcos-vgg11"] = "bcos-vgg11"
    width: Width = 0.125
    """Factor on the channels; 1 gives 64 to 512, and 4096 in the hidden layers."""


@dataclass(frozen=True)
class BcosViTConfig(BcosConfig):
    """B-cos vision transformers."""

    architecture: Literal["bcos-vit", "bcos-vit-c"] = "bcos-vit-c"
    norm: Norm = "position"
    patch: Annotated[int, between(2, 64)] = 8
    """Voxels along each axis of a token; of bcos-vit-c a power of 2."""
    dim: Count = 48
    """Channels of a token, a multiple of 6 and of `heads`."""
    depth: Annotated[int, between(2, 64)] = 4
    """Blocks; bcos-vit-c has one less, and a stem of convolutions."""
    heads: Count = 3
    """Heads of attention."""

    def checks(self) -> list[tuple[bool, str]]:
        power = self.patch & (self.patch - 1) == 0
        return [
            *super().checks(),
            (self.architecture == "bcos-vit" or power, "model.patch must be a power of 2 for bcos-vit-c"),
            (self.dim % 6 == 0, "model.dim must be a multiple of 6, for positions along three axes"),
            (self.dim % self.heads == 0, "model.dim must be a multiple of model.heads"),
        ]


LAYERS = ("B-cos layers scale each answer by an angle", "a B-cos layer classifies each voxel before they are averaged")
BLOCKS = f"it hands relevance down by rules for MONAI's blocks, which are built otherwise. {INHERENT}, or rollout"


Geometry = Callable[[Any], int]
"""A number of voxels, from settings."""


def _family(
    name: str,
    settings: type[BcosConfig],
    smallest: Geometry,
    described: Callable[[Any], str],
    step: Geometry = lambda _: 1,
) -> Family:
    """A family; networks may start from conventional ones.

    `step` is the edge of the windows that tile the input without overlap: what does not fill one stays unseen.
    """
    attention = name.startswith("bcos-vit")
    family = dynamic_family(
        name, settings, _build, smallest, described, LAYERS, {"cgw1": BLOCKS} if attention else NO_ATTENTION,
        {"vit-cx": {"noise": 0.0}} if attention else {}, step,
    )  # fmt: skip
    return replace(family, convert=_converted)


def _build(shape: Shape, settings: Any, outputs: int) -> StagedModel:
    from heatlas.studies.bcos import conversion, networks

    builders: Mapping[str, Callable[..., StagedModel]] = {
        "bcos-simple": networks.build_simple, "bcos-resnet18": conversion.build_resnet,
        "bcos-resnext50": conversion.build_resnext, "bcos-densenet121": conversion.build_densenet,
        "bcos-convnext-tiny": networks.build_convnext, "bcos-vgg11": networks.build_vgg,
        "bcos-vit": networks.build_vit, "bcos-vit-c": networks.build_vit,
    }  # fmt: skip
    return builders[settings.architecture](shape, settings, outputs)


def _converted(network: StagedModel, settings: BcosConfig, shape: Shape) -> StagedModel:
    from heatlas.studies.bcos.conversion import converted

    return converted(network, settings, shape)


def _said(network: str, cited: str = "bcos_vit") -> Callable[[Any], str]:
    def described(settings: Any) -> str:
        norm = "without normalisation" if settings.norm == "none" else f"with {settings.norm} normalisation"
        norm += " and trained biases" if settings.norm_bias else " and no bias" if settings.norm != "none" else ""
        return (
            f"was {network.format(settings=settings)} as a B-cos network [@{cited}] in three dimensions (B = "
            f"{settings.b:g}), {norm}, which takes each intensity v as the pair [v, 1 − v]"
        )

    return described


BCOS_FAMILIES: Sequence[Family] = (
    _family(
        "bcos-simple", BcosSimpleConfig, lambda settings: math.prod(settings.strides) + 1,
        _said("a stack of {settings.layers} convolutions", "bcos"),
    ),
    _family(
        "bcos-resnet18", BcosResNetConfig, lambda settings: 16 * settings.stem_stride + 1,
        _said("a residual network of 18 layers [@resnet]"),
    ),
    _family(
        "bcos-resnext50", BcosResNeXtConfig, lambda settings: 16 * settings.stem_stride + 1,
        _said("a ResNeXt of 50 layers [@resnext]"),
    ),
    _family(
        "bcos-densenet121", BcosDenseNetConfig, lambda _: 61,
        _said("a DenseNet-121 [@densenet]"),
    ),
    _family(
        "bcos-convnext-tiny", BcosConvNeXtConfig, lambda _: 64,
        _said("a ConvNeXt-tiny [@convnext]"), lambda _: 4,
    ),
    _family("bcos-vgg11", BcosVggConfig, lambda _: 64, _said("a VGG-11 [@vgg]")),
    _family(
        "bcos-vit", BcosViTConfig, lambda settings: 2 * settings.patch,
        _said("a vision transformer of {settings.depth} blocks [@vit]"), lambda settings: settings.patch,
    ),
    _family(
        "bcos-vit-c", BcosViTConfig, lambda settings: settings.patch + 1,
        _said("a vision transformer of {settings.depth} blocks [@vit], one of them a stem of convolutions [@vit_c],"),
    ),
)  # fmt: skip
