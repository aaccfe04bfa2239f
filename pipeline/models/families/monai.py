"""Networks of MONAI: ResNet-10 and -18, DenseNet-121, SE-ResNet-50, EfficientNet-B0 and ViT in three dimensions.

Their layers, initial weights and order of computation are MONAI's; only the way they are held is ours: as the stages
of a `StagedModel`, and nothing in place, so that every method can look at every stage. All but ViT have zero
padding, so every voxel of the grid reaches a feature; ViT leaves out what does not fill a token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from heatlas.pipeline.models.families.family import Architecture, Family, Shape, padded_family
from heatlas.pipeline.run.config.networks import ModelConfig, Width
from heatlas.pipeline.run.config.ranges import Count, Fraction, between

if TYPE_CHECKING:
    from monai.networks.nets.resnet import ResNet
    from torch import nn

    from heatlas.pipeline.models.contract import StagedModel

SWISH = (
    "its activation is Swish, which is negative for some inputs; the method is defined for ReLU networks only. "
    "Use gradient, integrated-gradients or grad-cam"
)
NEGATIVE = "the features of its last stage may be negative{}, and the formula needs amounts. Use grad-cam"
GELU = (
    "its normalisations have no rule in it, and GELU is negative for some inputs. Use expected-gradients, lrp, or for "
    "a whole transformer cgw1, which has rules of its own"
)


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
    """Heads of attention."""
    dropout: Fraction = 0.0
    """Share of tokens, attention weights and hidden units that is dropped."""

    @property
    def usual(self) -> Mapping[str, Mapping[str, Any]]:
        """Without the methods of the default, which have no rule for attention."""
        return {"attribution": {"methods": ("expected-gradients", "cgw1")}}

    def checks(self) -> list[tuple[bool, str]]:
        return [(self.dim % self.heads == 0, "model.dim must be a multiple of model.heads")]


def resnet(shape: Shape, settings: ResNetConfig, outputs: int, images: int = 1) -> StagedModel:
    """A residual network. Stages: the stem, four groups of blocks, the head."""
    from monai.networks.nets.resnet import ResNet

    blocks = [2 if settings.architecture == "resnet18" else 1] * 4
    stem: dict[str, Any] = {"n_input_channels": images, "conv1_t_stride": settings.stem_stride}
    net = ResNet("basic", blocks, [64, 128, 256, 512], **stem, widen_factor=settings.width, num_classes=outputs)
    return _staged(stages_of_resnet(net), shape, settings, net)


def stages_of_resnet(net: ResNet) -> list[nn.Module]:
    """Stages of MONAI's residual network: the stem, four groups of blocks, the head."""
    from torch import nn

    assert net.fc is not None
    stem = nn.Sequential(net.conv1, net.bn1, net.act, net.maxpool)
    head = nn.Sequential(net.avgpool, nn.Flatten(), net.fc)
    return [stem, net.layer1, net.layer2, net.layer3, net.layer4, head]


def densenet(shape: Shape, settings: DenseNetConfig, outputs: int, images: int = 1) -> StagedModel:
    """DenseNet-121. Stages: the stem, four dense blocks with their transitions, the head."""
    from monai.networks.nets.densenet import DenseNet121
    from torch import nn

    size: dict[str, Any] = {"init_features": settings.first_channels, "growth_rate": settings.growth}
    net = DenseNet121(3, images, outputs, **size, dropout_prob=settings.dropout)
    parts = dict(net.features.named_children())
    relu, *head = net.class_layers
    stages = [nn.Sequential(*[parts[name] for name in ("conv0", "norm0", "relu0", "pool0")])]
    stages += [nn.Sequential(parts[f"denseblock{n}"], parts[f"transition{n}"]) for n in (1, 2, 3)]
    stages += [nn.Sequential(parts["denseblock4"], parts["norm5"], relu), nn.Sequential(*head)]
    return _staged(stages, shape, settings, net)


def _seresnet(shape: Shape, settings: SEResNetConfig, outputs: int, images: int = 1) -> StagedModel:
    from monai.networks.nets.senet import SEResNet50
    from torch import nn

    net = SEResNet50(spatial_dims=3, in_channels=images, num_classes=outputs, dropout_prob=settings.dropout or None)
    dropout = [] if net.dropout is None else [net.dropout]
    head = nn.Sequential(net.adaptive_avg_pool, *dropout, nn.Flatten(), net.last_linear)
    return _staged([net.layer0, net.layer1, net.layer2, net.layer3, net.layer4, head], shape, settings, net)


def _efficientnet(shape: Shape, settings: EfficientNetConfig, outputs: int, images: int = 1) -> StagedModel:
    from monai.networks.nets.efficientnet import EfficientNetBN, MBConvBlock
    from torch import nn

    net = EfficientNetBN("efficientnet-b0", pretrained=False, spatial_dims=3, in_channels=images, num_classes=outputs)
    blocks = [module for module in net.modules() if isinstance(module, MBConvBlock)]
    for number, block in enumerate(blocks):
        block.drop_connect_rate = settings.drop_connect * number / len(blocks)
        block._swish = nn.SiLU()  # the same function as a module of torch, not in place
    stem = nn.Sequential(net._conv_stem_padding, net._conv_stem, net._bn0, nn.SiLU())
    last = nn.Sequential(net._conv_head_padding, net._conv_head, net._bn1, nn.SiLU())
    head = nn.Sequential(net._avg_pooling, nn.Flatten(), nn.Dropout(settings.dropout), net._fc)
    return _staged([stem, *net._blocks, last, head], shape, settings, net)


def _vit(shape: Shape, settings: ViTConfig, outputs: int, images: int = 1) -> StagedModel:
    from heatlas.pipeline.models.families.vit import build

    return build(shape, settings, outputs, images)


def _staged(stages: Sequence[nn.Module], shape: Shape, settings: ModelConfig, net: nn.Module) -> StagedModel:
    from heatlas.pipeline.models.contract import StagedModel
    from heatlas.pipeline.models.storage import names_in

    for stage in stages:
        for module in stage.modules():
            if getattr(module, "inplace", False):
                module.inplace = False  # type: ignore[assignment]
    model = StagedModel(stages)
    model.architecture, model.monai_names = Architecture(settings, shape), names_in(net, model)
    return model


def _resnet_side(settings: ResNetConfig) -> int:
    return 16 * settings.stem_stride + 1


def _resnet_text(layers: int) -> str:
    return f"was a residual network of {layers} layers [@resnet] in three dimensions [@resnet3d], as in MONAI [@monai]"


MONAI_FAMILIES: Sequence[Family] = (
    padded_family("resnet10", ResNetConfig, resnet, _resnet_side, _resnet_text(10), several_images=True),
    padded_family("resnet18", ResNetConfig, resnet, _resnet_side, _resnet_text(18), several_images=True),
    padded_family(
        "densenet121", DenseNetConfig, densenet, lambda _: 61,
        "was a DenseNet-121 [@densenet] in three dimensions, as in MONAI [@monai]",
        needs={"lrp": {"batch_norm": "identity"}},  # normalisations come before convolutions and cannot be folded
        several_images=True,
    ),
    padded_family(
        "seresnet50", SEResNetConfig, _seresnet, lambda _: 35,
        "was an SE-ResNet-50, a residual network [@resnet] with squeeze and excitation [@senet], in three dimensions, "
        "as in MONAI [@monai]",
        several_images=True,
    ),
    padded_family(
        "efficientnet-b0", EfficientNetConfig, _efficientnet, lambda _: 64,
        "was an EfficientNet-B0 [@efficientnet] in three dimensions, as in MONAI [@monai]",
        refused={
            "guided-backpropagation": SWISH,
            **dict.fromkeys(("grad-cam++", "xgrad-cam", "opti-cam"), NEGATIVE.format(" (Swish)")),
        },
        several_images=True,
    ),
    padded_family(
        "vit", ViTConfig, _vit, lambda settings: 2 * settings.patch,
        "was a vision transformer [@vit] over tokens in three dimensions, as in MONAI [@monai], that classifies the "
        "mean of its tokens",
        refused={
            "guided-backpropagation": GELU,
            **dict.fromkeys(("grad-cam++", "xgrad-cam", "opti-cam"), NEGATIVE.format("")),
        },
        step=lambda settings: settings.patch,
        has_attention=True,
        several_images=True,
    ),
)  # fmt: skip
