"""The XML file that LONI gives with an image (``idaxs``), where a download holds it.

Only what is used is read: number of the image, participant, sex, age at the scan, visit, date, sequence, field
strength. The rest (assessments, genotype, weight) is never looked at. Elements are found by name, since their depth
differs between original and processed images: an original image is described by its series, a processed one by the
``derivedProduct`` and by the image it was made from.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from pipeline.cohort import values
from pipeline.cohort.candidates import listed
from pipeline.cohort.image_records import ImageRecord, image_id, participant
from pipeline.cohort.visits import visit_of
from pipeline.run.progress import progress_bar

MAX_BYTES = 2**20
"""An image's XML has some 10 kB."""
_ROOT = "idaxs"


def read_image_xmls(root: Path, paths: Sequence[str]) -> tuple[dict[str, ImageRecord], list[str]]:
    """Read the XML files of images.

    Parameters
    ----------
    root : Path
    paths : sequence of str
        XML files below `root`; those that describe no image are passed over.

    Returns
    -------
    records : dict of str to ImageRecord
        By image id with its letter.
    notes : list of str
        Files that cannot be read.
    """
    records: dict[str, ImageRecord] = {}
    damaged: list[str] = []
    with progress_bar(len(paths), "Reading XML files") as bar:
        for path in paths:
            bar.update()
            try:
                found = parse_image_xml((root / path).read_bytes())
            except (OSError, ElementTree.ParseError, ValueError, LookupError):  # LookupError: an unknown encoding
                damaged.append(path)
                continue
            if found is not None:
                records[found[0]] = found[1]
    text = f"{len(damaged)} XML files cannot be read and are passed over: {listed(damaged, 3)}"
    return records, [text] if damaged else []


def parse_image_xml(content: bytes) -> tuple[str, ImageRecord] | None:
    """Read one XML file.

    Returns
    -------
    tuple of str and ImageRecord, or None
        Image id and what is said of it; None if the file describes no image.

    Raises
    ------
    ValueError
        If it is too large, or declares entities, with which a small file can grow without limit.
    xml.etree.ElementTree.ParseError
        If it is not XML.
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
    record = ImageRecord(
        ptid=participant(_text(tree, "subjectIdentifier")),
        sex=values.sex(_text(tree, "subjectSex")),
        age=values.positive(_text(tree, "subjectAge")),
        visit=None if visit is None else visit_of(visit),
        date=values.calendar_date(_text(tree, "dateAcquired")),
        modality=_text(tree, "modality"),
        sequence=sequence,
        field_strength=values.field_strength(protocol.get("Field Strength")),
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
