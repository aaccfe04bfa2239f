"""ADNI's tables as LONI gives them: ADNIMERGE, and the list of an image collection.

Both are found by name or header anywhere below the input folder, with any date suffix, and need only the columns
that are used. Who is who goes by RID: a person who rolled over from one ADNI phase to the next is one person.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path

import pandas as pd

from pipeline.cohort.candidates import listed
from pipeline.cohort.text_tables import filled_rows, read_header, read_text_table, require_columns
from pipeline.cohort.values import calendar_date
from pipeline.cohort.visits import Visit, month_session, visit_of
from pipeline.run.errors import BadInputError

DOWNLOAD = (
    "Download it at LONI (ida.loni.usc.edu: ADNI, Search & Download, Study Files, 'ADNIMERGE - Key ADNI tables merged "
    "into one table') and put the CSV into the input folder."
)
_ADNIMERGE = re.compile(r"adnimerge(?P<suffix>[^/]*)\.csv$", re.IGNORECASE)
_USED_NAMES = (
    *("PTID", "VISCODE", "EXAMDATE", "EXAMDATE_bl", "DX", "DX_bl", "AGE", "Years_bl", "PTGENDER", "SITE"),
    *("FLDSTRENG", "APOE4", "MMSE", "CDGLOBAL", "CDR", "ICV", "Hippocampus", "FSVERSION"),
)


@dataclass(frozen=True)
class VisitRow:
    """One visit of one person in ADNIMERGE.

    Parameters
    ----------
    session_id : str
    months : int or None
        Since the first baseline.
    exam_date : date or None
    columns : mapping of str to str
        Filled cells; used columns in today's spelling (``DX_bl`` also where the file says ``DX.bl``).
    """

    session_id: str
    months: int | None
    exam_date: date | None
    columns: Mapping[str, str]


@dataclass(frozen=True)
class CollectionRow:
    """What LONI's list of an image collection says about one image."""

    visit: Visit | None
    date: date | None


def person_number(ptid: str) -> int:
    """RID of a PTID: ``002_S_0295`` is 295."""
    return int(ptid.rsplit("_", 1)[1])


def find_adnimerge(root: Path, tables: Sequence[str]) -> tuple[Path, tuple[str, ...]]:
    """The newest ADNIMERGE among the tables of an input folder, by the date in its name.

    Raises
    ------
    BadInputError
        If there is none; says where to download it.
    """
    found = sorted((name for name in tables if _ADNIMERGE.search(name)), key=lambda name: (_suffix_date(name), name))
    if not found:
        raise BadInputError(f"{root}: no ADNIMERGE*.csv below this folder. {DOWNLOAD}")
    notes = () if len(found) == 1 else (f"several ADNIMERGE tables; {found[-1]} is used, not {listed(found[:-1])}",)
    return root / found[-1], notes


def _suffix_date(name: str) -> date:
    match = _ADNIMERGE.search(name)
    suffix = match["suffix"] if match else ""
    for pattern, form in (
        (r"\d{1,2}[A-Za-z]{3}\d{4}", "%d%b%Y"),
        (r"\d{8}", "%Y%m%d"),
        (r"\d{4}-\d\d-\d\d", "%Y-%m-%d"),
    ):
        if found := re.search(pattern, suffix):
            try:
                return datetime.strptime(found[0], form).date()
            except ValueError:
                continue
    return date.min


def read_adnimerge(path: Path, dates_needed: bool, column_needed: str) -> tuple[pd.DataFrame, list[str]]:
    """Read ADNIMERGE as text, used columns in today's spelling.

    Parameters
    ----------
    path : Path
    dates_needed : bool
        True if scans can only be matched to visits by EXAMDATE.
    column_needed : str
        Column of the contrast; ``diagnosis`` needs DX.

    Raises
    ------
    BadInputError
        Naming missing columns.
    """
    frame = read_text_table(path)
    frame = frame.rename(columns=_todays_spelling(frame.columns))
    needed = ["PTID", "VISCODE"] + ["EXAMDATE"] * dates_needed + ["DX"] * (column_needed == "diagnosis")
    require_columns(path, frame, needed, DOWNLOAD)
    absent = [name for name in ("AGE", "PTGENDER", "Hippocampus", "ICV") if name not in frame.columns]
    notes = [f"{path.name} has no column {', '.join(absent)}; these values stay empty"] if absent else []
    is_person = frame["PTID"].str.fullmatch(r"\s*\d{3}_S_\d{4,}\s*", case=False)
    if not is_person.all():
        bad = list(frame.loc[~is_person, "PTID"])
        notes.append(f"{path.name}: {len(bad)} rows without a PTID such as 002_S_0295 are left out: {listed(bad, 3)}")
        frame = frame[is_person]
    return frame.assign(PTID=frame["PTID"].str.strip().str.upper()), notes


def _todays_spelling(columns: Iterable[str]) -> dict[str, str]:
    """Rename used columns that differ in case or in a dot for an underscore, as in older exports."""
    known = {name.upper(): name for name in _USED_NAMES}
    taken = set(columns)
    renamed = {}
    for name in columns:
        today = known.get(name.upper().replace(".", "_"))
        if today is not None and today not in taken:
            renamed[name] = today
            taken.add(today)
    return renamed


def visits_by_person(frame: pd.DataFrame, persons: set[int]) -> tuple[dict[int, list[VisitRow]], list[str]]:
    """Visits of the persons with images, by RID, one per session, in order of date.

    Two rows of one session (``sc`` and ``bl``; a repeated row) become one: cells of the first, gaps filled from the
    second. A baseline row comes before a screening row.
    """
    rows = frame[frame["PTID"].map(person_number).isin(persons)]
    merged: dict[int, dict[str, VisitRow]] = {}
    notes: list[str] = []
    undated = 0
    repeated: list[str] = []
    records: dict[int, list[dict[str, str]]] = {}
    for record in filled_rows(rows):
        records.setdefault(person_number(record["PTID"]), []).append(record)
    for person, of_person in records.items():
        first = _first_date(of_person)
        sessions = merged.setdefault(person, {})
        for record in sorted(of_person, key=_after_baseline):
            row = _visit_row(record, first)
            undated += row.exam_date is None
            if row.session_id in sessions:
                repeated.append(f"{record['PTID']} {record.get('VISCODE', '')}")
                row = _filled_from(sessions[row.session_id], row)
            sessions[row.session_id] = row
    if undated:
        notes.append(f"{undated} rows of ADNIMERGE without a readable EXAMDATE (YYYY-MM-DD)")
    if repeated:
        notes.append(f"{len(repeated)} rows of ADNIMERGE repeat a session and only fill its gaps: {listed(repeated)}")
    by_person = {
        person: sorted(sessions.values(), key=lambda row: (row.exam_date or date.max, row.session_id))
        for person, sessions in merged.items()
    }
    return by_person, notes


def _after_baseline(record: Mapping[str, str]) -> bool:
    return record.get("VISCODE", "").lower() not in ("bl", "v03")


def _first_date(records: Sequence[Mapping[str, str]]) -> date | None:
    """Date of the first baseline."""
    dates = [calendar_date(record.get(name)) for record in records for name in ("EXAMDATE_bl", "EXAMDATE")]
    return min((found for found in dates if found is not None), default=None)


def _visit_row(columns: Mapping[str, str], first: date | None) -> VisitRow:
    exam = calendar_date(columns.get("EXAMDATE"))
    visit = visit_of(columns.get("VISCODE", ""))
    months, session = visit.months, visit.session_id
    if visit.within_phase and visit.months is not None and exam is not None and first is not None:
        elapsed = (exam - first).days / 30.4375
        if abs(elapsed - visit.months) > 6:  # counted from a later phase: visits lie half a year apart
            months = 6 * round(elapsed / 6)
            session = month_session(months)
    return VisitRow(session, months, exam, columns)


def _filled_from(row: VisitRow, other: VisitRow) -> VisitRow:
    return VisitRow(row.session_id, row.months, row.exam_date or other.exam_date, {**other.columns, **row.columns})


def read_collections(root: Path, tables: Sequence[str]) -> dict[str, CollectionRow]:
    """Visit and date by image id, from LONI's lists of image collections (Image Data ID, Visit, Acq Date)."""
    found: dict[str, CollectionRow] = {}
    for name in tables:
        header = {_squeezed(column) for column in read_header(root / name)}
        if not {"imagedataid", "visit"} <= header and not {"imagedataid", "acqdate"} <= header:
            continue
        frame = read_text_table(root / name).rename(columns=_squeezed)
        for cells in filled_rows(frame):
            if "imagedataid" in cells:
                visit = visit_of(cells["visit"]) if "visit" in cells else None
                found[image_id(cells["imagedataid"])] = CollectionRow(visit, calendar_date(cells.get("acqdate")))
    return found


def image_id(text: str) -> str:
    """Image id with its letter: ``118690`` and ``I118690`` are one."""
    return text if text[:1].isalpha() else f"I{text}"


def _squeezed(column: str) -> str:
    return re.sub(r"[^a-z]", "", column.lower())
