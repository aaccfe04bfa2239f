"""Freedman-Lane test in which each column of values has its own regressor (relevance and volume of the same region).

The engine (`pipeline.statistics.linear.freedman_lane`) tests one regressor in many columns. Here the regressor differs
between columns, like the voxelwise regressors of FSL's randomise, while covariates and permutations are shared, so the
maximum partial R² of each permutation still gives family-wise p values over all columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatlas.pipeline.statistics.arrays import Floats
from heatlas.pipeline.statistics.linear.exchangeability import Permutations, p_value
from heatlas.pipeline.statistics.linear.freedman_lane import reached
from heatlas.pipeline.statistics.linear.partial_correlation import correlation_interval
from heatlas.pipeline.statistics.linear.robust import RobustModel, tally
from heatlas.pipeline.statistics.resampling.correction_family import pooled_fdr

CHUNK = 1_000
"""Permutations per chunk; bounds memory (1,000 x 402 columns: 3 MB for each of three arrays)."""
COLUMNS = ("partial_r", "slope", "t", "low", "high", "p", "p_fwe", "p_fdr")
NO_SPREAD = 1e-12
"""Residual variance, relative to the variance about the mean, below which a column counts as fully explained."""


@dataclass(frozen=True, eq=False)
class MatchedTest:
    """Result per column; NaN where `problems` says why there is none."""

    partial_r: Floats
    slope: Floats
    t: Floats
    low: Floats
    high: Floats
    p: Floats
    p_fwe: Floats
    p_fdr: Floats
    problems: tuple[str | None, ...]


def matched_test(
    values: Floats, regressors: Floats, which: NDArray[np.intp], nuisance: Floats, permutations: Permutations,
    confidence: float = 0.95,
) -> MatchedTest:  # fmt: skip
    """Partial correlation of every column of values with its regressor, permuting participants.

    Shapes: values (participants, columns), regressors (participants, regressors), which (columns,) with the regressor
    of each column, nuisance (participants, q) of full rank, intercept first.
    """
    basis = np.linalg.qr(nuisance)[0]
    left, size, why_not = _residuals(values, basis, "relevance")
    tested, tested_size, why_no_regressor = _residuals(regressors, basis, "volume")
    problems = [why_no_regressor[which[i]] or why for i, why in enumerate(why_not)]
    usable = np.flatnonzero([problem is None for problem in problems])
    result = dict(zip(COLUMNS, np.full((len(COLUMNS), values.shape[1]), np.nan), strict=True))
    if len(usable):
        tests = _tested(left[:, usable], tested, which[usable], basis, permutations, confidence)
        for name, column in tests.items():
            result[name][usable] = column
    result["slope"] = result["partial_r"] * size / tested_size[which]
    return MatchedTest(**result, problems=tuple(problems))


def _tested(
    residuals: Floats, tested: Floats, which: NDArray[np.intp], basis: Floats, permutations: Permutations,
    confidence: float,
) -> dict[str, Floats]:  # fmt: skip
    """The columns of `MatchedTest` for residuals (participants, columns) of norm 1."""
    moving = basis[:, np.ptp(basis, axis=0) > 1e-12]
    df = len(basis) - basis.shape[1] - 1
    models = {int(of_column): RobustModel(tested[:, [of_column]], moving, df) for of_column in np.unique(which)}
    columns = {of_column: np.flatnonzero(which == of_column) for of_column in models}

    def size(rows: NDArray[Any], data: Floats) -> NDArray[Any]:
        sizes = np.empty((len(rows), data.shape[1]), np.float32)
        for of_column, places in columns.items():
            sizes[:, places] = models[of_column].size(rows, data[:, places])
        return sizes

    t = np.empty(residuals.shape[1])
    for of_column, places in columns.items():
        t[places] = models[of_column].reported(residuals[:, places])[0]
    measured = size(np.arange(len(residuals), dtype=np.intp)[None], residuals)[0].astype(float)
    r = (residuals * tested[:, which]).sum(axis=0)
    threshold = reached(measured, r**2)
    single, largest, critical, pooled = tally(size, CHUNK, permutations, residuals, threshold, confidence)
    family = len(permutations) - np.searchsorted(np.sort(largest), threshold, side="left")
    p, p_fwe = (p_value(count, len(permutations), permutations.exact) for count in (single, family))
    low, high = correlation_interval(r, t, critical, p, 1 - confidence)[1:]
    return {"partial_r": r, "t": t, "low": low, "high": high, "p": p, "p_fwe": p_fwe, "p_fdr": pooled_fdr(pooled, p)}


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
