"""The segmentation of a scan: where it lies, and what its regions are called."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path

from heatlas.atlases.foreign_tables import read_dseg_table, split_side
from heatlas.atlases.freesurfer import freesurfer_names
from heatlas.atlases.regions import Region, RegionTable
from heatlas.pipeline.cohort.images.file_kinds import image_stem
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.segmented.subjects import subjects_of_scans
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.private_paths import without_home
from heatlas.pipeline.run.plain_text import listed
from heatlas.pipeline.run.tables import MISSING

SEGMENTATIONS = ("aparc+aseg.mgz", "aparc.DKTatlas+aseg.mgz", "aparc.DKTatlas+aseg.deep.mgz")
"""Beside the image of a subject of FreeSurfer or FastSurfer, the first that is there."""
OF_SUBJECTS = (*SEGMENTATIONS, "aseg.mgz")
"""Where only regions are wanted that a segmentation without cortex may hold, too."""
DSEG = "_dseg"
_OF_ONE_SPACE = ("sub", "ses", "acq", "run", "space", "res")
"""Entities that a segmentation shares with its image."""


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
    return _first(tried)


def labels_of_scans(input_root: Path, scans: Sequence[Scan], config: Config) -> Mapping[str, Path]:
    """The label image of each scan that has one, by its identifier: for masks of people's own anatomy.

    Where ``regions.own_labels`` says; else beside the image, in the `mri` folder of a subject or as ``_dseg.nii.gz`` of
    BIDS derivatives; else in ``cohort.freesurfer_folder``, whose subjects are found as for volumes.

    Raises
    ------
    BadInputError
        If an image has several, or several scans would have the same.
    """
    pattern, folder = config.regions.own_labels, config.cohort.freesurfer_folder
    subjects = subjects_of_scans(scans, folder) if folder and not pattern else {}
    found = {}
    for scan in scans:
        path = segmentation_of(input_root, scan, pattern)
        if path is None and not pattern:
            path = _beside(t1w_of(input_root, scan)) or _in_subject(subjects.get(scan.scan_id))
        if path is not None:
            found[scan.scan_id] = path
    if len(set(found.values())) < len(found):
        raise BadInputError(
            "several scans would have the same segmentation. Let regions.own_labels tell them apart, by {session_id}, "
            "{name} or {scan_id}."
        )
    return found


def t1w_of(input_root: Path, scan: Scan) -> Path:
    """The T1-weighted image of a scan, or its image where there is no other."""
    return input_root / (scan.t1w or scan.file)


def region_numbers(labels: Path, input_root: Path, names: Sequence[str]) -> tuple[int, ...]:
    """Numbers of regions in a label image, by their names: of one side as its table has them, or of both.

    The table of ``_dseg.nii.gz`` is that of the same name, or the nearest above it that is inherited; anything else has
    the numbers of FreeSurfer.

    Raises
    ------
    UsageError
        For a name that the table lacks.
    BadInputError
        If there is no table, or it cannot be read.
    """
    table, said = _table_of(labels, input_root)
    known = {**{region.name: (region.number,) for region in table.regions}, **table.groups}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
            raise UsageError(
                f"objective.regions: {name}: no such region of {said}; similar: {', '.join(near) or 'none'}."
            )
    return tuple(sorted({number for name in names for number in known[name]}))


def _table_of(labels: Path, input_root: Path) -> tuple[RegionTable, str]:
    """The region table of a label image, and how to call it."""
    stem = image_stem(labels.name)
    if not stem.endswith(DSEG):
        regions = []
        for number, (name, _) in freesurfer_names().items():
            side, group = split_side(name)
            regions.append(Region(number, name, side, MISSING, MISSING, group))
        return RegionTable(tuple(regions)), "FreeSurfer's table"
    parts = set(stem.split("_"))
    folders = [labels.parent, *(one for one in labels.parent.parents if one.is_relative_to(input_root))]
    for folder in folders:
        tables = [path for path in sorted(folder.glob("*dseg.tsv")) if set(path.stem.split("_")) <= parts]
        if tables:
            table = max(tables, key=lambda path: len(path.stem))
            return read_dseg_table(table), table.name
    raise BadInputError(f"{without_home(labels)}: no label table; put {stem}.tsv (index, name) beside it.")


def _first(paths: Sequence[Path]) -> Path | None:
    return next((path for path in paths if path.is_file()), None)


def _in_subject(folder: Path | None) -> Path | None:
    return None if folder is None else _first([folder / "mri" / name for name in OF_SUBJECTS])


def _beside(image: Path) -> Path | None:
    """The segmentation beside an image: of the `mri` folder of a subject, or of BIDS."""
    if image.parent.name == "mri":
        return _in_subject(image.parent.parent)
    own = _entities(image.name)
    found = [path for path in sorted(image.parent.glob(f"*{DSEG}.nii.gz")) if _entities(path.name) == own]
    if len(found) > 1:
        raise BadInputError(
            f"{without_home(image)}: {len(found)} segmentations lie beside it ({listed([p.name for p in found], 3)}). "
            "Name one by the pattern regions.own_labels."
        )
    return found[0] if found else None


def _entities(name: str) -> tuple[str | None, ...]:
    found = dict(part.split("-", 1) for part in image_stem(name).split("_") if "-" in part)
    return tuple(found.get(entity) for entity in _OF_ONE_SPACE)
