"""Models whose perturbation maps are known in closed form, and a guard that nothing in a model changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from model_snapshot import snapshot
from torch import Tensor, nn

GRID = (7, 8, 10)


class Score(nn.Module):
    """A formula as a network with two outputs; the second is explained."""

    def __init__(self, formula: Callable[[Tensor], Tensor], dtype: torch.dtype = torch.float64):
        super().__init__()
        self.formula = formula
        self.unused = nn.Parameter(torch.zeros(1, dtype=dtype))
        self.largest_batch = 0
        self.evaluated = 0

    def forward(self, x: Tensor) -> Tensor:
        self.largest_batch = max(self.largest_batch, len(x))
        self.evaluated += len(x)
        value = self.formula(x)
        return torch.stack([torch.zeros_like(value), value], dim=1)


def linear(weight: Tensor, offset: float = 0.7) -> Score:
    return Score(lambda x: (x * weight).flatten(1).sum(1) + offset).eval()


def random_volumes(count: int = 2, seed: int = 0, grid: tuple[int, int, int] = GRID) -> Tensor:
    """Volumes with a border of air."""
    source = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 1, *grid, dtype=torch.float64, generator=source) + 0.05
    x[:, :, 0], x[:, :, :, -2:], x[..., :1] = 0, 0, 0
    return x


def random_weight(seed: int = 5, grid: tuple[int, int, int] = GRID) -> Tensor:
    return torch.randn(grid, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def small_network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(11)
    return (
        nn.Sequential(
            nn.Conv3d(1, 4, 3, bias=True),
            nn.BatchNorm3d(4),
            nn.ReLU(),
            nn.MaxPool3d(2, 1),
            nn.Flatten(),
            nn.Linear(4 * 4 * 5 * 7, 3),
        )
        .to(dtype)
        .eval()
    )


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Assert that state, mode, hooks, gradients and global switches are as they were, also after an exception."""
    before = snapshot(model)
    try:
        yield
    finally:
        assert snapshot(model) == before
