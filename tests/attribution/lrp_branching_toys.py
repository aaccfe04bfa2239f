"""Small networks that are no chain, float64, with their graphs written down for the brute force."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from lrp_rules_brute_force import Op
from torch import nn


class ResidualToy(nn.Module):
    """Two sums, one of signed terms, one ReLU module used three times, an adaptive average pooling; for (9, 13, 11)."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU()
        self.stem, self.stem_norm, self.pool = nn.Conv3d(1, 3, 3), nn.BatchNorm3d(3), nn.MaxPool3d(2)
        self.inner, self.inner_norm = nn.Conv3d(3, 3, 3, padding=1), nn.BatchNorm3d(3)
        self.skip = nn.Conv3d(3, 3, 1, bias=False)
        self.mean, self.head = nn.AdaptiveAvgPool3d((2, 3, 2)), nn.Linear(36, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.pool(self.relu(self.stem_norm(self.stem(x))))
        b = self.relu(self.inner_norm(self.inner(a)) + self.skip(a))
        b = b + a
        return self.head(torch.flatten(self.mean(b), 1))

    def ops(self) -> list[Op]:
        return [
            Op(self.stem, (0,)), Op(self.stem_norm, (1,)), Op(self.relu, (2,)), Op(self.pool, (3,)),
            Op(self.inner, (4,)), Op(self.inner_norm, (5,)), Op(self.skip, (4,)), Op("sum", (6, 7)),
            Op(self.relu, (8,)), Op("sum", (9, 4)), Op(self.mean, (10,)), Op(nn.Flatten(), (11,)), Op(self.head, (12,)),
        ]  # fmt: skip


class DenseToy(nn.Module):
    """A concatenation, an average pooling of signed values, a functional ReLU; for (9, 13, 11)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.branch = nn.Conv3d(1, 2, 3, stride=(1, 2, 1)), nn.Conv3d(2, 3, 3, padding=1)
        self.mean, self.mix = nn.AvgPool3d((2, 1, 3), stride=2), nn.Conv3d(5, 2, 1)
        self.head = nn.Linear(72, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = F.relu(self.stem(x))
        joined = torch.cat([a, self.branch(a)], 1)
        return self.head(F.relu(self.mix(self.mean(joined))).flatten(1))

    def ops(self) -> list[Op]:
        relu = nn.ReLU()
        return [
            Op(self.stem, (0,)), Op(relu, (1,)), Op(self.branch, (2,)), Op("cat", (2, 3)), Op(self.mean, (4,)),
            Op(self.mix, (5,)), Op(relu, (6,)), Op(nn.Flatten(), (7,)), Op(self.head, (8,)),
        ]  # fmt: skip


def branching_toy(kind: type[ResidualToy | DenseToy], seed: int = 21) -> ResidualToy | DenseToy:
    """One of them, with normalisations of both signs."""
    torch.manual_seed(seed)
    net = kind()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm3d):
            module.running_mean.normal_(std=0.2)
            module.running_var.uniform_(0.5, 2)
            module.weight.data.uniform_(-1.5, 1.5)
            module.bias.data.normal_(std=0.3)
    return net.double().eval()
