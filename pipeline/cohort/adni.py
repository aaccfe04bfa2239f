"""An ADNI download as LONI unpacks it: ``<PTID>/<sequence>/<date>/<I number>/*.nii`` and ADNIMERGE.

Of several T1-weighted images of a visit one is used: the one that ADNI processed furthest (gradient unwarping, B1,
N3, scaling), then the first acquisition before a repeat, full before accelerated, then the lowest image number.

The diagnosis is that of the visit (DX); the one at enrolment (DX_bl) stands in only at baseline, where it is the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from pipeline.cohort import values
from pipeline.cohort.adni_matching import match_visit
from pipeline.cohort.adni_tables import (
    CollectionRow,
    VisitRow,
    find_adnimerge,
    image_id,
    person_number,
    read_adnimerge,
    read_collections,
    visits_by_person,
)
from pipeline.cohort.candidates import Candidate, listed
from pipeline.cohort.records import Scan
from pipeline.cohort.walking import InputFiles, image_stem

PTID = re.compile(r"\d{3}_S_\d{4,}", re.IGNORECASE)
_DATE_FOLDER = re.compile(r"\d{4}-\d{2}-\d{2}")
_ID_FOLDER = re.compile(r"[ISD]\d+")
_T1W = re.compile(
    r"mp-?_?rage|(^|_)mpr(_|-|$)|spgr|(^|_)mt1(_|$)|(^|[_-])t1w?([_-]|$)|bravo|mdeft|(^|_)tfe", re.IGNORECASE
)
_DERIVED = re.compile(r"mask|label|(^|_)seg|harp", re.IGNORECASE)
_PROCESSING = ("gradwarp", "b1_correction", "n3", "scaled")
_REPEAT = re.compile(r"repeat|(^|_)mpr-?r(_|$)|(^|_)(rep|2nd)(_|$)", re.IGNORECASE)
_ACCELERATED = re.compile(r"accel|grappa|sense|(^|_)p2(_|$)", re.IGNORECASE)


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


def read_adni(root: Path, files: InputFiles, contrast_column: str) -> tuple[list[Candidate], list[str]]:
    """Read an ADNI download.

    Parameters
    ----------
    root : Path
    files : InputFiles
        What lies below `root`.
    contrast_column : str
        ``diagnosis`` needs ADNIMERGE's DX; another column need only be there.

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
    table, found_notes = find_adnimerge(root, files.tables)
    collection = read_collections(root, files.tables)
    has_visits = any(row.visit is not None for row in collection.values())
    frame, table_notes = read_adnimerge(table, not has_visits, contrast_column)
    ptids = list(dict.fromkeys(frame["PTID"]))
    images = [image for image in map(parse_image, files.images) if image is not None]
    persons = {person_number(image.ptid) for image in images}
    visits, visit_notes = visits_by_person(frame, persons)
    names = _names_by_person(ptids, images)
    candidates = [_candidate(image, names, visits, collection) for image in images]
    notes = [*found_notes, *table_notes, *visit_notes, *_roll_over_notes(ptids, images, names)]
    notes += _rows_without_scan(ptids, visits, names, candidates)
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
    visits: Mapping[int, Sequence[VisitRow]],
    collection: Mapping[str, CollectionRow],
) -> Candidate:
    person = person_number(image.ptid)
    listed_row = collection.get(image_id(image.image_id), CollectionRow(None, None))
    scan_date = image.date or listed_row.date
    matched = match_visit(visits.get(person, ()), scan_date, listed_row.visit)
    scan = Scan(adni_participant(names[person]), None, image.image_id, image.path)
    if not _T1W.search(image.sequence_or_name) or _DERIVED.search(image.sequence_or_name):
        return Candidate(scan.dropped(f"not named as a T1-weighted sequence (MPRAGE, SPGR): {image.sequence_or_name}"))
    if isinstance(matched, str):
        return Candidate(scan.dropped(matched))
    return Candidate(_scan_at(scan, matched, scan_date, visits[person]), matched.columns, preference(image))


def preference(image: AdniImage) -> tuple[int | str, ...]:
    """Rank of an image among those of its visit, smallest first; see the module's docstring."""
    name = image.sequence_or_name
    steps = sum(step in name.lower() for step in _PROCESSING)
    number = re.fullmatch(r"[A-Za-z]?(\d+)", image.image_id)
    return (-steps, bool(_REPEAT.search(name)), bool(_ACCELERATED.search(name)), int(number[1]) if number else 0)


def _scan_at(scan: Scan, visit: VisitRow, scan_date: date | None, visits: Sequence[VisitRow]) -> Scan:
    """The scan with what ADNIMERGE says at its visit."""
    row = visit.columns
    diagnosis = values.diagnosis(row.get("DX"))
    if "DX" not in row and visit.months == 0:
        diagnosis = values.diagnosis(row.get("DX_bl"))
    hippocampus = values.positive(row.get("Hippocampus"))
    version = row.get("FSVERSION")
    return Scan(
        participant_id=scan.participant_id,
        session_id=visit.session_id,
        scan_id=scan.scan_id,
        image=scan.image,
        diagnosis=diagnosis,
        age=_age(visit, scan_date, visits),
        sex=values.sex(row.get("PTGENDER")),
        site=values.identifier(row.get("SITE")),
        field_strength=values.field_strength(row.get("FLDSTRENG")),
        apoe4=values.count(row.get("APOE4")),
        mmse=values.score(row.get("MMSE")),
        cdr=values.score(values.first_value(row, "CDGLOBAL", "CDR")),
        tiv_mm3=values.positive(row.get("ICV")),
        hippocampus_mm3=hippocampus,
        hippocampus_source=None if hippocampus is None else "ADNIMERGE" + (f" ({version})" if version else ""),
    )


def _age(visit: VisitRow, scan_date: date | None, visits: Sequence[VisitRow]) -> float | None:
    """AGE is the age at baseline: add the years from the baseline examination to the scan, or to its visit."""
    baseline_age = values.positive(visit.columns.get("AGE"))
    if baseline_age is None:
        return None
    baseline = values.calendar_date(visit.columns.get("EXAMDATE_bl")) or next(
        (row.exam_date for row in visits if row.months == 0), None
    )
    when = scan_date or visit.exam_date
    if baseline is not None and when is not None:
        years: float | None = (when - baseline).days / 365.25
    else:
        years = values.number(visit.columns.get("Years_bl"))
        years = visit.months / 12 if years is None and visit.months is not None else years
    return None if years is None else round(baseline_age + years, 2)


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
