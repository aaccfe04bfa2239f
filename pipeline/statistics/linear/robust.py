"""Studentised t of one tested column where participants may differ in variance, under permutation.

The statistic is Student's t divided by the square root of

    kappa = n sum(x^2 e^2),

where x is the tested column and e the residuals under the null hypothesis, both with norm 1. Kappa is about 1 if the
size of the residuals is unrelated to x, and larger if participants with extreme x also have extreme values. If a fifth
of the participants vary three times as much in both, plain t rejects up to 21 % at 5 %, this statistic 6 %; with equal
variances its power is within 2 points of that of t (docs/benchmarks/statistics.md). Without covariates and without the
factor 1 - r^2 of t this is the statistic of DiCiccio & Romano (2017, JASA 112:1211). The factor preserves the power of
family-wise tests, because residuals under the null hypothesis contain the effect.

Under permutation the residuals are those of Freedman and Lane. Their component along the covariates is subtracted from
their sum of squares, and kappa is reduced in proportion.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatlas.pipeline.statistics.arrays import Floats, Indices
from heatlas.pipeline.statistics.linear.exchangeability import Permutations, p_value

Singles = NDArray[np.float32]
TINY = np.float32(1e-12)
LEAST_LEFT = np.float32(1e-6)
"""Smallest 1 - R^2; less is rounding in single precision."""
AT_ONCE = 64
"""Columns of which critical values and pooled counts are found at once; bounds the memory of a copy."""
SINGLE = 1e-6
"""Relative rounding error of statistics in single precision that must count as equal."""


@dataclass(frozen=True, eq=False)
class RobustModel:
    """A tested direction (units, 1) and the nuisance directions that a permutation can change (units, q).

    All are orthonormal, and orthogonal to the directions that no permutation changes.
    """

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
        left = np.maximum(1 - signal - ((moved[1:] @ data) ** 2).sum(axis=0), LEAST_LEFT)
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

    `size` is the method of a model, `step` the number of permutations per call, `kinds` the kind of each column (by
    default all are of one). Memory: 4 bytes x m x columns.
    """
    counts, largest = np.zeros(len(threshold), np.intp), np.zeros(len(permutations))
    sizes = np.empty((len(threshold), len(permutations)), np.float32)
    if not len(threshold):
        return counts, largest, np.zeros(0), np.zeros(0)
    for start in range(0, len(permutations), step):
        part = slice(start, start + step)
        found = size(permutations.rows[part], residuals)
        counts += np.count_nonzero(found >= threshold, axis=0)
        largest[part] = found.max(axis=1)
        sizes[:, part] = found.T
    pooled = pooled_p(
        sizes, threshold, np.zeros(len(threshold), np.intp) if kinds is None else kinds, permutations.exact
    )
    return counts, largest, critical_values(sizes, confidence, permutations.exact), pooled


def pooled_p(sizes: NDArray[Any], threshold: Floats, kinds: Indices, exact: bool) -> Floats:
    """P from the permuted statistics of all columns of a kind (a map's regions) together, shape (columns,).

    The permutations of one column know the far tail of its null distribution least where it matters: a column that
    happens to lack extreme values has a large t and a short tail. Over regions such chances even out, so the false
    discovery rate, which asks for the tail, is made from this p (Storey & Tibshirani 2003, PNAS 100:9440, pool all
    genes). Measured: docs/benchmarks/statistics.md.

    Parameters
    ----------
    sizes : array, shape (columns, permutations)
        Comparable between the columns of a kind: studentised, or of equal degrees of freedom. Single precision will do.
    threshold : array, shape (columns,)
        What a permuted statistic must reach to count as at least as extreme as the observed one.
    kinds : array of int, shape (columns,)
    exact : bool
        Whether the permutations include the observed order.

    Examples
    --------
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
    found = np.empty(len(sizes))
    for start in range(0, len(sizes), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        found[part] = np.partition(sizes[part], place, axis=1)[:, place]
    return found
