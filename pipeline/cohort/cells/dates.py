"""Dates of a table, converted to ISO; cells that cannot be read are named.

LONI writes ``2006-04-18`` or month/day/year; a spreadsheet may have changed that to day/month/year. One date may be
ambiguous, a whole table usually is not: a part above 12 is a day. A table with dates of both orders is refused; if all
dates are ambiguous, they are read as LONI writes them, with a note. Dates with dots (``18.4.2006``) are day first.
Two-digit years are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Literal

import pandas as pd

from heatlas.pipeline.cohort.cells.values import is_missing
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted, listed

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
        try:
            found = date(year, month, day)
        except ValueError:
            return None
        return found if found.year in _YEARS else None
    for pattern, forms in _WRITTEN:
        if match := pattern.match(cleaned):
            return _first_that_fits(match[0], forms)
    return None


def _first_that_fits(text: str, forms: Sequence[str]) -> date | None:
    for form in forms:
        try:
            found = datetime.strptime(text, form).date()
        except ValueError:
            continue
        return found if found.year in _YEARS else None
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
    """Convert the dates of some columns to ISO; cells that are not a date become empty, with a note.

    A date order that is assumed or is not LONI's is noted; a table that mixes both orders is refused.
    """
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
    slashed = [text for texts in cells.values() for text in texts if _SLASHED.match(text.strip())]
    if order == "day first":
        notes.append(f"{path.name}: dates are read day first, because of {day_first}")
    elif order is None and any(_ambiguous(text) for text in slashed):
        notes.append(f"{path.name}: dates such as {slashed[0]} are read month first, as LONI writes them")
    for name, texts in cells.items():
        found = {text: read_date(text, order or "month first") for text in texts}
        iso = {text: day.isoformat() for text, day in found.items() if day is not None}
        frame = frame.assign(**{name: [iso.get(text, "") for text in frame[name]]})
        bad = [repr(text) for text, day in found.items() if day is None]
        if bad:
            notes.append(
                f"{path.name}: {counted(len(bad), 'value')} of {name} unreadable as a date (YYYY-MM-DD): "
                f"{listed(bad, 3)}"
            )
    return frame, notes


def _ambiguous(text: str) -> bool:
    match = _SLASHED.match(text.strip())
    return match is not None and match[1].zfill(2) != match[2].zfill(2)
