"""The place of a region among the others is an estimate: between which places it lies.

A region's true place is 1 plus the number of regions whose true value is larger. Its interval follows from intervals of
all differences to the others, simultaneous over them (Mogstad, Romano, Shaikh & Wilhelm 2024, Rev Econ Stud 91:476):
those clearly larger stand before it, those clearly smaller behind it. Percentiles of bootstrapped places are no such
interval: near ties each draw orders noise, and hardly any has a region where it belongs (Xie, Singh & Zhang 2009, J Am
Stat Assoc 104:775; docs/benchmarks/statistics.md).

Differences are compared by their t. Critical values are quantiles of the largest t when the sign of each person's
influence on all regions is drawn at random, which keeps regions correlated and people as unequal as they are. A first
step at a tenth of the error says which differences are beyond doubt; these make the second no wider (Romano, Shaikh &
Wolf 2014, Econometrica 82:1979).
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heatlas.pipeline.statistics.arrays import Flags, Floats, Indices

PLACES = {
    "place_low": "Best place that the region may have with the given confidence among the regions of its map and "
    "metric, the largest {} first; all regions with 1 together hold the true first with that confidence. n/a for {}",
    "place_high": "Worst place that the region may have",
}
"""Columns of the bounds of a place; see `places_by`."""
Singles = NDArray[np.float32]
DRAWS = 1_000
FIRST_STEP = 0.1
"""Share of the error that the first step may make (Romano, Shaikh & Wolf 2014)."""


def places_by(column: str, not_for: str) -> dict[str, str]:
    """`PLACES` of a table whose regions are ranked by a column, and which of its rows have none."""
    return {name: meaning.format(column, not_for) for name, meaning in PLACES.items()}


def influence_on_g(values: Floats, is_first: Flags, fold: Indices) -> Floats:
    """How much each participant contributes to the error of Hedges' g, per region.

    Participants' squares add up to the variance of g, squares of differences to that of the difference of two regions'.
    It is the derivative of g by a participant's weight, by difference and standard deviation, each residual divided by
    the root of 1 - leverage (MacKinnon & White 1985, HC2). The small-sample factor of g is left out.

    Parameters
    ----------
    values : array, shape (participants, regions)
    is_first : array of bool, shape (participants,)
    fold : array of int, shape (participants,)

    Returns
    -------
    array, shape (participants, regions)
    """
    left, side, mates = values.astype(float), is_first.astype(float), np.ones(len(fold))
    for number in np.unique(fold):
        members = fold == number
        left[members] -= left[members].mean(axis=0)
        side[members] -= side[members].mean()
        mates[members] = members.sum()
    about = side @ side
    difference = side @ left / about
    left = left - side[:, None] * difference
    freedom = len(fold) - len(np.unique(fold)) - 1
    spread = np.sqrt((left**2).sum(axis=0) / freedom)
    kept = np.maximum(1 - 1 / mates - side**2 / about, 1 / len(fold))[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):  # where nothing varies there is no g either
        unit = left / spread / np.sqrt(kept)
        result: Floats = (side / about)[:, None] * unit - difference / spread / 2 * (unit**2 - 1) / freedom
    return result


def influence_on_r(values: Floats, other: Floats, nuisance: Floats) -> Floats:
    """How much each participant contributes to the error of a (partial) correlation; see `influence_on_g`.

    It is x y - r (x^2 + y^2) / 2 of residuals of norm 1 (Hampel 1974), over the root of 1 - leverage.

    Parameters
    ----------
    values : array, shape (participants, regions)
    other : array, shape (participants, 1)
        What is correlated with each region.
    nuisance : array, shape (participants, q)
        What is held, intercept first.

    Returns
    -------
    array, shape (participants, regions)
    """
    held = np.linalg.qr(nuisance)[0]
    x, y = (one - held @ (held.T @ one) for one in (other, values))
    with np.errstate(divide="ignore", invalid="ignore"):
        x, y = x / np.linalg.norm(x), y / np.linalg.norm(y, axis=0)
    r, leverage = (x * y).sum(axis=0), (held**2).sum(axis=1, keepdims=True) + x**2
    result: Floats = (x * y - r * (x**2 + y**2) / 2) / np.sqrt(np.maximum(1 - leverage, 1 / len(values)))
    return result


def place_bounds(
    estimates: Floats, influence: Floats, group: Indices, confidence: float, rng: np.random.Generator
) -> tuple[Indices, Indices]:
    """Best and worst place that each region may have; the largest value is first.

    The true place of a region lies within its bounds with the confidence given, and so does the true first among all
    regions whose best place is 1. Regions that are truly equal share the best of their places.

    Parameters
    ----------
    estimates : array, shape (regions,)
    influence : array, shape (participants, regions)
        As of `influence_on_g`; a participant's column of zero means no part in it.
    group : array of int, shape (participants,)
        Whose members vary about a mean of their own, such as a class.
    confidence : float
    rng : numpy.random.Generator

    Returns
    -------
    low, high : array of int, shape (regions,)

    Examples
    --------
    >>> noise = np.random.default_rng(1).normal(size=(40, 3)) / 40
    >>> low, high = place_bounds(np.array([0.1, 2.0, 0.11]), noise, np.arange(40) % 2, 0.95, np.random.default_rng(1))
    >>> low.tolist(), high.tolist()
    ([2, 1, 2], [3, 1, 3])
    """
    n, names = len(estimates), np.unique(group)
    signs = rng.choice(np.array([-1, 1], np.float32), size=(len(influence), DRAWS))
    parts = [influence[group == one].T.astype(np.float32) for one in names]
    drawn = [part @ signs[group == one] for part, one in zip(parts, names, strict=True)]
    low, high = np.ones(n, np.intp), np.full(n, n, np.intp)
    for region in range(n):
        variance, expected = np.zeros(n, np.float32), np.zeros(n, np.float32)
        total, spread = np.zeros((n, DRAWS), np.float32), np.zeros((n, DRAWS), np.float32)
        for part, sums in zip(parts, drawn, strict=True):
            size, squares, of_sums = part.shape[1], ((part - part[region]) ** 2).sum(axis=1), sums - sums[region]
            total += of_sums
            variance += squares
            if size > 1:  # the variance of a draw, about its own mean in the group
                spread -= np.square(of_sums, out=of_sums) / np.float32(size - 1)
                expected += squares * np.float32(size / (size - 1))
        spread += expected[:, None]
        alike = variance <= 0  # the region itself, and copies of it
        variance[alike], spread[alike] = 1, 1
        with np.errstate(divide="ignore", invalid="ignore"):
            t = ((estimates - estimates[region]) / np.sqrt(variance)).astype(np.float32)
            null = np.divide(total, np.sqrt(np.maximum(spread, 0, out=spread), out=spread), out=total)
        may_be_first, above, below = _clear(t, null, 1 - confidence)
        low[region] = 1 if may_be_first else max(2, 1 + above)
        high[region] = n - below
    return low, high


def _clear(t: Singles, null: Singles, error: float) -> tuple[bool, int, int]:
    """Whether no region is clearly larger than one, and how many clearly are, and clearly smaller.

    t (regions,): by how much each is larger; null (regions, draws).
    """
    first_error = FIRST_STEP * error
    level = 1 - error + first_error
    beyond = _quantile(np.maximum(null.max(axis=0), -null.min(axis=0)), 1 - first_error)
    larger = null + np.minimum(0, t + beyond)[:, None]
    best = _quantile(larger.max(axis=0), level)
    larger[t > beyond] = -np.inf  # decided, as are the clearly smaller
    smaller = np.minimum(0, beyond - t)[:, None] - null
    smaller[t < -beyond] = -np.inf
    reach = min(beyond, _quantile(np.maximum(larger.max(axis=0), smaller.max(axis=0)), level))
    return bool(t.max() <= min(best, beyond)), int((t > reach).sum()), int((t < -reach).sum())


def _quantile(values: Singles, level: float) -> np.float32:
    """The value that at most a share 1 - level of the draws exceeds; NaN, as of 0 / 0, is no value."""
    place = min(math.ceil(level * (len(values) + 1)), len(values)) - 1
    quantile: np.float32 = np.partition(np.where(np.isnan(values), np.inf, values), place)[place]
    return quantile


def write_places(
    table: pd.DataFrame, by: str, influence: Floats, group: Indices, confidence: float, rng: np.random.Generator
) -> None:
    """Fill in the columns of `PLACES`: of each map and metric apart, by a column of the table.

    `influence` (participants, rows) and `group` are those of `place_bounds`.
    """
    for column in PLACES:
        table[column] = pd.array([pd.NA] * len(table), "Int64")
    apart = [name for name in ("map", "metric") if name in table]
    for _, rows in table[table[by].notna()].groupby(apart, sort=False):
        of_map = rows.index.to_numpy()
        bounds = place_bounds(rows[by].to_numpy(float), influence[:, of_map], group, confidence, rng)
        for column, found in zip(PLACES, bounds, strict=True):
            table.loc[of_map, column] = found
