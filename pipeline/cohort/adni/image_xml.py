"""The XML file that LONI gives with an image (``idaxs``), if the download contains it.

Only image number, participant, sex, age at the scan, visit, date, sequence and field strength are read; assessments,
genotype and weight are not. Elements are found by name, since their depth differs: an original image is described by
its series, a processed one by its ``derivedProduct`` and by the image it was made from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from xml.etree import ElementTree

from heatlas.pipeline.cohort.adni.image_records import ImageRecord, image_id, participant
from heatlas.pipeline.cohort.cells import values
from heatlas.pipeline.cohort.cells.ranges import possible_cells, problem_notes
from heatlas.pipeline.cohort.people.visits import visit_of
from heatlas.pipeline.run.plain_text import counted, listed
from heatlas.pipeline.run.regular_files import read_regular
from heatlas.pipeline.run.work.progress import Progress

MAX_BYTES = 2**20
"""The XML file of an image is about 10 kB."""
_ROOT = "idaxs"


def read_image_xmls(root: Path, paths: Sequence[str]) -> tuple[dict[str, ImageRecord], list[str]]:
    """Read the XML files of images: records by image id with its letter; files that describe no image are skipped."""
    found: dict[str, dict[str, ImageRecord]] = {}
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
                found.setdefault(described[0], {})[path] = described[1]
    records, contradictions = {}, []
    for number, of_image in found.items():
        records[number], differing = agreed(list(of_image.values()))
        if differing:
            contradictions.append(f"{number} in {' and '.join(of_image)} ({', '.join(differing)})")
    notes = problem_notes(problems)
    if contradictions:
        notes.append(
            f"{counted(len(contradictions), 'image', 'is')} described differently by several XML files, these are "
            f"not used: {listed(contradictions)}"
        )
    if damaged:
        notes.append(f"{len(damaged)} XML files cannot be read and are skipped: {listed(damaged, 3)}")
    return records, notes


def agreed(records: Sequence[ImageRecord]) -> tuple[ImageRecord, list[str]]:
    """Combine several descriptions of one image: a field they contradict each other on is None, and is named.

    >>> agreed([ImageRecord(sex="F", age=70.0), ImageRecord(sex="F", age=71.0), ImageRecord(modality="MRI")])[1]
    ['age']
    """
    said = {
        field.name: list(dict.fromkeys(v for one in records if (v := getattr(one, field.name)) is not None))
        for field in fields(ImageRecord)
    }
    kept = {name: values[0] if len(values) == 1 else None for name, values in said.items()}
    return ImageRecord(**kept), [name for name, values in said.items() if len(values) > 1]


def parse_image_xml(
    content: bytes, name: str = "XML", problems: list[str] | None = None
) -> tuple[str, ImageRecord] | None:
    """Image id and record of one XML file; None if it describes no image. Impossible values go to `problems`.

    Raises ValueError if the file is too large or declares entities, which let a small file expand without limit.
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
    sequence = _text(tree, "description") if derived is None else _text(derived, "processedDataLabel")
    visit = _text(tree, "visitIdentifier")
    protocol = {e.get("term"): (e.text or "").strip() for e in tree.iter() if _local(e.tag) == "protocol"}
    facts = {term: _text(tree, term) or "" for term in ("subjectSex", "subjectAge")}
    facts["Field Strength"] = protocol.get("Field Strength", "")
    filled = {term: text for term, text in facts.items() if not values.is_missing(text)}
    facts = possible_cells(name, None, filled, [] if problems is None else problems)
    record = ImageRecord(
        ptid=participant(_text(tree, "subjectIdentifier")),
        sex=values.sex(facts.get("subjectSex")),
        age=values.positive(facts.get("subjectAge")),
        visit=None if visit is None else visit_of(visit),
        date=values.calendar_date(_text(tree, "dateAcquired")),
        modality=_text(tree, "modality"),
        sequence=sequence,
        field_strength=values.field_strength(facts.get("Field Strength")),
    )
    return image_id(number), record


def _local(tag: object) -> str:
    """Name of an element without its namespace."""
    return str(tag).rpartition("}")[2]


def _find(tree: ElementTree.Element, name: str) -> ElementTree.Element | None:
    return next((element for element in tree.iter() if _local(element.tag) == name), None)


def _text(tree: ElementTree.Element, name: str) -> str | None:
    element = _find(tree, name)
    text = "" if element is None else (element.text or "").strip()
    return text or None
