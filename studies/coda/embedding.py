"""A learnt embedding of patches in place of the pair [v, 1 - v]: a convolution and batch normalisation.

The network is then linear in the embedding and not in the volume. What it says of a place of the embedding is about the
patch below it: removing the voxel in the middle does not do what removing the place does (Böhle 2024, section 5.3).
"""

from __future__ import annotations

from torch import nn

from heatlas.pipeline.run.errors import UsageError

KERNEL = 3


class PatchEmbedding(nn.Sequential):
    """Features (B, F, D, H, W) of the patch around each voxel of volumes (B, 1, D, H, W)."""

    def __init__(self, filters: int) -> None:
        super().__init__(nn.Conv3d(1, filters, KERNEL, padding=KERNEL // 2, bias=False), nn.BatchNorm3d(filters))


def require_voxel_level(model: nn.Module) -> None:
    """Refuse to call a map of contributions one of voxels where the network is linear in an embedding only.

    Raises UsageError if the network has a learnt embedding.
    """
    if any(isinstance(module, PatchEmbedding) for module in model.modules()):
        raise UsageError(
            "the network is linear in a learnt embedding of patches, not in voxels: its contributions are no map of "
            "voxels. Ask at stage 1 for contributions of the embedding, or train with model.embedding = 0."
        )
