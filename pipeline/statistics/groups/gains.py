"""Gain of one group of scans over another in every region: ratio, log-gain, and log-gain shrunken over regions.

A ratio with a denominator near zero is unstable (the founding study's gain), its logarithm is undefined for the
negative means that beta > 0 can give, and the largest of 400 noisy ratios is mostly noise. Therefore means below a
floor are set to it, and the log-gain of each region is shrunk towards the mean of its map, the more the larger its
error relative to the variance between regions (empirical Bayes with a normal prior; Efron & Morris 1975, DerSimonian &
Laird 1986).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import t as t_distribution

from heatlas.pipeline.run.config.statistics import StatisticsConfig
from heatlas.pipeline.statistics.arrays import Floats
from heatlas.pipeline.statistics.data.members import drawn_means
from heatlas.pipeline.statistics.data.notes import joined
from heatlas.pipeline.statistics.resampling.bootstrap import participant_draws

MIN_REGIONS = 3


def gain_floor(reference: Floats, share: float) -> float:
    """Floor of the means: a share of the mean absolute relevance over regions (NaN: no voxel).

    Examples
    --------
    >>> gain_floor(np.array([1.0, -3.0, np.nan]), 0.05)
    0.1
    """
    known = np.abs(reference[~np.isnan(reference)])
    return share * float(known.mean()) if len(known) else np.nan


def log_gain(first: Floats, second: Floats, floor: Floats) -> Floats:
    """log(first / second), with means below the floor set to it; NaN if both are below.

    Examples
    --------
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

    Only the deviation of each region from the mean is shrunk; every interval includes the error of the mean. Deviations
    are treated as independent and the variance between regions as known.
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
    of_first: NDArray[np.bool_],
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
    said = _gain_notes(table, second)
    notes = [joined(note, why) for note, why in zip(table["note"], said, strict=True)]
    table["note"] = np.array(notes, dtype=object)
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


def log_ratio_error(means: Floats, of_first: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Standard error of the log of the ratio of two means (delta method), and its Welch-Satterthwaite df; (columns,).

    A t interval on this scale misses in 5 to 6 of 100 with 12 and 48 participants where values are normal or moderately
    skewed (9 where they are lognormal with sigma 1); a percentile interval in 8 to 12 (docs/benchmarks/statistics.md).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = [means[side].var(axis=0, ddof=1) / side.sum() / means[side].mean(axis=0) ** 2
                 for side in (of_first, ~of_first)]  # fmt: skip
        freedom = [side.sum() - 1 for side in (of_first, ~of_first)]
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
