"""ADNI's tables: which file is which, their rows by visit, and the visit of a scan.

A table is recognised by its name, whatever LONI appended to it: ``DXSUM_PDXCONV_ADNIALL_12Oct2023.csv`` and ``dxsum
(1).csv`` are the same. Of several downloads the one with the newest date in its name is used. Columns for the visit and
its date differ between tables, as does the case of names. A table besides ADNIMERGE that is missing, empty or damaged
is named in a note.

A scan belongs to a visit of ADNIMERGE by these rules:

1. The Visit of the collection list, if it counts from the first baseline (``bl``, ``sc``, ``m12``), ADNIMERGE has that
   visit, and the two dates, where known, are at most `CODE_TOLERANCE_DAYS` apart.
2. Otherwise the visit whose EXAMDATE is nearest to the scan date, within `WINDOW_DAYS`.
3. Otherwise, without dates, the Visit of the collection list even if it counts within a phase (``y1``).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path

import pandas as pd

from heatlas.pipeline.cohort.cells import values
from heatlas.pipeline.cohort.cells.tables import filled_rows, possible_cells, problem_notes, read_text_table
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import listed, note_on

ADNIMERGE = "ADNIMERGE"
DXSUM = "DXSUM"
CDR = "CDR"
MPRAGEMETA = "MPRAGEMETA"
MRIQC = "MRIQC"
QUALITY_ADNI1 = ("MRIQUALITY", "MRIPROT")
"""One table, renamed by LONI in 2024."""
QUALITY_MAYO = ("MAYOADIRL_MRI_IMAGEQC", "MAYOADIRL_MRI_QUALITY")
"""The Mayo Clinic's grades, of ADNIGO/2 and of ADNI3."""
FREESURFER = ("UCSFFSX", "UCSFFSX51", "UCSFFSX6", "UCSFFSX7")

_SUFFIX = r"(?P<suffix>([^A-Za-z0-9][^/]*)?)\.csv$"
_NAMES = {
    ADNIMERGE: re.compile(r"adnimerge(?P<suffix>[^/]*)\.csv$", re.IGNORECASE),
    DXSUM: re.compile(r"(^|/)dxsum(_pdxconv)?(_adniall)?" + _SUFFIX, re.IGNORECASE),
    "MAYOADIRL_MRI_QUALITY": re.compile(r"(^|/)mayoadirl_mri_quality(_adni\d)?" + _SUFFIX, re.IGNORECASE),
    **{
        name: re.compile(rf"(^|/){name}" + _SUFFIX, re.IGNORECASE)
        for name in (CDR, MPRAGEMETA, MRIQC, *QUALITY_ADNI1, QUALITY_MAYO[0], *FREESURFER)
    },
}
_DATES = (
    (re.compile(r"\d{1,2}[A-Za-z]{3}\d{4}"), "%d%b%Y"),
    (re.compile(r"(?<!\d)\d{8}(?!\d)"), "%Y%m%d"),
    (re.compile(r"\d{4}-\d\d-\d\d"), "%Y-%m-%d"),
    (re.compile(r"(?<!\d)\d\d_\d\d_\d\d(?!\d)"), "%m_%d_%y"),
)


def newest_tables(names: Sequence[str]) -> tuple[Mapping[str, str], list[str]]:
    """File of each known table, such as ``DXSUM``; notes name older files that are not used.

    >>> newest_tables(["a/DXSUM_02Feb2024.csv", "dxsum_pdxconv_adniall.csv", "CDR (1).csv"])[0]
    {'DXSUM': 'a/DXSUM_02Feb2024.csv', 'CDR': 'CDR (1).csv'}
    """
    files, notes = {}, []
    for table, pattern in _NAMES.items():
        dated = sorted((_suffix_date(match["suffix"]), name) for name in names if (match := pattern.search(name)))
        if dated:
            files[table] = dated[-1][1]
        if len(dated) > 1:
            older = listed(name for _, name in dated[:-1])
            notes.append(f"several {table} tables; {files[table]} is used, not {older}")
    return files, notes


def _suffix_date(suffix: str) -> date:
    """Date in a file name; the earliest possible date if there is none."""
    for pattern, form in _DATES:
        if match := pattern.search(suffix):
            with contextlib.suppress(ValueError):
                return datetime.strptime(match[0], form).date()
    return date.min


WINDOW_DAYS = 92
"""Half the usual interval between visits; a row further away belongs to another visit."""

CODE_TOLERANCE_DAYS = 183
"""A visit code that disagrees with the date by more than this has another starting point or is wrong."""

DATE_COLUMNS = ("EXAMDATE", "VISDATE", "USERDATE")
"""Date of a visit, best source first; USERDATE is when the form was entered."""

_WHO_AND_WHEN = ("RID", "PTID", "VISCODE", "VISCODE2", *DATE_COLUMNS)


@dataclass(frozen=True)
class VisitRow:
    """One visit of one person in a table."""

    session_id: str
    months: int | None  # since the first baseline
    exam_date: date | None
    # Filled cells; used columns by their current names (``DX_bl`` even if the file says ``DX.bl``)
    columns: Mapping[str, str]


def by_date(row: VisitRow) -> tuple[date, str]:
    return row.exam_date or date.max, row.session_id


@dataclass(frozen=True)
class VisitTable:
    """Rows of a table by RID, in order of date."""

    name: str = ""  # of the file; empty without a file
    rows: Mapping[int, tuple[VisitRow, ...]] | None = None

    def of(self, person: int) -> tuple[VisitRow, ...]:
        return (self.rows or {}).get(person, ())


def person_number(ptid: str) -> int:
    """RID of a PTID: ``002_S_0295`` is 295."""
    return int(ptid.rsplit("_", 1)[1])


def contradiction(columns: Mapping[str, str]) -> str:
    """RID and PTID of a row if they belong to different people; empty if they agree or one is missing.

    >>> contradiction({"RID": "296", "PTID": "002_S_0295"}), contradiction({"RID": "295.0", "PTID": "002_S_0295"})
    ('RID 296, PTID 002_S_0295', '')
    """
    rid, ptid = values.number(columns.get("RID")), columns.get("PTID", "").strip()
    if rid is None or rid <= 0 or not re.fullmatch(values.PTID, ptid, re.IGNORECASE):
        return ""
    return "" if rid == person_number(ptid) else f"RID {columns['RID'].strip()}, PTID {ptid}"


def contradiction_notes(name: str, contradictions: Mapping[int, str]) -> list[str]:
    cases = [f"line {line} ({ids})" for line, ids in contradictions.items()]
    text = "left out because RID and PTID belong to different people; correct one of them"
    return note_on(cases, "row", text, before=f"{name}: ", verb="is")


def todays_spelling(columns: Iterable[str], used: Iterable[str]) -> dict[str, str]:
    """Current names of used columns that older exports write in another case or with a dot for an underscore."""
    spelling = {name.upper(): name for name in used}
    taken = set(columns)
    renamed = {}
    for name in columns:
        today = spelling.get(name.upper().replace(".", "_"))
        if today is not None and today not in taken:
            renamed[name] = today
            taken.add(today)
    return renamed


def read_visit_table(
    root: Path, name: str | None, wanted: Sequence[str], persons: Collection[int]
) -> tuple[VisitTable, list[str]]:
    """Read an optional table with one of the `wanted` columns; empty, with a note, if it cannot be used."""
    if name is None:
        return VisitTable(), []
    path = root / name
    used = (*_WHO_AND_WHEN, *wanted)
    try:
        frame, notes = read_text_table(path, used=used)
        frame = frame.rename(columns=todays_spelling(frame.columns, used))
        lacking = [
            " or ".join(group)
            for group in (("RID", "PTID"), ("VISCODE2", "VISCODE", *DATE_COLUMNS), tuple(wanted))
            if not set(group) & set(frame.columns)
        ]
        if lacking:
            raise BadInputError(f"{path}: column {', '.join(lacking)} is missing. Download it again.")
        if not len(frame):
            raise BadInputError(f"{path}: a header without rows. Download it again.")
        frame, date_notes = values.with_iso_dates(path, frame, DATE_COLUMNS)
        notes += date_notes
    except BadInputError as error:
        return VisitTable(), [f"{name} is not used: {error}"]
    rows, row_notes = _rows_by_person(name, frame[[c for c in used if c in frame.columns]], persons)
    return VisitTable(name, rows), [*notes, *row_notes]


def _rows_by_person(
    name: str, frame: pd.DataFrame, persons: Collection[int]
) -> tuple[dict[int, tuple[VisitRow, ...]], list[str]]:
    """Rows by RID; notes on rows without one, contradictory rows and impossible cells."""
    rows: dict[int, list[VisitRow]] = {}
    bad: list[str] = []
    contradictions: dict[int, str] = {}
    problems: list[str] = []
    for line, cells in filled_rows(frame):
        if ids := contradiction(cells):
            contradictions[line] = ids
            continue
        person = _person(cells)
        if person is None:
            bad.append(cells.get("RID") or cells.get("PTID") or "nothing")
        elif person in persons:
            columns = possible_cells(name, line, cells, problems)
            when = next((day for column in DATE_COLUMNS if (day := values.calendar_date(columns.get(column)))), None)
            visit = values.visit_of(values.visit_code(columns))
            months = None if visit.within_phase else visit.months  # only its date tells which phase
            rows.setdefault(person, []).append(VisitRow(visit.session_id, months, when, columns))
    notes = contradiction_notes(name, contradictions)
    notes += note_on(bad, "row", "without a RID or PTID left out", before=f"{name}: ", limit=3)
    return {person: tuple(sorted(of, key=by_date)) for person, of in rows.items()}, [*notes, *problem_notes(problems)]


def _person(columns: Mapping[str, str]) -> int | None:
    rid = values.number(columns.get("RID"))
    if rid is not None and rid > 0 and rid == int(rid):
        return int(rid)
    ptid = columns.get("PTID", "")
    return person_number(ptid) if re.fullmatch(values.PTID, ptid, re.IGNORECASE) else None


def of_visit(rows: Sequence[VisitRow], session_id: str, when: date | None) -> VisitRow | None:
    """The row of a visit: the nearest within `WINDOW_DAYS`; without dates, that of the session."""
    near = [
        (gap, row.session_id != session_id, row.exam_date or date.max, row)
        for row in rows
        if (gap := days_between(row.exam_date, when)) is not None and gap <= WINDOW_DAYS
    ]
    if near:
        return min(near, key=lambda entry: entry[:3])[3]
    undated = [row for row in rows if when is None or row.exam_date is None]
    return next((row for row in undated if row.session_id == session_id and row.months is not None), None)


def match_visit(visits: Sequence[VisitRow], scan_date: date | None, coded: values.Visit | None) -> VisitRow | str:
    """Visit of a scan, or why there is none; see the module's docstring."""
    if not visits:
        return "no row of this participant in ADNIMERGE"
    of_code = next((row for row in visits if coded is not None and row.session_id == coded.session_id), None)
    if of_code is not None and coded is not None and coded.months is not None and not coded.within_phase:
        gap = days_between(of_code.exam_date, scan_date)
        if gap is None or gap <= CODE_TOLERANCE_DAYS:
            return of_code
    gaps = [(gap, row) for row in visits if (gap := days_between(row.exam_date, scan_date)) is not None]
    if gaps:
        gap, nearest = min(gaps, key=lambda pair: pair[0])
        if gap <= WINDOW_DAYS:
            return nearest
        return (
            f"no row in ADNIMERGE within {WINDOW_DAYS} days of the scan: "
            f"{scan_date}, nearest is {nearest.session_id}, {gap} days away"
        )
    if of_code is not None:
        return of_code
    if coded is not None:
        return f"no row in ADNIMERGE for its visit: {coded.session_id}"
    if scan_date is None:
        return "neither a date in its path nor a Visit in a collection list"
    return "no row of this participant in ADNIMERGE has an EXAMDATE"


def days_between(day: date | None, other: date | None) -> int | None:
    return None if day is None or other is None else abs((day - other).days)
