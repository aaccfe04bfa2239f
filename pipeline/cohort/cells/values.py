"""Single values as cohort tables write them: numbers, sex, field strength, diagnosis, and when a visit was.

Each function for a value takes the text of a cell (or None) and returns None if it has no usable value.

*Dates.* LONI writes ``2006-04-18`` or month/day/year; a spreadsheet may have changed that to day/month/year. One date
may be ambiguous, a whole table usually is not: a part above 12 is a day. A table with dates of both orders is refused;
if all are ambiguous, they are read as LONI writes them, with a note. Two-digit years are not read.

*Visits.* Every code of a visit gives a session, so no scan or row is lost because of its code: by months since the
first baseline (``ses-M000``, ``ses-M012``, as in Clinica), or by its name (``ses-NV``, ``ses-UNS1``, ``ses-X...`` if
unknown). ``bl``, ``sc`` and ``m12`` count from a person's first baseline. ``y1`` (ADNI3), ``v11`` (ADNI2), ``4_m12``
(ADNI4) and ``init`` count from entry into a *phase*: for someone who rolled over from ADNI1, ``y1`` may be month 120.
Such codes are marked `Visit.within_phase`, and dates decide wherever there are dates. Other studies number their visits
``v01``, ``v02`` too, so such codes are a time in people of ADNI only.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import note_on

DIAGNOSES = {
    "cn": "CN",
    "nl": "CN",
    "hc": "CN",
    "normal": "CN",
    "control": "CN",
    "smc": "CN",  # significant memory concern: cognitively normal by ADNI's criteria
    "mci": "MCI",
    "emci": "MCI",
    "lmci": "MCI",
    "ad": "AD",
    "dementia": "AD",
}
"""Diagnoses as cohort tables write them, in lower case, and as this project does."""

_SEXES = {**dict.fromkeys(("f", "female", "woman", "w", "2"), "F"), **dict.fromkeys(("m", "male", "man", "1"), "M")}

_NUMBER = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\+?")

PTID = r"\d{3}_S_\d{4,}"
"""Pattern of ADNI's name of a participant: site and, unlike it the same in all phases, RID."""
DAYS_PER_MONTH = 30.4375

MISSING_CODES = ("-1", "-4")
"""ADNI's codes for a missing value."""
MISSING_TEXTS = frozenset({"", "n/a", "na", "nan", "null", "none", "."})


def is_missing(text: str) -> bool:
    return text.strip().lower() in MISSING_TEXTS


def adni_participant(ptid: str) -> str:
    """BIDS name of an ADNI participant.

    >>> adni_participant("002_S_0295")
    'sub-ADNI002S0295'
    """
    return "sub-ADNI" + ptid.upper().replace("_", "")


def first_value(columns: Mapping[str, str], *names: str) -> str | None:
    return next((columns[name] for name in names if name in columns), None)


Columns = Mapping[str, tuple[str, Callable[[str | None], object]]]
"""The column of a table that fills each value of a record, and what reads its cells."""


def read_cells(cells: Mapping[str, str], columns: Columns) -> dict[str, Any]:
    return {name: read(cells.get(column)) for name, (column, read) in columns.items()}


def number(text: str | None) -> float | None:
    """A finite decimal number; a trailing plus, as in BIDS's old ``89+`` years, is ignored.

    >>> number("7.5"), number("89+"), number("n/a"), number("inf"), number("7_0")
    (7.5, 89.0, None, None, None)
    """
    match = _NUMBER.fullmatch((text or "").strip())
    value = float(match[1]) if match else math.inf
    return value if math.isfinite(value) else None


def text(cell: str | None) -> str | None:
    return cell


def positive(text: str | None) -> float | None:
    """A number above 0, which excludes ADNI's codes for missing (-1, -4)."""
    value = number(text)
    return value if value is not None and value > 0 else None


def score(text: str | None) -> float | None:
    """A test score: a number of 0 or more."""
    value = number(text)
    return value if value is not None and value >= 0 else None


def count(text: str | None) -> int | None:
    value = score(text)
    return int(value) if value is not None and value == int(value) else None


def up_to_limit(text: str | None) -> float | None:
    """A number, or the limit of detection if the value is beyond it (``>1700``)."""
    beyond = re.fullmatch(r"\s*[<>]\s*([0-9]+(?:\.[0-9]*)?)\s*", text or "")
    return float(beyond[1]) if beyond else number(text)


def sex(text: str | None) -> str | None:
    """F or M, also from words and ADNI's codes (1 male, 2 female)."""
    word = re.sub(r"\.0+$", "", (text or "").strip().lower())
    return _SEXES.get(word)


def field_strength(text: str | None) -> float | None:
    """Tesla, from a number or from ADNI's ``1.5 Tesla MRI``."""
    match = re.fullmatch(r"\s*([+-]?[0-9]+(?:\.[0-9]*)?)\s*(?:T(?:esla)?\b.*)?", text or "", re.IGNORECASE)
    return number(match[1]) if match else None


def identifier(text: str | None) -> str | None:
    """Text of a code; a whole number written as a float (``11.0``) loses its point."""
    return None if text is None else re.sub(r"^(\d+)\.0+$", r"\1", text.strip())


def code_text(value: object) -> str:
    """Text of a code that a table may hold as a number: all digits, and no point in a whole number.

    >>> code_text(4177011.0), code_text(1.5), code_text("007")
    ('4177011', '1.5', '007')
    """
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else str(float(value))
    return str(value)


def diagnosis(text: str | None) -> str | None:
    """CN, MCI or AD; None for anything else. For a change at the visit (old ADNIMERGE), the new diagnosis.

    >>> diagnosis("Dementia"), diagnosis("MCI to Dementia"), diagnosis("LMCI"), diagnosis("FTD")
    ('AD', 'AD', 'MCI', None)
    >>> diagnosis("Stable: NL"), diagnosis("Reversion: Dementia to MCI")
    ('CN', 'MCI')
    """
    last = re.split(r"\s+to\s+|:\s+", (text or "").strip(), flags=re.IGNORECASE)[-1]
    return DIAGNOSES.get(last.lower())


@cache
def calendar_date(text: str | None) -> date | None:
    """A date: ISO as in ADNIMERGE and LONI's folders, or month/day/year as in LONI's collection tables.

    >>> calendar_date("2006-04-18_08_20_30.0"), calendar_date("4/18/2006"), calendar_date("18.4.2006")
    (datetime.date(2006, 4, 18), datetime.date(2006, 4, 18), None)
    """
    cleaned = (text or "").strip()
    for pattern, form in ((r"\d{4}-\d{2}-\d{2}(?!\d)", "%Y-%m-%d"), (r"\d{1,2}/\d{1,2}/\d{4}(?!\d)", "%m/%d/%Y")):
        if match := re.match(pattern, cleaned):
            return _first_that_fits(match[0], (form,))
    return None


Order = Literal["month first", "day first"]

_SLASHED = re.compile(r"(\d{1,2})[/-](\d{1,2})[/-](\d{4})(?!\d)")
_WRITTEN = (
    (re.compile(r"\d{4}[-/]\d{1,2}[-/]\d{1,2}(?!\d)"), ("%Y-%m-%d", "%Y/%m/%d")),
    (re.compile(r"\d{8}(?!\d)"), ("%Y%m%d",)),
    (re.compile(r"\d{1,2}\.\d{1,2}\.\d{4}(?!\d)"), ("%d.%m.%Y",)),
    (re.compile(r"\d{1,2}[- ]?[A-Za-z]{3}[- ]?\d{4}(?!\d)"), ("%d-%b-%Y", "%d%b%Y", "%d %b %Y")),
)
_YEARS = range(1990, 2100)
"""ADNI began in 2004; a year such as 0206 or 1900 (an empty cell of a spreadsheet) is an error."""


def read_date(text: str, order: Order = "month first") -> date | None:
    """Read one date; None for other text.

    >>> read_date("2006-04-18 00:00:00"), read_date("4/10/2006"), read_date("4/10/2006", "day first")
    (datetime.date(2006, 4, 18), datetime.date(2006, 4, 10), datetime.date(2006, 10, 4))
    >>> read_date("20060418"), read_date("18.4.2006"), read_date("18Apr2006"), read_date("4/18/06")
    (datetime.date(2006, 4, 18), datetime.date(2006, 4, 18), datetime.date(2006, 4, 18), None)
    """
    cleaned = text.strip()
    if match := _SLASHED.match(cleaned):
        first, second, year = map(int, match.groups())
        month, day = (first, second) if order == "month first" else (second, first)
        return _in_use(_first_that_fits(f"{year}-{month}-{day}", ("%Y-%m-%d",)))
    for pattern, forms in _WRITTEN:
        if match := pattern.match(cleaned):
            return _in_use(_first_that_fits(match[0], forms))
    return None


def _in_use(day: date | None) -> date | None:
    return day if day is not None and day.year in _YEARS else None


def _first_that_fits(text: str, forms: Sequence[str]) -> date | None:
    for form in forms:
        with contextlib.suppress(ValueError):
            return datetime.strptime(text, form).date()
    return None


def slashed_order(texts: Iterable[str]) -> tuple[Order | None, str | None, str | None]:
    """Order of dates with slashes (None if ambiguous or mixed), and an example of each order."""
    day_first = month_first = None
    for text in texts:
        if match := _SLASHED.match(text.strip()):
            first, second = int(match[1]), int(match[2])
            if first > 12 >= second:
                day_first = day_first or text
            elif second > 12 >= first:
                month_first = month_first or text
    if (day_first is None) == (month_first is None):
        return None, day_first, month_first
    return ("day first" if day_first else "month first"), day_first, month_first


def with_iso_dates(path: Path, frame: pd.DataFrame, columns: Sequence[str]) -> tuple[pd.DataFrame, list[str]]:
    """Convert the dates of some columns to ISO; cells that are not a date become empty, with a note."""
    present = [name for name in columns if name in frame.columns]
    cells = {name: [t for t in frame[name].dropna().unique() if not is_missing(t)] for name in present}
    order, day_first, month_first = slashed_order(text for texts in cells.values() for text in texts)
    if day_first and month_first:
        raise BadInputError(
            f"{path}: column {', '.join(present)} holds dates of both orders, {day_first} (day first) and "
            f"{month_first} (month first), so none can be trusted. Download the table again, or write its dates as "
            "YYYY-MM-DD."
        )
    notes = []
    slashed = [match for texts in cells.values() for text in texts if (match := _SLASHED.match(text.strip()))]
    if order == "day first":
        notes.append(f"{path.name}: dates are read day first, because of {day_first}")
    elif order is None and any(day[1].zfill(2) != day[2].zfill(2) for day in slashed):
        notes.append(f"{path.name}: dates such as {slashed[0].string} are read month first, as LONI writes them")
    for name, texts in cells.items():
        dates = {text: read_date(text, order or "month first") for text in texts}
        iso = {text: day.isoformat() for text, day in dates.items() if day is not None}
        frame = frame.assign(**{name: [iso.get(text, "") for text in frame[name]]})
        bad = [repr(text) for text, day in dates.items() if day is None]
        text = f"of {name} unreadable as a date (YYYY-MM-DD)"
        notes += note_on(bad, "value", text, before=f"{path.name}: ", limit=3)
    return frame, notes


_MONTHLESS = {
    **{"nv": "NV", "novisitdefined": "NV", "f": "F", "fail": "F", "screenfail": "F", "tau": "TAU", "tauonly": "TAU"},
    **{"unscheduled": "UNS", "unscheduledvisit": "UNS"},
}
_TIMED = {
    **dict.fromkeys(("bl", "sc", "scmri", "scr", "screen", "v01", "v02", "v03"), (0, False)),
    **{"v04": (3, False), "v05": (6, False)},  # of new participants
    **{"init": (0, True), "v06": (0, True), "v07": (6, True)},
}
"""Months of the short codes, and whether they count within a phase."""
_NUMBERED = re.compile(r"v\d+", re.IGNORECASE)
_OF_ADNI = re.compile(r"sub-(ADNI\d{3}S\d{4,}|\d{3}_?S_?\d{4,})", re.IGNORECASE)


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
    if timed := _timed(text, compact):
        months, within_phase = timed
        return Visit(month_session(months), months, within_phase or (of_adni4 and months > 0))
    # X prevents an unknown code from looking like a month.
    return Visit("ses-X" + re.sub(r"[^A-Z0-9]", "", code.upper()), known=False)


def visit_of_session(person: str, session: str) -> Visit:
    """Visit that a session's name stands for, with or without ``ses-``; ``v`` and a number in people of ADNI only.

    >>> visit_of_session("sub-ADNI002S0295", "ses-v11").months, visit_of_session("sub-01", "ses-v11").months
    (12, None)
    >>> visit_of_session("sub-01", "ses-M012").months, visit_of_session("sub-01", "m12").session_id
    (12, 'ses-M012')
    """
    name = session.removeprefix("ses-")
    if _NUMBERED.fullmatch(name.strip()) and not _OF_ADNI.fullmatch(person):
        return Visit(f"ses-{name.strip()}", known=False)
    return visit_of(name)


def _timed(text: str, compact: str) -> tuple[int, bool] | None:
    """Months and whether they count within a phase: of a short code, or of words such as ``ADNI2 Year 1 Visit``."""
    if re.fullmatch(r"[a-z0-9]+", text):
        if compact in _TIMED:
            return _TIMED[compact]
        if match := re.fullmatch(r"m0*(\d{1,3})", compact):
            return int(match[1]), False
        if match := re.fullmatch(r"y0*(\d{1,2})", compact):
            return 12 * int(match[1]), True
        if match := re.fullmatch(
            r"v([1-9])([12])", compact
        ):  # ADNI2: v11 year 1, v12 half a year later, v21 year 2 ...
            return 12 * int(match[1]) + 6 * (int(match[2]) - 1), True
    if match := re.search(r"\bmonth\s*0*(\d{1,3})\b", text):
        return int(match[1]), "adni4" in text
    if match := re.search(r"\byear\s*0*(\d{1,2})\b", text):
        return 12 * int(match[1]), True
    if match := re.search(r"\b(initial visit|screening|baseline)\b", text):
        return 0, re.search(r"\binitial visit\b", text) is not None
    return None
