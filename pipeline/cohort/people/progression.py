"""Progression after a scan: conversion to AD, its time, and the course of MCI within a horizon.

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

from collections.abc import Sequence
from dataclasses import dataclass

from heatlas.pipeline.cohort.adni.visit_tables import WINDOW_DAYS
from heatlas.pipeline.cohort.people.diagnosis import OTHER_DEMENTIA, Diagnosis
from heatlas.pipeline.cohort.records import FollowUp

_DAYS_PER_MONTH = 30.4375
COURSES = ("sMCI", "pMCI", "rMCI", "uMCI")


@dataclass(frozen=True)
class _Later:
    """Diagnoses after a scan; times in days from the diagnosis at the scan."""

    known: tuple[tuple[float, str], ...]  # times and diagnoses before any dementia of another cause, in order of time
    first_ad: float | None  # time of the first AD of these
    withdrawn: bool  # whether AD was diagnosed but is not the last of these diagnoses: no conversion
    other: float | None  # time of the first dementia of another cause


def _later(history: Sequence[Diagnosis], at: Diagnosis) -> _Later:
    """Summarise a history for conversion; see the module's docstring."""
    timed = ((_days_after(at, one), one.value) for one in history)
    # Histories sort undated visits last, whatever their months.
    after = sorted(((days, value) for days, value in timed if days is not None and days > 0), key=lambda one: one[0])
    other = next((days for days, value in after if value == OTHER_DEMENTIA), None)
    known = tuple(one for one in after if other is None or one[0] < other)
    first_ad = next((days for days, value in known if value == "AD"), None)
    return _Later(known, first_ad, first_ad is not None and known[-1][1] != "AD", other)


def follow_up(history: Sequence[Diagnosis], at: Diagnosis | None) -> FollowUp | None:
    """Time to AD or to the end of follow-up, as survival analysis needs it.

    None if the diagnosis at the scan is neither CN nor MCI, or if AD was diagnosed and withdrawn.
    """
    if at is None or at.value not in ("CN", "MCI"):
        return None
    later = _later(history, at)
    if later.withdrawn:
        return None
    last = later.other if later.other is not None else later.known[-1][0] if later.known else 0.0
    converted = later.first_ad is not None
    months = None if later.first_ad is None else round(later.first_ad / _DAYS_PER_MONTH, 2)
    return FollowUp(converted, months, round(last / _DAYS_PER_MONTH, 2), later.other is not None and not converted)


def progression(history: Sequence[Diagnosis], at: Diagnosis | None, horizon_months: int) -> str | None:
    """Course of MCI after a scan; None if its diagnosis is not MCI."""
    if at is None or at.value != "MCI":
        return None
    later, horizon = _later(history, at), horizon_months * _DAYS_PER_MONTH
    end = horizon + WINDOW_DAYS
    if later.first_ad is not None and later.first_ad <= end:
        return "uMCI" if later.withdrawn else "pMCI"
    if later.other is not None and later.other <= end:
        return "uMCI"
    there = [value for days, value in later.known if horizon - WINDOW_DAYS <= days <= end]
    beyond = next((value for days, value in later.known if days > end), None)
    last = there[-1] if there else beyond
    return {"MCI": "sMCI", "CN": "rMCI"}.get(last or "", "uMCI")


def _days_after(at: Diagnosis, one: Diagnosis) -> float | None:
    if at.when is not None and one.when is not None:
        return (one.when - at.when).days
    if at.months is not None and one.months is not None:
        return (one.months - at.months) * _DAYS_PER_MONTH
    return None
