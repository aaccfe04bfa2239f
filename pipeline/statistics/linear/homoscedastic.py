"""Partial R^2 of many permutations and columns, for models with one residual variance.

Counting how many permutations are as extreme as what was observed needs a comparison, not a number, and nearly all
comparisons are clear. So the matrix product is made in single precision, twice as fast, with a bound on its error; the
few comparisons that fall within the bound are made again in double precision. The counts are those of double
precision, always.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

UNIT = 2.0**-24
"""Relative rounding error of a single-precision operation."""
MOST_NUISANCE = 0.75
"""Share of the residuals in permuted nuisance directions above which the error bound is too wide to be of use."""
FEW = 0.01
"""Share of comparisons that may be made again one by one; with more (tied values), all are made in double precision."""

PAIRS_AT_A_TIME = 1_000


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
        return np.array(self._r_squared(self.basis[:, rows] @ residuals)[0], dtype=float)

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
        p, n, columns = len(self.basis), *residuals.shape
        basis, data = self.basis.astype(np.float32), residuals.astype(np.float32)
        counts, largest = np.zeros(columns, np.intp), np.zeros(len(rows))
        by_column = np.ascontiguousarray(residuals.T)
        if not columns:
            return counts, largest
        step = min(max(1, chunk_bytes // (4 * p * max(n, columns))), len(rows))
        # Arrays are made once: getting memory from the system takes as long as a third of the product.
        moved, coordinates = np.empty((p, step, n), np.float32), np.empty((p, step, columns), np.float32)
        for start in range(0, len(rows), step):
            own = rows[start : start + step].astype(np.intp)
            if len(own) < step:
                moved, coordinates = moved[:, : len(own)].copy(), coordinates[:, : len(own)].copy()
            for direction, place in zip(basis, moved, strict=True):
                np.take(direction, own, out=place, mode="clip")  # clip: rows are in range, and not checked again
            np.matmul(moved.reshape(-1, n), data, out=coordinates.reshape(-1, columns))
            r_squared, in_nuisance = self._r_squared(coordinates)
            found = self._decide(own, by_column.T, threshold, r_squared, in_nuisance)
            counts += found[0]
            largest[start : start + step] = found[1]
        return counts, largest

    def _decide(
        self, rows: NDArray[Any], residuals: Floats, threshold: Floats, r_squared: NDArray[Any], in_nuisance: float
    ) -> tuple[NDArray[np.intp], Floats]:
        """Counts and largest values of a chunk, from partial R^2 in single precision."""
        if in_nuisance > MOST_NUISANCE:
            return plain_counts(self.size(rows, residuals), threshold)
        margin = self._error(threshold, in_nuisance)
        surely = r_squared >= np.asarray(threshold + margin, np.float32)
        unclear = surely != (r_squared >= np.asarray(threshold - margin, np.float32))
        n_unclear = np.count_nonzero(unclear)
        if n_unclear > FEW * unclear.size:
            return plain_counts(self.size(rows, residuals), threshold)
        counts = np.asarray(surely.view(np.int8).sum(axis=0, dtype=np.intp))
        if n_unclear:
            permutation, column = np.divmod(np.flatnonzero(unclear), len(threshold))
            reached = self._pairs(rows, residuals, permutation, column) >= threshold[column]
            np.add.at(counts, column[reached], 1)
        largest = r_squared.max(axis=1).astype(float)
        steps, reach = np.sort(threshold), self._error(largest, in_nuisance)
        close = np.searchsorted(steps, largest - reach) != np.searchsorted(steps, largest + reach, side="right")
        if close.any():
            chosen = np.flatnonzero(close)
            candidates = r_squared[chosen] >= (largest - 2 * reach).astype(np.float32)[chosen, None]
            own, column = np.divmod(np.flatnonzero(candidates), len(threshold))
            again = self._pairs(rows, residuals, chosen[own], column)
            largest[chosen] = 0.0
            np.maximum.at(largest, chosen[own], again)
        return counts, largest

    def _r_squared(self, coordinates: NDArray[Any]) -> tuple[NDArray[Any], float]:
        """Partial R^2, shape (m, columns), and the largest share of residuals in nuisance directions.

        Overwrites its argument, shape (p, m, columns), and returns a part of it.
        """
        k = self.tested.shape[1]
        np.square(coordinates, out=coordinates)
        signal = coordinates[0]
        for part in coordinates[1:k]:
            signal += part
        if len(coordinates) == k:
            return signal, 0.0
        nuisance = coordinates[k]
        for part in coordinates[k + 1 :]:
            nuisance += part
        most = float(nuisance.max(initial=0.0))
        np.subtract(1, nuisance, out=nuisance)
        np.maximum(nuisance, UNIT, out=nuisance)
        signal /= nuisance
        return signal, most

    def _pairs(
        self, rows: NDArray[Any], residuals: Floats, permutation: NDArray[np.intp], column: NDArray[np.intp]
    ) -> Floats:
        """Partial R^2 of pairs of a permutation and a column, in double precision."""
        found = np.empty(len(column))
        for start in range(0, len(column), PAIRS_AT_A_TIME):
            some = slice(start, start + PAIRS_AT_A_TIME)
            moved = self.basis[:, rows[permutation[some]]]
            coordinates = np.einsum("pmn,mn->pm", moved, residuals.T[column[some]])
            found[some] = self._r_squared(coordinates[:, :, None])[0][:, 0]
        return found

    def _error(self, r_squared: Floats, in_nuisance: float) -> Floats:
        """Bound on the error of partial R^2 in single precision.

        A sum of n products of unit vectors is off by at most (n + 2) units in the last place (Higham 2002, section 3.1,
        by the Cauchy-Schwarz inequality); the rest carries that to R^2, with a tenth to spare.
        """
        k, q = self.tested.shape[1], self.nuisance.shape[1]
        one = (self.tested.shape[0] + 4) * UNIT
        known = np.clip(r_squared, 0, 1)
        of_signal = 2 * np.sqrt(k * known) * one + k * one**2
        of_nuisance = (2 * np.sqrt(q) * one + q * one**2) * known
        bound: Floats = 1.1 * (of_signal + of_nuisance) / (1 - in_nuisance) + (k + q + 8) * UNIT * known
        return bound


def plain_counts(size: Floats, threshold: Floats) -> tuple[NDArray[np.intp], Floats]:
    """Counts and largest values from statistics of shape (permutations, columns)."""
    return np.asarray(np.count_nonzero(size >= threshold, axis=0), dtype=np.intp), size.max(axis=1)
