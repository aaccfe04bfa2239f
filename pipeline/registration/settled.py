"""The scan table after registration: doubtful scans dropped where so decided, own volumes where they are wanted."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pandas as pd

from pipeline.cohort.records import Scan, ScanTable
from pipeline.registration.decisions import DROP, dropped_reason

JACOBIAN_SOURCE = "Jacobian of the registration"
MASK_SOURCE = "brain mask of the registration"


def settle_scans(
    scans: ScanTable, quality: pd.DataFrame, hippocampi: Mapping[str, tuple[float, float]], atlas: str, source: str
) -> ScanTable:
    """Bring the scan table up to date with what registration found.

    Parameters
    ----------
    scans : ScanTable
        As read from the input.
    quality : pandas.DataFrame
        ``registration.tsv``.
    hippocampi : mapping of str to (float, float)
        Own volumes of the left and right hippocampus in mm³, by ``scan_id``.
    atlas : str
        Name of the atlas they come from.
    source : {"auto", "table", "fill", "jacobian"}
        `RegistrationConfig.hippocampus_source`. A missing intracranial volume is treated alike: the brain mask gives
        it, with ``auto`` only where no scan has one from the input.

    Returns
    -------
    ScanTable
        The same scans.
    """
    rows = {str(row["scan_id"]): row for row in quality.to_dict("records")}
    fill = source in ("fill", "jacobian")
    # Volumes of two kinds are not mixed unless asked for: they differ by more than atrophy does.
    hippocampus = fill or (source == "auto" and all(scan.hippocampus_mm3 is None for scan in scans.kept))
    intracranial = fill or (source == "auto" and all(scan.tiv_mm3 is None for scan in scans.kept))
    settled = []
    for scan in scans:
        row = rows.get(scan.scan_id) if scan.kept else None
        if row is not None and row["decision"] == DROP:
            settled.append(scan.dropped(dropped_reason(str(row["flags"]))))
            continue
        if row is not None and hippocampus:
            scan = _with_hippocampi(scan, hippocampi.get(scan.scan_id), atlas, source == "jacobian")
        if row is not None and intracranial:
            scan = _with_brain_volume(scan, row["brain_mm3"], str(row["brain_extraction"]))
        settled.append(scan)
    return ScanTable(tuple(settled))


def _with_hippocampi(scan: Scan, sides: tuple[float, float] | None, atlas: str, replace: bool) -> Scan:
    """The scan with our volumes where it has none; with `replace`, in place of those it has."""
    if sides is not None and (replace or scan.hippocampus_mm3 is None):
        return dataclasses.replace(
            scan,
            hippocampus_mm3=round(sum(sides), 3),
            hippocampus_left_mm3=sides[0],
            hippocampus_right_mm3=sides[1],
            hippocampus_source=f"{JACOBIAN_SOURCE}, {atlas}",
        )
    if replace:  # volumes of another kind beside ours would be compared with them
        return dataclasses.replace(
            scan, hippocampus_mm3=None, hippocampus_left_mm3=None, hippocampus_right_mm3=None, hippocampus_source=None
        )
    return scan


def _with_brain_volume(scan: Scan, brain_mm3: float, brain_extraction: str) -> Scan:
    if scan.tiv_mm3 is not None or not brain_mm3 > 0:  # NaN where the image came registered
        return scan
    return dataclasses.replace(scan, tiv_mm3=float(brain_mm3), tiv_source=f"{MASK_SOURCE} ({brain_extraction})")
