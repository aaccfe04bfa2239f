"""Ratios, weighted means and weighted slopes, for the bootstrap."""

from __future__ import annotations

import numpy as np

from heatlas.pipeline.statistics.arrays import Floats


def ratio(part: Floats, whole: Floats) -> Floats:
    """Part of a whole, element by element; NaN where the whole is 0."""
    result: Floats = np.divide(part, whole, out=np.full(np.shape(part), np.nan), where=whole > 0)
    return result


def weighted_mean(values: Floats, weights: Floats) -> Floats:
    """Mean of values (n,) in each draw of weights (draws, n); NaN where a value is.

    Examples
    --------
    >>> weighted_mean(np.array([1.0, 4.0]), np.array([[1.0, 1.0], [2.0, 1.0]])).tolist()
    [2.5, 2.0]
    """
    result: Floats = weights @ values / weights.sum(axis=1)
    return result


def weighted_slope(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Least-squares slope of y over x (n,) in each draw of weights (draws, n); NaN without a spread of x.

    Examples
    --------
    >>> weighted_slope(np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0, 5.0]), np.ones((1, 3))).tolist()
    [2.0]
    """
    from_mean = x - weighted_mean(x, weights)[:, None]
    spread = (weights * from_mean**2).sum(axis=1)
    covariance = (weights * from_mean * (y - weighted_mean(y, weights)[:, None])).sum(axis=1)
    result: Floats = np.divide(covariance, spread, out=np.full(len(weights), np.nan), where=spread > 0)
    return result
