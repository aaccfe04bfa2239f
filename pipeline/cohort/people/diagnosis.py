"""Diagnoses of a person over time, with their source.

ADNI records them in several ways: ADNIMERGE's DX (a word); in DXSUM, DXCURREN (ADNI1), DXCHANGE (ADNIGO and 2: change
since the last visit) and DIAGNOSIS (ADNI3 and 4, in newer files all phases). A dementia that DXSUM attributes to
another cause than Alzheimer's disease is not AD. ADNIMERGE does not distinguish the two, so DXSUM takes precedence
there.

The diagnosis of a scan is the one at its visit, else the nearest within
`pipeline.cohort.adni.visit_tables.WINDOW_DAYS`, else, at baseline, the one at enrolment (DX_bl).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from heatlas.pipeline.cohort.adni.visit_tables import WINDOW_DAYS, VisitRow
from heatlas.pipeline.cohort.cells import values

OTHER_DEMENTIA = "other dementia"
"""Dementia attributed to another cause than Alzheimer's disease; not a class of the scan table."""

DXSUM_COLUMNS = ("DIAGNOSIS", "DXCHANGE", "DXCURREN")
CAUSE_COLUMNS = ("DXDDUE", "DXOTHDEM", "DXAD")

_CODES = {
    "DIAGNOSIS": {1: "CN", 2: "MCI", 3: "AD"},
    "DXCURREN": {1: "CN", 2: "MCI", 3: "AD"},
    # stable 1-3; conversion to MCI, AD, AD 4-6; reversion to CN, MCI, CN 7-9
    "DXCHANGE": {1: "CN", 2: "MCI", 3: "AD", 4: "MCI", 5: "AD", 6: "AD", 7: "CN", 8: "MCI", 9: "CN"},
}


@dataclass(frozen=True)
class Diagnosis:
    """Diagnosis of a person at a visit."""

    value: str  # CN, MCI, AD, or `OTHER_DEMENTIA`
    when: date | None
    session_id: str
    months: int | None  # since the first baseline
    source: str  # table and column


def dxsum_value(columns: Mapping[str, str]) -> tuple[str | None, str]:
    """Diagnosis of a row of DXSUM, and its column; None for an unknown code.

    >>> dxsum_value({"DXCHANGE": "5"}), dxsum_value({"DXCURREN": "1", "DXCHANGE": "-4"})
    (('AD', 'DXCHANGE'), ('CN', 'DXCURREN'))
    >>> dxsum_value({"DIAGNOSIS": "3", "DXDDUE": "2"}), dxsum_value({"DIAGNOSIS": "10"})
    (('other dementia', 'DIAGNOSIS'), (None, 'DIAGNOSIS'))
    """
    unknown = ""
    for name in DXSUM_COLUMNS:
        text = columns.get(name)
        code = values.number(text)
        if text is None or (code is not None and code < 0):
            continue
        diagnosis = _CODES[name].get(int(code)) if code is not None and code == int(code) else values.diagnosis(text)
        if diagnosis == "AD" and _other_cause(columns):
            return OTHER_DEMENTIA, name
        if diagnosis is not None:
            return diagnosis, name
        unknown = unknown or name
    return None, unknown


def _other_cause(columns: Mapping[str, str]) -> bool:
    """Whether DXSUM attributes a dementia to another cause, by code or, in newer files, by word."""
    due = columns.get("DXDDUE", "").lower()
    if values.number(due) == 2 or "other etiology" in due:
        return True
    other, alzheimer = (columns.get(name, "").lower() for name in ("DXOTHDEM", "DXAD"))
    return (other == "yes" or values.number(other) == 1) and not (alzheimer == "yes" or values.number(alzheimer) == 1)


def diagnosis_history(
    visits: Sequence[VisitRow], dxsum: Sequence[VisitRow], table: str
) -> tuple[tuple[Diagnosis, ...], list[str]]:
    """All diagnoses of a person in order of time, one per visit, and disagreements of the two tables."""
    merge = [
        Diagnosis(found, row.exam_date, row.session_id, row.months, "ADNIMERGE DX")
        for row in visits
        if (found := values.diagnosis(row.columns.get("DX"))) is not None
    ]
    history = dict(enumerate(merge))
    conflicts = []
    for row in dxsum:
        found, column = dxsum_value(row.columns)
        if found is None:
            continue
        diagnosis = Diagnosis(found, row.exam_date, row.session_id, row.months, f"{table} {column}")
        same = next((i for i, known in enumerate(merge) if _same_visit(known, diagnosis)), None)
        if same is None:
            history[len(history)] = diagnosis
        elif found == OTHER_DEMENTIA and merge[same].value == "AD":
            known = merge[same]
            history[same] = Diagnosis(OTHER_DEMENTIA, known.when, known.session_id, known.months, diagnosis.source)
        elif found != merge[same].value and history[same] is merge[same]:
            conflicts.append(f"{merge[same].session_id} {merge[same].value} in ADNIMERGE, {found} in {column}")
    return tuple(sorted(history.values(), key=_by_time)), conflicts


def _same_visit(diagnosis: Diagnosis, other: Diagnosis) -> bool:
    if diagnosis.when is not None and other.when is not None:
        return abs((diagnosis.when - other.when).days) <= WINDOW_DAYS // 2
    return diagnosis.session_id == other.session_id and diagnosis.months is not None


def _by_time(diagnosis: Diagnosis) -> tuple[date, int, str]:
    return diagnosis.when or date.max, 10_000 if diagnosis.months is None else diagnosis.months, diagnosis.source


def diagnosis_at(history: Sequence[Diagnosis], visit: VisitRow, scan_date: date | None) -> Diagnosis | None:
    """Diagnosis of a scan that belongs to this visit of ADNIMERGE; see the module's docstring."""
    at_visit = [
        diagnosis
        for diagnosis in history
        if diagnosis.session_id == visit.session_id and diagnosis.when == visit.exam_date
    ]
    if at_visit:
        return at_visit[0]
    when = scan_date or visit.exam_date
    near = [
        (gap, diagnosis)
        for diagnosis in history
        if when is not None and diagnosis.when is not None and (gap := abs((diagnosis.when - when).days)) <= WINDOW_DAYS
    ]
    if near:
        return min(near, key=lambda pair: (pair[0], _by_time(pair[1])))[1]
    undated = (
        diagnosis for diagnosis in history if (when is None or diagnosis.when is None) and diagnosis.months is not None
    )
    of_session = next((diagnosis for diagnosis in undated if diagnosis.session_id == visit.session_id), None)
    if of_session is not None:
        return of_session
    enrolled = values.diagnosis(visit.columns.get("DX_bl")) if visit.months == 0 and "DX" not in visit.columns else None
    if enrolled is None:
        return None
    return Diagnosis(enrolled, visit.exam_date, visit.session_id, visit.months, "ADNIMERGE DX_bl")


def cdr_diagnosis(cdr: float | None) -> str | None:
    """Classes by the global CDR: CN for 0, AD above 0.5, none for 0.5 or if it is unknown.

    The rule in the text of Böhle et al. 2019; half of ADNI's people with AD at baseline have a CDR of 0.5 and so
    belong to no class.
    """
    if cdr is None:
        return None
    return "CN" if cdr == 0 else "AD" if cdr > 0.5 else None
