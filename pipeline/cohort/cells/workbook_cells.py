"""The cells of the first visible sheet of a workbook, printed as JSON: a program that `workbooks` starts.

It runs by itself, within limits, because a small file may ask for any amount of memory (two cells in opposite corners
of a sheet), which ends the process that reads it. It imports nothing of the house, so that it starts in 20 ms.
"""

from __future__ import annotations

import json
import resource
import sys
from datetime import date, datetime, time, timedelta

from python_calamine import CalamineError, SheetTypeEnum, SheetVisibleEnum, load_workbook

MAX_MEMORY = 2**31
"""Address space in bytes; ten thousand rows of a thousand columns take 0.7 GB."""


def as_text(value: float | str | date | time | timedelta) -> str:
    """A cell as saving as CSV would write it: ISO dates, TRUE and FALSE, whole numbers without decimals.

    A spreadsheet keeps 15 digits of a number. A larger one is written as it is stored, with its point or exponent, so
    that it is told from the same digits as text.

    >>> as_text(7.0), as_text(0.1 + 0.2), as_text(True), as_text("007"), as_text(date(2011, 3, 4)), as_text(time(9, 30))
    ('7', '0.3', 'TRUE', '007', '2011-03-04', '09:30:00')
    >>> as_text(123456789012345.0), as_text(1234567890123459.0), as_text("1234567890123459")
    ('123456789012345', '1234567890123459.0', '1234567890123459')
    >>> as_text(datetime(2019, 12, 31, 23, 59, 59, 914_000))  # a spreadsheet stores a fraction of a day
    '2020-01-01T00:00:00'
    """
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int | float):
        return f"{value:.15g}" if abs(value) < 1e15 else repr(float(value))
    if isinstance(value, datetime):
        return (value.replace(microsecond=0) + timedelta(seconds=value.microsecond >= 500_000)).isoformat()
    return str(value)


def rows_of(path: str) -> list[list[str]]:
    """All rows from the first of the sheet on; formulas give the values that were saved with them."""
    book = load_workbook(path)
    names = [
        sheet.name for sheet in book.sheets_metadata
        if (sheet.typ, sheet.visible) == (SheetTypeEnum.WorkSheet, SheetVisibleEnum.Visible)
    ]  # fmt: skip
    if not names:
        raise ValueError("it has no sheet")
    rows = book.get_sheet_by_name(names[0]).to_python(skip_empty_area=False)
    return [[as_text(cell) for cell in row] for row in rows]


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    try:
        print(json.dumps(rows_of(sys.argv[1])))
    except (CalamineError, ValueError, OverflowError) as error:
        sys.exit(str(error))
