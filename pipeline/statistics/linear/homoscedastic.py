"""Partial R^2 of many permutations and columns, for models with one residual variance.

Counting how many permutations are as extreme as what was observed needs a comparison, not a number, and nearly all
comparisons are clear. So the matrix product is made in single precision, twice as fast, with a bound on its error; the
few comparisons that fall within the bound are made again in double precision. The counts are those of double
precision, always. Factors among the covariates (sex, field strength, site) are left out of the product: what permuted
residuals have along them follows from their sums over the cells of the factors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.statistics.arrays import Floats
from pipeline.statistics.linear.compiled import (
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
"""Share of the residuals in permuted nuisance directions above which the error bound is too wide to be of use."""
FEW = 0.01
"""Share of comparisons that may be made again one by one; with more (tied values), all are made in double precision."""

LARGEST_INTEGER = 2**15 - 1
SUM_COST, COMBINATION_COST = 1.5, 2.0
"""Time of adding up a column by cells, per row, and of a direction's value from a sum, in multiplications of a matrix
product."""


@dataclass(frozen=True, eq=False)
class Cells:
    """Directions that are constant in cells of rows.

    Parameters
    ----------
    cell : array of int, shape (units,)
        0..K-1.
    values : array, shape (directions, K)
    """

    cell: NDArray[np.int32]
    values: Floats

    @property
    def scale(self) -> float:
        """Largest factor by which sums of a unit vector over any cell stay 16-bit integers."""
        most = int(np.bincount(self.cell).max())
        return float((LARGEST_INTEGER - most) / np.sqrt(most))


@dataclass(frozen=True, eq=False)
class _Work:
    """What one test needs in other precisions.

    Parameters
    ----------
    dense : array, shape (p, units)
        Directions of the matrix product.
    data : array, shape (units, columns)
        Residuals.
    integers : array, shape (units, columns)
        Residuals times the scale of the cells.
    off : array, shape (columns,)
        Norm of what they are off.
    by_column : array, shape (columns, units)
        Residuals in double precision.
    """

    dense: Singles
    data: Singles
    integers: NDArray[np.int16]
    off: Floats
    by_column: Floats

    @classmethod
    def of(cls, dense: Floats, residuals: Floats, cells: Cells) -> _Work:
        integers, off = np.zeros((0, 0)), np.zeros(residuals.shape[1])
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
    """The tested directions of a model and the nuisance directions that a permutation can move.

    Parameters
    ----------
    tested : array, shape (units, k)
        Orthonormal, and orthogonal to all nuisance directions.
    nuisance : array, shape (units, q)
        Orthonormal, and orthogonal to what no permutation moves (the constant).
    df : int
        Residual degrees of freedom.
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
        """Partial R^2 of permuted data.

        Parameters
        ----------
        rows : array of int, shape (permutations, units)
            Rearrangements of the model's rows.
        residuals : array, shape (units, columns)
            Of the values on the nuisance directions, each column of norm 1.

        Returns
        -------
        array, shape (permutations, columns)
        """
        return self._r_squared(self.basis[:, rows] @ residuals)

    def tally(
        self, rows: NDArray[Any], residuals: Floats, threshold: Floats, chunk_bytes: int
    ) -> tuple[NDArray[np.intp], Floats]:
        """How many permutations reach the threshold of their column, and the largest value of each permutation.

        Parameters
        ----------
        rows, residuals
            As of `size`.
        threshold : array, shape (columns,)
        chunk_bytes : int
            Size of the largest array made on the way.

        Returns
        -------
        counts : array of int, shape (columns,)
        largest : array, shape (permutations,)
            On the right side of every threshold; otherwise of single precision.
        """
        n, columns = residuals.shape
        counts, largest = np.zeros(columns, np.intp), np.zeros(len(rows))
        if not columns:
            return counts, largest
        # Directions along cells take no part in the matrix product.
        dense = np.delete(self.basis, self.tested.shape[1] + np.arange(len(self.cells.values)), axis=0)
        work = _Work.of(dense, residuals, self.cells)
        step = min(max(1, chunk_bytes // (4 * len(dense) * max(n, columns))), len(rows))
        # Arrays are made once: getting memory from the system takes as long as a third of the product.
        moved, coordinates = (
            np.empty((step, len(dense), n), np.float32),
            np.empty((step, len(dense), columns), np.float32),
        )
        for start in range(0, len(rows), step):
            own = rows[start : start + step]
            m = len(own)
            rearrange(work.dense, own, moved[:m])
            np.matmul(moved[:m].reshape(-1, n), work.data, out=coordinates[:m].reshape(-1, columns))
            found = self._decide(own, work, threshold, coordinates[:m])
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
        explained = self._along_cells(rows, work)
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
        """Enter largest values again, in double precision, where a threshold is within their error."""
        reach, drift, rest = self._error(largest[chosen], work.off.max())
        error = (reach + drift * np.sqrt(nuisance[chosen])) / (1 - nuisance[chosen]) + rest
        steps, values = np.sort(threshold), largest[chosen]
        close = np.searchsorted(steps, values - error) != np.searchsorted(steps, values + error, side="right")
        if not close.any():
            return
        chosen, lowest = chosen[close], (values - 2 * error)[close].astype(np.float32)
        own, column = pairs_from(r_squared, chosen, lowest)
        exact = self._pairs(rows, work.by_column, chosen[own], column)
        largest[chosen] = 0.0
        np.maximum.at(largest, chosen[own], exact)

    @cached_property
    def cells(self) -> Cells:
        """Leading nuisance directions that are constant in few cells, if sums over cells are quicker than products."""
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

    def _along_cells(self, rows: NDArray[Any], work: _Work) -> Singles:
        """Squares of permuted residuals along the directions of `cells`, shape (permutations, columns)."""
        squares = np.zeros((len(rows), work.data.shape[1]), np.float32)
        if len(self.cells.values):
            of_cell = (self.cells.values / self.cells.scale).astype(np.float32)
            order = np.empty(rows.shape, np.int64)
            start = np.empty((len(rows), of_cell.shape[1] + 1), np.int64)
            in_order_of_cells(rows, self.cells.cell, order, start)
            squares_along(work.integers, order, start, of_cell, squares)
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

        A sum of n products of unit vectors in single precision is off by at most (n + 2) units in the last place
        (Higham 2002, section 3.1, by the Cauchy-Schwarz inequality), one over cells by fewer, but for what the integers
        are `off`, which is no longer along any directions than it is; the rest carries that to R^2, with a tenth to
        spare.
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
