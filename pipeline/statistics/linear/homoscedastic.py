"""Partial R^2 of many permutations and columns, for models with one residual variance, in double precision.

Factors among the covariates (sex, field strength, site) need no matrix product: the projection of permuted residuals on
them follows from sums over the cells of the factors, which `pipeline.statistics.linear.robust` uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatlas.pipeline.statistics.arrays import Floats
from heatlas.pipeline.statistics.linear.compiled import in_order_of_cells, squares_along

Singles = NDArray[np.float32]

LEAST_LEFT = 2.0**-24
"""Smallest share of the residuals outside the nuisance directions; less is rounding."""
LARGEST_INTEGER = 2**15 - 1
SUM_COST, COMBINATION_COST = 1.5, 2.0
"""Cost of a column's sums over cells, per row, and of a direction from the sums, in matrix multiplications."""


@dataclass(frozen=True, eq=False)
class Cells:
    """Directions that are constant within cells of rows: cell 0..K-1 of each unit (units,), values (directions, K)."""

    cell: NDArray[np.int32]
    values: Floats

    @property
    def scale(self) -> float:
        """Largest factor for which sums of a unit vector over any cell fit 16-bit integers."""
        most = int(np.bincount(self.cell).max())
        return float((LARGEST_INTEGER - most) / np.sqrt(most))


@dataclass(frozen=True, eq=False)
class HomoscedasticModel:
    """Tested directions of a model (units, k), and the nuisance directions that a permutation can change (units, q).

    All are orthonormal, and orthogonal to what no permutation changes (the constant).
    """

    tested: Floats
    nuisance: Floats
    df: int

    @cached_property
    def basis(self) -> Floats:
        """Shape (p, units): tested directions, then nuisance directions."""
        return np.ascontiguousarray(np.column_stack([self.tested, self.nuisance]).T)

    def reported(self, residuals: Floats) -> tuple[Floats, Floats]:
        """Signed t along ``tested``, or F, and residual degrees of freedom, each of shape (columns,)."""
        k = self.tested.shape[1]
        projected = self.tested.T @ residuals
        left = ((residuals - self.tested @ projected) ** 2).sum(axis=0) / self.df
        with np.errstate(divide="ignore"):
            statistic = projected[0] / np.sqrt(left) if k == 1 else (projected**2).sum(axis=0) / k / left
        return statistic, np.full(residuals.shape[1], float(self.df))

    def size(self, rows: NDArray[Any], residuals: Floats) -> Floats:
        """Partial R^2 of permuted data, shape (permutations, columns).

        rows (permutations, units) permute the model's rows; residuals (units, columns) of the values on the nuisance
        directions have norm 1.
        """
        squares, k = (self.basis[:, rows] @ residuals) ** 2, self.tested.shape[1]
        r_squared: Floats = squares[:k].sum(axis=0) / np.maximum(1 - squares[k:].sum(axis=0), LEAST_LEFT)
        return r_squared

    def tally(
        self, rows: NDArray[Any], residuals: Floats, threshold: Floats, chunk_bytes: int
    ) -> tuple[NDArray[np.intp], Floats]:
        """Permutations that reach the threshold of each column (columns,), and the largest value of each permutation.

        rows and residuals as for `size`; `chunk_bytes` bounds the largest array.
        """
        counts, largest = np.zeros(len(threshold), np.intp), np.zeros(len(rows))
        step = max(1, chunk_bytes // (8 * len(self.basis) * max(residuals.shape)))
        for start in range(0, len(rows) if len(threshold) else 0, step):
            part = slice(start, start + step)
            reached, largest[part] = plain_counts(self.size(rows[part], residuals), threshold)
            counts += reached
        return counts, largest

    @cached_property
    def cells(self) -> Cells:
        """Leading nuisance directions that are constant in few cells, if sums over cells are faster than products."""
        n = len(self.nuisance)
        best, saved = Cells(np.zeros(n, np.int32), np.zeros((0, 1))), 0.0
        for count in range(1, self.nuisance.shape[1] + 1 if n <= LARGEST_INTEGER // 2 else 0):
            directions = np.round(self.nuisance[:, :count], 9)
            first, cell = np.unique(directions, axis=0, return_index=True, return_inverse=True)[1:]
            if len(first) > n // 4:
                break
            saving = (count - SUM_COST) * n - COMBINATION_COST * count * len(first)
            if saving > saved:
                best, saved = Cells(cell.ravel().astype(np.int32), self.nuisance[first, :count].T.copy()), saving
        return best

    def along_cells(self, rows: NDArray[Any], integers: NDArray[np.int16]) -> Singles:
        """Squares of permuted residuals along the directions of `cells`, shape (permutations, columns).

        integers (units, columns): residuals times the scale of the cells.
        """
        squares = np.zeros((len(rows), integers.shape[1]), np.float32)
        if len(self.cells.values):
            of_cell = (self.cells.values / self.cells.scale).astype(np.float32)
            order = np.empty(rows.shape, np.int64)
            start = np.empty((len(rows), of_cell.shape[1] + 1), np.int64)
            in_order_of_cells(rows, self.cells.cell, order, start)
            squares_along(integers, order, start, of_cell, squares)
        return squares


def plain_counts(size: Floats, threshold: Floats) -> tuple[NDArray[np.intp], Floats]:
    """Counts and largest values from statistics of shape (permutations, columns)."""
    return np.asarray(np.count_nonzero(size >= threshold, axis=0), dtype=np.intp), size.max(axis=1)
