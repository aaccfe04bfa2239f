"""A vision transformer (Dosovitskiy et al. 2021) over tokens in three dimensions, as MONAI's.

Layers, names and initial weights are those of ``monai.networks.nets.ViT`` without its class token: the mean of all
tokens is classified. A mean keeps each token at its place in a volume (B, C, d, h, w), so that every stage has a map
and the last is global pooling and a linear layer, as in the other networks; a class token has no place, and its way of
reading the others has to be learnt from few scans. Blocks are written out here because MONAI's hand their weights over
without gradient. Attention is never fused, so it can be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.fx import wrap
from torch.nn import functional

from heatlas.pipeline.models.contract import AttentionWeights, StagedModel
from heatlas.pipeline.models.families.family import Architecture, Shape
from heatlas.pipeline.models.families.monai import ViTConfig

EXPANSION = 4
"""Hidden units of a block per channel of a token."""


class OnTokens(nn.Module):
    """Runs a module of token sequences (B, N, C) on tokens at their places (B, C, d, h, w)."""

    keeps_places: ClassVar[bool] = True
    rules_inside: ClassVar[bool] = True

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        tokens: Tensor = self.block(x.flatten(2).transpose(1, 2))
        return tokens.transpose(1, 2).reshape(x.shape)


def on_grid(values: Tensor, grid: Sequence[int]) -> Tensor:
    """Values (1, C, d, h, w) on another grid, interpolated linearly."""
    if tuple(values.shape[2:]) == tuple(grid):
        return values
    return functional.interpolate(values, tuple(grid), mode="trilinear")


wrap("on_grid")  # traced as one call: which branch it takes depends on shapes alone


class LearnedPositions(nn.Module):
    """Adds a trained vector to each token; on another grid than that of training, interpolated linearly."""

    keeps_places: ClassVar[bool] = True
    rules_inside: ClassVar[bool] = True

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.values = nn.Parameter(values)

    def forward(self, x: Tensor) -> Tensor:
        return x + on_grid(self.values, x.shape[2:])


class Attention(nn.Module):
    """``softmax(q k / sqrt(C / heads)) v`` of tokens (B, N, C), all heads in one linear layer."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.out_proj = nn.Linear(dim, dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.weights = AttentionWeights(dropout)
        self.drop_output = nn.Dropout(dropout)

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Three tensors (B, heads, N, C / heads)."""
        parts = self.qkv(x).view(x.shape[0], x.shape[1], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return parts[0], parts[1], parts[2]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.queries_keys_values(x)
        attention = self.weights(torch.softmax(q * self.scale @ k.transpose(2, 3), dim=3))
        answer: Tensor = self.drop_output(self.out_proj((attention @ v).transpose(1, 2).flatten(2)))
        return answer


class TransformerBlock(nn.Module):
    """Attention, then a perceptron of each token; both of normalised tokens, and added to them."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        from monai.networks.blocks.mlp import MLPBlock

        super().__init__()
        self.mlp = MLPBlock(dim, EXPANSION * dim, dropout)  # first, as in MONAI: weights are drawn in this order
        self.norm1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, heads, dropout)
        self.norm2 = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


def build(shape: Shape, settings: ViTConfig, outputs: int, images: int = 1) -> StagedModel:
    """The network for a grid. Stages: the tokens with their positions, one per block, the last norm, the head."""
    from monai.networks.blocks.patchembedding import PatchEmbeddingBlock

    dim, patch, heads, dropout = settings.dim, settings.patch, settings.heads, settings.dropout
    embedding = PatchEmbeddingBlock(images, shape, patch, dim, heads, dropout_rate=dropout)
    grid = [side // patch for side in shape]
    positions = embedding.position_embeddings.detach().transpose(1, 2).reshape(1, dim, *grid)
    tokens = nn.Sequential(embedding.patch_embeddings, LearnedPositions(positions.clone()), embedding.dropout)
    blocks = [OnTokens(TransformerBlock(dim, heads, dropout)) for _ in range(settings.depth)]
    head = nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(dim, outputs))
    model = StagedModel([tokens, *blocks, OnTokens(nn.LayerNorm(dim)), head])
    model.architecture = Architecture(settings, shape)
    return model
