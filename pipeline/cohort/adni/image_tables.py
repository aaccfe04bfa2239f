"""What comes with an ADNI image: LONI's collection list, the XML file of the image, and ADNI's tables of images.

The list and the XML file (``idaxs``) identify the image by its number and are combined into one record; contradictions
between them, or with the folder of the image, are reported. Assessments, genotype and weight are not read. Elements of
the XML file are found by name, since their depth differs: an original image is described by its series, a processed one
by its ``derivedProduct`` and by the image it was made from.

MPRAGEMETA and MRIQC (an inventory, no grades in spite of its name) describe images; MRIQUALITY, since 2024 MRIPROT, has
ADNI1's PASS per series; the Mayo Clinic's tables have series_selected and series_quality, 1 best to 4 unusable. A grade
belongs to a series: the acquired image and everything derived from it. No table is required.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date
from pathlib import Path
from xml.etree import ElementTree

from heatlas.pipeline.cohort.adni.visit_tables import MPRAGEMETA, MRIQC, QUALITY_ADNI1, QUALITY_MAYO, person_number
from heatlas.pipeline.cohort.cells import tables as text_tables
from heatlas.pipeline.cohort.cells import values
from heatlas.pipeline.cohort.cells.values import Visit, visit_of, with_iso_dates
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.documents import read_regular
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted, listed, note_on
from heatlas.pipeline.run.work.progress import Progress


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


def participant(text: str | None) -> str | None:
    """PTID of an ADNI participant in capitals; None for any other text.

    >>> participant(" 002_s_0295 "), participant("Doe^John")
    ('002_S_0295', None)
    """
    cleaned = (text or "").strip().upper()
    return cleaned if re.fullmatch(values.PTID, cleaned) else None


def _visit(text: str | None) -> Visit | None:
    return None if text is None else visit_of(text)


_OF_LIST: values.Columns = {
    "ptid": ("subject", participant),
    "sex": ("sex", values.sex),
    "age": ("age", values.positive),
    "visit": ("visit", _visit),
    "date": ("acqdate", values.calendar_date),
    "modality": ("modality", values.text),
    "sequence": ("description", values.text),
}
"""Columns of a collection list, as `_letters_of` spells them."""
_LIST_COLUMNS = {"imagedataid", *(column for column, _ in _OF_LIST.values())}
_OF_XML: values.Columns = {
    "ptid": ("subjectIdentifier", participant),
    "sex": ("subjectSex", values.sex),
    "age": ("subjectAge", values.positive),
    "visit": ("visitIdentifier", _visit),
    "date": ("dateAcquired", values.calendar_date),
    "modality": ("modality", values.text),
    "sequence": ("sequence", values.text),
    "field_strength": ("Field Strength", values.field_strength),
}
"""Elements of an XML file, besides what its protocol and the processing call them."""

SILENT = ImageRecord()
"""The record of an image without metadata."""
AGE_TOLERANCE_YEARS = 2.0
"""ADNIMERGE counts from the age at baseline, which is rounded in some versions; LONI gives whole years in lists."""
_WORDS = {"ptid": "participant", "sex": "sex", "date": "date", "visit": "visit"}
"""Fields on which two sources must agree, and their names in messages."""


def read_collections(root: Path, tables: Sequence[str]) -> tuple[dict[str, ImageRecord], list[str]]:
    """Read LONI's lists of image collections: records by image id with its letter, and notes."""
    records: dict[str, ImageRecord] = {}
    notes: list[str] = []
    contradicted: list[str] = []
    codes: set[str] = set()
    for name in tables:
        header = {_letters_of(column) for column in text_tables.read_header(root / name)}
        if "imagedataid" not in header or len(header & _LIST_COLUMNS) < 2:
            continue
        try:
            frame, row_notes = text_tables.read_text_table(root / name)
            frame, date_notes = with_iso_dates(root / name, frame.rename(columns=_letters_of), ("acqdate",))
        except BadInputError as error:
            notes.append(f"{name} is not used: {error}")
            continue
        rows, cell_notes = text_tables.possible_rows(name, frame)
        notes += [*row_notes, *date_notes, *cell_notes]
        nameless = sum("imagedataid" not in cells for cells in rows)
        notes += [f"{name}: {counted(nameless, 'row')} without Image Data ID left out"] if nameless else []
        for cells in rows:
            if "imagedataid" in cells:
                number, record = image_id(cells["imagedataid"]), ImageRecord(**values.read_cells(cells, _OF_LIST))
                codes |= {cells["visit"]} if record.visit is not None and not record.visit.known else set()
                contradicted += [number] if _differences(records.get(number, record), record) else []
                records.setdefault(number, record)
    described = "twice and differently, the first row is used"
    notes += note_on(contradicted, "image", described, before="collection lists describe ")
    if codes:
        notes.append(f"unknown visits in collection lists, matched by date only: {listed(sorted(codes))}")
    return records, notes


def combine_records(
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
    """Why an image may not be of its folder's participant; `header_patient` must never be written anywhere."""
    if record.ptid is not None and person_number(record.ptid) != person_number(ptid):
        return f"unclear participant: the folder says {ptid}, the collection list or XML {record.ptid}"
    in_header = participant(header_patient)
    if in_header is not None and person_number(in_header) != person_number(ptid):
        return f"unclear participant: the folder says {ptid}, the DICOM header another participant"
    return None


def date_note(dates: Mapping[str, tuple[date | None, date | None]]) -> list[str]:
    """Note on images whose folder and record differ by more than a day (a scan may end after midnight)."""
    differing = [
        number
        for number, (folder, record) in dates.items()
        if folder is not None and record is not None and abs((folder - record).days) > 1
    ]
    text = "another date in the collection list or XML than in the folder, which is used"
    return note_on(differing, "image", text, verb="has")


def disagreement_notes(pairs: Mapping[str, tuple[Scan, ImageRecord]]) -> list[str]:
    """Scans on which ADNIMERGE and the image's record disagree, which may indicate a mix-up."""
    sex = [number for number, (scan, record) in pairs.items() if scan.sex and record.sex and scan.sex != record.sex]
    age = [
        number
        for number, (scan, record) in pairs.items()
        if scan.age is not None and record.age is not None and abs(scan.age - record.age) > AGE_TOLERANCE_YEARS
    ]
    both = "the collection list or XML and ADNIMERGE disagree on the"
    notes = [f"{both} sex of {counted(len(sex), 'scan')}, ADNIMERGE is used: {listed(sex)}"] if sex else []
    text = f"by more than {AGE_TOLERANCE_YEARS:g} years, ADNIMERGE is used"
    return notes + note_on(age, "scan", text, before=f"{both} age of ")


def coverage_notes(records: Mapping[str, ImageRecord], present: set[str]) -> list[str]:
    if not records:
        return []
    absent, unlisted = sorted(records.keys() - present), sorted(present - records.keys())
    notes = note_on(absent, "image", "of the collection list or XML without a file here")
    return notes + note_on(unlisted, "image", "here in no collection list or XML")


def image_id(text: str) -> str:
    """Image id with its letter: ``118690`` and ``I118690`` are the same."""
    cleaned = text.strip().upper()
    return cleaned if cleaned[:1].isalpha() else f"I{cleaned}"


def _differences(first: ImageRecord, second: ImageRecord) -> list[str]:
    pairs = {word: (getattr(first, name), getattr(second, name)) for name, word in _WORDS.items()}
    return [word for word, (a, b) in pairs.items() if a is not None and b is not None and a != b]


def _letters_of(column: str) -> str:
    return re.sub(r"[^a-z]", "", column.lower())


MAX_BYTES = 2**20
"""The XML file of an image is about 10 kB."""
_ROOT = "idaxs"


def read_image_xmls(root: Path, paths: Sequence[str]) -> tuple[dict[str, ImageRecord], list[str]]:
    """Read the XML files of images: records by image id with its letter; files that describe no image are skipped."""
    by_image: dict[str, dict[str, ImageRecord]] = {}
    damaged: list[str] = []
    problems: list[str] = []
    with Progress(len(paths), "Reading XML files") as bar:
        for path in paths:
            bar.update()
            try:
                described = parse_image_xml(read_regular(root / path), path, problems)
            except (OSError, ElementTree.ParseError, ValueError, LookupError):  # LookupError: an unknown encoding
                damaged.append(path)
                continue
            if described is not None:
                by_image.setdefault(described[0], {})[path] = described[1]
    records, contradictions = {}, []
    for number, of_image in by_image.items():
        records[number], differing = merge_descriptions(list(of_image.values()))
        if differing:
            contradictions.append(f"{number} in {' and '.join(of_image)} ({', '.join(differing)})")
    text = "described differently by several XML files, these are not used"
    notes = [*text_tables.problem_notes(problems), *note_on(contradictions, "image", text, verb="is")]
    if damaged:
        notes.append(f"{len(damaged)} XML files cannot be read and are skipped: {listed(damaged, 3)}")
    return records, notes


def merge_descriptions(records: Sequence[ImageRecord]) -> tuple[ImageRecord, list[str]]:
    """Combine several descriptions of one image: a field they contradict each other on is None, and is named.

    >>> merge_descriptions([ImageRecord(sex="F", age=70.0), ImageRecord(age=71.0), ImageRecord(modality="MRI")])[1]
    ['age']
    """
    stated = {
        field.name: list(dict.fromkeys(v for record in records if (v := getattr(record, field.name)) is not None))
        for field in fields(ImageRecord)
    }
    kept = {name: values[0] if len(values) == 1 else None for name, values in stated.items()}
    return ImageRecord(**kept), [name for name, values in stated.items() if len(values) > 1]


def parse_image_xml(
    content: bytes, name: str = "XML", problems: list[str] | None = None
) -> tuple[str, ImageRecord] | None:
    """Image id and record of one XML file; None if it describes no image. Impossible values go to `problems`.

    ValueError if it is too large or declares entities, which let a small file expand without limit.
    """
    if len(content) > MAX_BYTES or b"<!DOCTYPE" in content or b"<!ENTITY" in content:
        raise ValueError("not the XML of an image")
    tree = ElementTree.fromstring(content)
    if _local(tree.tag) != _ROOT:
        return None
    derived = _find(tree, "derivedProduct")
    number = _text(tree if derived is None else derived, "imageUID")
    if number is None:
        return None
    texts = {term: _text(tree, term) for term, _ in _OF_XML.values()}
    texts["sequence"] = _text(tree, "description") if derived is None else _text(derived, "processedDataLabel")
    protocol = {e.get("term"): (e.text or "").strip() for e in tree.iter() if _local(e.tag) == "protocol"}
    texts["Field Strength"] = protocol.get("Field Strength")
    measured = ("subjectSex", "subjectAge", "Field Strength")
    filled = {term: text for term, text in texts.items() if text and not (term in measured and values.is_missing(text))}
    cells = text_tables.possible_cells(name, None, filled, [] if problems is None else problems)
    return image_id(number), ImageRecord(**values.read_cells(cells, _OF_XML))


def _local(tag: object) -> str:
    return str(tag).rpartition("}")[2]


def _find(tree: ElementTree.Element, name: str) -> ElementTree.Element | None:
    return next((element for element in tree.iter() if _local(element.tag) == name), None)


def _text(tree: ElementTree.Element, name: str) -> str | None:
    element = _find(tree, name)
    text = "" if element is None else (element.text or "").strip()
    return text or None


_IMAGE = ("imageuid", "imageid", "loniimage")
_SERIES = ("seriesid", "loniseries", "loniuid")
_FIELD = ("magstrength", "magneticfieldstrength", "fieldstrength")
_GRADES = ("pass", "seriesselected", "seriesquality", "t1accelerated")
_QUALITY_COLUMNS = (*_IMAGE, *_SERIES, "sequence", "seriesdescription", *_FIELD, "visit", "scandate", *_GRADES)
UNUSABLE = 4
"""The Mayo Clinic's worst grade."""


@dataclass(frozen=True)
class ImageFacts:
    """What tables say about an image; None where unknown."""

    series: int | None = None  # LONI's series number
    description: str | None = None  # of the sequence and its processing
    field_strength: float | None = None  # tesla
    accelerated: bool | None = None
    selected: bool | None = None
    grade: int | None = None  # 1 (best) to 4 (unusable)
    failed: str | None = None  # table and column that record the failure


@dataclass(frozen=True)
class ImageTables:
    """Facts by image and by series number, and what MPRAGEMETA adds to the lists of collections."""

    by_image: Mapping[int, ImageFacts]
    by_series: Mapping[int, ImageFacts]
    visits: Mapping[int, ImageRecord]

    def of(self, image_id: str, path: str) -> ImageFacts:
        """Facts of an image (``I118671``), completed by those of its series, whose number may be in the path."""
        number = loni_number(image_id) if image_id[:1] in "I0123456789" else None
        image = self.by_image.get(number, ImageFacts()) if number is not None else ImageFacts()
        in_path = re.search(r"(?:^|[/_])S(\d+)(?=[/_.])", path)
        series = image.series if image.series is not None else int(in_path[1]) if in_path else None
        shared = self.by_series.get(series, ImageFacts()) if series is not None else ImageFacts()
        return replace(_fill_gaps(image, shared), series=series, description=image.description)


def loni_number(text: str | None) -> int | None:
    """Number of an image or series, written as ``I118671``, ``S13408`` or ``13408.0``."""
    match = re.fullmatch(r"\s*[A-Za-z]?(\d+)(\.0+)?\s*", text or "")
    return int(match[1]) if match else None


def read_image_tables(root: Path, files: Mapping[str, str]) -> tuple[ImageTables, list[str]]:
    """Read those of the four tables that exist; notes name tables that are empty, damaged or lack columns."""
    images: dict[int, ImageFacts] = {}
    series: dict[int, ImageFacts] = {}
    visits: dict[int, ImageRecord] = {}
    notes: list[str] = []
    for table in (MPRAGEMETA, MRIQC, *QUALITY_MAYO, *QUALITY_ADNI1):
        if table not in files:
            continue
        rows, table_notes = _rows(root / files[table], table)
        notes += table_notes
        for cells in rows:
            facts = _facts(cells, files[table])
            number = loni_number(values.first_value(cells, *_IMAGE))
            if number is not None:
                images[number] = _fill_gaps(images[number], facts) if number in images else facts
                if table == MPRAGEMETA:
                    visit = visit_of(cells["visit"]) if "visit" in cells else None
                    visits[number] = ImageRecord(visit=visit, date=values.calendar_date(cells.get("scandate")))
            if facts.series is not None:
                earlier = series.get(facts.series)
                series[facts.series] = replace(facts, description=None) if earlier is None else _worse(earlier, facts)
    return ImageTables(images, series, visits), notes


def _rows(path: Path, table: str) -> tuple[Sequence[Mapping[str, str]], list[str]]:
    try:
        frame, notes = text_tables.read_text_table(path, used=())
        frame = frame.rename(columns=text_tables.plain_name)
        frame = frame.loc[:, ~frame.columns.duplicated()]
        names = set(frame.columns)
        if not names & {*_IMAGE, *_SERIES}:
            raise BadInputError(f"{path}: no column with image or series numbers. Download it again.")
        if not len(frame):
            raise BadInputError(f"{path}: a header without rows. Download it again.")
        frame, date_notes = with_iso_dates(path, frame, ("scandate",) if table == MPRAGEMETA else ())
        notes += date_notes
    except BadInputError as error:
        return [], [f"{path.name} is not used: {error}"]
    rows, cell_notes = text_tables.possible_rows(path.name, frame[[name for name in _QUALITY_COLUMNS if name in names]])
    notes += cell_notes
    numbered = [cells for cells in rows if {*_IMAGE, *_SERIES} & set(cells)]
    if len(numbered) < len(rows):
        notes.append(
            f"{path.name}: {counted(len(rows) - len(numbered), 'row')} without image or series number left out"
        )
    return numbered, notes


def _facts(cells: Mapping[str, str], table: str) -> ImageFacts:
    grade = values.count(cells.get("seriesquality"))
    passed = _yes(cells.get("pass"))
    if passed is False:
        failed: str | None = f"{table} PASS {cells['pass']}"
    else:
        failed = f"{table} series_quality {grade}" if grade is not None and grade >= UNUSABLE else None
    return ImageFacts(
        series=loni_number(values.first_value(cells, *_SERIES)),
        description=values.first_value(cells, "sequence", "seriesdescription"),
        field_strength=values.field_strength(values.first_value(cells, *_FIELD)),
        accelerated=_yes(cells.get("t1accelerated")),
        selected=_yes(cells.get("seriesselected")),
        grade=grade or None,
        failed=failed,
    )


def _yes(text: str | None) -> bool | None:
    """Read true and false as these tables write them; -1 and -4 mean missing."""
    words = {"1": True, "true": True, "yes": True, "pass": True, "0": False, "false": False, "no": False, "fail": False}
    return words.get(re.sub(r"\.0+$", "", (text or "").strip().lower()))


def _fill_gaps(facts: ImageFacts, other: ImageFacts) -> ImageFacts:
    gaps = {name: value for name, value in vars(other).items() if getattr(facts, name) is None}
    return replace(facts, **gaps)


def _worse(facts: ImageFacts, other: ImageFacts) -> ImageFacts:
    """Combine rows of a series that disagree: selected if either is, and the worse grade."""
    grades = [grade for grade in (facts.grade, other.grade) if grade is not None]
    chosen = [selected for selected in (facts.selected, other.selected) if selected is not None]
    return replace(
        _fill_gaps(facts, other), grade=max(grades, default=None), selected=max(chosen, default=None), description=None
    )
