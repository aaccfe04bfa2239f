"""The B-cos networks that are written out here: a plain stack, VGG-11, ConvNeXt-tiny and vision transformers.

All have the encoding of intensities as their first stage, B-cos convolutions with a norm but no activation and no bias,
and a head that classifies each voxel before it averages. B-cos versions are those of Böhle, Singh, Fritz & Schiele
2024, but for the plain stack (Böhle, Fritz & Schiele 2022). ResNet, ResNeXt and DenseNet are converted
(`studies.bcos.conversion`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from heatlas.pipeline.models.contract import AttentionWeights, StagedModel
from heatlas.pipeline.models.dynamic import DynamicLinear, LogitLayer, Scaled, bias_of_chance
from heatlas.pipeline.models.families.family import Architecture, Shape
from heatlas.studies.bcos.layers import BcosConv3d
from heatlas.studies.bcos.records import BcosConfig, BcosConvNeXtConfig, BcosSimpleConfig, BcosVggConfig, BcosViTConfig
from heatlas.studies.dynamic import ENCODED, DynamicNorm, InputEncoding, Sides


def normalisation(channels: int, settings: BcosConfig) -> nn.Module:
    if settings.norm == "none":
        return nn.Identity()
    groups = math.gcd(2, channels)
    return DynamicNorm(settings.norm, channels, settings.norm_bias or None, settings.norm_bias, groups)


def normalised(layer: nn.Module, channels: int, settings: BcosConfig) -> nn.Module:
    """A layer and the norm of its output, or a gain that keeps its signals alive where there is no norm."""
    if settings.norm == "none":
        return Scaled(layer)
    return nn.Sequential(layer, normalisation(channels, settings))


class Residual(nn.Module):
    """A block added to its own input."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)  # type: ignore[no-any-return]


def head(channels: int, outputs: int, settings: BcosConfig, max_out: int = 1, window: Sides = 1) -> nn.Sequential:
    """Classify each voxel of the last features, then average, then make logits; B-cos layers need this order.

    With the grid of the last features as `window`, there is one classifier of them all and nothing to average.
    """
    classifier = BcosConv3d(channels, outputs, window, b=settings.b, max_out=max_out)
    bias = bias_of_chance(outputs)
    logits = LogitLayer(bias=bias, initial_size=settings.initial_logits)
    return nn.Sequential(classifier, nn.AdaptiveAvgPool3d(1), nn.Flatten(), logits)


def staged(stages: Sequence[nn.Module], shape: Shape, settings: BcosConfig) -> StagedModel:
    model = StagedModel([InputEncoding(settings.background), *stages])
    model.architecture = Architecture(settings, shape)
    return model


KERNEL = 3


def build_simple(shape: Shape, settings: BcosSimpleConfig, outputs: int) -> StagedModel:
    """The plain stack for a grid: B-cos convolutions, a classifier of voxels, and their average.

    The source has nine layers with MaxOut of two and no normalisation (``norm = "none"``). Here the first layer has a
    stride, for volumes, and layers are normalised: few scans do not train a deep stack without. Stages: the encoding,
    one per convolution, the head.
    """
    layers: list[nn.Module] = []
    before, kernel, left = ENCODED, settings.stem_kernel, shape
    for channels, stride in zip(settings.channels, settings.strides, strict=True):
        layer = BcosConv3d(before, channels, kernel, stride, kernel // 2, b=settings.b, max_out=settings.max_out)
        layers.append(normalised(layer, channels, settings))
        before, kernel = channels, KERNEL
        left = (-(-left[0] // stride), -(-left[1] // stride), -(-left[2] // stride))
    window = left if settings.head == "places" else 1
    return staged([*layers, head(before, outputs, settings, settings.max_out, window)], shape, settings)


GROUPS = ((64,), (128,), (256, 256), (512, 512), (512, 512))
"""Channels of the convolutions before each pooling."""
HIDDEN = 4096


def build_vgg(shape: Shape, settings: BcosVggConfig, outputs: int) -> StagedModel:
    """VGG-11 for a grid (Simonyan & Zisserman 2015): convolutions, average pooling, and a head of three B-cos layers.

    The first layer of the head has a kernel of 3 instead of 7 voxels, for the few that a brain has left there. Stages:
    the encoding, five groups with their pooling, the hidden layers, the head.
    """
    stages: list[nn.Module] = []
    before = ENCODED
    for group in GROUPS:
        layers = []
        for width in group:
            channels = _scaled(width, settings)
            layers.append(_convolution(before, channels, 3, settings))
            before = channels
        stages.append(nn.Sequential(*layers, nn.AvgPool3d(2)))
    hidden = _scaled(HIDDEN, settings)
    layers = [_convolution(before, hidden, 3, settings), _convolution(hidden, hidden, 1, settings)]
    stages.append(nn.Sequential(*layers))
    return staged([*stages, head(hidden, outputs, settings)], shape, settings)


def _scaled(width: int, settings: BcosVggConfig) -> int:
    return max(1, round(width * settings.width))


def _convolution(before: int, after: int, kernel: int, settings: BcosVggConfig) -> nn.Module:
    return normalised(BcosConv3d(before, after, kernel, 1, kernel // 2, b=settings.b), after, settings)


STEM = 4
WIDTHS = (96, 192, 384, 768)
WIDE_KERNEL, EXPANSION = 7, 4
LAYER_SCALE = 1e-6
"""First factor of each channel of a block, so small that blocks begin as nothing."""


class LayerScale(nn.Module):
    """A trained factor for each channel."""

    keeps_places: ClassVar[bool] = True

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((channels, 1, 1, 1), LAYER_SCALE))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def build_convnext(shape: Shape, settings: BcosConvNeXtConfig, outputs: int) -> StagedModel:
    """ConvNeXt-tiny for a grid (Liu, Mao, Wu, Feichtenhofer, Darrell & Xie 2022), without GELU.

    Blocks of depthwise convolutions over 7 x 7 x 7 voxels and two layers over channels are added to their input.
    Stages: the encoding, four groups of blocks, each behind its stem, and the head.
    """
    widths = [max(1, round(width * settings.width)) for width in WIDTHS]
    stages, before = [], ENCODED
    for number, (channels, depth) in enumerate(zip(widths, settings.depths, strict=True)):
        edge = 2 if number else STEM
        stem = normalised(BcosConv3d(before, channels, edge, edge, b=settings.b), channels, settings)
        stages.append(nn.Sequential(stem, *[_convnext_block(channels, settings) for _ in range(depth)]))
        before = channels
    return staged([*stages, head(before, outputs, settings)], shape, settings)


def _convnext_block(channels: int, settings: BcosConvNeXtConfig) -> nn.Module:
    b, wide = settings.b, EXPANSION * channels
    return Residual(
        nn.Sequential(
            BcosConv3d(channels, channels, WIDE_KERNEL, 1, WIDE_KERNEL // 2, groups=channels, b=b),
            normalisation(channels, settings),
            BcosConv3d(channels, wide, 1, b=b),
            BcosConv3d(wide, channels, 1, b=b),
            LayerScale(channels),
        )
    )


LONGEST = 10_000.0
"""Longest wavelength of positions, as a factor of the shortest."""


def sines_of_places(dim: int, grid: Shape, like: Tensor) -> Tensor:
    """Positions (1, dim, d, h, w): a third of the channels per axis, half sines and half cosines.

    Examples
    --------
    >>> sines_of_places(6, (2, 1, 1), torch.zeros(()))[0, :, 1, 0, 0].round(decimals=3).tolist()
    [0.8410000205039978, 0.5400000214576721, 0.0, 1.0, 0.0, 1.0]
    """
    share = dim // 6
    frequencies = LONGEST ** (-torch.arange(share, dtype=like.dtype, device=like.device) / max(share, 1))
    parts = []
    for axis, side in enumerate(grid):
        angles = frequencies[:, None] * torch.arange(side, dtype=like.dtype, device=like.device)
        waves = torch.cat([angles.sin(), angles.cos()])
        view = [1, -1, 1, 1, 1]
        view[axis + 2] = side
        parts.append(waves.view(view).expand(1, 2 * share, *grid))
    return torch.cat(parts, dim=1)


class Positions(nn.Module):
    """Adds `sines_of_places`, for any grid."""

    keeps_places: ClassVar[bool] = True

    def forward(self, x: Tensor) -> Tensor:
        d, h, w = x.shape[2:]
        return x + sines_of_places(x.shape[1], (d, h, w), x)


class BcosAttention(DynamicLinear):
    """``A v`` of tokens (B, C, d, h, w), with ``A = softmax(q k / sqrt(C / heads))`` held in explanation mode."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.weight = nn.Parameter(torch.empty(3 * channels, channels))
        self.weights = AttentionWeights(0.0)
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2)
        q, k, v = (self.weight @ tokens).view(len(x), 3, self.heads, -1, tokens.shape[2]).unbind(1)
        attention = self.held(torch.softmax(q.transpose(2, 3) @ k / math.sqrt(q.shape[2]), dim=3))
        weights: Tensor = self.weights(attention)
        return (v @ weights.transpose(2, 3)).reshape(x.shape)


def build_vit(shape: Shape, settings: BcosViTConfig, outputs: int) -> StagedModel:
    """ViT (Dosovitskiy et al. 2021), or ViT_C with a stem of convolutions (Xiao et al. 2021), for a grid.

    Tokens keep their places in a volume (B, C, d, h, w), so that every stage has a map. Of an attention block only the
    last layer is a B-cos layer; queries, keys and values are linear. Attention weights are dynamic factors, values are
    not. Positions are added as fixed sines and cosines: they carry a part of the answer that belongs to no voxel. A map
    at the input lacks it, and its completeness error is that part; maps of later stages are complete. No class token.
    Stages: the encoding, the tokens with their positions, one per block, the head.
    """
    tokens = nn.Sequential(*_tokeniser(settings), Positions())
    depth = settings.depth - (settings.architecture == "bcos-vit-c")
    bias = bias_of_chance(outputs)
    classifier = BcosConv3d(settings.dim, outputs, 1, b=settings.b)
    logits = LogitLayer(bias=bias, initial_size=settings.initial_logits)
    norm = normalisation(settings.dim, settings)
    pool_first = nn.Sequential(nn.AdaptiveAvgPool3d(1), norm, classifier, nn.Flatten(), logits)
    return staged([tokens, *[_transformer_block(settings) for _ in range(depth)], pool_first], shape, settings)


def _tokeniser(settings: BcosViTConfig) -> list[nn.Module]:
    dim, b = settings.dim, settings.b
    if settings.architecture == "bcos-vit":
        return [BcosConv3d(ENCODED, dim, settings.patch, settings.patch, b=b)]
    halvings = round(math.log2(settings.patch))
    widths = [max(1, dim >> halvings - number) for number in range(1, halvings + 1)]
    stem = [
        normalised(BcosConv3d(before, after, 3, 2, 1, b=b), after, settings)
        for before, after in zip([ENCODED, *widths], widths, strict=False)
    ]
    return [*stem, BcosConv3d(widths[-1], dim, 1, b=b)]


def _transformer_block(settings: BcosViTConfig) -> nn.Module:
    dim, b = settings.dim, settings.b
    attention = [normalisation(dim, settings), BcosAttention(dim, settings.heads), BcosConv3d(dim, dim, 1, b=b)]
    wide = EXPANSION * dim
    perceptron = [normalisation(dim, settings), BcosConv3d(dim, wide, 1, b=b), BcosConv3d(wide, dim, 1, b=b)]
    return nn.Sequential(Residual(nn.Sequential(*attention)), Residual(nn.Sequential(*perceptron)))
