"""FreeSurfer or FastSurfer subjects of a cohort: the scan to which each belongs, and its volumes.

The folder of a subject, or the folders above it, name the scan: by image id (``I118671``), by BIDS names
(``sub-01_ses-M012``, ``sub-01/ses-M012/...``), or by PTID and visit (``002_S_0295_m12``). A subject that names only the
person belongs to their only scan. These volumes take precedence over ADNI's tables, cross-sectional over longitudinal
(``.long.``) results. Volumes outside the ranges of `pipeline.cohort.cells.tables` are left out and named: another unit
(ml) or a failed segmentation would mislead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from heatlas.pipeline.cohort.candidates import Candidate
from heatlas.pipeline.cohort.cells import values
from heatlas.pipeline.cohort.cells.tables import RANGES
from heatlas.pipeline.cohort.cells.values import visit_of
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.documents import read_regular
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted, note_on

_IMAGE = re.compile(r"(?<![A-Za-z0-9])I\d+(?![A-Za-z0-9])")
_BIDS = re.compile(r"(?<![A-Za-z0-9])(sub-[A-Za-z0-9]+)(?:[_/](ses-[A-Za-z0-9]+))?")
_PTID = re.compile(rf"(?<!\d)({values.PTID})(?:[_/-]([A-Za-z]\w*?))?(?=[/.]|$)", re.IGNORECASE)


LONGITUDINAL = ".long."
"""In the name of a longitudinal result, X.long.Y: of visit X, in the space of the base template Y."""


def find_subjects(folder: Path) -> list[tuple[str, Path]]:
    """Name (relative path) and stats file of each subject below a folder, cross-sectional ones first."""
    if not folder.is_dir():
        raise BadInputError(f"cohort.freesurfer_folder = '{folder}': no such folder. Give the folder of the subjects.")
    subjects = []
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if Path(here).name == "stats":
            stats = next((name for name in STATS_FILES if name in files), None)
            if stats is not None:
                subject = Path(here).parent
                subjects.append((subject.relative_to(folder).as_posix(), Path(here) / stats))
    if not subjects:
        raise BadInputError(
            f"cohort.freesurfer_folder = '{folder}': no */stats/aseg.stats below this folder. Give the folder of "
            "FreeSurfer or FastSurfer subjects (SUBJECTS_DIR)."
        )
    return sorted(subjects, key=lambda pair: (LONGITUDINAL in pair[0], pair[0]))


def subjects_of_scans(scans: Sequence[Scan], folder: str) -> dict[str, Path]:
    """Folder of the subject of each of all kept scans, as for volumes, but without longitudinal results."""
    subjects = [(name, path) for name, path in find_subjects(Path(folder)) if LONGITUDINAL not in name]
    stats_files, _, _ = _match(scans, subjects)
    return {scan_id: path.parent.parent for scan_id, path in stats_files.items()}


def has_volumes(folder: Path) -> bool:
    return any(next(folder.glob(f"*/stats/{name}"), None) for name in STATS_FILES)


def with_segmented_volumes(candidates: Sequence[Candidate], folder: str) -> tuple[list[Candidate], list[str]]:
    """Take the volumes of scans from a folder of segmented subjects; an empty `folder` means none."""
    if not folder:
        return list(candidates), []
    scans = [candidate.scan for candidate in candidates if candidate.scan.kept]
    stats_files, unmatched, ambiguous = _match(scans, find_subjects(Path(folder)))
    measured: dict[str, Volumes] = {}
    unread, problems = [], []
    for scan_id, path in stats_files.items():
        try:
            measured[scan_id] = read_aseg(path)
        except BadInputError as error:
            unread.append(str(error))
            continue
        problems += [f"{scan_id}: {problem}" for problem in measured[scan_id].problems]
    missing = [scan.scan_id for scan in scans if scan.scan_id not in stats_files]
    notes = [
        f"{counted(len(measured), 'scan', 'has')} volumes from cohort.freesurfer_folder",
        *note_on(problems, "implausible volume", "left out (in mm3?)"),
        *note_on(missing, "scan", "without a subject there, volumes from other sources stay", limit=3),
        *note_on(unmatched, "subject", "there without a scan", limit=3),
        *note_on(ambiguous, "subject", "there ignored, because several scans could be meant", limit=3),
        *note_on(unread, "subject", "there unreadable", limit=3),
    ]
    filled = []
    for candidate in candidates:
        volumes = measured.get(candidate.scan.scan_id, Volumes()) if candidate.scan.kept else Volumes()
        if volumes.total is not None:
            candidate = candidate.with_scan(**volumes.of_hippocampus)
        if volumes.intracranial is not None:
            candidate = candidate.with_scan(**volumes.of_head)
        filled.append(candidate)
    return filled, notes


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
        scan_id = name if name in by_id else image_id
        matching = by_id.get(scan_id or "", []) or by_person.get(participant or "", [])
        if session is not None and scan_id not in by_id:
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
    number = _IMAGE.search(base)
    image = number[0] if number else None
    if bids := _BIDS.search(base):
        return image, bids[1], bids[2]
    if ptid := _PTID.search(base):
        session = visit_of(ptid[2]).session_id if ptid[2] and not image else None
        return image, values.adni_participant(ptid[1]), session
    return image, None, None


LEFT_HIPPOCAMPUS, RIGHT_HIPPOCAMPUS = 17, 53


STATS_FILES = ("aseg.stats", "aseg+DKT.VINN.stats", "aseg+DKT.stats")
"""In order of preference; the others are those of FastSurfer's segmentation without its surface stream."""

_INTRACRANIAL = ("EstimatedTotalIntraCranialVol", "IntraCranialVol")
_VERSION = re.compile(r"v?(\d+\.\d+(?:\.\d+)?)")


def read_aseg(path: Path) -> Volumes:
    """Hippocampal and intracranial volumes of one subject in mm³; the source names the program and its version."""
    try:
        text = read_regular(path).decode("utf-8", errors="replace")
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read ({error.strerror}). Check the path and permissions.") from error
    structures = structure_volumes(text)
    if not {LEFT_HIPPOCAMPUS, RIGHT_HIPPOCAMPUS} <= set(structures):
        raise BadInputError(
            f"{path}: no volume of both hippocampi (SegId {LEFT_HIPPOCAMPUS} and {RIGHT_HIPPOCAMPUS}); the file is cut "
            "short or of another segmentation. Run the segmentation of this subject again."
        )
    return plausible_volumes(
        structures[LEFT_HIPPOCAMPUS],
        structures[RIGHT_HIPPOCAMPUS],
        None,
        intracranial_volume(text),
        f"{path.name} ({_program(path, text)})",
    )


def structure_volumes(text: str) -> dict[int, float]:
    """Volume in mm³ by label number; rows without numbers are skipped.

    >>> header = "# ColHeaders Index SegId NVoxels Volume_mm3 StructName"
    >>> structure_volumes(f"{header}{chr(10)} 9 17 4166 3987.2 Left-Hippocampus")
    {17: 3987.2}
    """
    columns: list[str] = []
    volumes = {}
    for line in text.splitlines():
        if line.startswith("# ColHeaders"):
            columns = line.split()[2:]
        elif columns and not line.startswith("#"):
            cells = dict(zip(columns, line.split(), strict=False))
            label, volume = values.count(cells.get("SegId")), values.positive(cells.get("Volume_mm3"))
            if label is not None and volume is not None:
                volumes[label] = volume
    return volumes


def intracranial_volume(text: str) -> float | None:
    """Intracranial volume in mm³ of the ``# Measure`` lines.

    >>> intracranial_volume("# Measure EstimatedTotalIntraCranialVol, eTIV, Estimated TIV, 1500000.5, mm^3")
    1500000.5
    """
    measures = {}
    for line in text.splitlines():
        parts = [part.strip() for part in line.removeprefix("# Measure").split(",")]
        if line.startswith("# Measure") and len(parts) >= 5 and parts[-1] == "mm^3":
            measures[parts[0]] = values.positive(parts[-2])
    return next((measures[name] for name in _INTRACRANIAL if measures.get(name) is not None), None)


def _program(path: Path, text: str) -> str:
    """FreeSurfer or FastSurfer, with its version where the header or ``scripts/build-stamp.txt`` has it."""
    header = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    scripts = path.parent.parent / "scripts"
    stamp = scripts / "build-stamp.txt"
    # such as freesurfer-linux-centos7_x86_64-7.4.1-20230614-7eb8460
    build = stamp.read_text(encoding="utf-8", errors="replace") if stamp.is_file() else ""
    fast = "fastsurfer" in header.lower() or "+DKT" in path.name or (scripts / "deep-seg.log").is_file()
    name = "FastSurfer" if fast else "FreeSurfer"
    stated = re.search(rf"{name}[^\n]*", header, re.IGNORECASE)
    after_system = "" if fast else build.split("x86_64", 1)[-1]
    version = _VERSION.search(stated[0] if stated else "") or _VERSION.search(after_system)
    return f"{name} {version[1]}" if version else f"{name}, version unknown"


@dataclass(frozen=True)
class Volumes:
    """Volumes of one scan in mm³; None where unknown."""

    total: float | None = None  # of the hippocampi; the total is left and right together
    left: float | None = None
    right: float | None = None
    source: str | None = None  # of the hippocampi
    intracranial: float | None = None
    intracranial_source: str | None = None
    problems: tuple[str, ...] = ()  # volumes left out, with reasons

    @property
    def of_hippocampus(self) -> dict[str, Any]:
        sides = {"hippocampus_left_mm3": self.left, "hippocampus_right_mm3": self.right}
        return {"hippocampus_mm3": self.total, **sides, "hippocampus_source": self.source}

    @property
    def of_head(self) -> dict[str, Any]:
        return {"tiv_mm3": self.intracranial, "tiv_source": self.intracranial_source}


def plausible_volumes(
    left: float | None, right: float | None, total: float | None, intracranial: float | None, source: str
) -> Volumes:
    """Volumes (mm³) from one source, without the implausible ones; a missing total is left plus right."""
    problems: list[str] = []

    def plausible(value: float | None, column: str, what: str) -> float | None:
        if value is None or RANGES[column].holds(value):
            return value
        problems.append(f"{what} of {value:g} mm3 ({source}) is outside {RANGES[column]}")
        return None

    left = plausible(left, "hippocampus_left_mm3", "left hippocampus")
    right = plausible(right, "hippocampus_right_mm3", "right hippocampus")
    total = plausible(total, "hippocampus_mm3", "hippocampus")
    intracranial = plausible(intracranial, "tiv_mm3", "intracranial volume")
    if total is None and left is not None and right is not None:
        total = round(left + right, 4)
    of_hippocampus = source if {total, left, right} != {None} else None
    of_head = source if intracranial is not None else None
    return Volumes(total, left, right, of_hippocampus, intracranial, of_head, tuple(problems))


def complete_volumes(first: Volumes, second: Volumes) -> Volumes:
    """Volumes of the first source, completed by the second without mixing two segmentations.

    Left and right of the second are used only if they add up to the total of the first (within 1 %).
    """
    if first.total is None and first.left is None:
        hippocampus = second
    elif (
        first.total is not None
        and first.left is None
        and second.left is not None
        and second.right is not None
        and abs(second.left + second.right - first.total) <= 0.01 * first.total
    ):
        hippocampus = replace(second, total=first.total, source=f"{first.source}; left and right: {second.source}")
    else:
        hippocampus = first
    head = first if first.intracranial is not None else second
    return replace(
        hippocampus,
        intracranial=head.intracranial,
        intracranial_source=head.intracranial_source,
        problems=first.problems + second.problems,
    )
