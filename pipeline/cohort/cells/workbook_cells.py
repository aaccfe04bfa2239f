"""The cells of the first visible sheet of a workbook, printed as JSON: a program that `workbooks` starts.

It runs by itself, within limits, because a small file may ask for any amount of memory (two cells in opposite corners
of a sheet), which ends the process that reads it. It imports nothing of the house, so that it starts in 20 ms.

calamine gives cells with an error, formulas without a saved value and hidden rows as if they were nothing special. Of
``.xlsx`` they are taken from the sheet's XML; ``.xls`` and ``.ods`` are read without them.
"""

from __future__ import annotations

import json
import re
import resource
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from xml.etree import ElementTree

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


@dataclass
class Sheet:
    """The cells of a sheet from its first row and column on, and which of them calamine leaves out.

    `errors`, `unsaved` (formulas without a saved value): row and column, from 0. `hidden`: rows with cells, from 0.
    """

    rows: list[list[str]]
    errors: list[tuple[int, int, str]] = field(default_factory=list)
    unsaved: list[tuple[int, int]] = field(default_factory=list)
    hidden: list[int] = field(default_factory=list)


def read_sheet(path: str) -> Sheet:
    """The first visible sheet; formulas give the values that were saved with them, errors their text."""
    book = load_workbook(path)
    shown = (SheetTypeEnum.WorkSheet, SheetVisibleEnum.Visible)
    names = [sheet.name for sheet in book.sheets_metadata if (sheet.typ, sheet.visible) == shown]
    if not names:
        raise ValueError("it has no sheet")
    rows = book.get_sheet_by_name(names[0]).to_python(skip_empty_area=False)
    sheet = Sheet([[as_text(cell) for cell in row] for row in rows])
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            _add_what_is_left_out(sheet, archive, names[0])
    for row, column, text in sheet.errors:
        if row < len(sheet.rows) and column < len(sheet.rows[row]):
            sheet.rows[row][column] = text
    return sheet


def _add_what_is_left_out(sheet: Sheet, archive: zipfile.ZipFile, name: str) -> None:
    part = _sheet_part(archive, name)
    if part is None:
        return
    for row, hidden, cells in _xml_rows(archive, part):
        if hidden and cells:
            sheet.hidden.append(row)
        for column, cell in cells:
            value = next((child.text or "" for child in cell if _tag(child) == "v"), "")
            kind = cell.get("t")
            if kind == "e":
                sheet.errors.append((row, column, value))
            elif not value and kind not in ("str", "inlineStr") and any(_tag(child) == "f" for child in cell):
                sheet.unsaved.append((row, column))


def _sheet_part(archive: zipfile.ZipFile, name: str) -> str | None:
    """The file of a sheet within an ``.xlsx``; None if the archive is of another kind."""
    try:
        book = ElementTree.fromstring(archive.read("xl/workbook.xml"))
        links = ElementTree.fromstring(archive.read("xl/_rels/workbook.xml.rels"))
    except KeyError:
        return None
    targets = {link.get("Id"): link.get("Target", "") for link in links}
    for sheet in book.iter():
        if _tag(sheet) == "sheet" and sheet.get("name") == name:
            link = next(value for key, value in sheet.attrib.items() if key.endswith("}id"))
            target = targets.get(link, "")
            part = target[1:] if target.startswith("/") else f"xl/{target}"
            return part if part in archive.namelist() else None
    return None


def _xml_rows(archive: zipfile.ZipFile, part: str) -> Iterator[tuple[int, bool, list[tuple[int, ElementTree.Element]]]]:
    """Rows of a sheet with whether they are hidden, and their cells by column; unnumbered ones follow the last."""
    row = -1
    with archive.open(part) as file:
        for _, element in ElementTree.iterparse(file):
            if _tag(element) != "row":
                continue
            row = int(element.get("r", row + 2)) - 1
            cells, column = [], -1
            for cell in element:
                letters = re.match(r"[A-Z]*", cell.get("r", ""))
                column = _column(letters[0]) if letters and letters[0] else column + 1
                cells.append((column, cell))
            yield row, element.get("hidden") in ("1", "true"), cells
            element.clear()


def _column(letters: str) -> int:
    """Number of a column from 0.

    >>> _column("A"), _column("Z"), _column("AA")
    (0, 25, 26)
    """
    number = 0
    for letter in letters:
        number = 26 * number + ord(letter) - ord("A") + 1
    return number - 1


def _tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    try:
        print(json.dumps(vars(read_sheet(sys.argv[1]))))
    except (CalamineError, ValueError, OverflowError, ElementTree.ParseError, zipfile.BadZipFile) as error:
        sys.exit(str(error))
