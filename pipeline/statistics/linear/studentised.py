"""Studentised statistics of a linear model with one residual variance per group, under permutation.

One residual variance per group keeps the level when groups differ in variance and size (Janssen 1997). The covariance
of the least-squares estimate is ``(X'X)^-1 (sum_g s2_g X_g'X_g) (X'X)^-1`` with X residualised for Z. Without
covariates that is Welch's t (one tested column) and Welch's F (Welch 1951), v and G of Winkler et al. (2014,
doi:10.1016/j.neuroimage.2014.01.060). With covariates PALM combines the unweighted estimate with ``(M'WM)^-1``, the
covariance of the weighted one; here both are of the unweighted estimate. The residual variance of group g is its sum of
squared residuals divided by the sum of its diagonal elements of the residual-forming matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.run.errors import BadInputError
from pipeline.run.plain_text import counted
from pipeline.statistics.arrays import Floats

NO_SPREAD = 1e-12
"""Variance within a group, relative to that of all, below which it counts as zero."""


@dataclass(frozen=True, eq=False)
class StudentisedModel:
    """Wald statistic of the tested directions with one residual variance per group.

    tested (units, k) and nuisance (units, q) are orthonormal, and orthogonal to each other; groups (units,) are 0..G-1;
    `stays` (q,) marks nuisance directions that no permutation changes, which only count in the degrees of freedom.
    BadInputError if a group has no residual degree of freedom.
    """

    tested: Floats
    nuisance: Floats
    groups: NDArray[np.intp]
    stays: NDArray[np.bool_]

    def __post_init__(self) -> None:
        for group in np.flatnonzero(self.freedom <= 1e-9):
            n = int((self.groups == group).sum())
            raise BadInputError(
                f"variance group {group + 1}: {counted(n, 'participant', 'is')} too few for a variance. Merge groups "
                "or leave covariates out."
            )

    @cached_property
    def basis(self) -> Floats:
        """Shape (p, units): tested directions, then nuisance directions that a permutation can change."""
        return np.ascontiguousarray(np.column_stack([self.tested, self.nuisance[:, ~self.stays]]).T)

    @cached_property
    def members(self) -> Floats:
        """Shape (G, units): 1 for members."""
        return np.asarray(self.groups == np.arange(self.groups.max() + 1)[:, None], dtype=float)

    @cached_property
    def shares(self) -> Floats:
        """Products of the basis within groups, shape (G, p, p); they add up to the identity."""
        return np.asarray(np.einsum("gn,in,jn->gij", self.members, self.basis, self.basis), dtype=float)

    @cached_property
    def freedom(self) -> Floats:
        """Residual degrees of freedom per group: sum of its diagonal elements of the residual-forming matrix."""
        leverage = (self.tested**2).sum(axis=1) + (self.nuisance**2).sum(axis=1)
        freedom: Floats = self.members @ (1 - leverage)
        return freedom

    @cached_property
    def masked(self) -> Floats:
        """The basis with 0 outside each group, then indicators of all groups but the last; (G p + G - 1, units)."""
        within = (self.members[:, None] * self.basis).reshape(-1, len(self.groups))
        return np.concatenate([within, self.members[:-1]])

    def size(self, rows: NDArray[Any], residuals: Floats) -> Floats:
        """|t| or F of permuted data; arguments and shape as for `HomoscedasticModel.size`."""
        coordinates, variances = self._fit(rows, residuals)
        if self.tested.shape[1] == 1:
            return np.abs(self._t(coordinates, variances))
        return self._f(coordinates, variances)

    def step(self, residuals: Floats, chunk_bytes: int) -> int:
        """Permutations per chunk so that the largest array has about `chunk_bytes`."""
        vectors = (len(self.basis) + 2) * len(self.members)
        return int(max(1, chunk_bytes // (8 * vectors * max(residuals.shape))))

    def reported(self, residuals: Floats) -> tuple[Floats, Floats]:
        """Signed t along ``tested``, or F, and Welch-Satterthwaite degrees of freedom, each of shape (columns,)."""
        coordinates, variances = self._fit(np.arange(len(residuals))[None], residuals)
        k = self.tested.shape[1]
        with np.errstate(divide="ignore", invalid="ignore"):
            if k == 1:
                parts = variances[:, 0] * self.shares[:, 0, 0][:, None]
                df = parts.sum(axis=0) ** 2 / (parts**2 / self.freedom[:, None]).sum(axis=0)
                return self._t(coordinates, variances)[0], df
            return self._f(coordinates, variances)[0], k * (k + 2) / (3 * self._welch(variances)[0])

    def _fit(self, rows: NDArray[Any], residuals: Floats) -> tuple[Floats, Floats]:
        """Coordinates along the basis (p, permutations, columns) and variances (G, permutations, columns)."""
        n_groups, p = len(self.members), len(self.basis)
        moved = self.masked[:, rows]
        shape = (len(rows), residuals.shape[1])
        within = moved[: n_groups * p].reshape(-1, len(self.groups)) @ residuals
        within = within.reshape(n_groups, p, *shape)
        coordinates = within.sum(axis=0)
        left = np.empty((n_groups, *shape))
        squares = residuals**2
        left[:-1] = (moved[n_groups * p :].reshape(-1, len(self.groups)) @ squares).reshape(n_groups - 1, *shape)
        left[-1] = squares.sum(axis=0) - left[:-1].sum(axis=0)
        for g, share in enumerate(self.shares):
            for i in range(p):
                part = sum(share[i, j] * coordinates[j] for j in range(p)) - 2 * within[g, i]
                left[g] += part * coordinates[i]
        left /= self.freedom[:, None, None]
        left[left <= NO_SPREAD / len(self.groups)] = 0.0
        return coordinates, left

    def _t(self, coordinates: Floats, variances: Floats) -> Floats:
        signal = coordinates[0]
        error = np.sqrt(np.tensordot(self.shares[:, 0, 0], variances, 1))
        t: Floats = np.where(np.abs(signal) <= NO_SPREAD, 0.0, np.copysign(np.inf, signal))
        np.divide(signal, error, out=t, where=error > 0)
        return t

    def _f(self, coordinates: Floats, variances: Floats) -> Floats:
        k = self.tested.shape[1]
        covariance = np.einsum("gij,gmc->mcij", self.shares[:, :k, :k], variances)
        signal = np.moveaxis(coordinates[:k], 0, 2)
        wald = np.empty(signal.shape[:2])
        least = NO_SPREAD / len(self.groups)
        regular = np.linalg.eigvalsh(covariance)[..., 0] > least
        # Directions without error count for nothing if they have no signal; else the statistic is unbounded.
        errors, axes = np.linalg.eigh(covariance[~regular])
        along = (np.swapaxes(axes, -1, -2) @ signal[~regular][..., None])[..., 0]
        endless = np.where(np.abs(along) <= NO_SPREAD, 0.0, np.inf)
        finite = along**2 / np.where(errors <= least, 1.0, errors)
        wald[~regular] = np.where(errors <= least, endless, finite).sum(axis=-1)
        solved = np.linalg.solve(covariance[regular], signal[regular][..., None])[..., 0]
        wald[regular] = (signal[regular] * solved).sum(axis=-1)
        correction = 1 + 2 * (k - 1) / (k * (k + 2)) * self._welch(variances)
        return np.where(np.isinf(wald), np.inf, wald / k / correction)

    def _welch(self, variances: Floats) -> Floats:
        """Welch's sum over groups of (1 - w_g / w)^2 / df_g with w_g = n_g / s2_g, shape (permutations, columns)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            weights = self.members.sum(axis=1)[:, None, None] / variances
            parts = (1 - weights / weights.sum(axis=0)) ** 2 / self.freedom[:, None, None]
        return np.asarray(np.nan_to_num(parts).sum(axis=0), dtype=float)
