"""Pearson, Spearman and partial correlation: plain, weighted (for the bootstrap), and under permutation."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import rankdata

from pipeline.statistics.arrays import Floats

NO_SPREAD = 1e-12
"""Variance of a bootstrap draw, relative to that of all rows, below which it counts as constant."""


DRAWS_AT_ONCE = 250
"""Bootstrap draws per chunk; bounds memory (250 draws x 4 covariates x 800 columns: 6 MB)."""


def is_constant(values: Floats) -> NDArray[np.bool_]:
    """Whether values differ by no more than rounding along the first axis; shape (...) for values (rows, ...)."""
    return np.asarray(np.ptp(values, axis=0) <= 1e-12 * np.abs(values).max(axis=0), dtype=bool)


def weighted_pearson(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Pearson correlation of weighted rows, shape (draws,); NaN where x or y is constant.

    x and y have shape (rows,) or (draws, rows), weights (draws, rows).
    """
    x, y = x - x.mean(axis=-1, keepdims=True), y - y.mean(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = weights / weights.sum(axis=1, keepdims=True)
        mean_x, mean_y = (share * x).sum(axis=1), (share * y).sum(axis=1)
        var_x = (share * x**2).sum(axis=1) - mean_x**2
        var_y = (share * y**2).sum(axis=1) - mean_y**2
        r: Floats = ((share * x * y).sum(axis=1) - mean_x * mean_y) / np.sqrt(var_x * var_y)
        flat = (var_x <= NO_SPREAD * (x**2).mean(axis=-1)) | (var_y <= NO_SPREAD * (y**2).mean(axis=-1))
    return np.where(flat, np.nan, np.clip(r, -1, 1))


def weighted_midranks(x: Floats, weights: Floats) -> Floats:
    """Midranks of x (rows,) weighted by counts (draws, rows), shape (draws, rows)."""
    _, level, sizes = np.unique(x, return_inverse=True, return_counts=True)
    starts = np.cumsum(sizes) - sizes
    per_level = np.add.reduceat(weights[:, np.argsort(level, kind="stable")], starts, axis=1)
    before = np.cumsum(per_level, axis=1) - per_level
    ranks: Floats = (before + (per_level + 1) / 2)[:, level]
    return ranks


def weighted_spearman(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Weighted Spearman correlation; arguments as for `weighted_pearson`, with one-dimensional x and y."""
    return weighted_pearson(weighted_midranks(x, weights), weighted_midranks(y, weights), weights)


def weighted_partial_correlation(
    x: Floats, y: Floats, which: NDArray[np.intp], covariates: Floats, weights: Floats
) -> Floats:
    """Weighted partial correlation of each column of y with its column of x, shape (draws, columns).

    Shapes: x (rows, regressors), y (rows, columns), which (columns,) with the column of x for each column of y,
    covariates (rows, q) with the intercept, weights (draws, rows). NaN if the covariates explain all of x or y, or no
    degree of freedom is left.
    """
    basis = np.linalg.qr(covariates / np.linalg.norm(covariates, axis=0))[0]  # scaled, so that units do not matter
    x, y = _unit_residuals(x, basis), _unit_residuals(y, basis)
    result = np.empty((len(weights), y.shape[1]))
    for start in range(0, len(weights), DRAWS_AT_ONCE):
        chunk = weights[start : start + DRAWS_AT_ONCE]
        result[start : start + len(chunk)] = _partial_of_draws(x, y, which, basis, chunk)
    return result


def _unit_residuals(values: Floats, basis: Floats) -> Floats:
    """Residuals after projection on a basis, scaled to norm 1."""
    left = values - basis @ (basis.T @ values)
    norm = np.linalg.norm(left, axis=0)
    scaled: Floats = left / np.where(norm > 0, norm, 1.0)
    return scaled


def _partial_of_draws(x: Floats, y: Floats, which: NDArray[np.intp], basis: Floats, weights: Floats) -> Floats:
    """`weighted_partial_correlation` of residuals over all rows, residualised again in each draw."""
    q = basis.shape[1]
    gram = np.linalg.pinv((weights @ _products(basis, basis)).reshape(-1, q, q), rcond=NO_SPREAD, hermitian=True)
    on_x, on_y = (np.stack([weights @ (basis[:, [i]] * part) for i in range(q)], axis=1) for part in (x, y))
    slopes = np.matmul(gram, on_x)
    xx = (weights @ x**2 - (slopes * on_x).sum(axis=1))[:, which]
    yy = weights @ y**2 - (np.matmul(gram, on_y) * on_y).sum(axis=1)
    xy = weights @ (x[:, which] * y)
    for i in range(q):
        xy -= slopes[:, i, which] * on_y[:, i]
    flat = (xx <= NO_SPREAD) | (yy <= NO_SPREAD) | ((weights > 0).sum(axis=1) <= q + 1)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(flat, np.nan, np.clip(xy / np.sqrt(xx * yy), -1, 1))


def _products(a: Floats, b: Floats) -> Floats:
    """Row-wise products of every column of a with every column of b; shape (rows, columns of a x columns of b)."""
    products: Floats = (a[:, :, None] * b[:, None, :]).reshape(len(a), -1)
    return products


def spearman_interval(r: Floats, n: int, confidence: float) -> tuple[Floats, Floats]:
    """Analytic confidence interval of Spearman's rho (Bonett & Wright 2000, Psychometrika 65:23).

    Fisher's z with standard error sqrt((1 + r²/2) / (n - 3)). A bootstrap would have to rank each draw again.
    """
    if n <= 3:
        return np.full(len(r), np.nan), np.full(len(r), np.nan)
    z = np.arctanh(np.clip(r, -1 + 1e-15, 1 - 1e-15))
    half = ndtri((1 + confidence) / 2) * np.sqrt((1 + r**2 / 2) / (n - 3))
    return np.tanh(z - half), np.tanh(z + half)


ESTIMATORS: Mapping[str, Callable[[Floats, Floats, Floats], Floats]] = {
    "pearson": weighted_pearson,
    "spearman": weighted_spearman,
}


def permuted_correlations(x: Floats, y: Floats, rows: NDArray[np.integer], estimator: str) -> Floats:
    """Correlation of y with permuted x, shape (m,), for permutations `rows` (m, rows).

    x and y (rows,) are not constant. Ranks are computed once: permuting rows does not change them.
    """
    if estimator == "spearman":
        x, y = rankdata(x), rankdata(y)
    r: Floats = _standardised(x)[rows] @ _standardised(y)
    return r


def _standardised(x: Floats) -> Floats:
    """Scale to mean 0 and sum of squares 1."""
    centred = x - x.mean()
    scaled: Floats = centred / np.linalg.norm(centred)
    return scaled
