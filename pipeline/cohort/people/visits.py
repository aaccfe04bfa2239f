"""Visits: ADNI's codes, and the BIDS sessions they become.

Every code gives a session, so no scan or row is lost because of its code. Sessions are named as in Clinica, by months
since the first baseline: ``ses-M000``, ``ses-M012``.

ADNI counts in two ways. ``bl``, ``sc`` and ``m12`` count from a person's first baseline. ``y1`` (ADNI3), ``v11``
(ADNI2), ``4_m12`` (ADNI4) and ``init`` count from entry into a *phase*: for someone who rolled over from ADNI1, ``y1``
may be month 120. Such codes are marked `Visit.within_phase`, and dates decide wherever there are dates. Where a table
has both, VISCODE2 (from the first baseline) is used rather than VISCODE (as the phase wrote it): `visit_code`.

==============================================  ==============  ==========================================
code or text                                    session         counted
==============================================  ==============  ==========================================
bl, sc, scmri, scr, screen, v01, v02, v03       ses-M000        from the first baseline
4_bl, 4_sc                                      ses-M000        the same; only new participants have them
mNN; Month NN                                   ses-M0NN        from the first baseline
v04, v05 (new participants of ADNIGO and 2)     ses-M003, M006  from the first baseline
init, 4_init, v06; Initial Visit                ses-M000        within a phase
v07                                             ses-M006        within a phase
vN1, vN2 (ADNI2: year N, half a year later)     ses-M0NN        within a phase
yN, 4_mNN, 4_yN; Year N; ADNI4 Month NN         ses-M0NN        within a phase
nv, f, tau, unsN; No Visit Defined,             ses-NV, -F,     not at all
Screen fail, Tau only, Unscheduled              -TAU, -UNSN
anything else                                   ses-X...        not at all; named in a note
==============================================  ==============  ==========================================
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

_MONTHLESS = {
    **{"nv": "NV", "novisitdefined": "NV", "f": "F", "fail": "F", "screenfail": "F", "tau": "TAU", "tauonly": "TAU"},
    **{"unscheduled": "UNS", "unscheduledvisit": "UNS"},
}
_BASELINE = {"bl", "sc", "scmri", "scr", "screen", "v01", "v02", "v03"}
_NEW_PARTICIPANTS = {"v04": 3, "v05": 6}


@dataclass(frozen=True)
class Visit:
    """A visit by its code alone."""

    session_id: str  # with its ``ses-`` prefix; ``ses-M`` and three digits exactly where `months` is known
    months: int | None = None  # months since baseline; None if the code does not indicate a time (``nv``, ``uns1``)
    # True if the months count from entry into a study phase rather than from the first baseline
    within_phase: bool = False
    known: bool = True  # false for a code that is not one of ADNI's


def visit_code(columns: Mapping[str, str]) -> str:
    """The visit code of a row: VISCODE2 where it is filled, otherwise VISCODE.

    >>> visit_code({"VISCODE": "y1", "VISCODE2": "m132"}), visit_code({"VISCODE": "bl"})
    ('m132', 'bl')
    """
    return columns.get("VISCODE2") or columns.get("VISCODE") or ""


def month_session(months: int) -> str:
    """Session name of a month.

    >>> month_session(12)
    'ses-M012'
    """
    return f"ses-M{months:03d}"


@cache
def visit_of(code: str) -> Visit:
    """Visit of an ADNI code or of LONI's visit text.

    >>> visit_of("scmri").session_id, visit_of("m06").months, visit_of("ADNI1/GO Month 24").session_id
    ('ses-M000', 6, 'ses-M024')
    >>> visit_of("y2")
    Visit(session_id='ses-M024', months=24, within_phase=True, known=True)
    >>> visit_of("nv").session_id, visit_of("uns1").session_id, visit_of("?").session_id
    ('ses-NV', 'ses-UNS1', 'ses-X')
    """
    text = code.strip().lower()
    of_adni4 = text.startswith("4_")
    text = text.removeprefix("4_")
    compact = re.sub(r"[^a-z0-9]", "", text)
    if compact in _MONTHLESS:
        return Visit("ses-" + _MONTHLESS[compact])
    if re.fullmatch(r"uns\d*", compact):
        return Visit("ses-" + compact.upper())
    timed = _timed_code(compact) if re.fullmatch(r"[a-z0-9]+", text) else None
    timed = timed or _visit_text(text)
    if timed is not None:
        months, within_phase = timed
        return Visit(month_session(months), months, within_phase or (of_adni4 and months > 0))
    # X prevents an unknown code from looking like a month.
    return Visit("ses-X" + re.sub(r"[^A-Z0-9]", "", code.upper()), known=False)


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
        return int(match[1]), "adni4" in text
    if match := re.search(r"\byear\s*0*(\d{1,2})\b", text):
        return 12 * int(match[1]), True
    if re.search(r"\binitial visit\b", text):
        return 0, True
    if re.search(r"\b(screening|baseline)\b", text):
        return 0, False
    return None
