"""RISE (Petsiuk, Das & Saenko 2018): mean score over random masks, weighted by how much they show a voxel.

A mask starts as a coarse grid of cells, each shown with probability p, is upsampled trilinearly to the volume and
shifted at random by up to one cell, so every voxel is shown with the mean weight p. The map is ``sum of score mask / (M
p)``, an estimate of the score given that the voxel is shown.

The estimate is noisy. The mean score is an offset of the whole map, multiplied by the random coverage of a voxel by the
M masks: a relative error of about ``sqrt((1 - p) / (p M))``, 9 % for the usual p = 0.1 and M = 1000. Since the expected
coverage p is known, this part of the noise can be removed without changing the estimate (`control_variate`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from heatlas.pipeline.attribution.method_settings import CheckedSettings
from heatlas.pipeline.attribution.network_view import NetworkView
from heatlas.pipeline.attribution.perturbation.masking import Masking, masked_scores
from heatlas.pipeline.run.config.ranges import Count, Seed, above
from heatlas.pipeline.run.work.seeds import derived_seed


def interpolation(length: int, cells: int, shift: int) -> Tensor:
    """Linear interpolation of one axis of a coarse grid, cropped at a shift.

    The cells are upsampled to ``(cells + 1) ceil(length / cells)`` voxels, of which `length` from `shift` on are taken.

    Returns (length, cells), float64; rows sum to 1.

    Examples
    --------
    >>> interpolation(4, 2, 0)
    tensor([[1.0000, 0.0000],
            [1.0000, 0.0000],
            [0.6667, 0.3333],
            [0.3333, 0.6667]], dtype=torch.float64)
    """
    stretched = (cells + 1) * math.ceil(length / cells)
    centre = (torch.arange(shift, shift + length, dtype=torch.float64) + 0.5) * cells / stretched - 0.5
    centre = centre.clamp(0, cells - 1)
    return (1 - (centre[:, None] - torch.arange(cells, dtype=torch.float64)).abs()).clamp(min=0)


def random_masks(grid: tuple[int, ...], count: int, cells: int, p: float, seed: int, like: Tensor) -> Iterator[Tensor]:
    """`count` masks (d, h, w) in [0, 1], one by one; the same for a seed in any precision and on any device."""
    source = torch.Generator().manual_seed(derived_seed(seed, "rise"))
    for _ in range(count):
        coarse = torch.rand(cells, cells, cells, generator=source) < p
        shifts = [int(torch.randint(math.ceil(length / cells), (), generator=source)) for length in grid]
        a, b, c = (interpolation(length, cells, shift).to(like) for length, shift in zip(grid, shifts, strict=True))
        rows = torch.einsum("xa,abc->xbc", a, coarse.to(like))  # axis by axis: six products per voxel
        yield torch.einsum("yb,xbc->xyc", b, rows) @ c.T


def rise(
    view: NetworkView, masks: int, cells: int, p: float, seed: int, masking: Masking, batch: int, control_variate: bool
) -> Tensor:
    """``sum of score mask / (M p)`` over M random masks, the same for all volumes.

    With the control variate, ``mean score (sum of mask / (M p) - 1)``, whose expectation is 0 up to O(1 / M), is
    subtracted.

    Returns (B, 1, d, h, w) on the grid of the features.
    """
    grid = tuple(view.features.shape[-3:])
    hidden = masking.hidden_features(view)
    values = torch.zeros_like(view.features[:, :1], dtype=torch.float64)
    for volume in range(len(values)):
        weighted, shown = torch.zeros_like(values[0, 0]), torch.zeros_like(values[0, 0])
        score_sum = torch.zeros_like(weighted[0, 0, 0])
        drawn = random_masks(grid, masks, cells, p, seed, view.features)
        for keep, scores in masked_scores(view, volume, drawn, hidden, batch):
            # one by one, so that the order of summation, and thus rounding, does not depend on `batch`
            for mask, score in zip(keep, scores.double(), strict=True):
                weighted += score * mask.double()
                score_sum += score
                if control_variate:
                    shown += mask
        values[volume, 0] = weighted / (masks * p)
        if control_variate:
            values[volume, 0] -= score_sum / masks * (shown / (masks * p) - 1)
    return values.to(view.features.dtype)


@dataclass(frozen=True)
class Rise(CheckedSettings):
    """Mean score of random masks that show a voxel; see `rise`.

    `masks`: number of random masks, each one evaluation. `cells`: cells of the coarse grid along each axis. `p`:
    probability that a cell is shown. `score`: softmax probability of the target, as in the paper, or the value
    explained by `attribute`. `control_variate`: remove the noise due to the masks' coverage; changes the expectation by
    O(1 / masks) only. `masking`: value of hidden voxels. `batch`: volumes evaluated at once.
    """

    name: ClassVar[str] = "rise"
    masks: Count = 1000
    cells: Count = 6
    p: Annotated[float, above(0, below=1)] = 0.1
    score: Literal["probability", "start"] = "probability"
    control_variate: bool = False
    seed: Seed = 0
    masking: Masking = field(default_factory=Masking)
    batch: Count = 8

    def maps(self, view: NetworkView) -> Tensor:
        if self.score == "probability":
            view = replace(view, start="probability")
        return rise(view, self.masks, self.cells, self.p, self.seed, self.masking, self.batch, self.control_variate)
