"""Hedges' g of two groups, with blocks held: folds, or people who are in both groups."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

Floats = NDArray[np.float64]
NO_SPREAD = 1e-9
"""Standard deviation, relative to the largest value, that is rounding."""


def hedges_g(
    values: Floats,
    is_first: NDArray[np.bool_] | Floats,
    block: NDArray[np.intp] | None = None,
    least_spread: float = 0.0,
) -> Floats:
    """Standardised mean difference of two groups with Hedges' exact correction for small samples, per column.

    The regression coefficient of the group beside the block, over the residual standard deviation. NaN where a column
    does not vary, a value is missing, or fewer than two degrees of freedom are left.

    `values`: (participants, columns). `is_first`: or numbers in standard deviations: then the slope on them takes the
    place of the difference. `block`: maps of one fold are made by one network and are on one scale; a person's two
    copies share their anatomy. `least_spread`: above 0, a column that varies between the groups only, as of a perfect
    map, has a very large g: its standard deviation counts as this share of its largest value. At 0 it is NaN.

    >>> values = np.array([[1.0], [3.0], [6.0], [8.0]])
    >>> g = hedges_g(values, np.array([False, False, True, True]))
    >>> round(float(g[0]), 4)  # 5 / sqrt(2), times the correction for two degrees of freedom, 0.5642
    1.9947
    """
    block = np.zeros(len(values), np.intp) if block is None else block
    centred, side = values.astype(np.float64), is_first.astype(np.float64)
    for level in np.unique(block):
        centred[block == level] -= centred[block == level].mean(axis=0)
        side[block == level] -= side[block == level].mean()
    freedom = len(block) - len(np.unique(block)) - 1
    if freedom < 2 or side @ side < NO_SPREAD:
        return np.full(values.shape[1], np.nan)
    difference = side @ centred / (side @ side)
    spread = np.sqrt(((centred - side[:, None] * difference) ** 2).sum(axis=0) / freedom)
    least = max(least_spread, NO_SPREAD) * np.abs(values).max(axis=0, initial=0)
    varies = spread > least
    if least_spread:
        varies |= np.abs(difference) > least
    correction = np.exp(gammaln(freedom / 2) - gammaln((freedom - 1) / 2)) / np.sqrt(freedom / 2)
    g: Floats = np.full(len(spread), np.nan)
    np.divide(correction * difference, np.maximum(spread, least), out=g, where=varies)
    return g
