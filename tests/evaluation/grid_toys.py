"""Networks and scans for grids, in float64, on cells with unequal sides that the strides divide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from heatlas.pipeline.models.contract import StagedModel
from heatlas.studies.grids.grid_scores import grid_maps
from heatlas.studies.grids.layout import Layout

CELL = (16, 8, 12)
LAYOUT = Layout((2, 2, 1))
CLASSES = 3


def pooled(seed: int = 0, norm: type[nn.Module] | None = None, channels: int = 6) -> StagedModel:
    """Two padded stages that halve the grid, then global pooling and a linear layer; any size."""
    torch.manual_seed(seed)
    middle: list[nn.Module] = [nn.BatchNorm3d(channels)]
    if norm is not None:
        middle = [nn.GroupNorm(2, channels) if norm is nn.GroupNorm else norm(channels)]
    model = StagedModel(
        [
            nn.Sequential(nn.Conv3d(1, channels, 3, padding=1), *middle, nn.ReLU(), nn.MaxPool3d(2)),
            nn.Sequential(nn.Conv3d(channels, channels, 3, padding=1), nn.ReLU(), nn.AvgPool3d(2)),
            nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Dropout(0.3), nn.Linear(channels, CLASSES)),
        ]
    ).double()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm3d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0.2, 0.3)
            module.running_mean.normal_(std=0.2)
            module.running_var.uniform_(0.5, 2)
    return model.eval()


def flattened(seed: int = 0, padding: int = 1) -> StagedModel:
    """A head with weights for one size of the last map, like the founding CNN."""
    torch.manual_seed(seed)
    sides = [(side + 2 * padding - 2) // 4 for side in CELL]
    count = 4 * sides[0] * sides[1] * sides[2]
    model = StagedModel(
        [
            nn.Sequential(nn.Conv3d(1, 4, 3, padding=padding), nn.ReLU(), nn.MaxPool3d(4)),
            nn.Sequential(nn.Flatten(), nn.Dropout(0.4), nn.Linear(count, 5), nn.ReLU()),
            nn.Sequential(nn.Dropout(0.4), nn.Linear(5, CLASSES)),
        ]
    )
    return model.double().eval()


def scans(count: int = 4, seed: int = 3, cell: Sequence[int] = CELL) -> Tensor:
    """Scans (count, 1, D, H, W) with air around them, as brains have."""
    generator = torch.Generator().manual_seed(seed)
    found = torch.rand((count, 1, *cell), dtype=torch.float64, generator=generator)
    found[:, :, 0] = 0
    found[:, :, :, -1] = 0
    return found


def grid_map(*arguments: Any) -> Tensor:
    """The first of `grid_maps`."""
    return grid_maps(*arguments)[0]
