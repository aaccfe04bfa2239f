"""Two estimates of a region: its gain between groups of scans, and its place among the others.

*Gain* is a ratio, its logarithm, and the log-gain shrunken over regions. A ratio with a denominator near zero is
unstable (the founding study's gain), and the largest of 400 noisy ratios is mostly noise. So means below a floor are
set to it, and each log-gain is shrunk towards the mean of its map, the more the larger its error (empirical Bayes with
a normal prior; Efron & Morris 1975, DerSimonian & Laird 1986).

*Place*: 1 plus the number of regions whose true value is larger. Its interval follows from simultaneous intervals of
all differences to the others (Mogstad, Romano, Shaikh & Wilhelm 2024, Rev Econ Stud 91:476): those clearly larger stand
before it, those clearly smaller behind it. Percentiles of bootstrapped places are no such interval: near ties each draw
orders noise (Xie, Singh & Zhang 2009, J Am Stat Assoc 104:775). Differences are compared by their t; critical values
are quantiles of the largest t when the sign of each person's influence on all regions is drawn at random. A first step
at a tenth of the error says which differences are beyond doubt; these make the second no wider (Romano, Shaikh & Wolf
2014, Econometrica 82:1979).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import t as t_distribution

from heatlas.pipeline.run.config.statistics import StatisticsConfig
from heatlas.pipeline.statistics.arrays import Flags, Floats, Indices
from heatlas.pipeline.statistics.data.members import drawn_means
from heatlas.pipeline.statistics.data.values import joined
from heatlas.pipeline.statistics.resampling.bootstrap import participant_draws

MIN_REGIONS = 3


def gain_floor(reference: Floats, share: float) -> float:
    """Floor of the means: a share of the mean absolute relevance over regions (NaN: no voxel).

    >>> gain_floor(np.array([1.0, -3.0, np.nan]), 0.05)
    0.1
    """
    sizes = np.abs(reference[~np.isnan(reference)])
    return share * float(sizes.mean()) if len(sizes) else np.nan


def log_gain(first: Floats, second: Floats, floor: Floats) -> Floats:
    """log(first / second), with means below the floor set to it; NaN if both are below.

    >>> log_gain(np.array([np.e, 1.0, -1.0]), np.array([1.0, 0.0, 0.0]), np.array(0.5)).round(3).tolist()
    [1.0, 0.693, nan]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(np.maximum(first, floor) / np.maximum(second, floor))
    return np.where((first < floor) & (second < floor), np.nan, ratio)


@dataclass(frozen=True, eq=False)
class Shrunken:
    """Estimates (regions,) shrunk towards their common mean `centre`, with posterior intervals.

    `variance` is the variance between regions; 0 if they differ no more than their errors.
    """

    estimate: Floats
    low: Floats
    high: Floats
    centre: float
    variance: float


def shrink(log_gains: Floats, draws: Floats, confidence: float) -> Shrunken:
    """Shrink log-gains (regions,) towards their mean; errors come from bootstrap draws (draws, regions).

    Only the deviation from the mean is shrunk; every interval includes the error of the mean. Deviations are treated as
    independent and the variance between regions as known.
    """
    shrunk, low, high = (np.full(len(log_gains), np.nan) for _ in range(3))
    complete = np.isfinite(log_gains) & np.isfinite(draws).all(axis=0)
    if complete.sum() < MIN_REGIONS:
        return Shrunken(shrunk, low, high, np.nan, np.nan)
    centre = float(log_gains[complete].mean())
    centres = draws[:, complete].mean(axis=1)
    errors = (draws[:, complete] - centres[:, None]).var(axis=0, ddof=1)
    deviations = log_gains[complete] - centre
    between = between_variance(deviations, errors)
    keep = between / np.maximum(between + errors, np.finfo(float).tiny)
    half = ndtri((1 + confidence) / 2) * np.sqrt(keep * errors + centres.var(ddof=1))
    shrunk[complete] = centre + keep * deviations
    low[complete], high[complete] = shrunk[complete] - half, shrunk[complete] + half
    return Shrunken(shrunk, low, high, centre, between)


def between_variance(estimates: Floats, variances: Floats) -> float:
    """Method-of-moments variance between regions (DerSimonian & Laird 1986), at least 0."""
    weights = 1 / np.maximum(variances, np.finfo(float).eps * variances.max(initial=1.0))
    centre = (weights * estimates).sum() / weights.sum()
    q = (weights * (estimates - centre) ** 2).sum()
    scale = weights.sum() - (weights**2).sum() / weights.sum()
    return max(0.0, float((q - (len(estimates) - 1)) / scale))


ERROR_DRAWS = 200
"""Bootstrap draws; enough for standard errors (Efron & Tibshirani 1993, section 6.4)."""


def with_gains(
    table: pd.DataFrame,
    means: Floats,
    of_first: Flags,
    second: str,
    settings: StatisticsConfig,
    rng: np.random.Generator,
) -> pd.DataFrame:
    """Add the ratio, the log-gain with its interval, and the shrunken log-gain of every map.

    The table has a row per column of means (participants, columns); `second` names the group in the denominator.
    """
    keys = table["metric"] + "\t" + table["map"]
    floors = keys.map(
        {
            key: gain_floor(rows["mean_second"].to_numpy(float), settings.group_comparisons.gain_floor)
            for key, rows in table.groupby(keys, sort=False)
        }
    ).to_numpy(float)
    table = table.assign(
        floor=floors,
        log_gain=log_gain(table["mean_first"].to_numpy(float), table["mean_second"].to_numpy(float), floors),
        ratio=table["mean_first"] / table["mean_second"].where(table["mean_second"] > 0),
    )
    notes = zip(table["note"], _gain_notes(table, second), strict=True)
    table["note"] = np.array([joined(*both) for both in notes], dtype=object)
    complete = np.flatnonzero(np.isfinite(means).all(axis=0))

    def gains(weights: Floats) -> Floats:
        return log_gain(*drawn_means(means[:, complete], of_first, weights), floors[complete])

    error, df = log_ratio_error(means, of_first)
    reach = t_distribution.isf((1 - settings.confidence) / 2, df) * error
    sure = (table[["mean_first", "mean_second"]].min(axis=1) >= table["floor"]).to_numpy(bool)
    table["log_gain_low"] = np.where(sure, table["log_gain"] - reach, np.nan)
    table["log_gain_high"] = np.where(sure, table["log_gain"] + reach, np.nan)
    strata = of_first.astype(int).tolist()
    draws = np.full((ERROR_DRAWS, len(table)), np.nan)
    draws[:, complete] = gains(participant_draws(strata, ERROR_DRAWS, rng))
    for _, rows in table.groupby(keys, sort=False).groups.items():
        result = shrink(table.loc[rows, "log_gain"].to_numpy(float), draws[:, rows], settings.confidence)
        for column, shrunk in (("", result.estimate), ("_low", result.low), ("_high", result.high)):
            table.loc[rows, f"log_gain_shrunk{column}"] = shrunk
    return table


def log_ratio_error(means: Floats, of_first: Flags) -> tuple[Floats, Floats]:
    """Standard error of the log of the ratio of two means (delta method), and its Welch-Satterthwaite df; (columns,).

    A t interval on this scale misses in 5 to 6 of 100 with 12 and 48 participants where values are normal or moderately
    skewed (9 where they are lognormal with sigma 1); a percentile interval in 8 to 12 (docs/benchmarks/statistics.md).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        sides = (of_first, ~of_first)
        parts = [means[side].var(axis=0, ddof=1) / side.sum() / means[side].mean(axis=0) ** 2 for side in sides]
        freedom = [side.sum() - 1 for side in sides]
        total = parts[0] + parts[1]
        df: Floats = total**2 / (parts[0] ** 2 / freedom[0] + parts[1] ** 2 / freedom[1])
    error: Floats = np.sqrt(total)
    return error, df


def _gain_notes(table: pd.DataFrame, second: str) -> list[str | None]:
    """Notes on gains that are infinite, undefined or limited by the floor."""
    notes: list[str | None] = []
    for first_mean, second_mean, floor in table[["mean_first", "mean_second", "floor"]].to_numpy(float):
        first_low, second_low = first_mean < floor, second_mean < floor
        if first_low and second_low:
            notes.append("no gain: both means are below the floor")
        elif second_low and second_mean == 0:
            notes.append(f"infinite ratio: the mean of {second} is 0; log_gain uses the floor instead")
        elif second_low:
            notes.append(f"the mean of {second} is below the floor; log_gain uses the floor instead")
        else:
            notes.append("the first mean is below the floor; log_gain uses the floor instead" if first_low else None)
    return notes


PLACES = ("place_low", "place_high")
Singles = NDArray[np.float32]
DRAWS = 1_000
FIRST_STEP = 0.1
"""Share of the error that the first step may make (Romano, Shaikh & Wolf 2014)."""


def influence_on_g(values: Floats, is_first: Flags, fold: Indices) -> Floats:
    """How much each participant contributes to the error of Hedges' g, per region (participants, regions).

    Participants' squares add up to the variance of g, squares of differences to that of the difference of two regions'.
    It is the derivative of g by a participant's weight, by difference and standard deviation, each residual divided by
    the root of 1 - leverage (MacKinnon & White 1985, HC2). The small-sample factor of g is left out.
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
    """How much each participant contributes to the error of a (partial) correlation with other (participants, 1).

    It is x y - r (x^2 + y^2) / 2 of residuals of norm 1 (Hampel 1974), over the root of 1 - leverage; see
    `influence_on_g`. nuisance (participants, q) is held, intercept first.
    """
    held = np.linalg.qr(nuisance)[0]
    x, y = (side - held @ (held.T @ side) for side in (other, values))
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
    regions whose best place is 1. Regions that are truly equal share the best of their places. influence (participants,
    regions) is that of `influence_on_g`; members of a `group`, such as a class, vary about a mean of their own.

    >>> noise = np.random.default_rng(1).normal(size=(40, 3)) / 40
    >>> low, high = place_bounds(np.array([0.1, 2.0, 0.11]), noise, np.arange(40) % 2, 0.95, np.random.default_rng(1))
    >>> low.tolist(), high.tolist()
    ([2, 1, 2], [3, 1, 3])
    """
    n, names = len(estimates), np.unique(group)
    signs = rng.choice(np.array([-1, 1], np.float32), size=(len(influence), DRAWS))
    parts = [influence[group == name].T.astype(np.float32) for name in names]
    drawn = [part @ signs[group == name] for part, name in zip(parts, names, strict=True)]
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
    """Fill in the columns of `PLACES` by a column of the table, of each map and metric apart; see `place_bounds`."""
    for column in PLACES:
        table[column] = pd.array([pd.NA] * len(table), "Int64")
    apart = [name for name in ("map", "metric") if name in table]
    for _, rows in table[table[by].notna()].groupby(apart, sort=False):
        of_map = rows.index.to_numpy()
        bounds = place_bounds(rows[by].to_numpy(float), influence[:, of_map], group, confidence, rng)
        for column, places in zip(PLACES, bounds, strict=True):
            table.loc[of_map, column] = places
