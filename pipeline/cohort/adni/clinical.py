"""What ADNI's tables say about a scan at its visit.

ADNIMERGE gives the visits and most values, DXSUM adds diagnoses and visits (ADNIMERGE does not contain ADNI4), and
UCSF's FreeSurfer tables the left and right hippocampus. ADNIMERGE or DXSUM is required. People are identified by RID,
which stays the same when someone moves from one ADNI phase to the next.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path

import pandas as pd

from heatlas.pipeline.cohort.adni import visit_tables
from heatlas.pipeline.cohort.adni.image_tables import loni_number
from heatlas.pipeline.cohort.adni.visit_tables import VisitRow, VisitTable
from heatlas.pipeline.cohort.cells import tables as text_tables
from heatlas.pipeline.cohort.cells import values
from heatlas.pipeline.cohort.cells.values import month_session, visit_code, visit_of, with_iso_dates
from heatlas.pipeline.cohort.people import diagnosis as diagnoses
from heatlas.pipeline.cohort.people.diagnosis import OTHER_DEMENTIA, Diagnosis
from heatlas.pipeline.cohort.records import FollowUp, Scan
from heatlas.pipeline.cohort.segmented.subjects import Volumes, complete_volumes, plausible_volumes
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted, listed, note_on

_CDR_COLUMNS = ("CDGLOBAL", "CDR")


_COLUMNS: values.Columns = {
    "sex": ("PTGENDER", values.sex),
    "site": ("SITE", values.identifier),
    "field_strength": ("FLDSTRENG", values.field_strength),
    "apoe4": ("APOE4", values.count),
    "mmse": ("MMSE", values.score),
}
"""Columns of ADNIMERGE that fill a scan as they stand there."""


@dataclass(frozen=True)
class AdniClinical:
    """The tables of an ADNI download, by RID."""

    ptids: tuple[str, ...]  # in the order of ADNIMERGE; a person's first PTID is used as their name
    visits: Mapping[int, Sequence[VisitRow]]
    histories: Mapping[int, tuple[Diagnosis, ...]]
    cdr: VisitTable
    freesurfer: Mapping[str, VisitTable]
    config: CohortConfig

    def at(
        self, scan: Scan, person: int, visit: VisitRow, scan_date: date | None
    ) -> tuple[Scan, dict[str, str], FollowUp | None]:
        """The scan of a person (RID) with all that is known at its visit, the cells of the visit, and the follow-up."""
        row = dict(visit.columns)
        when = scan_date or visit.exam_date
        history = self.histories.get(person, ())
        diagnosis = diagnoses.diagnosis_at(history, visit, scan_date)
        cdr, cdr_source = self._cdr(person, visit, when)
        value, source = (None, None) if diagnosis is None else (diagnosis.value, diagnosis.source)
        if value == OTHER_DEMENTIA:
            row["DX"] = OTHER_DEMENTIA
        if self.config.diagnosis_rule == "cdr":
            value, source = diagnoses.cdr_diagnosis(cdr), cdr_source
        volumes = table_volumes(row, self.freesurfer, person, scan.scan_id, visit.session_id, when)
        facts = values.read_cells(row, _COLUMNS)
        facts["field_strength"] = scan.field_strength or facts["field_strength"]
        filled = replace(
            scan,
            session_id=visit.session_id,
            diagnosis=value if value in ("CN", "MCI", "AD") else None,
            diagnosis_source=source,
            progression=diagnoses.progression(history, diagnosis, self.config.mci_horizon_months),
            age=_age(visit, when, self.visits.get(person, ())),
            cdr=cdr,
            **facts,
            **volumes.of_hippocampus,
            **volumes.of_head,
        )
        return filled, row, diagnoses.follow_up(history, diagnosis)

    def _cdr(self, person: int, visit: VisitRow, when: date | None) -> tuple[float | None, str | None]:
        at_visit = values.score(values.first_value(visit.columns, *_CDR_COLUMNS))
        if at_visit is not None:
            return at_visit, "ADNIMERGE CDR"
        rated = [row for row in self.cdr.of(person) if values.score(row.columns.get("CDGLOBAL")) is not None]
        row = visit_tables.of_visit(rated, visit.session_id, when)
        return (None, None) if row is None else (values.score(row.columns["CDGLOBAL"]), f"{self.cdr.name} CDGLOBAL")


def read_clinical(
    root: Path, tables: Sequence[str], persons: set[int], config: CohortConfig, visits_known: bool
) -> tuple[AdniClinical, list[str]]:
    """Read the tables for the RIDs with images; `visits_known`: whether scans can be matched without dates."""
    files, notes = visit_tables.newest_tables(tables)
    dxsum, dxsum_notes = visit_tables.read_visit_table(
        root, files.get(visit_tables.DXSUM), (*diagnoses.DXSUM_COLUMNS, *diagnoses.CAUSE_COLUMNS), persons
    )
    cdr, cdr_notes = visit_tables.read_visit_table(root, files.get(visit_tables.CDR), ("CDGLOBAL",), persons)
    notes += [*dxsum_notes, *cdr_notes]
    freesurfer: dict[str, VisitTable] = {}
    for name in reversed(visit_tables.FREESURFER):  # newest first
        if name in files:
            freesurfer[name], table_notes = visit_tables.read_visit_table(root, files[name], _OF_FREESURFER, persons)
            notes += table_notes
    frame, merge_notes = _read_merge(root, files, dxsum, config, visits_known)
    visits, visit_notes = visits_by_person(files.get(visit_tables.ADNIMERGE, ""), frame, persons)
    if config.diagnosis_rule == "cdr" and not cdr.rows and not set(frame.columns) & set(_CDR_COLUMNS):
        raise BadInputError(
            f"{root}: cohort.diagnosis_rule = 'cdr' needs the table CDR*.csv (column CDGLOBAL), which is not there or "
            "cannot be used. Download it at LONI (Assessments, Clinical Dementia Rating), or set it to 'diagnosis'."
        )
    added = _add_visits(visits, dxsum, persons)
    histories, history_notes = _histories(visits, dxsum)
    notes += [*merge_notes, *visit_notes, *history_notes]
    if added:
        notes.append(f"{counted(added, 'visit')} found only in {dxsum.name} and read from there")
    ptids = tuple(dict.fromkeys(frame["PTID"]))
    return AdniClinical(ptids, visits, histories, cdr, freesurfer, config), notes


def _read_merge(
    root: Path, files: Mapping[str, str], dxsum: VisitTable, config: CohortConfig, visits_known: bool
) -> tuple[pd.DataFrame, list[str]]:
    if visit_tables.ADNIMERGE in files:
        by_diagnosis = config.contrast_column in ("diagnosis", "progression") and config.diagnosis_rule == "diagnosis"
        needed = ["EXAMDATE"] * (not visits_known) + ["DX"] * (by_diagnosis and not dxsum.rows)
        return read_adnimerge(root / files[visit_tables.ADNIMERGE], needed)
    if not dxsum.rows:
        raise BadInputError(f"{root}: no ADNIMERGE*.csv below this folder. {DOWNLOAD}")
    return pd.DataFrame(columns=["PTID"], dtype=str), [
        f"no ADNIMERGE*.csv: visits and diagnoses come from {dxsum.name}; age, sex and other values stay empty"
    ]


def _add_visits(visits: dict[int, list[VisitRow]], dxsum: VisitTable, persons: set[int]) -> int:
    """Add to each person the visits that only DXSUM has, and count them."""
    added = 0
    for person in sorted(persons):
        of_person = list(visits.get(person, []))
        for row in dxsum.of(person):
            if not any(_same_visit(row, other) for other in of_person):
                of_person.append(row)
                added += 1
        if of_person:
            visits[person] = sorted(of_person, key=visit_tables.by_date)
    return added


def _same_visit(row: VisitRow, other: VisitRow) -> bool:
    gap = visit_tables.days_between(row.exam_date, other.exam_date)
    return row.session_id == other.session_id or (gap is not None and gap <= visit_tables.WINDOW_DAYS)


def _histories(
    visits: Mapping[int, Sequence[VisitRow]], dxsum: VisitTable
) -> tuple[dict[int, tuple[Diagnosis, ...]], list[str]]:
    histories, conflicts, timeless = {}, [], []
    unknown: Counter[str] = Counter()
    for person, rows in visits.items():
        histories[person], disagreements = diagnoses.diagnosis_history(rows, dxsum.of(person), dxsum.name)
        conflicts += [f"RID {person} {conflict}" for conflict in disagreements]
        without = (diagnosis for diagnosis in histories[person] if diagnosis.when is None and diagnosis.months is None)
        timeless += [f"RID {person} {diagnosis.session_id} ({diagnosis.source})" for diagnosis in without]
        for row in dxsum.of(person):
            value, column = diagnoses.dxsum_value(row.columns)
            if value is None and column:
                unknown[f"{column} '{row.columns[column]}'"] += 1
    differ = counted(len(conflicts), "diagnosis", "differs", "diagnoses")
    notes = [f"{differ}; ADNIMERGE's are used: {listed(conflicts)}"] if conflicts else []
    text = "without a date or visit code in months, unusable for conversion"
    notes += note_on(timeless, "diagnosis", text, plural="diagnoses")
    if unknown:
        kinds = listed(f"{code} ({counted(count, 'row')})" for code, count in sorted(unknown.items()))
        notes.append(f"{dxsum.name}: unknown diagnosis codes, treated as missing: {kinds}")
    return histories, notes


def _age(visit: VisitRow, when: date | None, visits: Sequence[VisitRow]) -> float | None:
    """Age at the scan: AGE is the age at baseline, so the years since then are added."""
    baseline_age = values.positive(visit.columns.get("AGE"))
    if baseline_age is None:
        return None
    at_month_0 = (row.exam_date for row in visits if row.months == 0)
    baseline = values.calendar_date(visit.columns.get("EXAMDATE_bl")) or next(at_month_0, None)
    years = values.number(visit.columns.get("Years_bl"))
    if baseline is not None and when is not None:
        years = (when - baseline).days / 365.25
    elif years is None and visit.months is not None:
        years = visit.months / 12
    return None if years is None else round(baseline_age + years, 2)


LEFT, RIGHT, INTRACRANIAL = "ST29SV", "ST88SV", "ST10CV"
"""UCSF's codes for the volumes of both hippocampi and the intracranial volume."""

_OF_FREESURFER = (LEFT, RIGHT, INTRACRANIAL, "IMAGEUID", "OVERALLQC", "VERSION")
_VERSIONS = {"UCSFFSX": "4.3", "UCSFFSX51": "5.1", "UCSFFSX6": "6.0", "UCSFFSX7": "7"}


def table_volumes(
    columns: Mapping[str, str],
    tables: Mapping[str, VisitTable],
    person: int,
    image_id: str,
    session_id: str,
    when: date | None,
) -> Volumes:
    """Volumes at a visit from ADNIMERGE, with left and right of the same segmentation from a UCSF table."""
    version = columns.get("FSVERSION")
    source = "ADNIMERGE" + (f" ({version})" if version else "")
    total, intracranial = (values.positive(columns.get(name)) for name in ("Hippocampus", "ICV"))
    best = merge = plausible_volumes(None, None, total, intracranial, source)
    for name, table in tables.items():
        volumes = complete_volumes(merge, _of_table(name, table, person, image_id, session_id, when))
        if merge.total is not None and volumes.left is not None:
            return volumes
        if best.total is None and volumes.total is not None:
            best = volumes
    return best


def _of_table(name: str, table: VisitTable, person: int, image_id: str, session_id: str, when: date | None) -> Volumes:
    rows = [row for row in table.of(person) if row.columns.get("OVERALLQC", "").lower() != "fail"]
    number = loni_number(image_id)
    of_image = [row for row in rows if number is not None and loni_number(row.columns.get("IMAGEUID")) == number]
    row = of_image[0] if of_image else visit_tables.of_visit(rows, session_id, when)
    if row is None:
        return Volumes()
    left, right, intracranial = (values.positive(row.columns.get(column)) for column in (LEFT, RIGHT, INTRACRANIAL))
    return plausible_volumes(left, right, None, intracranial, f"{name} (FreeSurfer {_VERSIONS[name]})")


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
    frame, notes = text_tables.read_text_table(path, used=_USED_NAMES)
    frame = frame.rename(columns=visit_tables.todays_spelling(frame.columns, _USED_NAMES))
    code = "VISCODE2" if "VISCODE2" in frame.columns else "VISCODE"
    text_tables.require_columns(path, frame, ["PTID", code, *needed], DOWNLOAD)
    if not len(frame):
        raise BadInputError(f"{path}: a header without rows. {DOWNLOAD}")
    frame, date_notes = with_iso_dates(path, frame, ("EXAMDATE", "EXAMDATE_bl"))
    notes += date_notes
    absent = [name for name in ("AGE", "PTGENDER", "Hippocampus", "ICV") if name not in frame.columns]
    notes += [f"{path.name} has no column {', '.join(absent)}; these values stay empty"] if absent else []
    is_person = frame["PTID"].str.fullmatch(rf"\s*{values.PTID}\s*", case=False)
    bad = list(frame.loc[~is_person, "PTID"])
    notes += note_on(bad, "row", "without a PTID such as 002_S_0295 left out", before=f"{path.name}: ", limit=3)
    frame = frame[is_person]
    sexes = frame.get("PTGENDER", pd.Series(dtype=str)).dropna()
    text_tables.require_clear_sex(text_tables.sex_codes(path, ({"PTGENDER": text} for text in sexes)))
    who = text_tables.filled_rows(frame[[name for name in ("RID", "PTID") if name in frame.columns]])
    contradictions = {line: ids for line, cells in who if (ids := visit_tables.contradiction(cells))}
    notes += visit_tables.contradiction_notes(path.name, contradictions)
    frame = frame.drop(index=list(contradictions))
    return frame.assign(PTID=frame["PTID"].str.strip().str.upper()), notes


def visits_by_person(name: str, frame: pd.DataFrame, persons: set[int]) -> tuple[dict[int, list[VisitRow]], list[str]]:
    """Visits of the persons with images, by RID, one per session, in order of date.

    ``sc`` and ``bl`` are two visits of one session: cells come from the baseline, missing ones from the screening. If a
    code is repeated, cells that differ are left empty, since none can be trusted; of two dates the earlier is used. Age
    at baseline and sex that differ from most visits of a person take their value.
    """
    rows = frame[frame["PTID"].map(visit_tables.person_number).isin(persons)]
    merged: dict[int, dict[str, VisitRow]] = {}
    problems = _RowProblems()
    records: dict[int, list[dict[str, str]]] = {}
    for line, cells in text_tables.filled_rows(rows):
        record = text_tables.possible_cells(name, line, cells, problems.impossible)
        records.setdefault(visit_tables.person_number(record["PTID"]), []).append(record)
    for person, of_person in records.items():
        dates = [values.calendar_date(record.get(name)) for record in of_person for name in ("EXAMDATE_bl", "EXAMDATE")]
        first = min((day for day in dates if day is not None), default=None)  # of the first baseline
        sessions = merged.setdefault(person, {})
        for record in sorted(of_person, key=lambda row: visit_code(row).lower() not in ("bl", "4_bl", "v03")):
            row = _visit_row(record, first, problems)
            if row.session_id in sessions:
                row = _one_row(sessions[row.session_id], row, problems)
            sessions[row.session_id] = row
    by_person = {
        person: sorted(_of_one_person(list(sessions.values()), problems), key=visit_tables.by_date)
        for person, sessions in merged.items()
    }
    return by_person, problems.notes()


@dataclass
class _RowProblems:
    """Problems of rows, collected while they are read."""

    impossible: list[str] = field(default_factory=list)
    undated: int = 0
    repeated: list[str] = field(default_factory=list)
    contradictions: list[str] = field(default_factory=list)
    changing: list[str] = field(default_factory=list)
    disordered: list[str] = field(default_factory=list)
    misdated: list[str] = field(default_factory=list)
    codes: Counter[str] = field(default_factory=Counter)

    def notes(self) -> list[str]:
        notes = text_tables.problem_notes(self.impossible)
        if self.undated:
            notes.append(f"{counted(self.undated, 'row')} of ADNIMERGE without a readable EXAMDATE (YYYY-MM-DD)")
        text = "of ADNIMERGE for the same session, used only to fill missing values"
        notes += note_on(self.repeated, "repeated row", text)
        text = "of ADNIMERGE left empty because rows of one visit differ"
        notes += note_on(self.contradictions, "value", text)
        for cases, text in (
            (self.changing, "age at baseline or sex of ADNIMERGE differs between visits of a person"),
            (self.disordered, "visit codes of ADNIMERGE are not in the order of their dates"),
            (self.misdated, "visit codes of ADNIMERGE are more than half a year from their dates"),
        ):
            notes += [f"{text}; correct the table: {listed(cases)}"] if cases else []
        if self.codes:
            kinds = listed(f"'{code}' ({counted(count, 'row')})" for code, count in sorted(self.codes.items()))
            notes.append(f"unknown visit codes in ADNIMERGE, matched by date only: {kinds}")
        return notes


def _visit_row(columns: Mapping[str, str], first: date | None, problems: _RowProblems) -> VisitRow:
    exam = values.calendar_date(columns.get("EXAMDATE"))
    code = visit_code(columns)
    visit = visit_of(code)
    problems.undated += exam is None
    if not visit.known:
        problems.codes[code] += 1
    months, session = visit.months, visit.session_id
    if visit.months is not None and exam is not None and first is not None:
        elapsed = (exam - first).days / values.DAYS_PER_MONTH
        if abs(elapsed - visit.months) > 6 and visit.within_phase:
            months = 6 * round(elapsed / 6)  # counted from a later phase; visits are half a year apart
            session = month_session(months)
        elif abs(elapsed - visit.months) > 6:
            problems.misdated.append(f"{columns['PTID']} {code} ({exam}, {elapsed:.0f} months after {first})")
    return VisitRow(session, months, exam, columns)


def _of_one_person(rows: Sequence[VisitRow], problems: _RowProblems) -> list[VisitRow]:
    """Visits with one age at baseline and one sex; those, and codes against their dates, are noted."""
    by_code = sorted((row for row in rows if row.months is not None and row.exam_date), key=lambda row: row.months or 0)
    for a, b in itertools.pairwise(by_code):
        if a.exam_date and b.exam_date and b.exam_date < a.exam_date:
            problems.disordered.append(
                f"{b.columns['PTID']} {b.session_id} ({b.exam_date}) before {a.session_id} ({a.exam_date})"
            )
    for name, read in (("AGE", values.number), ("PTGENDER", values.sex)):
        by_session = {row.session_id: read(row.columns.get(name)) for row in rows}
        counts = Counter(value for value in by_session.values() if value is not None)
        ages = [value for value in counts if isinstance(value, float)]
        if len(counts) < 2 or (ages and max(ages) - min(ages) <= SAME_AGE_YEARS):
            continue
        usual, times = counts.most_common(1)[0]
        agreed = 2 * times > counts.total()
        cells = [f"{row.columns[name]} at {row.session_id}" for row in rows if by_session[row.session_id] is not None]
        problems.changing.append(
            f"{rows[0].columns['PTID']} {name} ({', '.join(cells)}; {f'{usual} is used' if agreed else 'left empty'})"
        )
        text = next(row.columns[name] for row in rows if by_session[row.session_id] == usual)
        agreed_cell = {name: text} if agreed else {}
        rest = [{key: cell for key, cell in row.columns.items() if key != name} for row in rows]
        rows = [replace(row, columns=cells | agreed_cell) for row, cells in zip(rows, rest, strict=True)]
    return list(rows)


def _one_row(row: VisitRow, other: VisitRow, problems: _RowProblems) -> VisitRow:
    problems.repeated.append(f"{other.columns['PTID']} {visit_code(other.columns)}")
    columns = {**other.columns, **row.columns}
    exam = row.exam_date or other.exam_date
    if visit_code(row.columns).lower() == visit_code(other.columns).lower():
        both = [name for name in _MEASURED if name in row.columns and name in other.columns]
        for name in both:
            first, second = row.columns[name], other.columns[name]
            if first != second and (values.number(first) is None or values.number(first) != values.number(second)):
                who = f"{row.columns['PTID']} {visit_code(row.columns)} {name}"
                problems.contradictions.append(f"{who} ({first} or {second})")
                del columns[name]
        exam = min((day for day in (row.exam_date, other.exam_date) if day is not None), default=None)
    return VisitRow(row.session_id, row.months, exam, columns)
