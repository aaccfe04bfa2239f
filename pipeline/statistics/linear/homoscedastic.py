"""Partial R^2 of many permutations and columns, for models with one residual variance.

Counting permutations that are at least as extreme as the observed statistic needs only comparisons, nearly all of which
are clear. So the matrix product uses single precision, which is twice as fast, with a bound on its error; the few
comparisons within the bound are repeated in double precision. The counts always equal those of double precision.
Factors among the covariates (sex, field strength, site) are left out of the product: the projection of permuted
residuals on them follows from sums over the cells of the factors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatlas.pipeline.statistics.arrays import Floats
from heatlas.pipeline.statistics.linear.compiled import (
    along_pairs,
    in_order_of_cells,
    judge,
    pairs_from,
    rearrange,
    squares_along,
)

Singles = NDArray[np.float32]

UNIT = 2.0**-24
"""Relative rounding error of a single-precision operation."""
MOST_NUISANCE = 0.75
"""Share of the residuals in permuted nuisance directions above which the error bound is too wide to be useful."""
FEW = 0.01
"""Share of comparisons that may be repeated one by one; with more (tied values), all use double precision."""

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
class _Work:
    """Arrays of one test in other precisions.

    Shapes: dense (p, units), directions of the matrix product; data (units, columns), residuals; integers, the
    residuals times the scale of the cells; off (columns,), norm of their rounding errors; by_column (columns, units),
    residuals in double precision.
    """

    dense: Singles
    data: Singles
    integers: NDArray[np.int16]
    off: Floats
    by_column: Floats

    @classmethod
    def of(cls, dense: Floats, residuals: Floats, cells: Cells) -> _Work:
        integers, off = np.zeros((0, residuals.shape[1])), np.zeros(residuals.shape[1])
        if len(cells.values):
            integers = np.round(residuals * cells.scale)
            off = np.linalg.norm(residuals - integers / cells.scale, axis=0)
        return cls(
            dense.astype(np.float32),
            residuals.astype(np.float32),
            integers.astype(np.int16),
            off,
            np.ascontiguousarray(residuals.T),
        )


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
        return self._r_squared(self.basis[:, rows] @ residuals)

    def tally(
        self, rows: NDArray[Any], residuals: Floats, threshold: Floats, chunk_bytes: int
    ) -> tuple[NDArray[np.intp], Floats]:
        """Permutations that reach the threshold of each column (columns,), and the largest value of each permutation.

        rows and residuals as for `size`; `chunk_bytes` bounds the largest array. Largest values are on the correct side
        of every threshold, and otherwise in single precision.
        """
        n, columns = residuals.shape
        counts, largest = np.zeros(columns, np.intp), np.zeros(len(rows))
        if not columns:
            return counts, largest
        # Directions along cells are left out of the matrix product.
        dense = np.delete(self.basis, self.tested.shape[1] + np.arange(len(self.cells.values)), axis=0)
        work = _Work.of(dense, residuals, self.cells)
        step = min(max(1, chunk_bytes // (4 * len(dense) * max(n, columns))), len(rows))
        # Arrays are allocated once: allocation takes a third of the time of the product.
        moved, coordinates = (
            np.empty((step, len(dense), n), np.float32),
            np.empty((step, len(dense), columns), np.float32),
        )
        for start in range(0, len(rows), step):
            chunk = rows[start : start + step]
            m = len(chunk)
            rearrange(work.dense, chunk, moved[:m])
            np.matmul(moved[:m].reshape(-1, n), work.data, out=coordinates[:m].reshape(-1, columns))
            found = self._decide(chunk, work, threshold, coordinates[:m])
            counts += found[0]
            largest[start : start + step] = found[1]
        return counts, largest

    def _decide(
        self, rows: NDArray[Any], work: _Work, threshold: Floats, coordinates: Singles
    ) -> tuple[NDArray[np.intp], Floats]:
        """Counts and largest values of a chunk, from its coordinates in single precision, which are overwritten."""
        m, columns = len(rows), len(threshold)
        few = int(FEW * columns)
        counts, state, pairs = np.zeros(columns, np.intp), np.zeros(m, np.int8), np.empty((2, m * few), np.int32)
        tops = np.zeros((2, m), np.float32)
        explained = self.along_cells(rows, work.integers)
        limits = [part.astype(np.float32) for part in (threshold, *self._error(threshold, work.off))]
        listed = judge(
            coordinates,
            self.tested.shape[1],
            explained,
            *limits,
            np.float32(MOST_NUISANCE),
            few,
            counts,
            state,
            tops,
            pairs,
        )
        permutation, column = pairs[:, :listed]
        reached = self._pairs(rows, work.by_column, permutation, column) >= threshold[column]
        np.add.at(counts, column[reached], 1)
        r_squared, again = coordinates[:, 0], np.flatnonzero(state)
        largest, nuisance = tops.astype(float)
        self._settle_close(largest, nuisance, np.flatnonzero(state == 0), r_squared, rows, work, threshold)
        if len(again):
            more, largest[again] = plain_counts(self.size(rows[again], work.by_column.T), threshold)
            counts += more
        return counts, largest

    def _settle_close(
        self, largest: Floats, nuisance: Floats, chosen: NDArray[np.intp], r_squared: Singles, rows: NDArray[Any],
        work: _Work, threshold: Floats,
    ) -> None:  # fmt: skip
        """Recompute in double precision the largest values that are within their error of a threshold."""
        reach, drift, rest = self._error(largest[chosen], work.off.max())
        error = (reach + drift * np.sqrt(nuisance[chosen])) / (1 - nuisance[chosen]) + rest
        steps, values = np.sort(threshold), largest[chosen]
        close = np.searchsorted(steps, values - error) != np.searchsorted(steps, values + error, side="right")
        if not close.any():
            return
        chosen, lowest = chosen[close], (values - 2 * error)[close].astype(np.float32)
        pair, column = pairs_from(r_squared, chosen, lowest)
        exact = self._pairs(rows, work.by_column, chosen[pair], column)
        largest[chosen] = 0.0
        np.maximum.at(largest, chosen[pair], exact)

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

    def _r_squared(self, coordinates: Floats) -> Floats:
        """Partial R^2, shape (...), of coordinates of shape (p, ...)."""
        squares = coordinates**2
        k = self.tested.shape[1]
        r_squared: Floats = squares[:k].sum(axis=0) / np.maximum(1 - squares[k:].sum(axis=0), UNIT)
        return r_squared

    def _pairs(self, rows: NDArray[Any], by_column: Floats, permutation: NDArray[Any], column: NDArray[Any]) -> Floats:
        """Partial R^2 of pairs of a permutation and a column (a row of `by_column`), in double precision."""
        along = np.empty((len(self.basis), len(column)))
        along_pairs(self.basis, rows, by_column, permutation, column, along)
        return self._r_squared(along)

    def _error(self, r_squared: Floats, off: Floats) -> tuple[Floats, Floats, Floats]:
        """Bound on the error of partial R^2: (first + second sqrt(nuisance)) / (1 - nuisance) + third.

        A sum of n products of unit vectors in single precision has an error of at most (n + 2) units in the last place
        (Higham 2002, section 3.1, by the Cauchy-Schwarz inequality), a sum over cells a smaller one, plus the rounding
        of the integers, whose projection is no longer than `off`; the rest propagates this to R^2, with a margin of a
        tenth.
        """
        k, q = self.tested.shape[1], self.nuisance.shape[1]
        one = (len(self.tested) + 4) * UNIT
        known = np.clip(r_squared, 0, 1)
        of_signal = 2 * np.sqrt(k * known) * one + k * one**2
        of_nuisance = (2 * np.sqrt(q) * one + q * one**2 + off**2) * known
        return 1.1 * (of_signal + of_nuisance), 2.2 * off * known, (k + q + 10) * UNIT * known


def plain_counts(size: Floats, threshold: Floats) -> tuple[NDArray[np.intp], Floats]:
    """Counts and largest values from statistics of shape (permutations, columns)."""
    return np.asarray(np.count_nonzero(size >= threshold, axis=0), dtype=np.intp), size.max(axis=1)
