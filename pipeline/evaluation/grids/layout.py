"""A grid of scans: one large volume made of cells, each of which holds one scan.

Words: a *cell* is one place of the grid; cells are numbered along the last axis first, as numpy counts. The *share* of
a cell is the positive attribution in it as part of all of it (Rao, Böhle & Schiele 2022).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heatlas.pipeline.evaluation.scores.hits import is_undefined
from heatlas.pipeline.run.errors import BadInputError, UsageError

Shape = tuple[int, int, int]
EMPTY = 1e-7
"""Positive attribution below this, relative to the largest absolute value, counts as none."""


@dataclass(frozen=True)
class Layout:
    """How many cells lie along each axis.

    Examples
    --------
    >>> layout = Layout((2, 2, 1))
    >>> layout.cells, layout.place(3), layout.box(3, (4, 5, 6))
    (4, (1, 1, 0), (slice(4, 8, None), slice(5, 10, None), slice(0, 6, None)))
    """

    counts: Shape

    def __post_init__(self) -> None:
        if len(self.counts) != 3 or any(type(n) is not int or n < 1 for n in self.counts) or self.cells < 2:
            raise UsageError(f"grid {self.counts}: give three whole numbers with two cells or more, such as (2, 2, 1).")

    @property
    def cells(self) -> int:
        """Number of cells."""
        return math.prod(self.counts)

    def place(self, cell: int) -> Shape:
        """Position of a cell along each axis."""
        _, b, c = self.counts
        return cell // (b * c), cell // c % b, cell % c

    def box(self, cell: int, shape: Shape) -> tuple[slice, slice, slice]:
        """Where a cell lies in a grid of cells of a shape."""
        a, b, c = (slice(n * side, (n + 1) * side) for n, side in zip(self.place(cell), shape, strict=True))
        return a, b, c

    def shape(self, cell: Shape) -> Shape:
        """Voxels of the whole grid."""
        a, b, c = (n * side for n, side in zip(self.counts, cell, strict=True))
        return a, b, c

    def compose(self, cells: Tensor) -> Tensor:
        """Put cells (n, C, d, h, w) together to one grid (1, C, ...)."""
        if len(cells) != self.cells:
            raise BadInputError(f"a grid of {self.counts} needs {self.cells} cells and gets {len(cells)}.")
        return self.join([cell[None] for cell in cells])

    def join(self, cells: Sequence[Tensor]) -> Tensor:
        """Put a batch (B, C, d, h, w) for each cell together to grids (B, C, ...); differentiable."""
        a, b, c = self.counts
        rows = [torch.cat(list(cells[n : n + c]), dim=4) for n in range(0, a * b * c, c)]
        planes = [torch.cat(rows[n : n + b], dim=3) for n in range(0, a * b, b)]
        return torch.cat(planes, dim=2)

    def cell(self, whole: Tensor, number: int) -> Tensor:
        """One cell (B, C, d, h, w) of grids (B, C, D, H, W)."""
        box = self.box(number, self.cell_shape(whole))
        return whole[:, :, *box]

    def split(self, whole: Tensor) -> Tensor:
        """All cells (n, C, d, h, w) of one grid (1, C, D, H, W)."""
        return torch.cat([self.cell(whole, number) for number in range(self.cells)])

    def cell_shape(self, whole: Tensor) -> Shape:
        """Voxels of one cell of a grid.

        Raises
        ------
        BadInputError
            If the grid cannot be cut into equal cells.
        """
        sides = tuple(whole.shape[-3:])
        if any(side % n for side, n in zip(sides, self.counts, strict=True)):
            raise BadInputError(f"a volume of {sides} voxels cannot be cut into {self.counts} equal cells.")
        a, b, c = (side // n for side, n in zip(sides, self.counts, strict=True))
        return a, b, c

    def shares(self, values: Tensor, largest: float = 1.0) -> Tensor:
        """Share of each cell, (n,), of a map (D, H, W), in float64.

        All 0 where nothing is positive; NaN for a map that is undefined (NaN, infinity, or zero everywhere).

        Parameters
        ----------
        values : Tensor
        largest : float
            Part of all voxels of the grid that count, those of largest value; others that are equal to the least of
            them count too.

        Examples
        --------
        >>> Layout((2, 1, 1)).shares(torch.tensor([3.0, 1.0]).view(2, 1, 1)).tolist()
        [0.75, 0.25]
        >>> Layout((2, 1, 1)).shares(torch.tensor([3.0, 1.0, 2.0, 2.0]).view(4, 1, 1), largest=0.5).tolist()
        [0.42857142857142855, 0.5714285714285714]
        """
        if is_undefined(values.detach().cpu().numpy()):
            return torch.full((self.cells,), math.nan, dtype=torch.float64)
        part = values.detach().double().clamp(min=0)
        if largest < 1:
            least = part.flatten().topk(math.ceil(largest * part.numel())).values[-1]
            part = torch.where(part >= least, part, torch.zeros_like(part))
        sums = self.split(part[None, None]).sum((1, 2, 3, 4)).cpu()
        total = sums.sum()
        return sums / total if total > EMPTY * float(values.detach().abs().max()) else torch.zeros_like(sums)
