"""``evidence_sources.tsv``: whether the evidence of a region is related to its volume or to its intensity.

Evidence in a region is regressed over participants on the log of the region's volume (from the Jacobian determinant of
the registration) and on its mean intensity as the network sees it, all standardised. Class and fold are held: patients
have both more evidence and smaller regions, so that over both classes together evidence would be related to volume
whatever made it. The slopes are descriptive, not tests.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heatlas.pipeline.evaluation.bench.densities import CohortMaps, density_of
from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.evaluation.nulls.networks import REAL
from heatlas.pipeline.regions.effect_size import NO_SPREAD
from heatlas.pipeline.run.columns import Form, described
from heatlas.pipeline.run.declared import Table

Floats = NDArray[np.float64]
FEWEST = 8
"""Scans beyond one for each class and fold, at least."""
SOURCES_TABLE = Table(
    "evidence_sources",
    {
        **described("cohort"),
        "map": "Map relative to controls, named as in file names",
        **described("group"),
        "n_scans": "Scans with all three",
        "n_missing": "Scans left out because they have no volume (or no intensity)",
        "volume_slope": "Standard deviations of evidence per standard deviation of log volume; intensity, class and "
        "fold held",
        "intensity_slope": "Standard deviations of evidence per standard deviation of mean intensity; volume, class "
        "and fold held",
        "r2": "Share of the variance of evidence within classes and folds that both explain",
    },
    "cohort, map and bilateral group", "Is evidence related to volume or to intensity?", stage="evaluation",
    filled=("cohort", "map", "group", "n_scans", "n_missing"), forms={"map": Form.CODE},
)  # fmt: skip


def source_table(cohort: JudgedCohort, rows: CohortMaps, maps: list[str], volumes: pd.DataFrame | None) -> pd.DataFrame:
    """One row per map and group.

    Parameters
    ----------
    maps : list of str
        Relative to controls.
    volumes : pandas.DataFrame or None
        ``group/volumes.tsv``; without it, or for copies, slopes of volume are not known.
    """
    by_scan = {} if volumes is None else {
        key: own.groupby("group")["volume_mm3"].sum() for key, own in volumes.groupby("scan_id")
    }  # fmt: skip
    made: list[list[object]] = []
    scans = [scan for scan in cohort.scans if scan.scan_id in rows.intensity]
    cell = pd.factorize(pd.Series([(cohort.fold_of(scan), scan.label) for scan in scans], dtype=object))[0]
    intensity = np.array([rows.intensity[scan.scan_id] for scan in scans])
    for name in maps:
        evidence = np.array([density_of(rows, REAL, name, scan.scan_id) for scan in scans])
        for place, group in enumerate(rows.groups):
            size = np.array([float(by_scan[s.scan_id].get(group, np.nan)) if s.scan_id in by_scan else np.nan
                             for s in scans])  # fmt: skip
            with np.errstate(divide="ignore", invalid="ignore"):
                volume = None if volumes is None else np.log(size)
            known = np.isfinite(intensity[:, place]) & np.isfinite(evidence[:, place])
            known &= True if volume is None else np.isfinite(volume)
            slopes = standardised_slopes(
                evidence[known, place], None if volume is None else volume[known], intensity[known, place], cell[known]
            )
            made.append([cohort.name, name, group, int(known.sum()), int((~known).sum()), *slopes])
    return SOURCES_TABLE.frame(made)


def standardised_slopes(
    evidence: Floats, volume: Floats | None, intensity: Floats, cell: NDArray[np.intp]
) -> tuple[float, float, float]:
    """Slopes of both and r2 of the regression of evidence within cells; NaN with too few people or without spread.

    Where no volume is known (None), the slope of intensity is that without it.

    Parameters
    ----------
    cell : array of int
        Class and fold of each scan: all three are measured from the mean of theirs, since classes differ in all three,
        and evidence of different folds comes from different networks.

    Examples
    --------
    >>> volume, intensity = np.arange(10.0), np.arange(10.0) ** 2 % 7
    >>> [round(one, 6) + 0.0 for one in standardised_slopes(2 * volume, volume, intensity, np.zeros(10, int))]
    [1.0, 0.0, 1.0]
    """
    nothing = (float("nan"), float("nan"), float("nan"))
    if len(evidence) - len(np.unique(cell)) < FEWEST:
        return nothing
    within = [None if one is None else _within(one, cell) for one in (evidence, volume, intensity)]
    y, x = within[0], [one for one in within[1:] if one is not None]
    if y is None or not x:
        return nothing
    design = np.stack(x, axis=1)
    slopes = np.linalg.lstsq(design, y, rcond=None)[0]
    found = iter(slopes.tolist())
    both = [float("nan") if one is None else next(found) for one in within[1:]]
    r2 = 1 - float(((y - design @ slopes) ** 2).sum() / (y**2).sum())
    return both[0], both[1], max(r2, 0.0)


def _within(values: Floats, cell: NDArray[np.intp]) -> Floats | None:
    """Values from the mean of their cell, in standard deviations; None if they vary in no cell."""
    centred = values.astype(np.float64)
    for one in np.unique(cell):
        centred[cell == one] -= centred[cell == one].mean()
    spread = float(np.sqrt((centred**2).mean()))
    return centred / spread if spread > NO_SPREAD * np.abs(values).max(initial=0) else None
