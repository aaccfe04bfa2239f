"""An ADNI download as LONI unpacks it: ``<PTID>/<sequence>/<date>/<I number>/*.nii`` and ADNIMERGE.

Of several T1-weighted images of a visit one is used, by the order of `pipeline.cohort.scan_preference`; diagnoses are
those of `pipeline.cohort.diagnosis`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from pipeline.cohort import adni_files, values
from pipeline.cohort.adni_clinical import AdniClinical, read_clinical
from pipeline.cohort.adni_matching import match_visit
from pipeline.cohort.adni_tables import CollectionRow, image_id, read_collections
from pipeline.cohort.adni_visit_tables import VisitRow, person_number
from pipeline.cohort.candidates import Candidate, listed
from pipeline.cohort.image_quality import ImageTables, loni_number, read_image_tables
from pipeline.cohort.records import Scan
from pipeline.cohort.scan_preference import CRITERIA, days_between, preference
from pipeline.cohort.volumes_tables import problem_notes
from pipeline.cohort.walking import InputFiles, image_stem
from pipeline.run.config import CohortConfig

PTID = re.compile(r"\d{3}_S_\d{4,}", re.IGNORECASE)
_DATE_FOLDER = re.compile(r"\d{4}-\d{2}-\d{2}")
_ID_FOLDER = re.compile(r"[ISD]\d+")
_T1W = re.compile(
    r"mp-?_?rage|(^|_)mpr(_|-|$)|spgr|(^|_)mt1(_|$)|(^|[_-])t1w?([_-]|$)|bravo|mdeft|(^|_)tfe", re.IGNORECASE
)
_DERIVED = re.compile(r"mask|label|(^|_)seg|harp", re.IGNORECASE)


@dataclass(frozen=True)
class AdniImage:
    """What the path of an image says."""

    path: str
    ptid: str
    sequence: str | None
    date: date | None
    image_id: str

    @property
    def sequence_or_name(self) -> str:
        return self.sequence or image_stem(self.path)


def adni_participant(ptid: str) -> str:
    """BIDS name of an ADNI participant.

    Examples
    --------
    >>> adni_participant("002_S_0295")
    'sub-ADNI002S0295'
    """
    return "sub-ADNI" + ptid.upper().replace("_", "")


def parse_image(path: str) -> AdniImage | None:
    """Read an image's path; None if it lies below no participant's folder.

    Examples
    --------
    >>> image = parse_image("ADNI/002_S_0295/MPRAGE/2006-04-18_08_20_30.0/I118671/brain.nii")
    >>> image.ptid, image.sequence, str(image.date), image.image_id
    ('002_S_0295', 'MPRAGE', '2006-04-18', 'I118671')
    """
    parts = path.split("/")
    start = next((i for i, part in enumerate(parts[:-1]) if PTID.fullmatch(part)), None)
    if start is None:
        return None
    folders = parts[start + 1 : -1]
    dates = [part for part in folders if _DATE_FOLDER.match(part)]
    numbers = [part for part in folders if _ID_FOLDER.fullmatch(part)]
    sequences = [part for part in folders if part not in dates and part not in numbers]
    return AdniImage(
        path=path,
        ptid=parts[start].upper(),
        sequence=sequences[0] if sequences else None,
        date=values.calendar_date(dates[0]) if dates else None,
        image_id=_image_id(parts[start:], numbers),
    )


def _image_id(parts: Sequence[str], numbers: Sequence[str]) -> str:
    """I number of the folder or of the file name; else a series number; else the path below the person's folder.

    Files without a number are often named alike in all folders (``brain.nii``), so the name alone is no identifier.
    """
    stem = image_stem(parts[-1])
    in_name = re.search(r"_(I\d+)$", stem)
    of_image = [number for number in numbers if number.startswith("I")]
    whole = "_".join([parts[0].upper(), *parts[1:-1], stem])
    return (of_image[-1:] or ([in_name[1]] if in_name else []) or numbers[-1:] or [whole])[0]


def read_adni(root: Path, files: InputFiles, config: CohortConfig) -> tuple[list[Candidate], list[str]]:
    """Read an ADNI download.

    Parameters
    ----------
    root : Path
    files : InputFiles
        What lies below `root`.
    config : CohortConfig
        A contrast by diagnosis needs ADNIMERGE's DX or DXSUM; another column need only be there.

    Returns
    -------
    candidates : list of Candidate
        One per image below a participant's folder.
    notes : list of str

    Raises
    ------
    BadInputError
        If ADNIMERGE is missing or lacks a needed column.
    """
    images = [image for image in map(parse_image, files.images) if image is not None]
    collection, notes = read_collections(root, files.tables)
    tables, table_notes = read_image_tables(root, adni_files.newest_tables(files.tables)[0])
    known = [*collection.values(), *tables.visits.values()]
    persons = {person_number(image.ptid) for image in images}
    clinical, clinical_notes = read_clinical(
        root, files.tables, persons, config, any(row.visit is not None for row in known)
    )
    names = _names_by_person(clinical.ptids, images)
    problems: list[str] = []
    candidates = [_candidate(image, names, clinical, collection, tables, problems) for image in images]
    notes += [*table_notes, *clinical_notes, *problem_notes(problems)]
    notes += _roll_over_notes(clinical.ptids, images, names)
    notes += _rows_without_scan(clinical.ptids, clinical.visits, names, candidates)
    if len(images) < len(files.images):
        outside = [path for path in files.images if parse_image(path) is None]
        notes.append(
            f"{len(outside)} images outside participants' folders (NNN_S_NNNN) left alone: {listed(outside, 3)}"
        )
    return candidates, notes


def _names_by_person(ptids: Sequence[str], images: Sequence[AdniImage]) -> dict[int, str]:
    """One PTID per RID: the one that ADNIMERGE names first, or the first of the folders."""
    names: dict[int, str] = {}
    for ptid in [*ptids, *sorted(image.ptid for image in images)]:
        names.setdefault(person_number(ptid), ptid)
    return names


def _roll_over_notes(ptids: Sequence[str], images: Sequence[AdniImage], names: Mapping[int, str]) -> list[str]:
    others = {ptid for ptid in [*ptids, *(image.ptid for image in images)] if names[person_number(ptid)] != ptid}
    joined = [f"{ptid} as {names[person_number(ptid)]}" for ptid in sorted(others)]
    return [f"{len(joined)} PTIDs of one RID read as one person: {listed(joined)}"] if joined else []


def _candidate(
    image: AdniImage,
    names: Mapping[int, str],
    clinical: AdniClinical,
    collection: Mapping[str, CollectionRow],
    tables: ImageTables,
    problems: list[str],
) -> Candidate:
    person = person_number(image.ptid)
    listed_row = collection.get(image_id(image.image_id)) or tables.visits.get(
        loni_number(image.image_id) or 0, CollectionRow(None, None)
    )
    facts = tables.of(image.image_id, image.path)
    scan_date = image.date or listed_row.date
    matched = match_visit(clinical.visits.get(person, ()), scan_date, listed_row.visit)
    scan = Scan(
        adni_participant(names[person]), None, image.image_id, image.path, field_strength=facts.field_strength
    )
    if not _T1W.search(image.sequence_or_name) or _DERIVED.search(image.sequence_or_name):
        return Candidate(scan.dropped(f"not named as a T1-weighted sequence (MPRAGE, SPGR): {image.sequence_or_name}"))
    if isinstance(matched, str):
        return Candidate(scan.dropped(matched))
    filled, columns, found = clinical.at(scan, person, matched, scan_date)
    problems += found
    days = days_between(scan_date, matched.exam_date)
    rank = preference(image.sequence_or_name, image.image_id, facts, days, clinical.config)
    candidate = Candidate(filled, columns, rank, CRITERIA)
    if facts.failed is not None and clinical.config.failed_quality == "drop":
        return candidate.dropped(f"failed ADNI's quality control: {facts.failed}")
    return candidate


def _rows_without_scan(
    ptids: Sequence[str],
    visits: Mapping[int, Sequence[VisitRow]],
    names: Mapping[int, str],
    candidates: Sequence[Candidate],
) -> list[str]:
    scanned = {(candidate.scan.participant_id, candidate.scan.session_id) for candidate in candidates}
    unscanned = [
        f"{names[person]} {row.session_id}"
        for person, rows in sorted(visits.items())
        for row in rows
        if (adni_participant(names[person]), row.session_id) not in scanned
    ]
    strangers = sorted({ptid for ptid in ptids if person_number(ptid) not in visits})
    notes = []
    if unscanned:
        notes.append(f"{len(unscanned)} visits in ADNIMERGE have no scan here: {listed(unscanned)}")
    if strangers:
        notes.append(f"{len(strangers)} participants in ADNIMERGE have no image here: {listed(strangers)}")
    return notes
