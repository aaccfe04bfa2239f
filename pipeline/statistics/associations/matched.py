"""Freedman-Lane test in which each column of values has its own regressor (relevance and volume of the same region).

The engine (`pipeline.statistics.linear.freedman_lane`) tests one regressor in many columns. Here the regressor differs
between columns, like the voxelwise regressors of FSL's randomise, while covariates and permutations are shared, so the
maximum partial R² of each permutation still gives family-wise p values over all columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.statistics.arrays import Floats
from pipeline.statistics.linear.exchangeability import TIE_TOLERANCE, Permutations, p_value

CHUNK = 1_000
"""Permutations per chunk; bounds memory (1,000 x 402 columns: 3 MB for each of three arrays)."""
NO_SPREAD = 1e-12
"""Residual variance, relative to the variance about the mean, below which a column counts as fully explained."""


@dataclass(frozen=True, eq=False)
class MatchedTest:
    """Result per column; NaN where `problems` says why there is none."""

    partial_r: Floats
    slope: Floats
    p: Floats
    p_fwe: Floats
    problems: tuple[str | None, ...]


def matched_test(
    values: Floats, regressors: Floats, which: NDArray[np.intp], nuisance: Floats, permutations: Permutations
) -> MatchedTest:
    """Partial correlation of each column of values with its regressor, permuting participants.

    Shapes: values (participants, columns), regressors (participants, regressors), which (columns,) with the regressor
    of each column, nuisance (participants, q) of full rank, intercept first.
    """
    basis = np.linalg.qr(nuisance)[0]
    left, size, why_not = _residuals(values, basis, "relevance")
    tested, tested_size, why_no_regressor = _residuals(regressors, basis, "volume")
    problems = [why_no_regressor[which[i]] or why for i, why in enumerate(why_not)]
    usable = np.array([problem is None for problem in problems], bool)
    r = np.full(values.shape[1], np.nan)
    r[usable] = (left * tested[:, which]).sum(axis=0)[usable]
    slope = np.full(len(r), np.nan)
    slope[usable] = (r * size / tested_size[which])[usable]
    single, family = _counts(left[:, usable], tested, which[usable], basis, r[usable] ** 2, permutations)
    p, p_fwe = np.full(len(r), np.nan), np.full(len(r), np.nan)
    p[usable] = p_value(single, len(permutations), permutations.exact)
    p_fwe[usable] = p_value(family, len(permutations), permutations.exact)
    return MatchedTest(r, slope, p, p_fwe, tuple(problems))


def _residuals(values: Floats, basis: Floats, name: str) -> tuple[Floats, Floats, list[str | None]]:
    """Residuals given the covariates, scaled to norm 1; their norms; and why a column has none."""
    known = np.asarray(np.isfinite(values).all(axis=0), bool)
    filled = np.where(known, values, 0.0)
    residuals = filled - basis @ (basis.T @ filled)
    size = np.linalg.norm(residuals, axis=0)
    spread = np.linalg.norm(filled - filled.mean(axis=0), axis=0)
    flat = np.asarray(np.ptp(filled, axis=0) <= NO_SPREAD * np.abs(filled).max(axis=0), bool)
    problems: list[str | None] = []
    for i in range(values.shape[1]):
        if not known[i]:
            problems.append(f"no {name} in {int((~np.isfinite(values[:, i])).sum())} of {len(values)} participants")
        elif flat[i]:
            problems.append(f"the {name} is constant")
        else:
            explained = size[i] ** 2 <= NO_SPREAD * spread[i] ** 2
            problems.append(f"the {name} is fully explained by the covariates" if explained else None)
    whole = np.array([problem is None for problem in problems], bool)
    return np.where(whole, residuals / np.where(whole, size, 1.0), 0.0), np.where(whole, size, np.nan), problems


def _counts(
    residuals: Floats,
    tested: Floats,
    which: NDArray[np.intp],
    basis: Floats,
    measured: Floats,
    permutations: Permutations,
) -> tuple[Floats, Floats]:
    """Number of permutations with at least the observed partial R²: in the same column, and in any column."""
    single, family = np.zeros(len(measured)), np.zeros(len(measured))
    if not len(measured):
        return single, family
    threshold = measured * (1 - TIE_TOLERANCE)
    moving = basis[:, np.ptp(basis, axis=0) > 1e-12].T
    order = np.argsort(which, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(which[order])) + 1)
    for start in range(0, len(permutations), CHUNK):
        rows = permutations.rows[start : start + CHUNK]
        explained = np.zeros((len(rows), len(measured)))
        for direction in moving:
            explained += (direction[rows] @ residuals) ** 2
        size = np.empty_like(explained)
        for columns in groups:
            size[:, columns] = (tested[rows, which[columns[0]]] @ residuals[:, columns]) ** 2
        size /= np.maximum(1 - explained, np.finfo(float).tiny)
        single += (size >= threshold).sum(axis=0)
        family += len(size) - np.searchsorted(np.sort(size.max(axis=1)), threshold, side="left")
    return single, family
