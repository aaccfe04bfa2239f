"""Pearson and Spearman correlation: plain, weighted (for the bootstrap), and under permutation."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

Floats = NDArray[np.float64]

NO_SPREAD = 1e-12
"""Variance, relative to that of all rows, below which a draw counts as constant."""


def is_constant(values: Floats) -> NDArray[np.bool_]:
    """Whether values differ by no more than rounding along the first axis; shape (...) for values (rows, ...)."""
    return np.asarray(np.ptp(values, axis=0) <= 1e-12 * np.abs(values).max(axis=0), dtype=bool)


def weighted_pearson(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Pearson correlation of rows that count several times, or not at all.

    Parameters
    ----------
    x, y : array, shape (rows,) or (draws, rows)
    weights : array, shape (draws, rows)

    Returns
    -------
    array, shape (draws,)
        NaN where x or y is constant among the rows that count.
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
    """Ranks of rows that count several times, ties at their mean rank.

    Parameters
    ----------
    x : array, shape (rows,)
    weights : array of counts, shape (draws, rows)

    Returns
    -------
    array, shape (draws, rows)
        Rank of each row among the weighted rows of its draw.
    """
    _, level, sizes = np.unique(x, return_inverse=True, return_counts=True)
    starts = np.cumsum(sizes) - sizes
    per_level = np.add.reduceat(weights[:, np.argsort(level, kind="stable")], starts, axis=1)
    before = np.cumsum(per_level, axis=1) - per_level
    ranks: Floats = (before + (per_level + 1) / 2)[:, level]
    return ranks


def weighted_spearman(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Spearman correlation of rows that count several times; arguments as `weighted_pearson`, x and y of one axis."""
    return weighted_pearson(weighted_midranks(x, weights), weighted_midranks(y, weights), weights)


ESTIMATORS: Mapping[str, Callable[[Floats, Floats, Floats], Floats]] = {
    "pearson": weighted_pearson,
    "spearman": weighted_spearman,
}


def permuted_correlations(x: Floats, y: Floats, rows: NDArray[np.intp], estimator: str) -> Floats:
    """Correlation of y with every rearrangement of x.

    Parameters
    ----------
    x, y : array, shape (rows,)
        Not constant.
    rows : array of int, shape (m, rows)
    estimator : {"pearson", "spearman"}
        Ranks do not change when rows move, so Spearman is Pearson on ranks made once.

    Returns
    -------
    array, shape (m,)
    """
    if estimator == "spearman":
        x, y = rankdata(x), rankdata(y)
    r: Floats = _standardised(x)[rows] @ _standardised(y)
    return r


def _standardised(x: Floats) -> Floats:
    """Mean 0 and sum of squares 1."""
    centred = x - x.mean()
    scaled: Floats = centred / np.linalg.norm(centred)
    return scaled
