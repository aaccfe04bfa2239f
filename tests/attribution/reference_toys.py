"""References for the toys of gradient methods, in float64, on a grid with unequal sides."""

from __future__ import annotations

import torch
from gradient_toys import SHAPE
from torch import Tensor, nn

from heatlas.pipeline.attribution.perturbation.masking import RegionLabels
from heatlas.pipeline.attribution.reference.references import Reference


def controls(count: int = 3, seed: int = 40, shape: tuple[int, ...] = SHAPE) -> Reference:
    """Volumes of controls; air where the volumes of `gradient_toys` have air."""
    values = torch.rand(count, 1, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    values[:, :, :, :4] = 0
    values[..., 8:] = 0
    return Reference(values, tuple(f"sub-{place}" for place in range(count)))


def four_regions(shape: tuple[int, ...] = SHAPE) -> RegionLabels:
    """Labels 2, 3, 5 and 9 in the tissue of the toys; some tissue, and all air, lies in none."""
    labels = torch.zeros(shape, dtype=torch.int64)
    labels[:4, 4:8], labels[:4, 8:], labels[4:8, 4:8], labels[4:8, 8:] = 2, 3, 5, 9
    return RegionLabels("four", labels)


class Branches(nn.Module):
    """A residual sum, a concatenation, both poolings and an activation of choice; three outputs."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(12)
        self.first = nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), activation)
        self.second = nn.Conv3d(4, 4, 3, padding=1, bias=False)
        self.pool, self.other = nn.MaxPool3d(3, 2, padding=1), nn.MaxPool3d(3, 2, padding=1)
        self.mean = nn.AvgPool3d(2)
        self.third = nn.Sequential(nn.BatchNorm3d(8), type(activation)(), nn.Conv3d(8, 5, 2))
        self.most, self.head = nn.AdaptiveMaxPool3d((1, 2, 1)), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        a = self.first(x)
        a = torch.cat([self.pool(a + self.second(a)), self.other(a)], dim=1)
        return self.head(self.most(self.third(self.mean(a))).flatten(1))  # type: ignore[no-any-return]


def branches(activation: type[nn.Module] = nn.ReLU) -> Branches:
    """`Branches` whose normalisations have seen data."""
    model = Branches(activation()).double()
    with torch.no_grad():
        model.train()(controls(4, seed=8).volumes)
    return model.eval()
