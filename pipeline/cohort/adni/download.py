"""An ADNI download as LONI unpacks it: images (`pipeline.cohort.adni.images`), their metadata, and ADNIMERGE.

If a visit has several T1-weighted images, `pipeline.cohort.adni.scan_preference` chooses one. Diagnoses come from
`pipeline.cohort.people.diagnosis`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from heatlas.pipeline.cohort.adni import files as adni_files
from heatlas.pipeline.cohort.adni.clinical import AdniClinical, read_clinical
from heatlas.pipeline.cohort.adni.image_quality import ImageTables, loni_number, read_image_tables
from heatlas.pipeline.cohort.adni.image_records import (
    SILENT,
    ImageRecord,
    combined,
    coverage_notes,
    date_note,
    disagreement_notes,
    identity_problem,
    image_id,
    read_collections,
)
from heatlas.pipeline.cohort.adni.image_xml import read_image_xmls
from heatlas.pipeline.cohort.adni.images import AdniImage, find_images
from heatlas.pipeline.cohort.adni.scan_preference import CRITERIA, preference
from heatlas.pipeline.cohort.adni.visit_tables import VisitRow, days_between, match_visit, person_number
from heatlas.pipeline.cohort.candidates import Candidate
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.walking import InputFiles
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.plain_text import counted, listed


def adni_participant(ptid: str) -> str:
    """BIDS name of an ADNI participant.

    >>> adni_participant("002_S_0295")
    'sub-ADNI002S0295'
    """
    return "sub-ADNI" + ptid.upper().replace("_", "")


def read_adni(root: Path, files: InputFiles, config: CohortConfig) -> tuple[list[Candidate], list[str]]:
    """Read an ADNI download: one candidate per image below a participant's folder, and notes.

    A contrast by diagnosis needs ADNIMERGE's DX or DXSUM; any other column only has to exist.
    """
    images, notes = find_images(root, files, config.max_voxel_mm)
    records, record_notes = _records(root, files, images)
    notes += record_notes
    tables, table_notes = read_image_tables(root, adni_files.newest_tables(files.tables)[0])
    known = [*records.values(), *tables.visits.values()]
    persons = {person_number(image.ptid) for image in images}
    clinical, clinical_notes = read_clinical(
        root, files.tables, persons, config, any(row.visit is not None for row in known)
    )
    names = _names_by_person(clinical.ptids, images)
    candidates = [_candidate(image, names, clinical, records, tables) for image in images]
    notes += [*table_notes, *clinical_notes]
    notes += _roll_over_notes(clinical.ptids, images, names)
    notes += _rows_without_scan(clinical.ptids, clinical.visits, names, candidates)
    said = {c.scan.scan_id: (c.scan, records.get(image_id(c.scan.scan_id), SILENT)) for c in candidates if c.scan.kept}
    notes += disagreement_notes(said)
    return candidates, notes


def _records(root: Path, files: InputFiles, images: Sequence[AdniImage]) -> tuple[dict[str, ImageRecord], list[str]]:
    """Records of collection lists and XML files by image id, and how they agree with the images."""
    collection, notes = read_collections(root, files.tables)
    described, xml_notes = read_image_xmls(root, files.metadata)
    records, differences = combined(collection, described)
    present = {image_id(image.image_id): image for image in images}
    dates = {number: (image.date, records[number].date) for number, image in present.items() if number in records}
    return records, [*notes, *xml_notes, *differences, *date_note(dates), *coverage_notes(records, set(present))]


def _names_by_person(ptids: Sequence[str], images: Sequence[AdniImage]) -> dict[int, str]:
    """One PTID per RID: the one that ADNIMERGE names first, or the first of the folders."""
    names: dict[int, str] = {}
    for ptid in [*ptids, *sorted(image.ptid for image in images)]:
        names.setdefault(person_number(ptid), ptid)
    return names


def _roll_over_notes(ptids: Sequence[str], images: Sequence[AdniImage], names: Mapping[int, str]) -> list[str]:
    others = {ptid for ptid in [*ptids, *(image.ptid for image in images)] if names[person_number(ptid)] != ptid}
    joined = [f"{ptid} as {names[person_number(ptid)]}" for ptid in sorted(others)]
    return [f"{counted(len(joined), 'PTID')} of one RID read as one person: {listed(joined)}"] if joined else []


def _candidate(
    image: AdniImage,
    names: Mapping[int, str],
    clinical: AdniClinical,
    records: Mapping[str, ImageRecord],
    tables: ImageTables,
) -> Candidate:
    person = person_number(image.ptid)
    record = records.get(image_id(image.image_id), SILENT)
    record = record if record != SILENT else tables.visits.get(loni_number(image.image_id) or 0, SILENT)
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
        image.problem or image.sequence_problem(record.sequence) or identity_problem(record, image.ptid, image.patient)
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
    notes = []
    if unscanned:
        notes.append(f"{counted(len(unscanned), 'visit')} in ADNIMERGE without a scan here: {listed(unscanned)}")
    if unmatched:
        notes.append(
            f"{counted(len(unmatched), 'participant')} in ADNIMERGE without an image here: {listed(unmatched)}"
        )
    return notes
