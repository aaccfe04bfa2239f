"""Studentised statistics of a linear model with one residual variance per group, under permutation.

The covariance of the least-squares estimate is ``(X'X)^-1 (sum_g s2_g X_g'X_g) (X'X)^-1`` with X residualised for Z.
Without covariates that is Welch's t (one tested column) and Welch's F (Welch 1951), v and G of Winkler et al. (2014,
doi:10.1016/j.neuroimage.2014.01.060). With covariates PALM combines the unweighted estimate with ``(M'WM)^-1``, the
covariance of the weighted one; here both are of the unweighted estimate. The residual variance of group g is its sum of
squared residuals divided by the sum of its diagonal elements of the residual-forming matrix.

Permuting residuals as they are gives every group the variance of the mixture. A studentised p is then right for many
people (Janssen 1997), but not its far tail, which family-wise p and the false discovery rate use: where the smaller
group varies more, values are skewed or groups small, 8 to 60 % of families of 100 regions had a p_fwe of 5 %. So each
group keeps its own spread: residuals under the null hypothesis are divided by the standard deviation of their group,
permuted, and multiplied by that of the group where they arrive. Where groups have one spread this is the permutation of
Freedman and Lane; where they differ in spread alone, it draws from the distribution of the data. Measured:
docs/benchmarks/statistics.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.statistics.arrays import Floats

NO_SPREAD = 1e-12
"""Variance within a group, relative to that of all, below which it counts as zero."""


@dataclass(frozen=True, eq=False)
class StudentisedModel:
    """Wald statistic of the tested directions with one residual variance per group.

    tested (units, k) and nuisance (units, q) are orthonormal, and orthogonal to each other; groups (units,) are 0..G-1;
    `stays` (q,) marks nuisance directions that no permutation changes: residuals have none of them, permuted residuals
    times the deviations of the groups may.
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
        """Shape (p, units): tested directions, nuisance directions that a permutation can change, and the others."""
        parts = (self.tested, self.nuisance[:, ~self.stays], self.nuisance[:, self.stays])
        return np.ascontiguousarray(np.column_stack(parts).T)

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
        """The basis with 0 outside each group, then indicators of groups; (vectors, units).

        What follows from the others is left out: directions that stay add up to 0 over groups, squares to their total.
        """
        within = self.members[:, None] * self.basis
        moving = within[:, : len(self.basis) - self.stays.sum()].reshape(-1, len(self.groups))
        staying = within[:-1, len(self.basis) - self.stays.sum() :].reshape(-1, len(self.groups))
        return np.concatenate([moving, staying, self.members[:-1]])

    def standardised(self, residuals: Floats) -> tuple[Floats, Floats]:
        """Residuals under the null hypothesis with one spread, and deviations of the groups (G, columns).

        residuals (units, columns) on the nuisance directions have norm 1; so have the new ones about the root of units.
        """
        freedom = self.freedom + self.members @ (self.tested**2).sum(axis=1)
        deviations = np.sqrt(self.members @ residuals**2 / freedom[:, None])
        deviations[deviations**2 <= NO_SPREAD / len(self.groups)] = 0.0
        own = deviations[self.groups]
        alike = np.divide(residuals, own, out=np.zeros_like(residuals), where=own > 0)
        return alike - self.nuisance @ (self.nuisance.T @ alike), deviations

    def size(self, rows: NDArray[Any], alike: Floats, deviations: Floats) -> Floats:
        """|t| or F of permuted data, shape (permutations, columns).

        rows (permutations, units) permute the model's rows; the others are of `standardised`.
        """
        if self.tested.shape[1] == 1:
            return np.abs(self.signed(rows, alike, deviations))
        return self._f(*self._permuted(rows, alike, deviations))

    def signed(self, rows: NDArray[Any], alike: Floats, deviations: Floats) -> Floats:
        """T of permuted data with its sign; arguments as of `size`, for one tested direction."""
        return self._t(*self._permuted(rows, alike, deviations))

    def _permuted(self, rows: NDArray[Any], alike: Floats, deviations: Floats) -> tuple[Floats, Floats]:
        coordinates, variances = self._fit(rows, alike, deviations)
        coordinates[: self.tested.shape[1]] *= self._stretch(deviations)
        return coordinates, variances

    def step(self, residuals: Floats, chunk_bytes: int) -> int:
        """Permutations per chunk so that the largest array has about `chunk_bytes`."""
        vectors = (len(self.basis) + 2) * len(self.members)
        return int(max(1, chunk_bytes // (8 * vectors * max(residuals.shape))))

    def reported(self, residuals: Floats) -> tuple[Floats, Floats]:
        """Signed t along ``tested``, or F, and Welch-Satterthwaite degrees of freedom, each of shape (columns,)."""
        ones = np.ones((len(self.members), residuals.shape[1]))
        coordinates, variances = self._fit(np.arange(len(residuals))[None], residuals, ones)
        k = self.tested.shape[1]
        with np.errstate(divide="ignore", invalid="ignore"):
            if k == 1:
                parts = variances[:, 0] * self.shares[:, 0, 0][:, None]
                df = parts.sum(axis=0) ** 2 / (parts**2 / self.freedom[:, None]).sum(axis=0)
                return self._t(coordinates, variances)[0], df
            return self._f(coordinates, variances)[0], k * (k + 2) / (3 * self._welch(variances)[0])

    def _stretch(self, deviations: Floats) -> Floats:
        """Factor of the permuted signal, shape (columns,), so that its variance is that of independent values.

        Permuted residuals add up to 0 in each block, so those of one group go against those of the others. That takes
        the part of the tested direction, times the deviations, along what stays; with one deviation there is none.
        """
        k, staying = self.tested.shape[1], len(self.basis) - self.stays.sum()
        whole = np.einsum("gii,gc->c", self.shares[:, :k, :k], deviations**2)
        lost = (np.einsum("gij,gc->ijc", self.shares[:, :k, staying:], deviations) ** 2).sum(axis=(0, 1))
        left = whole - lost
        factor: Floats = np.sqrt(np.divide(whole, left, out=np.ones_like(whole), where=left > NO_SPREAD * whole))
        return factor

    def _fit(self, rows: NDArray[Any], data: Floats, deviations: Floats) -> tuple[Floats, Floats]:
        """Coordinates along the basis (p, permutations, columns) and variances (G, permutations, columns)."""
        groups, p, moving = len(self.members), len(self.basis), len(self.basis) - self.stays.sum()
        shape = (len(rows), data.shape[1])
        signals = len(self.masked) - (groups - 1)
        moved = self.masked[:, rows].reshape(len(self.masked) * len(rows), -1)
        products = (moved[: signals * len(rows)] @ data).reshape(signals, *shape)
        within = np.empty((groups, p, *shape))
        within[:, :moving] = products[: groups * moving].reshape(groups, moving, *shape)
        within[:-1, moving:] = products[groups * moving :].reshape(groups - 1, p - moving, *shape)
        within[-1, moving:] = -within[:-1, moving:].sum(axis=0)
        left = np.empty((groups, *shape))
        squares = data**2
        left[:-1] = (moved[signals * len(rows) :] @ squares).reshape(groups - 1, *shape)
        left[-1] = squares.sum(axis=0) - left[:-1].sum(axis=0)
        within *= deviations[:, None, None]
        left *= deviations[:, None] ** 2
        coordinates = within.sum(axis=0)
        for g, share in enumerate(self.shares):
            part = np.tensordot(share, coordinates, 1) - 2 * within[g]
            left[g] += (part * coordinates).sum(axis=0)
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
