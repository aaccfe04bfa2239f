"""Diagnoses of a person over time, with their source, and what follows a scan: conversion and the course of MCI.

ADNI records diagnoses in several ways: ADNIMERGE's DX (a word); in DXSUM, DXCURREN (ADNI1), DXCHANGE (ADNIGO and 2:
change since the last visit) and DIAGNOSIS (ADNI3 and 4, in newer files all phases). A dementia that DXSUM attributes to
another cause than Alzheimer's disease is not AD. ADNIMERGE does not distinguish the two, so DXSUM takes precedence
there. The diagnosis of a scan is the one at its visit, else the nearest within
`pipeline.cohort.adni.visit_tables.WINDOW_DAYS`, else, at baseline, the one at enrolment (DX_bl).

Conversion means that AD was diagnosed after the scan and the last diagnosis is AD; its time is the first diagnosis of
AD. A temporary return to CN or MCI does not matter. If the last diagnosis is not AD, AD was withdrawn: such a person
neither converted nor stayed free of AD. A dementia of another cause ends follow-up: AD before it remains a conversion
(only the cause of the dementia was revised), AD after it does not count.

Courses are counted from the diagnosis of the scan. The visit of the horizon may be up to `WINDOW_DAYS` before or
after it:

=====  ===============================================================================================================
pMCI   converted, by the visit of the horizon
sMCI   no AD by then, follow-up reaches the horizon, and the last diagnosis there is MCI
rMCI   no AD by then, follow-up reaches the horizon, and the last diagnosis there is CN: reverted
uMCI   unknown: follow-up ends before the horizon without AD (a drop-out is not stable); or no visit falls at the
       horizon and the next one has AD, so the time of conversion is unclear; or AD was diagnosed by
       then and withdrawn at any time; or a dementia of another cause came first
=====  ===============================================================================================================

If no visit falls at the horizon, the first one after it is used, unless it has a dementia.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from heatlas.pipeline.cohort.adni.visit_tables import WINDOW_DAYS, VisitRow, days_between
from heatlas.pipeline.cohort.cells import values
from heatlas.pipeline.cohort.records import FollowUp

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
        Diagnosis(value, row.exam_date, row.session_id, row.months, "ADNIMERGE DX")
        for row in visits
        if (value := values.diagnosis(row.columns.get("DX"))) is not None
    ]
    history = dict(enumerate(merge))
    conflicts = []
    for row in dxsum:
        value, column = dxsum_value(row.columns)
        if value is None:
            continue
        diagnosis = Diagnosis(value, row.exam_date, row.session_id, row.months, f"{table} {column}")
        same = next((i for i, prior in enumerate(merge) if _same_visit(prior, diagnosis)), None)
        if same is None:
            history[len(history)] = diagnosis
        elif value == OTHER_DEMENTIA and merge[same].value == "AD":
            prior = merge[same]
            history[same] = Diagnosis(OTHER_DEMENTIA, prior.when, prior.session_id, prior.months, diagnosis.source)
        elif value != merge[same].value and history[same] is merge[same]:
            conflicts.append(f"{merge[same].session_id} {merge[same].value} in ADNIMERGE, {value} in {column}")
    return tuple(sorted(history.values(), key=_by_time)), conflicts


def _same_visit(diagnosis: Diagnosis, other: Diagnosis) -> bool:
    gap = days_between(diagnosis.when, other.when)
    if gap is not None:
        return gap <= WINDOW_DAYS // 2
    return diagnosis.session_id == other.session_id and diagnosis.months is not None


def _by_time(diagnosis: Diagnosis) -> tuple[date, int, str]:
    return diagnosis.when or date.max, 10_000 if diagnosis.months is None else diagnosis.months, diagnosis.source


def diagnosis_at(history: Sequence[Diagnosis], visit: VisitRow, scan_date: date | None) -> Diagnosis | None:
    when = scan_date or visit.exam_date
    of_session = [diagnosis for diagnosis in history if diagnosis.session_id == visit.session_id]
    for diagnosis in of_session:
        if diagnosis.when == visit.exam_date:
            return diagnosis
    gaps = [(days_between(diagnosis.when, when), diagnosis) for diagnosis in history]
    near = [(gap, _by_time(diagnosis), diagnosis) for gap, diagnosis in gaps if gap is not None and gap <= WINDOW_DAYS]
    if near:
        return min(near, key=lambda entry: entry[:2])[2]
    for diagnosis in of_session:
        if (when is None or diagnosis.when is None) and diagnosis.months is not None:
            return diagnosis
    enrolled = values.diagnosis(visit.columns.get("DX_bl")) if visit.months == 0 and "DX" not in visit.columns else None
    if enrolled is None:
        return None
    return Diagnosis(enrolled, visit.exam_date, visit.session_id, visit.months, "ADNIMERGE DX_bl")


def cdr_diagnosis(cdr: float | None) -> str | None:
    """Classes by the global CDR: CN for 0, AD above 0.5, none for 0.5, as in the text of Böhle et al. 2019."""
    if cdr is None:
        return None
    return "CN" if cdr == 0 else "AD" if cdr > 0.5 else None


COURSES = ("sMCI", "pMCI", "rMCI", "uMCI")


def _later(
    history: Sequence[Diagnosis], at: Diagnosis
) -> tuple[tuple[tuple[float, str], ...], float | None, bool, float | None]:
    """Diagnoses after a scan, by days from the diagnosis at the scan.

    Those before any dementia of another cause, in order; the day of the first AD of these; whether AD was withdrawn, as
    it is not the last of these; and the day of the first dementia of another cause.
    """
    timed = ((_days_after(at, diagnosis), diagnosis.value) for diagnosis in history)
    # Histories sort undated visits last, whatever their months.
    after = sorted(((days, value) for days, value in timed if days is not None and days > 0), key=lambda day: day[0])
    other = next((days for days, value in after if value == OTHER_DEMENTIA), None)
    seen = tuple(day for day in after if other is None or day[0] < other)
    first_ad = next((days for days, value in seen if value == "AD"), None)
    return seen, first_ad, first_ad is not None and seen[-1][1] != "AD", other


def follow_up(history: Sequence[Diagnosis], at: Diagnosis | None) -> FollowUp | None:
    """Time to AD or to the end of follow-up; None unless CN or MCI at the scan, or if AD was withdrawn."""
    if at is None or at.value not in ("CN", "MCI"):
        return None
    seen, first_ad, withdrawn, other = _later(history, at)
    if withdrawn:
        return None
    last = other if other is not None else seen[-1][0] if seen else 0.0
    converted = first_ad is not None
    months = None if first_ad is None else round(first_ad / values.DAYS_PER_MONTH, 2)
    return FollowUp(converted, months, round(last / values.DAYS_PER_MONTH, 2), other is not None and not converted)


def progression(history: Sequence[Diagnosis], at: Diagnosis | None, horizon_months: int) -> str | None:
    """Course of MCI after a scan; None if its diagnosis is not MCI."""
    if at is None or at.value != "MCI":
        return None
    seen, first_ad, withdrawn, other = _later(history, at)
    horizon = horizon_months * values.DAYS_PER_MONTH
    end = horizon + WINDOW_DAYS
    if first_ad is not None and first_ad <= end:
        return "uMCI" if withdrawn else "pMCI"
    if other is not None and other <= end:
        return "uMCI"
    there = [value for days, value in seen if horizon - WINDOW_DAYS <= days <= end]
    beyond = next((value for days, value in seen if days > end), None)
    last = there[-1] if there else beyond
    return {"MCI": "sMCI", "CN": "rMCI"}.get(last or "", "uMCI")


def _days_after(at: Diagnosis, diagnosis: Diagnosis) -> float | None:
    if at.when is not None and diagnosis.when is not None:
        return (diagnosis.when - at.when).days
    if at.months is not None and diagnosis.months is not None:
        return (diagnosis.months - at.months) * values.DAYS_PER_MONTH
    return None
