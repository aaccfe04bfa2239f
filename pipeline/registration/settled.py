"""The scan table after registration: doubtful scans dropped if so decided, and measured volumes added."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pandas as pd

from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.registration.quality.doubt import DROP, dropped_reason
from heatlas.pipeline.run.config.settings import RegistrationConfig

JACOBIAN_SOURCE = "Jacobian of the registration"
COARSEST_MM = 2.0
"""Voxels of the template up to which hippocampi have been compared with manual volumes, with the default parameters."""
RELIABILITY = (
    "r with manual volumes 0.95 and 2 % too small on average in 5 adults of OASIS at 1 mm, 0.91 and 4 % in 7 at 2 mm"
)
"""Accuracy of these volumes (docs/benchmarks/registration.md), stated wherever they are used."""
NOT_MEASURED = "none: "
"""Start of a source that says why there is no volume."""
MASK_SOURCE = "brain mask of the registration"


def settle_scans(
    scans: ScanTable,
    quality: pd.DataFrame,
    hippocampi: Mapping[str, tuple[float, float]],
    atlas: str,
    settings: RegistrationConfig,
) -> ScanTable:
    """The scan table with the results of registration.

    `quality`: ``registration.tsv``. `hippocampi`: measured volumes of the left and right hippocampus in mm³, by
    ``scan_id``. `settings`: `hippocampus_source` says which volumes are used; none are measured if `not_measured` says
    why, which then is the ``hippocampus_source`` of a scan. A missing intracranial volume is filled from the brain mask
    in the same way, with any settings (with ``auto`` only if no scan of the input has one).
    """
    source = settings.hippocampus_source
    hippocampi = {} if not_measured(settings) else hippocampi
    rows = {str(row["scan_id"]): row for row in quality.to_dict("records")}
    fill = source in ("fill", "jacobian")
    # Volumes of two kinds are mixed only on request: they differ by more than atrophy.
    hippocampus = fill or (source == "auto" and all(scan.hippocampus_mm3 is None for scan in scans.kept))
    intracranial = fill or (source == "auto" and all(scan.tiv_mm3 is None for scan in scans.kept))
    settled = []
    for scan in scans:
        row = rows.get(scan.scan_id) if scan.kept else None
        if row is not None and row["decision"] == DROP:
            settled.append(scan.dropped(dropped_reason(str(row["flags"]))))
            continue
        if row is not None and hippocampus:
            scan = _with_hippocampi(scan, hippocampi.get(scan.scan_id), atlas, settings)
        if row is not None and intracranial:
            scan = _with_brain_volume(scan, row["brain_mm3"], str(row["brain_extraction"]))
        settled.append(scan)
    return ScanTable(tuple(settled))


def _with_hippocampi(scan: Scan, sides: tuple[float, float] | None, atlas: str, settings: RegistrationConfig) -> Scan:
    """Add measured volumes to a scan without any; with ``jacobian``, replace existing ones."""
    replace = settings.hippocampus_source == "jacobian"
    if scan.hippocampus_mm3 is not None and not replace:
        return scan
    if sides is not None:
        return dataclasses.replace(
            scan,
            hippocampus_mm3=round(sum(sides), 3),
            hippocampus_left_mm3=sides[0],
            hippocampus_right_mm3=sides[1],
            hippocampus_source=f"{JACOBIAN_SOURCE} without fluid, {atlas} ({RELIABILITY})",
        )
    # Existing volumes are cleared, since they must not be compared with measured ones.
    return dataclasses.replace(
        scan,
        hippocampus_mm3=None,
        hippocampus_left_mm3=None,
        hippocampus_right_mm3=None,
        hippocampus_source=not_measured(settings) if scan.entry != "template" else None,
    )


def not_measured(settings: RegistrationConfig) -> str | None:
    """Why a run with these settings does not measure hippocampal volumes; None if it does.

    >>> not_measured(RegistrationConfig(resolution_mm=2.0))
    >>> not_measured(RegistrationConfig(resolution_mm=4.0))
    'none: hippocampi were not compared with manual volumes at 4 mm'
    >>> not_measured(RegistrationConfig(transform="antsRegistrationSyNQuick[s]"))
    'none: hippocampi were not compared with manual volumes with antsRegistrationSyNQuick[s]'
    """
    reasons = []
    if settings.resolution_mm > COARSEST_MM:
        reasons.append(f"at {settings.resolution_mm:g} mm")
    if settings.transform != RegistrationConfig().transform:
        reasons.append(f"with {settings.transform}")
    return (
        f"{NOT_MEASURED}hippocampi were not compared with manual volumes {' and '.join(reasons)}" if reasons else None
    )


def _with_brain_volume(scan: Scan, brain_mm3: float, brain_extraction: str) -> Scan:
    if scan.tiv_mm3 is not None or not brain_mm3 > 0:  # NaN if the image came in template space
        return scan
    return dataclasses.replace(scan, tiv_mm3=float(brain_mm3), tiv_source=f"{MASK_SOURCE} ({brain_extraction})")
