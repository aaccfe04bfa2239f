"""Masked autoencoding: a vision transformer sees some patches of a scan and restores the others (He et al. 2022).

MONAI's `MaskedAutoEncoderViT` does the same with blocks of its own, which need einops; here encoder and decoder are
made of the blocks of the family.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from heatlas.pipeline.models.families.family import Shape
from heatlas.pipeline.models.families.monai import ViTConfig
from heatlas.pipeline.models.families.vit import TransformerBlock
from heatlas.pipeline.run.config.networks import PretrainingConfig
from heatlas.pipeline.training.objectives.records import Batch, Context, Logged, Measures, Objective

TINY = 1e-6
"""Added to the variance of a patch, so that background is 0."""


class MaskedAutoencoder(nn.Module):
    """A network that restores hidden patches.

    `stages`: tokens, blocks and norm of the family ``vit``; they are not copied. `shape`: voxels of its input. Voxels
    beyond the last whole patch are left out, as by the family. `masking_ratio`: share of the patches that are hidden.
    """

    def __init__(self, stages: Sequence[nn.Module], shape: Shape, model: ViTConfig, masking_ratio: float) -> None:
        super().__init__()
        self.patch = model.patch
        patches = math.prod(side // model.patch for side in shape)
        self.seen = min(max(1, round((1 - masking_ratio) * patches)), patches - 1)
        self.tokens, self.blocks = stages[0], nn.Sequential(*stages[1:])
        self.mask = nn.Parameter(0.02 * torch.randn(model.dim))
        self.positions = nn.Parameter(0.02 * torch.randn(patches, model.dim))
        self.decoder = nn.Sequential(
            TransformerBlock(model.dim, model.heads, model.dropout),
            nn.LayerNorm(model.dim),
            nn.Linear(model.dim, model.patch**3),
        )

    def forward(self, volumes: Tensor) -> tuple[Tensor, Tensor]:
        """Restored patches (B, N, patch ** 3) of volumes (B, 1, D, H, W), and which were hidden, (B, N).

        Which are hidden is drawn by PyTorch's generator of the CPU.
        """
        tokens = self.tokens(volumes).flatten(2)  # (B, C, N)
        places = torch.rand(len(tokens), tokens.shape[2]).argsort(1)[:, : self.seen].to(tokens.device)
        index = places[:, None].expand(-1, tokens.shape[1], -1)
        encoded = self.blocks(tokens.gather(2, index)[..., None, None]).flatten(2)
        everywhere = self.mask[:, None].expand_as(tokens).to(encoded.dtype).scatter(2, index, encoded)
        restored: Tensor = self.decoder(everywhere.transpose(1, 2) + self.positions)
        return restored, torch.ones_like(tokens[:, 0]).scatter(1, places, 0.0)


def standardised_patches(volumes: Tensor, patch: int) -> Tensor:
    """The voxels of each patch less their mean, over their standard deviation, (B, N, patch ** 3)."""
    patches = volumes[:, 0]
    for axis in (1, 2, 3):
        patches = patches.unfold(axis, patch, patch)
    patches = patches.flatten(4).flatten(1, 3)
    variance, mean = torch.var_mean(patches, 2, keepdim=True, unbiased=False)
    return (patches - mean) / (variance + TINY).sqrt()


def masked_autoencoding(settings: PretrainingConfig, seed: int) -> Objective:
    """Mean squared error of hidden patches, each standardised.

    The score is the share of their variance that is restored. In validation the same patches are hidden at each epoch.
    """

    def loss(model: nn.Module, batch: Batch, context: Context) -> tuple[Tensor, Logged]:
        network = model if isinstance(model, MaskedAutoencoder) else model.module
        assert isinstance(network, MaskedAutoencoder)
        with torch.random.fork_rng(devices=[], enabled=not network.training):
            if not network.training:
                torch.manual_seed(seed)
            restored, hidden = model(batch.volumes)
        wanted = standardised_patches(batch.volumes, network.patch)
        errors = ((restored.float() - wanted) ** 2).mean(2) * hidden
        losses, variance = errors.sum(1), wanted.square().mean(2) * hidden
        count = hidden.sum(1)
        return (losses / count).mean(), {
            "loss": (losses / count).detach(), "error": losses.detach(), "variance": variance.sum(1),
        }  # fmt: skip

    def measures(logged: Logged) -> Measures:
        share = 1 - float(logged["error"].sum()) / max(float(logged["variance"].sum()), TINY)
        return Measures(float(logged["loss"].mean()), share)

    return Objective("masked", loss, measures, "retrieval", 1, {"pretraining": dataclasses.asdict(settings)})
