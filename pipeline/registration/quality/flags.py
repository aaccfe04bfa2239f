"""Which registrations are in doubt, and why: absolute limits, and outliers of the cohort.

*Outliers* need a cohort: a number more than 3.5 robust standard deviations (1.4826 x median absolute deviation) from
the median, on the bad side (Iglewicz & Hoaglin 1993). *Limits* hold for every scan. They are exceeded only by images
that are not an adult head (fruit, a mis-scaled head) or by grossly failed registrations, whatever the preparation of
the images: after an affine map of rough brains, good scans correlate by 0.3. Below `MIN_COHORT` scans,
limits are all there is.

A flag is a reason to look, not a verdict; `RegistrationConfig.flagged` says what happens to flagged scans.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

MIN_COHORT = 10
"""With fewer scans the spread is unreliable, and only the limits apply."""
OUTLYING = 3.5
ROBUST_SD = 1.4826
"""Median absolute deviation to standard deviation, for normal values."""
ADULT_YEARS = 18.0
MAX_ANISOTROPY = 1.3
"""Largest ratio of the affine's factors along two axes; a larger one suggests a wrong voxel size in the header."""


@dataclass(frozen=True)
class QualityMeasure:
    """One number of a registration and what counts as bad."""

    column: str  # in the table of quality numbers
    words: str  # its name in messages
    bad: Literal["low", "high", "both"]  # the side on which values are bad
    # Lower bound of the robust standard deviation, so that trifles in a uniform cohort are not flagged
    smallest_spread: float
    low: float = -math.inf  # limits for every scan, whatever its cohort
    high: float = math.inf
    # Limit for scans that were warped and have too few others to be compared with; an affine map leaves atrophy, which
    # looks like a lesion
    high_alone: float = math.inf
    ratio: bool = False  # compared by the logarithm of 1 + value: amounts of 0 to many


MEASURES = (
    QualityMeasure("correlation", "correlation with the template", "low", 0.025, low=0.25),
    QualityMeasure("normalised_mutual_information", "mutual information with the template", "low", 0.003),
    QualityMeasure("dice", "Dice of the brain masks", "low", 0.005, low=0.75),
    QualityMeasure("min_jacobian", "smallest Jacobian determinant", "low", 0.05),
    QualityMeasure("nonpositive_jacobian_share", "folded share of the warp", "high", 0.001, high=0.0),
    QualityMeasure("affine_residual_mm", "displacement left to the warp (mm)", "high", 0.3, high=12.0),
    QualityMeasure("scale", "size of the head against the template", "both", 0.02, low=0.75, high=1.2),
    QualityMeasure("brain_mm3", "brain volume (mm3)", "both", 3e4, low=8e5, high=2.3e6),
    QualityMeasure("dark_ml", "part dark as a lesion (ml)", "high", 0.7, high_alone=10.0, ratio=True),
    QualityMeasure("outside_share", "share of the brain mask outside the template's brain", "high", 0.02),
    QualityMeasure("t1w_mutual_information", "mutual information with the T1w image of the session", "low", 0.003),
)


def flag_reasons(quality: pd.DataFrame, ages: Sequence[float | None] | None = None) -> list[tuple[str, ...]]:
    """Why each scan is in doubt.

    `quality`: one row per scan with the columns of `MEASURES` and ``scale_x``, ``scale_y``, ``scale_z``; missing
    numbers, as of scans that came registered, are skipped. `ages`: in years, by row. A scan has none if nothing is
    wrong.
    """
    reasons: list[list[str]] = [[] for _ in range(len(quality))]
    moved = quality.get("affine_residual_mm", pd.Series(np.nan, quality.index))
    warped = moved.astype(float).to_numpy() > 0
    for measure in MEASURES:
        if measure.column not in quality:
            continue
        values = quality[measure.column].astype(float).to_numpy()
        for row, reason in _reasons_of(measure, values, warped).items():
            reasons[row].append(reason)
    for row, reason in _stretched(quality).items():
        reasons[row].append(reason)
    for row, age in enumerate(ages or ()):
        if age is not None and age < ADULT_YEARS:
            reasons[row].append(f"aged {age:g}: the template is the brain of adults")
    return [tuple(found) for found in reasons]


def robust_distance(values: np.ndarray, smallest_spread: float) -> np.ndarray:
    """Distances from the median in robust standard deviations, which are at least `smallest_spread`.

    >>> robust_distance(np.array([1.0, 2.0, 3.0, 4.0, 100.0]), 0.0).round(2).tolist()
    [-1.35, -0.67, 0.0, 0.67, 65.43]
    """
    centre = np.median(values)
    spread = max(ROBUST_SD * float(np.median(np.abs(values - centre))), smallest_spread)
    return np.asarray((values - centre) / spread)


def _reasons_of(measure: QualityMeasure, values: np.ndarray, warped: np.ndarray) -> dict[int, str]:
    """Reasons by row, one per number; limits take precedence over outliers."""
    known = np.flatnonzero(np.isfinite(values))
    found: dict[int, str] = {}
    if len(known) >= MIN_COHORT:
        median = np.median(values[known])
        compared = np.log1p(values[known]) if measure.ratio else values[known]
        distances = robust_distance(compared, measure.smallest_spread)
        for row, distance in zip(known, distances, strict=True):
            beyond = {"low": -distance, "high": distance, "both": abs(distance)}[measure.bad]
            if beyond > OUTLYING:
                side = "below" if distance < 0 else "above"
                found[int(row)] = (
                    f"{measure.words} {_short(values[row])} is far {side} the others (median {_short(median)} of "
                    f"{len(known)} scans)"
                )
    alone = len(known) < MIN_COHORT
    for row in known:
        high = min(measure.high, measure.high_alone) if alone and warped[row] else measure.high
        if values[row] < measure.low:
            found[int(row)] = f"{measure.words} {_short(values[row])} is below {_short(measure.low)}"
        elif values[row] > high:
            found[int(row)] = f"{measure.words} {_short(values[row])} is above {_short(high)}"
    return found


def _stretched(quality: pd.DataFrame) -> dict[int, str]:
    axes = [name for name in ("scale_x", "scale_y", "scale_z") if name in quality]
    if not axes or not len(quality):
        return {}
    factors = quality[axes].astype(float).to_numpy()
    ratio = factors.max(axis=1) / factors.min(axis=1)
    return {
        int(row): f"stretched {ratio[row]:.2f} times more along one axis than along another; a voxel size may be wrong"
        for row in np.flatnonzero(ratio > MAX_ANISOTROPY)
    }


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
