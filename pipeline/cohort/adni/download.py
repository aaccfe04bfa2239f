"""An ADNI download as LONI unpacks it: which images it holds, and which of several of a visit is used.

LONI unpacks to ``<PTID>/<sequence>/<date>/<image id>/``, with one NIfTI file or the slices of one DICOM series inside,
identified by the path of its first file. If a folder holds several usable series, none is used, because the image id
does not say which of them it means.

Of several T1-weighted images of a visit, the first of `CRITERIA` on which two differ decides, and the reason of the
rejected image names it; then their path. An ungraded image counts as grade 1, since grades serve as warnings; an
unknown field strength comes last.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from heatlas.pipeline.cohort.adni import image_tables
from heatlas.pipeline.cohort.adni.clinical import AdniClinical, read_clinical
from heatlas.pipeline.cohort.adni.image_tables import SILENT, ImageFacts, ImageRecord, ImageTables, image_id
from heatlas.pipeline.cohort.adni.visit_tables import VisitRow, days_between, match_visit, newest_tables, person_number
from heatlas.pipeline.cohort.candidates import Candidate, InputFiles
from heatlas.pipeline.cohort.cells import values
from heatlas.pipeline.cohort.cells.values import adni_participant
from heatlas.pipeline.cohort.images.dicom import DicomSeries, read_folder
from heatlas.pipeline.cohort.images.files import image_stem, is_nifti
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.plain_text import listed, note_on
from heatlas.pipeline.run.work.progress import Progress


def read_adni(
    root: Path, files: InputFiles, config: CohortConfig, _space: str = ""
) -> tuple[list[Candidate], list[str]]:
    """Read an ADNI download: one candidate per image below a participant's folder, and notes."""
    images, notes = find_images(root, files, config.max_voxel_mm)
    records, record_notes = _records(root, files, images)
    notes += record_notes
    tables, table_notes = image_tables.read_image_tables(root, newest_tables(files.tables)[0])
    described = [*records.values(), *tables.visits.values()]
    persons = {person_number(image.ptid) for image in images}
    clinical, clinical_notes = read_clinical(
        root, files.tables, persons, config, any(row.visit is not None for row in described)
    )
    ptids = [*clinical.ptids, *sorted(image.ptid for image in images)]
    names: dict[int, str] = {}  # one PTID per RID: the one that ADNIMERGE names first, or the first of the folders
    for ptid in ptids:
        names.setdefault(person_number(ptid), ptid)
    candidates = [_candidate(image, names, clinical, records, tables) for image in images]
    joined = [f"{ptid} as {name}" for ptid in sorted({*ptids}) if (name := names[person_number(ptid)]) != ptid]
    notes += [*table_notes, *clinical_notes, *note_on(joined, "PTID", "of one RID read as one person")]
    notes += _rows_without_scan(clinical.ptids, clinical.visits, names, candidates)
    pairs = {c.scan.scan_id: (c.scan, records.get(image_id(c.scan.scan_id), SILENT)) for c in candidates if c.scan.kept}
    notes += image_tables.disagreement_notes(pairs)
    return candidates, notes


def _records(root: Path, files: InputFiles, images: Sequence[AdniImage]) -> tuple[dict[str, ImageRecord], list[str]]:
    """Records of collection lists and XML files by image id, and how they agree with the images."""
    collection, notes = image_tables.read_collections(root, files.tables)
    described, xml_notes = image_tables.read_image_xmls(root, files.metadata)
    records, differences = image_tables.combine_records(collection, described)
    present = {image_id(image.image_id): image for image in images}
    dates = {number: (image.date, records[number].date) for number, image in present.items() if number in records}
    notes += [*xml_notes, *differences, *image_tables.date_note(dates)]
    return records, notes + image_tables.coverage_notes(records, set(present))


def _candidate(
    image: AdniImage,
    names: Mapping[int, str],
    clinical: AdniClinical,
    records: Mapping[str, ImageRecord],
    tables: ImageTables,
) -> Candidate:
    person = person_number(image.ptid)
    record = records.get(image_id(image.image_id), SILENT)
    record = record if record != SILENT else tables.visits.get(image_tables.loni_number(image.image_id) or 0, SILENT)
    facts = tables.of(image.image_id, image.path)
    # Header and XML describe this scan; tables may describe another scan of the visit.
    facts = dataclasses.replace(
        facts, field_strength=image.field_strength or record.field_strength or facts.field_strength
    )
    scan_date = image.date or record.date
    matched = match_visit(clinical.visits.get(person, ()), scan_date, record.visit)
    session = None if isinstance(matched, str) else matched.session_id
    scan = Scan(
        adni_participant(names[person]), session, image.image_id, image.path, field_strength=facts.field_strength
    )
    problem = (
        image.problem
        or image.sequence_problem(record.sequence)
        or image_tables.identity_problem(record, image.ptid, image.patient)
    )
    if problem is not None:
        return Candidate(scan.dropped(problem))
    if isinstance(matched, str):
        return Candidate(scan.dropped(matched))
    filled, columns, later = clinical.at(scan, person, matched, scan_date)
    if filled.sex is None or filled.age is None:
        filled = dataclasses.replace(filled, sex=filled.sex or record.sex, age=filled.age or record.age)
    days = days_between(scan_date, matched.exam_date)
    called = f"{image.sequence_or_name} {image.description}".strip()
    rank = preference(called, image.image_id, facts, days, clinical.config)
    candidate = Candidate(filled, columns, rank, CRITERIA, later)
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
    unmatched = sorted({ptid for ptid in ptids if person_number(ptid) not in visits})
    notes = note_on(unscanned, "visit", "in ADNIMERGE without a scan here")
    return notes + note_on(unmatched, "participant", "in ADNIMERGE without an image here")


_PTID = re.compile(values.PTID, re.IGNORECASE)
_DATE_FOLDER = re.compile(r"\d{4}-\d{2}-\d{2}")
_ID_FOLDER = re.compile(r"[ISD]\d+")
_T1W = re.compile(
    r"mp-?_?rage|(^|[_ ])mpr([_ -]|$)|spgr|(^|_)mt1(_|$)|(^|[_ -])t1w?([_ -]|$)|bravo|mdeft|(^|[_ ])tfe", re.IGNORECASE
)
_OTHER = re.compile(
    r"flair|t2|(^|[_ -])pd([_ -]|$)|dti|dwi|diff|bold|fmri|epi|asl|pcasl|swi|gre|field|b1|loc|scout|survey|hippo|pet",
    re.IGNORECASE,
)
"""Names of other sequences of ADNI's protocols."""
_DERIVED = re.compile(r"mask|label|(^|_)seg|harp", re.IGNORECASE)


@dataclass(frozen=True)
class AdniImage:
    """What the path of an image and, for a DICOM series, its header say."""

    path: str  # relative to the input folder; of a series, its first file
    ptid: str
    sequence: str | None  # folder that LONI names after the sequence or the processing
    date: date | None  # of the scan: from its folder or, failing that, from the header of a series
    image_id: str
    problem: str | None = None  # why the image cannot be used, regardless of the tables
    description: str = ""  # sequence according to the DICOM header; free text that must never be written anywhere
    patient: str = ""  # PatientID of a DICOM header, for comparison; must never be written anywhere
    field_strength: float | None = None  # tesla, from a DICOM header

    @property
    def sequence_or_name(self) -> str:
        """Name of the image for messages: its folder, else its file (not for a series)."""
        return self.sequence or (image_stem(self.path) if is_nifti(self.path) else "DICOM series")

    def sequence_problem(self, recorded: str | None = None) -> str | None:
        """Why the names of the image do not suggest an original T1-weighted scan; None if they do."""
        names = [name for name in (self.sequence_or_name, recorded, self.description) if name]
        # The other names count only where the folder's name is ambiguous.
        is_t1w = _T1W.search(names[0]) or (not _OTHER.search(names[0]) and any(map(_T1W.search, names)))
        if is_t1w and not any(map(_DERIVED.search, names)):
            return None
        return f"not named as a T1-weighted sequence (MPRAGE, SPGR): {self.sequence_or_name}"


def parse_image(path: str) -> AdniImage | None:
    """Read an image's path; None if it is not in a participant's folder.

    >>> image = parse_image("ADNI/002_S_0295/MPRAGE/2006-04-18_08_20_30.0/I118671/brain.nii")
    >>> image.ptid, image.sequence, str(image.date), image.image_id
    ('002_S_0295', 'MPRAGE', '2006-04-18', 'I118671')
    """
    parts = path.split("/")
    start = next((i for i, part in enumerate(parts[:-1]) if _PTID.fullmatch(part)), None)
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

    A name alone (``brain.nii``) may be the same in every folder, and names in a DICOM series are those of slices.
    """
    stem = image_stem(parts[-1]) if is_nifti(parts[-1]) else parts[-1].removesuffix(Path(parts[-1]).suffix)
    in_name = re.search(r"_(I\d+)$", stem)
    of_image = [number for number in numbers if number.startswith("I")]
    whole = "_".join([parts[0].upper(), *parts[1:-1], *([stem] if is_nifti(parts[-1]) else [])])
    return (of_image[-1:] or ([in_name[1]] if in_name else []) or numbers[-1:] or [whole])[0]


def find_images(root: Path, files: InputFiles, max_voxel_mm: float) -> tuple[list[AdniImage], list[str]]:
    parsed = [(path, parse_image(path)) for path in files.images]
    images = [image for _, image in parsed if image is not None]
    outside = [path for path, image in parsed if image is None]
    several: list[str] = []
    with Progress(len(files.dicom), "Reading DICOM headers") as bar:
        for folder, names in files.dicom.items():
            bar.update()
            if parse_image(f"{folder}/{names[0]}") is None:
                outside.append(f"{folder} (DICOM)")
                continue
            of_folder = _of_folder(read_folder(root, folder, names, max_voxel_mm))
            several += [folder] if len(of_folder) > 1 else []
            images += of_folder
    notes = note_on(several, "folder", "several DICOM series, each is listed", verb="holds", limit=3)
    text = "outside participants' folders (NNN_S_NNNN) ignored"
    return images, notes + note_on(outside, "image", text, limit=3)


def _of_folder(series_list: Sequence[DicomSeries]) -> list[AdniImage]:
    """The series of one folder as images; at most one of several has no problem."""
    images = [_image(series) for series in series_list]
    if len(images) == 1:
        return images
    # The folder name describes only one of them, so the header must say that a series is T1-weighted.
    unlike = "not named as a T1-weighted sequence by its DICOM header"
    header_problems = []
    for series in series_list:
        named = _T1W.search(series.description) and not _DERIVED.search(series.description)
        fits = named or not series.description.strip()
        header_problems.append(series.problem or (None if fits else f"{unlike}: {series.name}"))
    usable = [index for index, problem in enumerate(header_problems) if problem is None]
    names = listed((series_list[index].name for index in usable), 3)
    ambiguous = f"several series in one folder: {names} could each be the image; put each in a separate folder"
    decided = []
    for index, (series, image) in enumerate(zip(series_list, images, strict=True)):
        if usable == [index]:
            decided.append(image)
            continue
        series_id = f"{image.image_id}_series-{index + 1 if series.number is None else series.number}"
        decided.append(dataclasses.replace(image, image_id=series_id, problem=header_problems[index] or ambiguous))
    return decided


def _image(series: DicomSeries) -> AdniImage:
    image = parse_image(series.files[0])
    if image is None:
        raise ValueError(f"{series.files[0]} is not in a participant's folder")
    return dataclasses.replace(
        image,
        date=image.date or series.date,
        problem=series.problem,
        description=series.description,
        patient=series.patient,
        field_strength=series.field_strength,
    )


CRITERIA = (
    "it passed ADNI's quality control",
    "the preferred protocol",
    "selected by the Mayo Clinic",
    "a better grade by the Mayo Clinic",
    "more of ADNI's processing steps",
    "the first acquisition, not a repeat",
    "the preferred field strength",
    "nearer to the date of the visit",
    "a lower image number",
)
"""The criteria in words, in the order of `preference`."""

_PROCESSING = ("gradwarp", "b1_correction", "n3", "scaled")
_REPEAT = re.compile(r"repeat|(^|_)mpr-?r(_|$)|(^|_)(rep|2nd)(_|$)", re.IGNORECASE)
_ACCELERATED = re.compile(r"acc?el|grappa|sense|arc(_|$)|(^|_)p2(_|$)", re.IGNORECASE)
_NO_DATE = 10_000


def preference(
    description: str, image_id: str, facts: ImageFacts, days_from_visit: int | None, config: CohortConfig
) -> tuple[int, ...]:
    text = re.sub(r"[\s;,]+", "_", f"{description}_{facts.description or ''}")
    accelerated = facts.accelerated if facts.accelerated is not None else bool(_ACCELERATED.search(text))
    number = re.fullmatch(r"[A-Za-z]?(\d+)", image_id)
    tesla, preferred = facts.field_strength, float(config.preferred_field_strength)
    return (
        int(facts.failed is not None),
        int(accelerated != (config.preferred_protocol == "accelerated")),
        int(facts.selected is False),
        facts.grade or 1,
        -sum(step in text.lower() for step in _PROCESSING),
        int(bool(_REPEAT.search(text))),
        2 if tesla is None else int(abs(tesla - preferred) > 0.75),
        _NO_DATE if days_from_visit is None else days_from_visit,
        int(number[1]) if number else 0,
    )
