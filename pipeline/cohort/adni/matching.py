"""Which visit of ADNIMERGE a scan belongs to.

1. The Visit of the collection list, if it counts from the first baseline (``bl``, ``sc``, ``m12``), ADNIMERGE has that
   visit, and the two dates, where known, are at most `CODE_TOLERANCE_DAYS` apart.
2. Otherwise the visit whose EXAMDATE is nearest to the scan date, within `WINDOW_DAYS`.
3. Otherwise, without dates, the Visit of the collection list even if it counts within a phase (``y1``).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from pipeline.cohort.adni.visit_tables import WINDOW_DAYS, VisitRow
from pipeline.cohort.people.visits import Visit

CODE_TOLERANCE_DAYS = 183
"""A visit code that disagrees with the date by more than this has another starting point or is wrong."""


def match_visit(visits: Sequence[VisitRow], scan_date: date | None, coded: Visit | None) -> VisitRow | str:
    """Visit of a scan, or why there is none; see the module's docstring."""
    if not visits:
        return "no row of this participant in ADNIMERGE"
    of_code = next((row for row in visits if coded is not None and row.session_id == coded.session_id), None)
    if of_code is not None and coded is not None and coded.months is not None and not coded.within_phase:
        gap = _days_apart(of_code, scan_date)
        if gap is None or gap <= CODE_TOLERANCE_DAYS:
            return of_code
    gaps = [(gap, row) for row in visits if (gap := _days_apart(row, scan_date)) is not None]
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


def _days_apart(row: VisitRow, scan_date: date | None) -> int | None:
    return None if scan_date is None or row.exam_date is None else abs((row.exam_date - scan_date).days)
