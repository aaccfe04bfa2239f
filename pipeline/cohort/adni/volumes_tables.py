"""Volumes from ADNI's tables: ADNIMERGE, and UCSF's FreeSurfer tables (UCSFFSX...), which separate left and right.

Both are in mm³. Hippocampus in ADNIMERGE is left plus right from one of the UCSF tables; FSVERSION gives its FreeSurfer
version. Volumes of different versions are not comparable, so the version is part of the source.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import date
from pathlib import Path

from heatlas.pipeline.cohort.adni.files import FREESURFER
from heatlas.pipeline.cohort.adni.image_quality import loni_number
from heatlas.pipeline.cohort.adni.visit_tables import VisitTable, of_visit, read_visit_table
from heatlas.pipeline.cohort.cells import values
from heatlas.pipeline.cohort.segmented.volumes import Volumes, checked, joined

LEFT, RIGHT, INTRACRANIAL = "ST29SV", "ST88SV", "ST10CV"
"""UCSF's codes for the volumes of both hippocampi and the intracranial volume."""

_WANTED = (LEFT, RIGHT, INTRACRANIAL, "IMAGEUID", "OVERALLQC", "VERSION")
_VERSIONS = {"UCSFFSX": "4.3", "UCSFFSX51": "5.1", "UCSFFSX6": "6.0", "UCSFFSX7": "7"}


def read_freesurfer_tables(
    root: Path, files: Mapping[str, str], persons: Collection[int]
) -> tuple[dict[str, VisitTable], list[str]]:
    """Read the available UCSF tables, newest FreeSurfer first, for these persons (RID)."""
    tables, notes = {}, []
    for name in reversed(FREESURFER):
        if name in files:
            tables[name], table_notes = read_visit_table(root, files[name], _WANTED, persons)
            notes += table_notes
    return tables, notes


def table_volumes(
    columns: Mapping[str, str],
    tables: Mapping[str, VisitTable],
    person: int,
    image_id: str,
    session_id: str,
    when: date | None,
) -> Volumes:
    """Volumes at a visit from ADNIMERGE, with left and right from the UCSF table of the same segmentation.

    A UCSF row of this image is preferred to one of its visit.
    """
    merge = _of_adnimerge(columns)
    best = merge
    for name, table in tables.items():
        of_table = _of_table(name, table, person, image_id, session_id, when)
        found = joined(merge, of_table)
        if merge.total is not None and found.left is not None:
            return found
        if best.total is None and found.total is not None:
            best = found
    return best


def _of_adnimerge(columns: Mapping[str, str]) -> Volumes:
    version = columns.get("FSVERSION")
    source = "ADNIMERGE" + (f" ({version})" if version else "")
    total, intracranial = (values.positive(columns.get(name)) for name in ("Hippocampus", "ICV"))
    return checked(None, None, total, intracranial, source)


def _of_table(name: str, table: VisitTable, person: int, image_id: str, session_id: str, when: date | None) -> Volumes:
    rows = [row for row in table.of(person) if row.columns.get("OVERALLQC", "").lower() != "fail"]
    number = loni_number(image_id)
    of_image = [row for row in rows if number is not None and loni_number(row.columns.get("IMAGEUID")) == number]
    row = of_image[0] if of_image else of_visit(rows, session_id, when)
    if row is None:
        return Volumes()
    left, right, intracranial = (values.positive(row.columns.get(column)) for column in (LEFT, RIGHT, INTRACRANIAL))
    return checked(left, right, None, intracranial, f"{name} (FreeSurfer {_VERSIONS[name]})")
