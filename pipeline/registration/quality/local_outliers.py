"""Regions in which a scan fits the template worse than the other scans of its cohort."""

from __future__ import annotations

import numpy as np
import pandas as pd
import scipy.stats

from heatlas.pipeline.registration.quality.flags import MIN_COHORT, OUTLYING, ROBUST_SD

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
    The overall deviation of a scan, from noise or contrast, is subtracted; `pipeline.registration.quality.flags` checks
    it. All are NaN below `MIN_COHORT` scans.
    """
    distances = np.full(correlations.shape, np.nan)
    known = np.isfinite(correlations).all(axis=0)
    if len(correlations) < MIN_COHORT or not known.any():
        return distances
    values = np.arctanh(np.clip(correlations[:, known], -0.999, 0.999))
    away = values - np.median(values, axis=0)
    spread = ROBUST_SD * np.median(np.abs(away), axis=0)
    spread = np.maximum(spread, max(float(np.median(spread)), 1e-3))
    away /= spread
    distances[:, known] = away - np.median(away, axis=1, keepdims=True)
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
    for where, column, ascending, words in (
        (gross, "correlation", True,
         f"correlation with the template below {LOWEST_CORRELATION:g} in more than {GROSS_SHARE:.0%} of the regions"),
        (far, "distance", True,
         "correlation with the template far below the others in a region"),
        (table["inverse_error_max_mm"] > LARGEST_INVERSE_ERROR_MM, "inverse_error_max_mm", False,
         f"warp and inverse warp more than {LARGEST_INVERSE_ERROR_MM:g} mm apart in a region"),
    ):  # fmt: skip
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
