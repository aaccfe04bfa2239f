"""B-cos vision transformers over tokens in three dimensions: ViT, and ViT_C with a stem of convolutions.

Tokens keep their places in a volume (B, C, d, h, w), so that every stage has a map. Of an attention block only the
last layer is a B-cos layer; queries, keys and values are linear. Attention weights are dynamic factors, values are
not. Positions are added as fixed sines and cosines: they carry a part of the answer that belongs to no voxel. A map
at the input lacks it, and its completeness error is that part; maps of later stages are complete. No class token.
Sources: Dosovitskiy et al. 2021; Xiao et al. 2021 (stem); as B-cos: Böhle, Singh, Fritz & Schiele 2024.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from heatlas.pipeline.models.attention import AttentionWeights
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.dynamic import DynamicLinear, LogitLayer, bias_of_chance
from heatlas.pipeline.models.families.family import Shape
from heatlas.studies.bcos.layers import BcosConv3d
from heatlas.studies.bcos.parts import ENCODED, Residual, normalisation, normalised, staged
from heatlas.studies.bcos.records import BcosViTConfig

EXPANSION = 4
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


def build(shape: Shape, settings: BcosViTConfig, outputs: int) -> StagedModel:
    """The network for a grid. Stages: the encoding, the tokens with their positions, one per block, the head."""
    tokens = nn.Sequential(*_tokeniser(settings), Positions())
    depth = settings.depth - (settings.architecture == "bcos-vit-c")
    bias = bias_of_chance(outputs) if outputs > 1 else 0.0
    classifier = BcosConv3d(settings.dim, outputs, 1, b=settings.b)
    pool_first = nn.Sequential(
        nn.AdaptiveAvgPool3d(1), normalisation(settings.dim, settings), classifier, nn.Flatten(),
        LogitLayer(bias=bias, initial_size=settings.initial_logits),
    )  # fmt: skip
    return staged([tokens, *[_block(settings) for _ in range(depth)], pool_first], shape, settings)


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


def _block(settings: BcosViTConfig) -> nn.Module:
    dim, b = settings.dim, settings.b
    attention = [normalisation(dim, settings), BcosAttention(dim, settings.heads), BcosConv3d(dim, dim, 1, b=b)]
    wide = EXPANSION * dim
    perceptron = [normalisation(dim, settings), BcosConv3d(dim, wide, 1, b=b), BcosConv3d(wide, dim, 1, b=b)]
    return nn.Sequential(Residual(nn.Sequential(*attention)), Residual(nn.Sequential(*perceptron)))
