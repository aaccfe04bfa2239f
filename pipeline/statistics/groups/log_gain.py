"""Log-gain: the logarithm of the ratio of two mean relevances, with a floor, and shrunken over regions.

A ratio to a mean near zero explodes (the founding study's gain), its logarithm is not defined for the negative means
that beta > 0 can give, and the largest of 400 noisy ratios is mostly noise. So: both means count as at least a stated
floor, which bounds the ratio and leaves all others as they are; and the log-ratio of each region is drawn towards the
mean of its map as far as its error is large against the spread between regions (empirical Bayes with a normal prior;
Efron & Morris 1975, DerSimonian & Laird 1986).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from pipeline.statistics.arrays import Floats

MIN_REGIONS = 3


def gain_floor(reference: Floats, share: float) -> float:
    """Smallest mean that counts as itself: a share of the mean absolute relevance of the map's regions.

    Parameters
    ----------
    reference : array, shape (regions,)
        Means of the reference group; NaN for regions without a voxel.
    share : float

    Examples
    --------
    >>> gain_floor(np.array([1.0, -3.0, np.nan]), 0.05)
    0.1
    """
    known = np.abs(reference[~np.isnan(reference)])
    return share * float(known.mean()) if len(known) else np.nan


def log_gain(first: Floats, second: Floats, floor: Floats) -> Floats:
    """log(first / second), means below the floor counted as the floor; NaN where both are below it.

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
    """Estimates drawn towards their common mean.

    Parameters
    ----------
    estimate, low, high : array, shape (regions,)
        Posterior mean and interval, the variance between regions taken as known.
    centre : float
        Common mean.
    variance : float
        Variance between regions; 0 where their differences are no larger than their errors.
    """

    estimate: Floats
    low: Floats
    high: Floats
    centre: float
    variance: float


def shrink(log_gains: Floats, draws: Floats, confidence: float) -> Shrunken:
    """Shrink the log-gains of a map's regions towards their common mean.

    What all regions of a map share (more relevance in all of it) is in the mean, and its error is in every interval;
    what is drawn in is each region's deviation from it, by the error of the deviation.

    Parameters
    ----------
    log_gains : array, shape (regions,)
        NaN for a region without one.
    draws : array, shape (draws, regions)
        The same in bootstrap draws of participants.
    confidence : float

    Notes
    -----
    Deviations of different regions are taken as independent. The variance between regions is taken as known.
    """
    shrunk, low, high = (np.full(len(log_gains), np.nan) for _ in range(3))
    own = np.isfinite(log_gains) & np.isfinite(draws).all(axis=0)
    if own.sum() < MIN_REGIONS:
        return Shrunken(shrunk, low, high, np.nan, np.nan)
    centre = float(log_gains[own].mean())
    centres = draws[:, own].mean(axis=1)
    errors = (draws[:, own] - centres[:, None]).var(axis=0, ddof=1)
    deviations = log_gains[own] - centre
    between = between_variance(deviations, errors)
    keep = between / np.maximum(between + errors, np.finfo(float).tiny)
    half = ndtri((1 + confidence) / 2) * np.sqrt(keep * errors + centres.var(ddof=1))
    shrunk[own] = centre + keep * deviations
    low[own], high[own] = shrunk[own] - half, shrunk[own] + half
    return Shrunken(shrunk, low, high, centre, between)


def between_variance(estimates: Floats, variances: Floats) -> float:
    """Variance between regions by moments (DerSimonian & Laird 1986): Q minus its expectation, not below 0."""
    weights = 1 / np.maximum(variances, np.finfo(float).eps * variances.max(initial=1.0))
    centre = (weights * estimates).sum() / weights.sum()
    q = (weights * (estimates - centre) ** 2).sum()
    scale = weights.sum() - (weights**2).sum() / weights.sum()
    return max(0.0, float((q - (len(estimates) - 1)) / scale))
