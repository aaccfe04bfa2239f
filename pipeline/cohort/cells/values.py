"""Single values as cohort tables write them: numbers, dates, sex, field strength, diagnosis.

Each function takes the text of a cell (or None) and returns None if it has no usable value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import date, datetime
from functools import cache

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

MISSING_CODES = ("-1", "-4")
"""ADNI's codes for a missing value."""
MISSING_TEXTS = frozenset({"", "n/a", "na", "nan", "null", "none", "."})


def is_missing(text: str) -> bool:
    return text.strip().lower() in MISSING_TEXTS


def first_value(columns: Mapping[str, str], *names: str) -> str | None:
    """Value of the first of several columns that is filled."""
    return next((columns[name] for name in names if name in columns), None)


def number(text: str | None) -> float | None:
    """A finite decimal number; a trailing plus, as in BIDS's old ``89+`` years, is ignored.

    >>> number("7.5"), number("89+"), number("n/a"), number("inf"), number("7_0")
    (7.5, 89.0, None, None, None)
    """
    match = _NUMBER.fullmatch((text or "").strip())
    value = float(match[1]) if match else math.inf
    return value if math.isfinite(value) else None


def positive(text: str | None) -> float | None:
    """A number above 0, which excludes ADNI's codes for missing (-1, -4)."""
    value = number(text)
    return value if value is not None and value > 0 else None


def score(text: str | None) -> float | None:
    """A test score: a number of 0 or more."""
    value = number(text)
    return value if value is not None and value >= 0 else None


def count(text: str | None) -> int | None:
    """A whole number of 0 or more."""
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

    Examples
    --------
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
        match = re.match(pattern, cleaned)
        if match:
            try:
                return datetime.strptime(match[0], form).date()
            except ValueError:
                return None
    return None
