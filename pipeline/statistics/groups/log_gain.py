"""Log-gain: the logarithm of the ratio of two mean relevances, with a floor, shrunken over regions.

A ratio with a denominator near zero is unstable (the founding study's gain), its logarithm is undefined for the
negative means that beta > 0 can give, and the largest of 400 noisy ratios is mostly noise. Therefore means below a
floor are set to it, and the log-gain of each region is shrunk towards the mean of its map, the more the larger its
error relative to the variance between regions (empirical Bayes with a normal prior; Efron & Morris 1975, DerSimonian &
Laird 1986).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from heatlas.pipeline.statistics.arrays import Floats

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
