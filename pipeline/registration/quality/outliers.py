"""What is wrong with a registration, as a whole and by region: absolute limits, and outliers of the cohort.

*Outliers* need a cohort: a number more than 3.5 robust standard deviations (1.4826 x median absolute deviation) from
the median, on the bad side (Iglewicz & Hoaglin 1993). *Limits* hold for every scan. They are exceeded only by images
that are not an adult head (fruit, a mis-scaled head) or by grossly failed registrations, whatever the preparation of
the images: after an affine map of rough brains, good scans correlate by 0.3. Below `MIN_COHORT` scans, limits are all
there is.

A flag is a reason to look, not a verdict; `RegistrationConfig.flagged` says what happens to flagged scans.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
import scipy.stats

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
    return [tuple(of_scan) for of_scan in reasons]


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
    measured = np.flatnonzero(np.isfinite(values))
    reasons: dict[int, str] = {}
    if len(measured) >= MIN_COHORT:
        median = np.median(values[measured])
        compared = np.log1p(values[measured]) if measure.ratio else values[measured]
        distances = robust_distance(compared, measure.smallest_spread)
        for row, distance in zip(measured, distances, strict=True):
            beyond = {"low": -distance, "high": distance, "both": abs(distance)}[measure.bad]
            if beyond > OUTLYING:
                side = "below" if distance < 0 else "above"
                reasons[int(row)] = (
                    f"{measure.words} {_short(values[row])} is far {side} the others (median {_short(median)} of "
                    f"{len(measured)} scans)"
                )
    alone = len(measured) < MIN_COHORT
    for row in measured:
        high = min(measure.high, measure.high_alone) if alone and warped[row] else measure.high
        if values[row] < measure.low:
            reasons[int(row)] = f"{measure.words} {_short(values[row])} is below {_short(measure.low)}"
        elif values[row] > high:
            reasons[int(row)] = f"{measure.words} {_short(values[row])} is above {_short(high)}"
    return reasons


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


LOWEST_CORRELATION = 0.1
"""In and around a region; ten OASIS brains warped at 2 mm have at least 0.34 in each of 134 regions."""
GROSS_SHARE = 0.15
"""Share of the regions below it in a grossly misplaced scan. After an affine map at 4 mm, good scans of patients have
up to 0.09, misplaced ones 0.25 and more (docs/registration.md)."""
WELL_PLACED = 0.85
"""A region with a higher correlation is well placed, however similar the other scans are: in a cohort of
synthetic brains, 0.92 is far below the others."""
LARGEST_INVERSE_ERROR_MM = 2.0
"""The same brains have at most 0.63."""
FAR_SHARE = 0.03
"""Without a warp, the share of regions far below the others that is more than a person's anatomy."""
NAMED = 3
"""Regions that a row of ``registration.tsv`` names."""


def region_distances(correlations: np.ndarray) -> np.ndarray:
    """How far each region of each scan lies from the cohort, in robust standard deviations; < 0 is worse.

    Fisher's transform evens out the spread of `correlations`, (scans, regions), NaN where a region has no voxel. The
    robust standard deviation of a region is at least the median over regions, since some of 134 are small by chance.
    The overall deviation of a scan, from noise or contrast, is subtracted; `flag_reasons` checks
    it. All are NaN below `MIN_COHORT` scans.
    """
    distances = np.full(correlations.shape, np.nan)
    measured = np.isfinite(correlations).all(axis=0)
    if len(correlations) < MIN_COHORT or not measured.any():
        return distances
    values = np.arctanh(np.clip(correlations[:, measured], -0.999, 0.999))
    away = values - np.median(values, axis=0)
    spread = ROBUST_SD * np.median(np.abs(away), axis=0)
    spread = np.maximum(spread, max(float(np.median(spread)), 1e-3))
    away /= spread
    distances[:, measured] = away - np.median(away, axis=1, keepdims=True)
    return distances


def outlying_distance(regions: int) -> float:
    """Threshold for this many regions with the same false-positive rate as `OUTLYING` for a single number.

    >>> [round(outlying_distance(n), 2) for n in (1, 134)]
    [3.5, 4.64]
    """
    return float(scipy.stats.norm.isf(scipy.stats.norm.sf(OUTLYING) / regions))


def region_reasons(table: pd.DataFrame) -> dict[str, list[str]]:
    """Why scans are in doubt by their regions (``region_quality.tsv``), by ``scan_id``; only scans in doubt."""
    limit = outlying_distance(max(table["region"].nunique(), 1))
    reasons: dict[str, list[str]] = {}
    low = table["correlation"] < LOWEST_CORRELATION
    gross = low & (low.groupby(table["scan_id"]).transform("mean") > GROSS_SHARE)
    far = (table["distance"] < -limit) & (table["correlation"] < WELL_PLACED)
    far &= table["inverse_error_max_mm"].notna() | (far.groupby(table["scan_id"]).transform("mean") > FAR_SHARE)
    apart = table["inverse_error_max_mm"] > LARGEST_INVERSE_ERROR_MM
    far_mm = f"{LARGEST_INVERSE_ERROR_MM:g} mm"
    below = f"below {LOWEST_CORRELATION:g} in more than {GROSS_SHARE:.0%} of the regions"
    for where, column, ascending, words in (
        (gross, "correlation", True, f"correlation with the template {below}"),
        (far, "distance", True, "correlation with the template far below the others in a region"),
        (apart, "inverse_error_max_mm", False, f"warp and inverse warp more than {far_mm} apart in a region"),
    ):
        shown = "correlation" if column == "distance" else column
        ordered = table[where].sort_values([column, "region"], ascending=[ascending, True])
        for scan_id, rows in ordered.groupby("scan_id"):
            reasons.setdefault(str(scan_id), []).append(f"{words}: {_named(rows, shown)}")
    return reasons


def worst_regions(table: pd.DataFrame) -> dict[str, str]:
    """The regions in which each scan fits the template worst, with their correlations, by ``scan_id``.

    Regions of ``region_quality.tsv`` are ranked by ``distance`` or, in a small cohort, by ``correlation``.
    """
    column = "distance" if table["distance"].notna().any() else "correlation"
    ordered = table[table[column].notna()].sort_values(["scan_id", column, "region"])
    return {
        str(scan_id): _named(rows, "correlation")
        for scan_id, rows in ordered.groupby("scan_id").head(NAMED).groupby("scan_id")
    }


def _named(rows: pd.DataFrame, column: str) -> str:
    shown = [f"{name} ({value:.2f})" for name, value in zip(rows["name"], rows[column], strict=True)]
    more = len(shown) - NAMED
    return ", ".join(shown[:NAMED]) + (f" and {more} more" if more > 0 else "")
