"""Small networks in float64 for gradient methods, on grids with unequal sides."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heatlas.pipeline.models.contract import StagedModel

SHAPE = (9, 12, 10)


class LinearScore(nn.Module):
    """Outputs 0 and 1: the sum of weights times voxels, plus a bias."""

    def __init__(self, shape: tuple[int, ...] = SHAPE, bias: float = 0.7) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.weight = nn.Parameter(torch.randn(2, 1, *shape, dtype=torch.float64, generator=generator))
        self.bias = bias
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return (x[:, None] * self.weight).flatten(2).sum(2) + self.bias


def network(seed: int = 0, bias: bool = True) -> StagedModel:
    """Two stages of convolution, ReLU and pooling, and a head; for volumes (B, 1, 9, 12, 10)."""
    torch.manual_seed(seed)
    model = StagedModel(
        [
            nn.Sequential(nn.Conv3d(1, 4, 3, bias=bias), nn.BatchNorm3d(4, affine=bias), nn.ReLU(), nn.MaxPool3d(2)),
            nn.Sequential(nn.Conv3d(4, 3, 2, padding=1, bias=bias), nn.ReLU(), nn.AvgPool3d(2)),
            nn.Sequential(nn.Flatten(), nn.Dropout(0.4), nn.Linear(3 * 2 * 3 * 2, 6, bias=bias), nn.ReLU()),
            nn.Linear(6, 3, bias=bias),
        ]
    ).double()
    if bias:
        with torch.no_grad():
            norm = model.stages[0][1]
            norm.running_mean.normal_(std=0.2)
            norm.running_var.uniform_(0.05, 0.2)
            norm.bias.normal_(std=0.2)
    return model.eval()


def volumes(count: int = 2, seed: int = 1) -> Tensor:
    """Volumes (count, 1, 9, 12, 10) with air (0) on two sides."""
    values = torch.rand(count, 1, *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    values[:, :, :, :4] = 0
    values[..., 8:] = 0
    return values
