"""The segmentation of a scan: where it lies."""

from __future__ import annotations

from pathlib import Path

from heatlas.pipeline.cohort.records import Scan

SEGMENTATIONS = ("aparc+aseg.mgz", "aparc.DKTatlas+aseg.mgz", "aparc.DKTatlas+aseg.deep.mgz")
"""Beside the image of a subject of FreeSurfer or FastSurfer, the first that is there."""


def segmentation_of(input_root: Path, scan: Scan, pattern: str) -> Path | None:
    """The segmentation of a scan; None if there is none.

    Parameters
    ----------
    input_root : Path
    scan : Scan
        With an image.
    pattern : str
        As `RegionsConfig.own_labels`.
    """
    if pattern:
        names = {"participant_id": scan.participant_id, "session_id": scan.session_id or "", "name": scan.name}
        tried = [input_root / pattern.format(**names, scan_id=scan.scan_id)]
    else:
        image = input_root / scan.file
        tried = [image.with_name(name) for name in SEGMENTATIONS] if image.parent.name == "mri" else []
    return next((path for path in tried if path.is_file()), None)
