"""``evidence_sources.tsv``: whether the evidence of a region goes with its volume or with its intensity.

Evidence in a region is regressed over participants on the log of the region's volume (from the Jacobian determinant of
the registration) and on its mean intensity as the network sees it, all standardised: where the network looks, and what
it finds there. The two describe; they do not test.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline.evaluation.bench.cohorts import Judged
from pipeline.evaluation.bench.table import Rows, density_of
from pipeline.evaluation.nulls.networks import REAL
from pipeline.run.columns import Form
from pipeline.run.declared import Table

Floats = NDArray[np.float64]
FEWEST = 8
COLUMNS = {
    "cohort": "run or planted, as in evaluation.tsv",
    "map": "Map relative to controls, named as in file names",
    "group": "Bilateral group",
    "n_scans": "Scans with all three",
    "volume_slope": "Standard deviations of evidence per standard deviation of log volume, intensity held",
    "intensity_slope": "Standard deviations of evidence per standard deviation of mean intensity, volume held",
    "r2": "Share of the variance of evidence that both explain",
}
"""Columns of ``evidence_sources.tsv``."""
SOURCES_TABLE = Table(
    "evidence_sources", COLUMNS, "cohort, map and bilateral group", "Why is there evidence: volume or intensity?",
    stage="evaluation", place="evidence_sources", filled=("cohort", "map", "group", "n_scans"), on_pages=False,
    forms={"cohort": Form.CODE, "map": Form.MAP, "group": Form.TEXT},
)  # fmt: skip


def source_table(cohort: Judged, rows: Rows, maps: list[str], volumes: pd.DataFrame | None) -> pd.DataFrame:
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
    for name in maps:
        scans = [scan.scan_id for scan in cohort.scans if scan.scan_id in rows.intensity]
        evidence = np.array([density_of(rows, REAL, name, scan) for scan in scans])
        intensity = np.array([rows.intensity[scan] for scan in scans])
        for place, group in enumerate(rows.groups):
            volume = np.array(
                [float(by_scan[scan].get(group, np.nan)) if scan in by_scan else np.nan for scan in scans]
            )
            with np.errstate(divide="ignore", invalid="ignore"):
                slopes = standardised_slopes(evidence[:, place], np.log(volume), intensity[:, place])
            made.append([cohort.name, name, group, len(scans), *slopes])
    return pd.DataFrame(made, columns=list(COLUMNS))


def standardised_slopes(evidence: Floats, volume: Floats, intensity: Floats) -> tuple[float, float, float]:
    """Slopes of both and r2 of the regression of evidence; NaN with too few people or without spread.

    Where no volume is known, the slope of intensity is that without it.

    Examples
    --------
    >>> volume, intensity = np.arange(10.0), np.arange(10.0) ** 2 % 7
    >>> [round(one, 6) + 0.0 for one in standardised_slopes(2 * volume, volume, intensity)]
    [1.0, 0.0, 1.0]
    """
    nothing = (float("nan"), float("nan"), float("nan"))
    known = [one for one in (volume, intensity) if np.isfinite(one).all() and np.ptp(one) > 0]
    if len(evidence) < FEWEST or not known or not np.isfinite(evidence).all() or np.ptp(evidence) == 0:
        return nothing
    y, *x = ((one - one.mean()) / one.std() for one in (evidence, *known))
    design = np.stack(x, axis=1)
    slopes = np.linalg.lstsq(design, y, rcond=None)[0]
    found = iter(slopes.tolist())
    both = [next(found) if any(one is other for other in known) else float("nan") for one in (volume, intensity)]
    r2 = 1 - float(((y - design @ slopes) ** 2).sum() / (y**2).sum())
    return both[0], both[1], max(r2, 0.0)
