"""Partial R^2 of many permutations and columns, for models with one residual variance, in double precision."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatlas.pipeline.statistics.arrays import Floats

LEAST_LEFT = 2.0**-24
"""Smallest share of the residuals outside the nuisance directions; less is rounding."""


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

    def step(self, residuals: Floats, chunk_bytes: int) -> int:
        """Permutations per chunk so that the largest array has about `chunk_bytes`."""
        return int(max(1, chunk_bytes // (8 * len(self.basis) * max(residuals.shape))))


def plain_counts(size: Floats, threshold: Floats) -> tuple[NDArray[np.intp], Floats]:
    """Counts and largest values from statistics of shape (permutations, columns)."""
    return np.asarray(np.count_nonzero(size >= threshold, axis=0), dtype=np.intp), size.max(axis=1)
