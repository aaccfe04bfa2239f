"""What became of someone with MCI: stable or progressive within a horizon, or not known.

Counted from the diagnosis of the scan. The visit of the horizon may lie up to `WINDOW_DAYS` to either side of it, as
visits do. With the diagnoses after the scan and up to there:

=====  ===============================================================================================================
pMCI   one of them is AD, and the last one is
sMCI   none is AD, follow-up reaches the horizon, and the last is MCI
rMCI   none is AD, follow-up reaches the horizon, and the last is CN: reverted
uMCI   unknown: follow-up ends before the horizon without AD (drop-outs are not stable people); or no visit falls at the
       horizon and the next has AD, so that it cannot be said on which side the conversion lies; or AD was diagnosed
       and withdrawn; or the dementia has another cause
=====  ===============================================================================================================

A return to CN in between does not matter: what counts is the last diagnosis. Where no visit falls at the horizon the
first one after it stands in for it, unless it is the one with AD.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.cohort.adni_visit_tables import WINDOW_DAYS
from pipeline.cohort.diagnosis import OTHER_DEMENTIA, Diagnosis
from pipeline.cohort.records import FollowUp

_DAYS_PER_MONTH = 30.4375
COURSES = ("sMCI", "pMCI", "rMCI", "uMCI")


def follow_up(history: Sequence[Diagnosis], at: Diagnosis | None) -> FollowUp | None:
    """Time to AD or to the end of follow-up, as survival analysis needs it.

    None for someone whose diagnosis at the scan is neither CN nor MCI, and where AD was diagnosed and withdrawn: that
    is neither a conversion nor a time without one.

    Parameters
    ----------
    history : sequence of Diagnosis
        Of the person, in order of time.
    at : Diagnosis or None
        The scan's.
    """
    if at is None or at.value not in ("CN", "MCI"):
        return None
    after = [(days, one.value) for one in history if (days := _days_after(at, one)) is not None and days > 0]
    other = next((days for days, value in after if value == OTHER_DEMENTIA), None)
    if other is not None:
        after = [(days, value) for days, value in after if days < other]
    first_ad = next((days for days, value in after if value == "AD"), None)
    if first_ad is not None and after[-1][1] != "AD":
        return None
    last = other if other is not None else after[-1][0] if after else 0.0
    months = None if first_ad is None else round(first_ad / _DAYS_PER_MONTH, 2)
    competing = other is not None and first_ad is None
    return FollowUp(first_ad is not None, months, round(last / _DAYS_PER_MONTH, 2), competing)


def progression(history: Sequence[Diagnosis], at: Diagnosis | None, horizon_months: int) -> str | None:
    """Course of MCI after a scan; None if its diagnosis is not MCI.

    Parameters
    ----------
    history : sequence of Diagnosis
        Of the person, in order of time.
    at : Diagnosis or None
        The scan's.
    horizon_months : int
    """
    if at is None or at.value != "MCI":
        return None
    horizon = horizon_months * _DAYS_PER_MONTH
    after = [(days, one.value) for one in history if (days := _days_after(at, one)) is not None and days > 0]
    until = [value for days, value in after if days <= horizon + WINDOW_DAYS]
    reaches = any(horizon - WINDOW_DAYS <= days <= horizon + WINDOW_DAYS for days, _ in after)
    beyond = next((value for days, value in after if days > horizon + WINDOW_DAYS), None)
    if OTHER_DEMENTIA in until:
        return "uMCI"
    if "AD" in until:
        return "pMCI" if until[-1] == "AD" else "uMCI"
    last = until[-1] if reaches else beyond
    return {"MCI": "sMCI", "CN": "rMCI"}.get(last or "", "uMCI")


def _days_after(at: Diagnosis, one: Diagnosis) -> float | None:
    if at.when is not None and one.when is not None:
        return (one.when - at.when).days
    if at.months is not None and one.months is not None:
        return (one.months - at.months) * _DAYS_PER_MONTH
    return None
