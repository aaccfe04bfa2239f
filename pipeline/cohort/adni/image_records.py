"""Metadata that comes with an image: LONI's collection list and the XML file of each image.

LONI gives a CSV list of each image collection and, on request, one XML file per image. Both identify the image by its
number and state its participant, visit and acquisition. They are combined into one record; contradictions between them,
or with the folder of the image, are reported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date
from pathlib import Path

from heatlas.pipeline.cohort.adni.visit_tables import person_number
from heatlas.pipeline.cohort.cells import values
from heatlas.pipeline.cohort.cells.dates import with_iso_dates
from heatlas.pipeline.cohort.cells.ranges import possible_cells, problem_notes
from heatlas.pipeline.cohort.cells.text_tables import filled_rows, read_header, read_text_table
from heatlas.pipeline.cohort.people.visits import Visit, visit_of
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted, listed

_COLUMNS = ("imagedataid", "subject", "sex", "age", "visit", "modality", "description", "acqdate")
"""Columns read from a collection list, as `_squeezed` spells them; only the first is required."""


@dataclass(frozen=True)
class ImageRecord:
    """What a list or an XML file says about one image; None where it says nothing."""

    ptid: str | None = None  # ADNI participant, in capitals
    sex: str | None = None  # F or M
    age: float | None = None  # years, at the scan
    visit: Visit | None = None
    date: date | None = None  # of the acquisition
    modality: str | None = None  # ``MRI``, ``PET``
    sequence: str | None = None  # what the scanner, or ADNI's processing, calls the image
    field_strength: float | None = None  # tesla


SILENT = ImageRecord()
"""The record of an image without metadata."""
AGE_TOLERANCE_YEARS = 2.0
"""ADNIMERGE counts from the age at baseline, which is rounded in some versions; LONI gives whole years in lists."""
_WORDS = {"ptid": "participant", "sex": "sex", "date": "date", "visit": "visit"}
"""Fields on which two sources must agree, and their names in messages."""


def read_collections(root: Path, tables: Sequence[str]) -> tuple[dict[str, ImageRecord], list[str]]:
    """Read LONI's lists of image collections: records by image id with its letter.

    CSV files without Image Data ID are other tables. Notes name lists that cannot be read, ids that two rows describe
    differently (the first row is used) and unknown visits.
    """
    found: dict[str, ImageRecord] = {}
    notes: list[str] = []
    contradicted: list[str] = []
    codes: set[str] = set()
    for name in tables:
        header = {_squeezed(column) for column in read_header(root / name)}
        if "imagedataid" not in header or not header & set(_COLUMNS[1:]):
            continue
        try:
            frame, row_notes = read_text_table(root / name)
            frame, date_notes = with_iso_dates(root / name, frame.rename(columns=_squeezed), ("acqdate",))
        except BadInputError as error:
            notes.append(f"{name} is not used: {error}")
            continue
        notes += [*row_notes, *date_notes]
        problems: list[str] = []
        rows = [possible_cells(name, line, cells, problems) for line, cells in filled_rows(frame) if cells]
        notes += problem_notes(problems)
        nameless = sum("imagedataid" not in cells for cells in rows)
        notes += [f"{name}: {counted(nameless, 'row')} without Image Data ID left out"] if nameless else []
        for cells in rows:
            if "imagedataid" in cells:
                number, record = image_id(cells["imagedataid"]), _of_row(cells)
                codes |= {cells["visit"]} if record.visit is not None and not record.visit.known else set()
                contradicted += [number] if _differences(found.get(number, record), record) else []
                found.setdefault(number, record)
    if contradicted:
        notes.append(
            f"collection lists describe {counted(len(contradicted), 'image')} twice and differently, the first row is "
            f"used: {listed(contradicted)}"
        )
    if codes:
        notes.append(f"unknown visits in collection lists, matched by date only: {listed(sorted(codes))}")
    return found, notes


def _of_row(cells: Mapping[str, str]) -> ImageRecord:
    return ImageRecord(
        ptid=participant(cells.get("subject")),
        sex=values.sex(cells.get("sex")),
        age=values.positive(cells.get("age")),
        visit=visit_of(cells["visit"]) if "visit" in cells else None,
        date=values.calendar_date(cells.get("acqdate")),
        modality=cells.get("modality"),
        sequence=cells.get("description"),
    )


def combined(
    listed_records: Mapping[str, ImageRecord], described: Mapping[str, ImageRecord]
) -> tuple[dict[str, ImageRecord], list[str]]:
    """Combine list and XML into one record per image; the XML file, which comes with the image, takes precedence."""
    differing: dict[str, list[str]] = {}
    both: dict[str, ImageRecord] = {**listed_records, **described}
    for number in sorted(listed_records.keys() & described.keys()):
        first, second = listed_records[number], described[number]
        for word in _differences(first, second):
            differing.setdefault(word, []).append(number)
        both[number] = ImageRecord(
            **{f.name: getattr(first if getattr(second, f.name) is None else second, f.name) for f in fields(first)}
        )
    return both, [
        f"collection list and XML disagree on the {word} of {counted(len(numbers), 'image')}, the XML is used: "
        f"{listed(numbers)}"
        for word, numbers in differing.items()
    ]


def identity_problem(record: ImageRecord, ptid: str, header_patient: str = "") -> str | None:
    """Why an image may not belong to the participant of its folder; None if it does.

    `header_patient` is compared only if it is an ADNI participant, and is never written anywhere.
    """
    if record.ptid is not None and person_number(record.ptid) != person_number(ptid):
        return f"unclear participant: the folder says {ptid}, the collection list or XML {record.ptid}"
    in_header = participant(header_patient)
    if in_header is not None and person_number(in_header) != person_number(ptid):
        return f"unclear participant: the folder says {ptid}, the DICOM header another participant"
    return None


def date_note(dates: Mapping[str, tuple[date | None, date | None]]) -> list[str]:
    """Note on images whose folder and record differ by more than a day (a scan may end after midnight)."""
    apart = [
        number
        for number, (folder, record) in dates.items()
        if folder is not None and record is not None and abs((folder - record).days) > 1
    ]
    if not apart:
        return []
    images = counted(len(apart), "image", "has", "images")
    return [f"{images} another date in the collection list or XML than in the folder, which is used: {listed(apart)}"]


def disagreement_notes(said: Mapping[str, tuple[Scan, ImageRecord]]) -> list[str]:
    """Scans on which ADNIMERGE and the image's record disagree, which may indicate a mix-up."""
    sex = [number for number, (scan, record) in said.items() if scan.sex and record.sex and scan.sex != record.sex]
    age = [
        number
        for number, (scan, record) in said.items()
        if scan.age is not None and record.age is not None and abs(scan.age - record.age) > AGE_TOLERANCE_YEARS
    ]
    both = "the collection list or XML and ADNIMERGE disagree on the"
    notes = [f"{both} sex of {counted(len(sex), 'scan')}, ADNIMERGE is used: {listed(sex)}"] if sex else []
    if age:
        years = f"by more than {AGE_TOLERANCE_YEARS:g} years"
        notes.append(f"{both} age of {counted(len(age), 'scan')} {years}, ADNIMERGE is used: {listed(age)}")
    return notes


def coverage_notes(records: Mapping[str, ImageRecord], present: set[str]) -> list[str]:
    """Notes on listed images without a file, and on files that are not listed."""
    if not records:
        return []
    absent = sorted(records.keys() - present)
    unlisted = sorted(present - records.keys())
    notes = []
    if absent:
        notes.append(
            f"{counted(len(absent), 'image')} of the collection list or XML without a file here: {listed(absent)}"
        )
    if unlisted:
        notes.append(f"{counted(len(unlisted), 'image')} here in no collection list or XML: {listed(unlisted)}")
    return notes


def participant(text: str | None) -> str | None:
    """PTID of an ADNI participant in capitals; None for any other text.

    >>> participant(" 002_s_0295 "), participant("Doe^John")
    ('002_S_0295', None)
    """
    cleaned = (text or "").strip().upper()
    return cleaned if re.fullmatch(r"\d{3}_S_\d{4,}", cleaned) else None


def image_id(text: str) -> str:
    """Image id with its letter: ``118690`` and ``I118690`` are the same."""
    cleaned = text.strip().upper()
    return cleaned if cleaned[:1].isalpha() else f"I{cleaned}"


def _differences(first: ImageRecord, second: ImageRecord) -> list[str]:
    pairs = {word: (getattr(first, name), getattr(second, name)) for name, word in _WORDS.items()}
    return [word for word, (a, b) in pairs.items() if a is not None and b is not None and a != b]


def _squeezed(column: str) -> str:
    return re.sub(r"[^a-z]", "", column.lower())
