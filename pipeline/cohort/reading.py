"""Read an input folder: which layout it has, which scans it holds, which of them are used and why the others not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipeline.cohort import adni, bids
from pipeline.cohort.candidates import (
    listed,
    one_per_session,
    only_participants,
    with_readable_headers,
    without_duplicates,
)
from pipeline.cohort.contrast import shuffled_labels, unknown_diagnoses, with_labels
from pipeline.cohort.records import ScanTable
from pipeline.cohort.walking import InputFiles, walk_input
from pipeline.run.config import CohortConfig
from pipeline.run.errors import BadInputError

DEMO_TRUTH = "truth"
"""Folder of the demo cohort that holds what was planted; reading it would be cheating."""


@dataclass(frozen=True)
class InputCohort:
    """An input folder as the pipeline sees it.

    Parameters
    ----------
    root : Path
        Resolved; `Scan.image` is relative to it.
    layout : {"adni", "bids"}
    table : ScanTable
        One row per image found.
    notes : tuple of str
        What no row can say: table rows without a scan, absent columns, links not followed.
    """

    root: Path
    layout: Literal["adni", "bids"]
    table: ScanTable
    notes: tuple[str, ...]


def read_cohort(root: Path, config: CohortConfig, seed: int, participants: Sequence[str] = ()) -> InputCohort:
    """Read an ADNI download or a BIDS dataset; nothing is written.

    Parameters
    ----------
    root : Path
        The input folder.
    config : CohortConfig
        Which contrast to label, and whether to shuffle the labels as a control.
    seed : int
        For the shuffle only.
    participants : sequence of str
        Use only these (with or without ``sub-``, or as PTID); empty for all.

    Returns
    -------
    InputCohort
        All images found; none kept is possible, and then every reason is in the table.

    Raises
    ------
    BadInputError
        If the folder is neither layout or holds no image, a table or column is missing, or the contrast names a
        value that does not occur.
    """
    if not root.is_dir():
        what = "is a file" if root.exists() else "no such folder"
        raise BadInputError(f"{root}: {what}. Give the folder of an ADNI download or a BIDS dataset.")
    root = root.resolve()
    layout = detect_layout(root)
    if layout == "bids":
        files = walk_input(root, bids.enters)
        candidates, notes = bids.read_bids(root, files)
    else:
        files = walk_input(root, lambda folder: folder != DEMO_TRUTH)
        candidates, notes = adni.read_adni(root, files, config.contrast_column)
    notes = [*notes, *_file_notes(files)]
    if not candidates:
        raise BadInputError(f"{root}: no NIfTI image of a participant found. " + " ".join(note + "." for note in notes))
    labelled = with_labels(candidates, config)
    chosen = only_participants(labelled, participants)
    readable, header_notes = with_readable_headers(root, chosen, config.max_voxel_mm)
    notes += header_notes
    used = one_per_session(without_duplicates(readable))
    notes += unknown_diagnoses(used) if config.contrast_column == "diagnosis" else []
    scans = [candidate.scan for candidate in used]
    if config.shuffle_labels:
        kept = shuffled_labels([scan for scan in scans if scan.kept], seed)
        scans = [scan for scan in scans if not scan.kept] + kept
        notes.append("labels are shuffled between participants: a control run")
    return InputCohort(root, layout, ScanTable(tuple(scans)), tuple(notes))


def detect_layout(root: Path) -> Literal["adni", "bids"]:
    """Which layout a folder has.

    Raises
    ------
    BadInputError
        If neither; says what each looks like.
    """
    names = {entry.name for entry in root.iterdir()}
    if names & {bids.PARTICIPANTS, "dataset_description.json"} or any(name.startswith("sub-") for name in names):
        return "bids"
    if any(re.fullmatch(r"adnimerge.*\.csv", name, re.IGNORECASE) for name in names):
        return "adni"
    files = walk_input(root, lambda folder: folder != DEMO_TRUTH)
    tables = [name.rsplit("/", 1)[-1].lower() for name in files.tables]
    if any(name.startswith("adnimerge") for name in tables) or any(map(adni.parse_image, files.images)):
        return "adni"
    raise BadInputError(
        f"{root}: neither an ADNI download (folders named like 002_S_0295, ADNIMERGE*.csv) nor a BIDS dataset "
        f"(participants.tsv, folders sub-*); {len(files.images)} NIfTI and {files.dicom_count} DICOM files seen."
        + (" DICOM is not read: download as NIfTI, or convert with dcm2niix." if files.dicom_count else "")
    )


def _file_notes(files: InputFiles) -> list[str]:
    notes = []
    if files.dicom_count:
        notes.append(f"{files.dicom_count} DICOM files are not read; convert them to NIfTI (dcm2niix)")
    if files.linked_folders:
        notes.append(
            f"{len(files.linked_folders)} links to folders are not followed; give the real folder: "
            f"{listed(files.linked_folders, 3)}"
        )
    if files.unreadable:
        notes.append(
            f"{len(files.unreadable)} folders could not be listed (permissions?): {listed(files.unreadable, 3)}"
        )
    return notes
