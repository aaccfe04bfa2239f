"""What ADNI's tables say about single images: protocol, field strength, processing and quality grades.

========================================  =========================================================================
MPRAGEMETA                                sequence, field, series, visit and date of each T1-weighted image
MRIQC                                     description, field, series: an inventory, no grades in spite of its name
MRIQUALITY, since 2024 MRIPROT (ADNI1)    PASS per series
MAYOADIRL_MRI_IMAGEQC, ..._QUALITY_ADNI3  the Mayo Clinic's series_selected; series_quality, 1 best to 4 unusable
========================================  =========================================================================

A grade belongs to a series: the acquired image and everything derived from it. No table is required, and an image that
no table lists is treated as ungraded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from heatlas.pipeline.cohort.adni.image_records import ImageRecord
from heatlas.pipeline.cohort.adni.visit_tables import MPRAGEMETA, MRIQC, QUALITY_ADNI1, QUALITY_MAYO
from heatlas.pipeline.cohort.cells import values
from heatlas.pipeline.cohort.cells.dates import with_iso_dates
from heatlas.pipeline.cohort.cells.ranges import plain_name, possible_cells, problem_notes
from heatlas.pipeline.cohort.cells.text_tables import filled_rows, read_text_table
from heatlas.pipeline.cohort.people.visits import visit_of
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted

_IMAGE = ("imageuid", "imageid", "loniimage")
_SERIES = ("seriesid", "loniseries", "loniuid")
_COLUMNS = (
    *_IMAGE,
    *_SERIES,
    *("sequence", "seriesdescription", "magstrength", "magneticfieldstrength", "fieldstrength", "visit"),
    *("scandate", "pass", "seriesselected", "seriesquality", "t1accelerated"),
)
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
        return replace(_filled(image, shared), series=series, description=image.description)


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
                images[number] = _filled(images[number], facts) if number in images else facts
                if table == MPRAGEMETA:
                    visit = visit_of(cells["visit"]) if "visit" in cells else None
                    visits[number] = ImageRecord(visit=visit, date=values.calendar_date(cells.get("scandate")))
            if facts.series is not None:
                known = series.get(facts.series)
                series[facts.series] = replace(facts, description=None) if known is None else _worse(known, facts)
    return ImageTables(images, series, visits), notes


def _rows(path: Path, table: str) -> tuple[Sequence[Mapping[str, str]], list[str]]:
    try:
        frame, notes = read_text_table(path, used=())
        frame = frame.rename(columns=plain_name)
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
    frame = frame[[name for name in _COLUMNS if name in names]]
    problems: list[str] = []
    rows = [possible_cells(path.name, line, cells, problems) for line, cells in filled_rows(frame) if cells]
    notes += problem_notes(problems)
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
        field_strength=values.field_strength(
            values.first_value(cells, "magstrength", "magneticfieldstrength", "fieldstrength")
        ),
        accelerated=_yes(cells.get("t1accelerated")),
        selected=_yes(cells.get("seriesselected")),
        grade=grade or None,
        failed=failed,
    )


def _yes(text: str | None) -> bool | None:
    """Read true and false as these tables write them; -1 and -4 mean missing."""
    known = {"1": True, "true": True, "yes": True, "pass": True, "0": False, "false": False, "no": False, "fail": False}
    return known.get(re.sub(r"\.0+$", "", (text or "").strip().lower()))


def _filled(facts: ImageFacts, other: ImageFacts) -> ImageFacts:
    """Facts with missing values filled in from `other`."""
    gaps = {name: value for name, value in vars(other).items() if getattr(facts, name) is None}
    return replace(facts, **gaps)


def _worse(facts: ImageFacts, other: ImageFacts) -> ImageFacts:
    """Combine rows of a series that disagree: selected if either is, and the worse grade."""
    grades = [grade for grade in (facts.grade, other.grade) if grade is not None]
    chosen = [selected for selected in (facts.selected, other.selected) if selected is not None]
    return replace(
        _filled(facts, other), grade=max(grades, default=None), selected=max(chosen, default=None), description=None
    )
