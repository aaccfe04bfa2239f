"""Statistics of a linear model under permutation, by what is supposed of the variance.

*One residual variance* (`HomoscedasticModel`): partial R^2 in double precision.

*Participants who may differ in variance* (`RobustModel`, one tested column): Student's t divided by the square root of

    kappa = n sum(x^2 e^2),

x the tested column and e the residuals under the null hypothesis, both with norm 1. Kappa is about 1 if the size of the
residuals is unrelated to x. If a fifth of the participants vary three times as much in both, plain t rejects up to 21 %
at 5 %, this one 6 %; with equal variances its power is within 2 points of t. Without covariates and the factor 1 - r^2
of t it is the statistic of DiCiccio & Romano (2017, JASA 112:1211). Under permutation the component of the residuals
along the covariates is subtracted from their sum of squares, and kappa reduced in proportion.

*One residual variance per group* (`StudentisedModel`): the covariance of the least-squares estimate is ``(X'X)^-1
(sum_g s2_g X_g'X_g) (X'X)^-1`` with X residualised for Z, s2_g the sum of squared residuals of a group over the sum of
its diagonal elements of the residual-forming matrix. Without covariates that is Welch's t and F (Welch 1951), v and G
of Winkler et al. (2014, doi:10.1016/j.neuroimage.2014.01.060); with covariates PALM combines the unweighted estimate
with the covariance of the weighted one. Permuting residuals as they are would give every group the variance of the
mixture, and the far tail of p, which p_fwe and p_fdr use, would be wrong: 8 to 60 % of families of 100 regions had a
p_fwe of 5 %. So residuals under the null hypothesis are divided by the standard deviation of their group, permuted, and
multiplied by that of the group where they arrive. Rates of all: docs/benchmarks/statistics.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.statistics.arrays import Flags, Floats, Indices
from heatlas.pipeline.statistics.linear.permutations import Permutations, p_value

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

        rows (permutations, units) permute the model's rows; residuals (units, columns) of the values have norm 1.
        """
        squares, k = (self.basis[:, rows] @ residuals) ** 2, self.tested.shape[1]
        r_squared: Floats = squares[:k].sum(axis=0) / np.maximum(1 - squares[k:].sum(axis=0), LEAST_LEFT)
        return r_squared

    def step(self, residuals: Floats, chunk_bytes: int) -> int:
        """Permutations per chunk so that the largest array has about `chunk_bytes`."""
        return int(max(1, chunk_bytes // (8 * len(self.basis) * max(residuals.shape))))


def plain_counts(size: Floats, threshold: Floats) -> tuple[Indices, Floats]:
    """Counts and largest values from statistics of shape (permutations, columns)."""
    return np.asarray(np.count_nonzero(size >= threshold, axis=0), dtype=np.intp), size.max(axis=1)


Singles = NDArray[np.float32]
TINY = np.float32(1e-12)
LEAST_LEFT_SINGLE = np.float32(1e-6)
"""Smallest 1 - R^2; less is rounding in single precision."""
AT_ONCE = 64
"""Columns of which critical values and pooled counts are found at once; bounds the memory of a copy."""
SINGLE = 1e-6
"""Relative rounding error of statistics in single precision that must count as equal."""


@dataclass(frozen=True, eq=False)
class RobustModel:
    """As `HomoscedasticModel`, of a single tested direction (units, 1)."""

    tested: Floats
    nuisance: Floats
    df: int

    @cached_property
    def basis(self) -> Singles:
        """The tested direction, then the nuisance directions; (1 + q, units)."""
        return np.ascontiguousarray(np.column_stack([self.tested, self.nuisance]).T, dtype=np.float32)

    @cached_property
    def squares(self) -> Singles:
        """Squares of the tested direction times their number, shape (1, units)."""
        return np.ascontiguousarray(len(self.tested) * self.tested.T**2, dtype=np.float32)

    def kappa(self, residuals: Floats) -> Floats:
        """The factor of each column, shape (columns,); residuals (units, columns) have norm 1."""
        factor: Floats = len(self.tested) * (self.tested**2 * residuals**2).sum(axis=0)
        return factor

    def reported(self, residuals: Floats) -> tuple[Floats, Floats]:
        """Signed t and degrees of freedom, each of shape (columns,)."""
        r = self.tested[:, 0] @ residuals
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.nan_to_num(r * np.sqrt(self.df / ((1 - r**2) * self.kappa(residuals))))
        return t, np.full(residuals.shape[1], float(self.df))

    def size(self, rows: NDArray[Any], residuals: Floats) -> Singles:
        """|t| of permuted data, shape (permutations, columns), in single precision.

        Arguments as of `HomoscedasticModel.size`.
        """
        data, moved = residuals.astype(np.float32), self.basis[:, rows]
        signal = (moved[0] @ data) ** 2
        left = np.maximum(1 - signal - ((moved[1:] @ data) ** 2).sum(axis=0), LEAST_LEFT_SINGLE)
        kappa = self.squares[:, rows][0] @ data**2
        t: Singles = np.sqrt(signal * np.float32(self.df) / np.maximum(kappa * left, TINY))
        return t

    def step(self, residuals: Floats, chunk_bytes: int) -> int:
        """Permutations per chunk so that the largest array has about `chunk_bytes`."""
        return int(max(1, chunk_bytes // (4 * max(len(self.basis) * len(residuals), residuals.shape[1]))))


def tally(
    size: Callable[[NDArray[Any], Floats], NDArray[Any]], step: int, permutations: Permutations, residuals: Floats,
    threshold: Floats, confidence: float, kinds: Indices | None = None,
) -> tuple[Indices, Floats, Floats, Floats]:  # fmt: skip
    """Counts of permutations that reach each column's threshold, largest value of each, `critical_values`, `pooled_p`.

    `size` is the method of a model, `step` the number of permutations per call. Memory: 4 bytes x m x columns.
    """
    counts, largest = np.zeros(len(threshold), np.intp), np.zeros(len(permutations))
    sizes = np.empty((len(threshold), len(permutations)), np.float32)
    if not len(threshold):
        return counts, largest, np.zeros(0), np.zeros(0)
    for start in range(0, len(permutations), step):
        part = slice(start, start + step)
        statistics = size(permutations.rows[part], residuals)
        counts += np.count_nonzero(statistics >= threshold, axis=0)
        largest[part] = statistics.max(axis=1)
        sizes[:, part] = statistics.T
    pooled = pooled_p(
        sizes, threshold, np.zeros(len(threshold), np.intp) if kinds is None else kinds, permutations.exact
    )
    return counts, largest, critical_values(sizes, confidence, permutations.exact), pooled


def pooled_p(sizes: NDArray[Any], threshold: Floats, kinds: Indices, exact: bool) -> Floats:
    """P from the permuted statistics of all columns of a kind (a map's regions) together, shape (columns,).

    One column's permutations know the far tail of its null distribution least where it matters: a column that lacks
    extreme values has a large t and a short tail. Over regions such chances even out, so the false discovery rate is
    made from this p (Storey & Tibshirani 2003, PNAS 100:9440, pool all genes). `sizes` (columns, permutations) are
    comparable between the columns of a kind; `threshold` is what they must reach; `exact`: the observed order is among
    them.

    >>> sizes = np.array([[0.5, 1.0, 1.5], [0.0, 2.0, 3.0]])
    >>> pooled_p(sizes, np.array([1.5, 2.5]), np.zeros(2, np.intp), exact=False).round(3).tolist()  # 4, 2 of 7
    [0.571, 0.286]
    """
    p = np.empty(len(threshold))
    for kind in np.unique(kinds):
        members = np.flatnonzero(kinds == kind)
        order = members[np.argsort(threshold[members])]
        least = threshold[order] * (1 - SINGLE)  # sizes may be rounded to single precision
        reaching = np.zeros(len(order) + 1, np.intp)
        for start in range(0, len(members), AT_ONCE):
            n_reached = np.searchsorted(least, sizes[members[start : start + AT_ONCE]].ravel(), side="right")
            reaching += np.bincount(n_reached, minlength=len(reaching))
        beyond = reaching[:0:-1].cumsum()[::-1]
        p[order] = p_value(beyond, sizes.shape[1] * len(members), exact)
    return p


def critical_values(sizes: NDArray[Any], confidence: float, exact: bool) -> Floats:
    """Value that |t| must exceed for p to be at most 1 - `confidence`, per column of sizes (columns, permutations).

    NaN if no value of t suffices: with fewer than 19 random permutations, or 20 that are all, p cannot be .05.
    """
    m = sizes.shape[1]
    allowed = int(np.floor((1 - confidence) * (m if exact else m + 1) + 1e-9)) - (not exact)
    if allowed < exact or allowed >= m:  # the observed one is among all
        return np.full(len(sizes), np.nan)
    place = m - 1 - allowed
    values = np.empty(len(sizes))
    for start in range(0, len(sizes), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        values[part] = np.partition(sizes[part], place, axis=1)[:, place]
    return values


NO_SPREAD = 1e-12
"""Variance within a group, relative to that of all, below which it counts as zero."""


@dataclass(frozen=True, eq=False)
class StudentisedModel:
    """Wald statistic of the tested directions with one residual variance per group.

    tested (units, k) and nuisance (units, q) are orthonormal, and orthogonal to each other; groups (units,) are 0..G-1;
    stays (q,) marks nuisance directions that no permutation changes: residuals have none of them, permuted residuals
    times the deviations of the groups may. BadInputError if a group has no residual degree of freedom.
    """

    tested: Floats
    nuisance: Floats
    groups: Indices
    stays: Flags

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
        """The basis with 0 outside each group, then indicators of groups, (vectors, units).

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
        spread_of_group = deviations[self.groups]
        alike = np.divide(residuals, spread_of_group, out=np.zeros_like(residuals), where=spread_of_group > 0)
        return alike - self.nuisance @ (self.nuisance.T @ alike), deviations

    def size(self, rows: NDArray[Any], alike: Floats, deviations: Floats) -> Floats:
        """|t| or F of permuted data, shape (permutations, columns); the data are those of `standardised`."""
        if self.tested.shape[1] == 1:
            return np.abs(self.signed(rows, alike, deviations))
        return self._f(*self._permuted(rows, alike, deviations))

    def signed(self, rows: NDArray[Any], alike: Floats, deviations: Floats) -> Floats:
        """T of permuted data with its sign, for one tested direction; arguments as of `size`."""
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
