"""Visits: what ADNI calls one, and the BIDS session it becomes.

The mapping is total: every text gives a session, so no scan or row is lost for the sake of its code. Sessions are
named as Clinica names them, by months since the first baseline: ``ses-M000``, ``ses-M012``.

ADNI counts in two ways. ``bl``, ``sc`` and ``m12`` count from a person's first baseline. ``y1`` (ADNI3), ``v11``
(ADNI2) and ``init`` count from entry into a *phase*: for someone who rolled over from ADNI1, ``y1`` may be month 120.
Such codes are marked `Visit.within_phase`, and dates decide wherever there are dates.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_MONTHLESS = {"nv": "NV", "novisitdefined": "NV", "f": "F", "fail": "F", "tau": "TAU", "tauonly": "TAU"}
_BASELINE = {"bl", "sc", "scmri", "scr", "screen", "v01", "v02", "v03"}
_NEW_PARTICIPANTS = {"v04": 3, "v05": 6}


@dataclass(frozen=True)
class Visit:
    """A visit by its code alone.

    Parameters
    ----------
    session_id : str
        With its ``ses-`` prefix; ``ses-M`` and three digits exactly where `months` is known.
    months : int or None
        Months since baseline; None where the code says nothing about time (``nv``, ``uns1``).
    within_phase : bool
        True if the months count from entry into a study phase rather than from the first baseline.
    """

    session_id: str
    months: int | None = None
    within_phase: bool = False


def month_session(months: int) -> str:
    """Session name of a month.

    Examples
    --------
    >>> month_session(12)
    'ses-M012'
    """
    return f"ses-M{months:03d}"


def visit_of(code: str) -> Visit:
    """Visit of an ADNI code or of LONI's visit text.

    Examples
    --------
    >>> visit_of("scmri").session_id, visit_of("m06").months, visit_of("ADNI1/GO Month 24").session_id
    ('ses-M000', 6, 'ses-M024')
    >>> visit_of("y2")
    Visit(session_id='ses-M024', months=24, within_phase=True)
    >>> visit_of("nv").session_id, visit_of("uns1").session_id, visit_of("?").session_id
    ('ses-NV', 'ses-UNS1', 'ses-X')
    """
    text = re.sub(r"^4_", "", code.strip().lower())  # ADNI4 writes 4_bl, 4_m12
    compact = re.sub(r"[^a-z0-9]", "", text)
    if compact in _MONTHLESS:
        return Visit("ses-" + _MONTHLESS[compact])
    if re.fullmatch(r"uns\d*", compact):
        return Visit("ses-" + compact.upper())
    timed = _timed_code(compact) if re.fullmatch(r"[a-z0-9]+", text) else None
    timed = timed or _visit_text(text)
    if timed is not None:
        months, within_phase = timed
        return Visit(month_session(months), months, within_phase)
    # X keeps an unknown code from looking like a month.
    return Visit("ses-X" + re.sub(r"[^A-Z0-9]", "", code.upper()))


def _timed_code(code: str) -> tuple[int, bool] | None:
    """Months and whether they count within a phase, for the short codes."""
    if code in _BASELINE:
        return 0, False
    if code in _NEW_PARTICIPANTS:
        return _NEW_PARTICIPANTS[code], False
    if code in ("init", "v06"):
        return 0, True
    if code == "v07":
        return 6, True
    if match := re.fullmatch(r"m0*(\d{1,3})", code):
        return int(match[1]), False
    if match := re.fullmatch(r"y0*(\d{1,2})", code):
        return 12 * int(match[1]), True
    if match := re.fullmatch(r"v([1-9])([12])", code):  # ADNI2: v11 year 1, v12 half a year later, v21 year 2 ...
        return 12 * int(match[1]) + 6 * (int(match[2]) - 1), True
    return None


def _visit_text(text: str) -> tuple[int, bool] | None:
    """Months and whether they count within a phase, for LONI's words such as ``ADNI2 Year 1 Visit``."""
    if match := re.search(r"\bmonth\s*0*(\d{1,3})\b", text):
        return int(match[1]), False
    if match := re.search(r"\byear\s*0*(\d{1,2})\b", text):
        return 12 * int(match[1]), True
    if re.search(r"\binitial visit\b", text):
        return 0, True
    if re.search(r"\b(screening|baseline)\b", text):
        return 0, False
    return None
