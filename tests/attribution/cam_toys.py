"""Small networks with the heads that tell CAM methods apart, on grids with unequal sides; float64."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from heatlas.pipeline.attribution.cam.masked_volumes import AblationCam, OptiCam, ScoreCam
from heatlas.pipeline.attribution.cam.weighted_maps import (
    Cam,
    FakeCam,
    GradCam,
    GradCamPlusPlus,
    HiResCam,
    LayerCam,
    XGradCam,
)
from heatlas.pipeline.attribution.network_view import NetworkView, explaining

SHAPE = (9, 13, 15)
GRID = (3, 4, 6)
VOXELS = 3 * 4 * 6
STAGE = 5
"""The boundary after the body of `network`."""

METHODS: tuple[Any, ...] = (
    Cam(), GradCam(), GradCamPlusPlus(), XGradCam(), LayerCam(), HiResCam(), HiResCam(relu=False), ScoreCam(),
    ScoreCam(channel_softmax=False), AblationCam(), OptiCam(iterations=12), FakeCam(),
)  # fmt: skip
IDS = [f"{method.name}-{number}" for number, method in enumerate(METHODS)]


class AttentionPool(nn.Module):
    """Mean of the voxels weighted by the softmax of their product with a query; so class-agnostic attention."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(channels))

    def attention(self, features: Tensor) -> Tensor:
        scores = torch.einsum("k,bkdhw->bdhw", self.query, features) / len(self.query) ** 0.5
        return torch.softmax(scores.flatten(1), dim=1)

    def forward(self, features: Tensor) -> Tensor:
        return (self.attention(features)[:, None] * features.flatten(2)).sum(2)


HEADS = {
    "gap": lambda: [nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Dropout(0.3), nn.Linear(6, 3)],
    "average": lambda: [nn.AvgPool3d(GRID), nn.Flatten(), nn.Linear(6, 3)],
    "conv": lambda: [nn.Conv3d(6, 3, 1), nn.AdaptiveAvgPool3d((1, 1, 1)), nn.Flatten()],
    "attention": lambda: [AttentionPool(6), nn.Linear(6, 3)],
    "mlp": lambda: [nn.Conv3d(6, 5, 1), nn.ReLU(), nn.Conv3d(5, 3, 1), nn.AdaptiveAvgPool3d(1), nn.Flatten()],
    "dense": lambda: [nn.Flatten(), nn.Linear(6 * VOXELS, 3)],
}


def network(head: str = "gap", seed: int = 0) -> nn.Sequential:
    """Two convolutions and a head; features (B, 6, 3, 4, 6) at `STAGE`."""
    torch.manual_seed(seed)
    body = [nn.Conv3d(1, 4, 3), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(4, 6, (3, 2, 1), padding=(1, 0, 0)), nn.ReLU()]
    net = nn.Sequential(*body, *HEADS[head]()).double()
    with torch.no_grad():
        net[0].weight.mul_(3)
        net[3].weight.mul_(2)
    return net.eval()


def volumes(count: int = 3, seed: int = 1) -> Tensor:
    """(count, 1, 9, 13, 15), uniform, with a background of zeros."""
    values = torch.rand(count, 1, *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    values[:, :, :2] = 0
    values[:, :, :, :, 12:] = 0
    return values


@contextmanager
def view(head: str = "gap", count: int = 3, target: int = 1, stage: int = STAGE) -> Iterator[NetworkView]:
    with explaining(network(head), volumes(count), target, stage) as opened:
        yield opened
