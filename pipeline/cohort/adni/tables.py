"""ADNIMERGE as LONI provides it, anywhere in the input folder and with any date suffix.

Only the columns that are used are required. People are identified by RID, which stays the same when someone moves from
one ADNI phase to the next.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

import pandas as pd

from heatlas.pipeline.cohort.adni.visit_tables import (
    VisitRow,
    contradiction,
    contradiction_notes,
    person_number,
    todays_spelling,
)
from heatlas.pipeline.cohort.cells.dates import with_iso_dates
from heatlas.pipeline.cohort.cells.ranges import possible_cells, problem_notes, require_clear_sex
from heatlas.pipeline.cohort.cells.text_tables import filled_rows, read_text_table, require_columns
from heatlas.pipeline.cohort.cells.values import calendar_date, number, sex
from heatlas.pipeline.cohort.people.visits import month_session, visit_code, visit_of
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted, listed

DOWNLOAD = (
    "Download it at LONI (ida.loni.usc.edu: ADNI, Search & Download, Study Files, 'ADNIMERGE - Key ADNI tables merged "
    "into one table') and put the CSV into the input folder."
)
_MEASURED = (
    *("DX", "AGE", "PTGENDER", "SITE", "FLDSTRENG", "APOE4", "MMSE", "CDGLOBAL", "CDR", "ICV", "Hippocampus"),
    "FSVERSION",
)
_USED_NAMES = (
    *("RID", "PTID", "VISCODE", "VISCODE2", "EXAMDATE", "EXAMDATE_bl", "DX_bl", "Years_bl", "COLPROT", "ORIGPROT"),
    *_MEASURED,
)

SAME_AGE_YEARS = 1.0
"""Ages at baseline of one person that differ by no more are the same, rounded differently."""


def read_adnimerge(path: Path, needed: Sequence[str]) -> tuple[pd.DataFrame, list[str]]:
    """Read ADNIMERGE as text, with current column names and ISO dates; it must have rows and the `needed` columns."""
    frame, notes = read_text_table(path, used=_USED_NAMES)
    frame = frame.rename(columns=todays_spelling(frame.columns, _USED_NAMES))
    code = "VISCODE2" if "VISCODE2" in frame.columns else "VISCODE"
    require_columns(path, frame, ["PTID", code, *needed], DOWNLOAD)
    if not len(frame):
        raise BadInputError(f"{path}: a header without rows. {DOWNLOAD}")
    frame, date_notes = with_iso_dates(path, frame, ("EXAMDATE", "EXAMDATE_bl"))
    notes += date_notes
    absent = [name for name in ("AGE", "PTGENDER", "Hippocampus", "ICV") if name not in frame.columns]
    notes += [f"{path.name} has no column {', '.join(absent)}; these values stay empty"] if absent else []
    is_person = frame["PTID"].str.fullmatch(r"\s*\d{3}_S_\d{4,}\s*", case=False)
    if not is_person.all():
        bad = list(frame.loc[~is_person, "PTID"])
        notes.append(
            f"{path.name}: {counted(len(bad), 'row')} without a PTID such as 002_S_0295 left out: {listed(bad, 3)}"
        )
        frame = frame[is_person]
    require_clear_sex(path, ({"PTGENDER": text} for text in frame.get("PTGENDER", pd.Series(dtype=str)).dropna()))
    who = filled_rows(frame[[name for name in ("RID", "PTID") if name in frame.columns]])
    contradictions = {line: said for line, cells in who if (said := contradiction(cells))}
    notes += contradiction_notes(path.name, contradictions)
    frame = frame.drop(index=list(contradictions))
    return frame.assign(PTID=frame["PTID"].str.strip().str.upper()), notes


def visits_by_person(name: str, frame: pd.DataFrame, persons: set[int]) -> tuple[dict[int, list[VisitRow]], list[str]]:
    """Visits of the persons with images, by RID, one per session, in order of date.

    Rows of one session are merged. ``sc`` and ``bl`` are two visits of one session: cells come from the baseline,
    missing ones from the screening. If a code is repeated, cells that differ are left empty and named, since none of
    them can be trusted; of two dates the earlier is used. Age at baseline and sex are the same at all visits of a
    person: a visit that differs from most of them takes their value, and is named.
    """
    rows = frame[frame["PTID"].map(person_number).isin(persons)]
    merged: dict[int, dict[str, VisitRow]] = {}
    problems = _RowProblems()
    records: dict[int, list[dict[str, str]]] = {}
    for line, cells in filled_rows(rows):
        record = possible_cells(name, line, cells, problems.impossible)
        records.setdefault(person_number(record["PTID"]), []).append(record)
    for person, of_person in records.items():
        dates = [calendar_date(record.get(name)) for record in of_person for name in ("EXAMDATE_bl", "EXAMDATE")]
        first = min((day for day in dates if day is not None), default=None)  # of the first baseline
        sessions = merged.setdefault(person, {})
        for record in sorted(of_person, key=lambda row: visit_code(row).lower() not in ("bl", "4_bl", "v03")):
            row = _visit_row(record, first, problems)
            if row.session_id in sessions:
                row = _one_row(sessions[row.session_id], row, problems)
            sessions[row.session_id] = row
    by_person = {
        person: sorted(
            _of_one_person(list(sessions.values()), problems),
            key=lambda row: (row.exam_date or date.max, row.session_id),
        )
        for person, sessions in merged.items()
    }
    return by_person, problems.notes()


class _RowProblems:
    """Problems of rows, collected while they are read."""

    def __init__(self) -> None:
        self.impossible: list[str] = []
        self.undated = 0
        self.repeated: list[str] = []
        self.contradictions: list[str] = []
        self.changing: list[str] = []
        self.disordered: list[str] = []
        self.misdated: list[str] = []
        self.codes: dict[str, int] = {}

    def notes(self) -> list[str]:
        notes = problem_notes(self.impossible)
        if self.undated:
            notes.append(f"{counted(self.undated, 'row')} of ADNIMERGE without a readable EXAMDATE (YYYY-MM-DD)")
        if self.repeated:
            notes.append(
                f"{counted(len(self.repeated), 'repeated row')} of ADNIMERGE for the same session, used only to fill "
                f"missing values: {listed(self.repeated)}"
            )
        if self.contradictions:
            values = counted(len(self.contradictions), "value")
            text = f"{values} of ADNIMERGE left empty because rows of one visit differ"
            notes.append(f"{text}: {listed(self.contradictions)}")
        if self.changing:
            notes.append(
                "age at baseline or sex of ADNIMERGE differs between visits of a person; correct the table: "
                f"{listed(self.changing)}"
            )
        if self.disordered:
            notes.append(
                "visit codes of ADNIMERGE are not in the order of their dates; correct the table: "
                f"{listed(self.disordered)}"
            )
        if self.misdated:
            notes.append(
                "visit codes of ADNIMERGE are more than half a year from their dates; correct the table: "
                f"{listed(self.misdated)}"
            )
        if self.codes:
            kinds = listed(f"'{code}' ({counted(count, 'row')})" for code, count in sorted(self.codes.items()))
            notes.append(f"unknown visit codes in ADNIMERGE, matched by date only: {kinds}")
        return notes


def _visit_row(columns: Mapping[str, str], first: date | None, problems: _RowProblems) -> VisitRow:
    exam = calendar_date(columns.get("EXAMDATE"))
    code = visit_code(columns)
    visit = visit_of(code)
    problems.undated += exam is None
    if not visit.known:
        problems.codes[code] = problems.codes.get(code, 0) + 1
    months, session = visit.months, visit.session_id
    if visit.months is not None and exam is not None and first is not None:
        elapsed = (exam - first).days / 30.4375
        if abs(elapsed - visit.months) > 6 and visit.within_phase:
            months = 6 * round(elapsed / 6)  # counted from a later phase; visits are half a year apart
            session = month_session(months)
        elif abs(elapsed - visit.months) > 6:
            problems.misdated.append(f"{columns['PTID']} {code} ({exam}, {elapsed:.0f} months after {first})")
    return VisitRow(session, months, exam, columns)


def _of_one_person(rows: Sequence[VisitRow], problems: _RowProblems) -> list[VisitRow]:
    """Visits with one age at baseline and one sex; those, and codes against their dates, are noted."""
    by_code = sorted((row for row in rows if row.months is not None and row.exam_date), key=lambda row: row.months or 0)
    for one, two in itertools.pairwise(by_code):
        if one.exam_date and two.exam_date and two.exam_date < one.exam_date:
            problems.disordered.append(
                f"{two.columns['PTID']} {two.session_id} ({two.exam_date}) before {one.session_id} ({one.exam_date})"
            )
    for name, read in (("AGE", number), ("PTGENDER", sex)):
        values = {row.session_id: read(row.columns.get(name)) for row in rows}
        counts = Counter(value for value in values.values() if value is not None)
        known = [value for value in counts if isinstance(value, float)]
        if len(counts) < 2 or (known and max(known) - min(known) <= SAME_AGE_YEARS):
            continue
        usual, times = counts.most_common(1)[0]
        agreed = 2 * times > counts.total()
        cells = [f"{row.columns[name]} at {row.session_id}" for row in rows if values[row.session_id] is not None]
        problems.changing.append(
            f"{rows[0].columns['PTID']} {name} ({', '.join(cells)}; {f'{usual} is used' if agreed else 'left empty'})"
        )
        text = next(row.columns[name] for row in rows if values[row.session_id] == usual)
        own = {name: text} if agreed else {}
        rows = [
            dataclasses.replace(row, columns={key: cell for key, cell in row.columns.items() if key != name} | own)
            for row in rows
        ]
    return list(rows)


def _one_row(row: VisitRow, other: VisitRow, problems: _RowProblems) -> VisitRow:
    """Merge two rows of one session."""
    problems.repeated.append(f"{other.columns['PTID']} {visit_code(other.columns)}")
    columns = {**other.columns, **row.columns}
    exam = row.exam_date or other.exam_date
    if visit_code(row.columns).lower() == visit_code(other.columns).lower():
        both = [name for name in _MEASURED if name in row.columns and name in other.columns]
        for name in both:
            one, two = row.columns[name], other.columns[name]
            if one != two and (number(one) is None or number(one) != number(two)):
                who = f"{row.columns['PTID']} {visit_code(row.columns)} {name}"
                problems.contradictions.append(f"{who} ({one} or {two})")
                del columns[name]
        exam = min((day for day in (row.exam_date, other.exam_date) if day is not None), default=None)
    return VisitRow(row.session_id, row.months, exam, columns)
