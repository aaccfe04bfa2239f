"""The first sheet of an Excel workbook (``.xlsx``), read as text like any other table.

Tables such as those of OASIS are offered as workbooks. They are read without a further package: a workbook is a ZIP
archive of XML files (ECMA-376). Cells become what saving as CSV would write: dates by their number format, as
``YYYY-MM-DD``; truth values as TRUE and FALSE; numbers of a format such as ``0000`` with their leading zeros.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd

from heatlas.pipeline.cohort.cells.text_tables import read_text_table, same_column
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.regular_files import require_regular

MAX_BYTES = 2**26
"""Size to which a sheet may unpack; a table of ten thousand rows has a few MB."""
_MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_DATES = frozenset({*range(14, 18), 22, *range(27, 32), 36, *range(50, 59)})
"""Numbers of the built-in formats that show a date."""
_NO_CODE = re.compile(r'"[^"]*"|\\.|_.|\*.|\[[^\]]*\]')
"""Parts of a number format that are shown as they are, or are colours, places and conditions."""
_SHEET = re.compile(r"xl/worksheets/sheet(\d+)\.xml")


@dataclass(frozen=True)
class _Book:
    """What cells refer to: texts, number formats by style, and the day from which dates are counted."""

    texts: list[str]
    formats: list[str]
    first_day: datetime

    @classmethod
    def of(cls, archive: zipfile.ZipFile) -> _Book:
        from_1904 = False
        if "xl/workbook.xml" in archive.namelist():
            properties = _parsed(archive, "xl/workbook.xml").find(f"{_MAIN}workbookPr")
            from_1904 = properties is not None and properties.get("date1904") in ("1", "true")
        return cls(
            _shared_texts(archive), _formats(archive), datetime(*((1904, 1, 1) if from_1904 else (1899, 12, 30)))
        )

    def number(self, value: float, style: int) -> str:
        """A number as its format shows it, where that is a date or has leading zeros."""
        code = self.formats[style] if style < len(self.formats) else ""
        text = f"{value:.15g}"  # 0.743 is stored as 0.74299999999999999
        if re.fullmatch("0+", code) and text.isdigit():
            return text.zfill(len(code))
        if not _is_date(code):
            return text
        before = self.first_day.year == 1899 and value < 60  # Excel has a 29 February 1900
        try:
            moment = self.first_day + timedelta(days=value + before)
        except OverflowError:
            return text
        whole = moment.replace(microsecond=0) + timedelta(seconds=moment.microsecond >= 500_000)
        return whole.date().isoformat() if value == int(value) else whole.isoformat()


def _is_date(code: str) -> bool:
    """Whether a number format shows a day, month or year.

    >>> _is_date("dd/mm/yyyy"), _is_date("[$-409]mmm;@"), _is_date("General"), _is_date('0" days"'), _is_date("h:mm")
    (True, True, False, False, False)
    """
    shown = _NO_CODE.sub("", code.split(";")[0]).lower()
    return bool({"d", "y"} & {*shown}) or ("m" in shown and not {"h", "s"} & {*shown})


def _formats(archive: zipfile.ZipFile) -> list[str]:
    """The code of the number format of each style of cells."""
    if "xl/styles.xml" not in archive.namelist():
        return []
    styles = _parsed(archive, "xl/styles.xml")
    codes = {int(one.get("numFmtId", 0)): one.get("formatCode", "") for one in styles.iter(f"{_MAIN}numFmt")}
    numbers = [int(one.get("numFmtId", 0)) for one in styles.iterfind(f"{_MAIN}cellXfs/{_MAIN}xf")]
    return [codes.get(number, "yyyy-mm-dd" if number in _DATES else "") for number in numbers]


def read_sheet(path: Path) -> tuple[pd.DataFrame, list[str]]:
    """Read a table that may be a workbook, every cell as text; notes as of `read_text_table`.

    Workbooks of other formats (``.xls``, ``.ods``) are refused there by their content.
    """
    return (read_workbook(path), []) if path.suffix.lower() == ".xlsx" else read_text_table(path)


def read_workbook(path: Path) -> pd.DataFrame:
    """Read the first sheet, every cell as text ("" if empty), indexed by row; the first row holds the names."""
    try:
        require_regular(path)
        with zipfile.ZipFile(path) as archive:
            rows = _rows(archive, _Book.of(archive))
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read ({error.strerror or error}). Check the file.") from error
    except (zipfile.BadZipFile, zlib.error, ElementTree.ParseError, ValueError, KeyError, IndexError, RuntimeError,
            NotImplementedError) as error:  # fmt: skip
        raise BadInputError(f"{path}: no readable workbook ({error}). Save it as CSV.") from error
    if not rows:
        raise BadInputError(f"{path}: empty table. Download or export it again.")
    (_, header), *body = rows
    names = {column: text.strip() for column, text in header.items() if text.strip()}
    spelled = [same_column(name) for name in names.values()]
    if twice := [name for name in names.values() if spelled.count(same_column(name)) > 1]:
        raise BadInputError(
            f"{path}: two columns are named {' and '.join(dict.fromkeys(twice))}. Rename or remove one."
        )
    table = [{name: cells.get(column, "") for column, name in names.items()} for _, cells in body]
    return pd.DataFrame(table, columns=list(names.values()), index=[n for n, _ in body], dtype=str)


def _rows(archive: zipfile.ZipFile, book: _Book) -> list[tuple[int, dict[int, str]]]:
    """Numbers and cells (by column, from 0) of the rows of the first sheet that hold something."""
    sheets = {int(found[1]): name for name in archive.namelist() if (found := _SHEET.fullmatch(name))}
    if not sheets:
        raise ValueError("it has no sheet")
    rows = []
    for place, row in enumerate(_parsed(archive, sheets[min(sheets)]).iter(f"{_MAIN}row"), 1):
        cells: dict[int, str] = {}
        for cell in row.iter(f"{_MAIN}c"):
            column = _column(cell.get("r", "")) if cell.get("r") else len(cells)
            if (text := _text(cell, book)) is not None:
                cells[column] = text
        if any(text.strip() for text in cells.values()):
            rows.append((int(row.get("r", place)), cells))
    return rows


def _text(cell: ElementTree.Element, book: _Book) -> str | None:
    kind, value = cell.get("t", "n"), cell.find(f"{_MAIN}v")
    if kind == "inlineStr":
        return "".join(one.text or "" for one in cell.iter(f"{_MAIN}t"))
    if value is None or value.text is None or kind == "e":
        return None
    if kind == "s":
        return book.texts[int(value.text)]
    if kind == "b":
        return "TRUE" if value.text == "1" else "FALSE"
    return book.number(float(value.text), int(cell.get("s", 0))) if kind == "n" else value.text


def _shared_texts(archive: zipfile.ZipFile) -> list[str]:
    """Texts that cells refer to by number."""
    if "xl/sharedStrings.xml" not in archive.namelist():
        return []
    items = _parsed(archive, "xl/sharedStrings.xml").iter(f"{_MAIN}si")
    return ["".join(one.text or "" for one in item.iter(f"{_MAIN}t")) for item in items]


def _parsed(archive: zipfile.ZipFile, name: str) -> ElementTree.Element:
    if archive.getinfo(name).file_size > MAX_BYTES:
        raise ValueError(f"{name} unpacks to more than {MAX_BYTES:,} bytes")
    content = archive.read(name)
    if b"<!DOCTYPE" in content:
        raise ValueError("it declares a document type")
    return ElementTree.fromstring(content)


def _column(reference: str) -> int:
    """Number of a column from 0.

    >>> _column("A1"), _column("AB12")
    (0, 27)
    """
    number = 0
    for letter in re.match(r"[A-Z]+", reference)[0]:  # type: ignore[index]
        number = number * 26 + ord(letter) - ord("A") + 1
    return number - 1
