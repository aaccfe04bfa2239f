"""FreeSurfer or FastSurfer subjects of a cohort, and the scan to which each belongs.

The folder of a subject, or the folders above it, name the scan: by image id (``I118671``), by BIDS names
(``sub-01_ses-M012``, ``sub-01/ses-M012/...``), or by PTID and visit (``002_S_0295_m12``). A subject that names only the
person belongs to their only scan; if they have several, it is ignored. These volumes take precedence over ADNI's
tables, cross-sectional over longitudinal (``.long.``) results. FreeSurfer's base templates and example subjects are
ignored.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from pathlib import Path

from heatlas.pipeline.cohort.candidates import Candidate
from heatlas.pipeline.cohort.people.visits import visit_of
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.segmented.aseg import STATS_FILES, read_aseg
from heatlas.pipeline.cohort.segmented.volumes import Volumes
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted, listed

_IMAGE = re.compile(r"(?<![A-Za-z0-9])I\d+(?![A-Za-z0-9])")
_BIDS = re.compile(r"(?<![A-Za-z0-9])(sub-[A-Za-z0-9]+)(?:[_/](ses-[A-Za-z0-9]+))?")
_PTID = re.compile(r"(?<!\d)(\d{3}_S_\d{4,})(?:[_/-]([A-Za-z]\w*?))?(?=[/.]|$)", re.IGNORECASE)


LONGITUDINAL = ".long."
"""In the name of a longitudinal result, X.long.Y: of visit X, in the space of the base template Y."""


def find_subjects(folder: Path) -> list[tuple[str, Path]]:
    """Name (relative path) and stats file of each subject below a folder, cross-sectional ones first."""
    if not folder.is_dir():
        raise BadInputError(f"cohort.freesurfer_folder = '{folder}': no such folder. Give the folder of the subjects.")
    found = []
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if Path(here).name == "stats":
            stats = next((name for name in STATS_FILES if name in files), None)
            if stats is not None:
                subject = Path(here).parent
                found.append((subject.relative_to(folder).as_posix(), Path(here) / stats))
    if not found:
        raise BadInputError(
            f"cohort.freesurfer_folder = '{folder}': no */stats/aseg.stats below this folder. Give the folder of "
            "FreeSurfer or FastSurfer subjects (SUBJECTS_DIR)."
        )
    return sorted(found, key=lambda pair: (LONGITUDINAL in pair[0], pair[0]))


def subjects_of_scans(scans: Sequence[Scan], folder: str) -> dict[str, Path]:
    """Folder of the subject of each scan that has one, by its identifier, for images in the space of the scan.

    As for volumes, but without longitudinal results. `scans` are all kept ones, as there.
    """
    subjects = [(name, path) for name, path in find_subjects(Path(folder)) if LONGITUDINAL not in name]
    stats_files, _, _ = _match(scans, subjects)
    return {scan_id: path.parent.parent for scan_id, path in stats_files.items()}


def has_volumes(folder: Path) -> bool:
    """Whether a folder of subjects has a stats file that can be read."""
    return any(next(folder.glob(f"*/stats/{name}"), None) for name in STATS_FILES)


def with_segmented_volumes(candidates: Sequence[Candidate], folder: str) -> tuple[list[Candidate], list[str]]:
    """Take the volumes of scans from a folder of segmented subjects; an empty `folder` means none.

    Notes name subjects without a scan or with several, scans without a subject, unreadable files, implausible volumes.
    """
    if not folder:
        return list(candidates), []
    scans = [candidate.scan for candidate in candidates if candidate.scan.kept]
    stats_files, unmatched, ambiguous = _match(scans, find_subjects(Path(folder)))
    filled, problems, unread = {}, [], []
    for scan_id, path in stats_files.items():
        try:
            volumes = read_aseg(path)
        except BadInputError as error:
            unread.append(str(error))
            continue
        filled[scan_id] = volumes
        problems += [f"{scan_id}: {problem}" for problem in volumes.problems]
    notes = [f"{counted(len(filled), 'scan', 'has')} volumes from cohort.freesurfer_folder", *_implausible(problems)]
    missing = [scan.scan_id for scan in scans if scan.scan_id not in stats_files]
    for names, noun, text in (
        (missing, "scan", "without a subject there, volumes from other sources stay"),
        (unmatched, "subject", "there without a scan"),
        (ambiguous, "subject", "there ignored, because several scans could be meant"),
        (unread, "subject", "there unreadable"),
    ):
        if names:
            notes.append(f"{counted(len(names), noun)} {text}: {listed(names, 3)}")
    return [_filled(candidate, filled) for candidate in candidates], notes


def _implausible(problems: Sequence[str]) -> list[str]:
    text = f"{counted(len(problems), 'implausible volume')} left out (in mm3?)"
    return [f"{text}: {listed(problems)}"] if problems else []


def _filled(candidate: Candidate, volumes: dict[str, Volumes]) -> Candidate:
    found = volumes.get(candidate.scan.scan_id)
    if found is None or not candidate.scan.kept:
        return candidate
    scan = candidate.scan
    if found.total is not None:
        scan = dataclasses.replace(
            scan,
            hippocampus_mm3=found.total,
            hippocampus_left_mm3=found.left,
            hippocampus_right_mm3=found.right,
            hippocampus_source=found.source,
        )
    if found.intracranial is not None:
        scan = dataclasses.replace(scan, tiv_mm3=found.intracranial, tiv_source=found.intracranial_source)
    return dataclasses.replace(candidate, scan=scan)


def _match(scans: Sequence[Scan], subjects: Sequence[tuple[str, Path]]) -> tuple[dict[str, Path], list[str], list[str]]:
    """Stats file by scan id; names of subjects without a scan; names of subjects with several."""
    stats_files: dict[str, Path] = {}
    unmatched, ambiguous = [], []
    by_id = {scan.scan_id: [scan] for scan in scans}
    by_person: dict[str, list[Scan]] = {}
    for scan in scans:
        by_person.setdefault(scan.participant_id, []).append(scan)
    for name, path in subjects:
        image_id, participant, session = named_scan(name)
        known = name if name in by_id else image_id
        matching = by_id.get(known or "", []) or by_person.get(participant or "", [])
        if session is not None and known not in by_id:
            matching = [scan for scan in matching if scan.session_id in (session, visit_of(session).session_id)]
        if not matching:
            unmatched.append(name)
        elif len({scan.session_id for scan in matching}) > 1:
            ambiguous.append(name)
        else:
            for scan in matching:  # several images of one visit: any of them may be used
                stats_files.setdefault(scan.scan_id, path)
    return stats_files, unmatched, ambiguous


def named_scan(name: str) -> tuple[str | None, str | None, str | None]:
    """Image id, participant and session that a subject's folder names; None for what it does not name.

    >>> named_scan("002_S_0295_m12"), named_scan("sub-01/ses-M00/freesurfer")
    ((None, 'sub-ADNI002S0295', 'ses-M012'), (None, 'sub-01', 'ses-M00'))
    >>> named_scan("I118671"), named_scan("002_S_0295"), named_scan("fsaverage")
    (('I118671', None, None), (None, 'sub-ADNI002S0295', None), (None, None, None))
    """
    base = name.split(LONGITUDINAL, 1)[0]
    image = _IMAGE.search(base)
    if bids := _BIDS.search(base):
        return (image[0] if image else None), bids[1], bids[2]
    if ptid := _PTID.search(base):
        participant = "sub-ADNI" + ptid[1].upper().replace("_", "")
        code = ptid[2] if ptid[2] and not image else None
        return (image[0] if image else None), participant, visit_of(code).session_id if code else None
    return (image[0] if image else None), None, None
