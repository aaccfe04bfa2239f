"""The scan table after registration: doubtful scans dropped where so decided, own volumes where they are wanted."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pandas as pd

from pipeline.cohort.records import Scan, ScanTable
from pipeline.registration.quality.decisions import DROP, dropped_reason
from pipeline.run.config.settings import RegistrationConfig

JACOBIAN_SOURCE = "Jacobian of the registration"
COARSEST_MM = 2.0
"""Voxels of the template up to which hippocampi have been compared with manual volumes, with the default parameters."""
RELIABILITY = (
    "r with manual volumes 0.95 and 2 % too small on average in 5 adults of OASIS at 1 mm, 0.91 and 4 % in 7 at 2 mm"
)
"""How good these volumes are (docs/benchmarks/registration.md); it goes wherever they are used."""
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
    settings : RegistrationConfig
        `hippocampus_source` says which volumes are used; there are none of our own where `not_measured` says why. A
        missing intracranial volume is treated alike, with any settings: the brain mask gives it, with ``auto`` only
        where no scan has one from the input.

    Returns
    -------
    ScanTable
        The same scans. Where our own volume is wanted and not measured, ``hippocampus_source`` says why.
    """
    source = settings.hippocampus_source
    hippocampi = {} if not_measured(settings) else hippocampi
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
            scan = _with_hippocampi(scan, hippocampi.get(scan.scan_id), atlas, settings)
        if row is not None and intracranial:
            scan = _with_brain_volume(scan, row["brain_mm3"], str(row["brain_extraction"]))
        settled.append(scan)
    return ScanTable(tuple(settled))


def _with_hippocampi(scan: Scan, sides: tuple[float, float] | None, atlas: str, settings: RegistrationConfig) -> Scan:
    """The scan with our volumes where it has none; with ``jacobian``, in place of those it has."""
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
    # Volumes of another kind beside ours would be compared with them, so those are cleared.
    return dataclasses.replace(
        scan,
        hippocampus_mm3=None,
        hippocampus_left_mm3=None,
        hippocampus_right_mm3=None,
        hippocampus_source=not_measured(settings) if scan.entry != "template" else None,
    )


def not_measured(settings: RegistrationConfig) -> str | None:
    """Why a run with these settings has no hippocampal volumes of its own; None if it has.

    Examples
    --------
    >>> not_measured(RegistrationConfig(resolution_mm=2.0))
    >>> not_measured(RegistrationConfig(resolution_mm=4.0))
    'none: hippocampi were not compared with manual volumes at 4 mm'
    >>> not_measured(RegistrationConfig(transform="antsRegistrationSyNQuick[s]"))
    'none: hippocampi were not compared with manual volumes with antsRegistrationSyNQuick[s]'
    """
    said = []
    if settings.resolution_mm > COARSEST_MM:
        said.append(f"at {settings.resolution_mm:g} mm")
    if settings.transform != RegistrationConfig().transform:
        said.append(f"with {settings.transform}")
    return f"{NOT_MEASURED}hippocampi were not compared with manual volumes {' and '.join(said)}" if said else None


def _with_brain_volume(scan: Scan, brain_mm3: float, brain_extraction: str) -> Scan:
    if scan.tiv_mm3 is not None or not brain_mm3 > 0:  # NaN where the image came registered
        return scan
    return dataclasses.replace(scan, tiv_mm3=float(brain_mm3), tiv_source=f"{MASK_SOURCE} ({brain_extraction})")
