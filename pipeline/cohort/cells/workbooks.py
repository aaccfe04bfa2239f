"""The first sheet of an Excel workbook (``.xlsx``), read as text like any other table.

Tables such as those of OASIS are offered as workbooks. Only cells of text and numbers are read, without a further
package: a workbook is a ZIP archive of XML files (ECMA-376).
"""

from __future__ import annotations

import re
import zipfile
import zlib
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd

from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.regular_files import require_regular

MAX_BYTES = 2**26
"""Size to which a sheet may unpack; a table of ten thousand rows has a few MB."""
_MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_SHEET = re.compile(r"xl/worksheets/sheet(\d+)\.xml")


def read_workbook(path: Path) -> pd.DataFrame:
    """Read the first sheet, every cell as text ("" if empty), indexed by row; the first row holds the names."""
    try:
        require_regular(path)
        with zipfile.ZipFile(path) as archive:
            shared = _shared_texts(archive)
            rows = _rows(archive, shared)
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read ({error.strerror or error}). Check the file.") from error
    except (zipfile.BadZipFile, zlib.error, ElementTree.ParseError, ValueError, KeyError, IndexError, RuntimeError,
            NotImplementedError) as error:  # fmt: skip
        raise BadInputError(f"{path}: no readable workbook ({error}). Save it as CSV.") from error
    if not rows:
        raise BadInputError(f"{path}: empty table. Download or export it again.")
    (_, header), *body = rows
    names = {column: text.strip() for column, text in header.items() if text.strip()}
    table = [{name: cells.get(column, "") for column, name in names.items()} for _, cells in body]
    return pd.DataFrame(table, columns=list(dict.fromkeys(names.values())), index=[n for n, _ in body], dtype=str)


def _rows(archive: zipfile.ZipFile, shared: list[str]) -> list[tuple[int, dict[int, str]]]:
    """Numbers and cells (by column, from 0) of the rows of the first sheet that hold something."""
    sheets = {int(found[1]): name for name in archive.namelist() if (found := _SHEET.fullmatch(name))}
    if not sheets:
        raise ValueError("it has no sheet")
    rows = []
    for place, row in enumerate(_parsed(archive, sheets[min(sheets)]).iter(f"{_MAIN}row"), 1):
        cells: dict[int, str] = {}
        for cell in row.iter(f"{_MAIN}c"):
            column = _column(cell.get("r", "")) if cell.get("r") else len(cells)
            if (text := _text(cell, shared)) is not None:
                cells[column] = text
        if any(text.strip() for text in cells.values()):
            rows.append((int(row.get("r", place)), cells))
    return rows


def _text(cell: ElementTree.Element, shared: list[str]) -> str | None:
    kind, value = cell.get("t", "n"), cell.find(f"{_MAIN}v")
    if kind == "inlineStr":
        return "".join(one.text or "" for one in cell.iter(f"{_MAIN}t"))
    if value is None or value.text is None or kind == "e":
        return None
    if kind == "s":
        return shared[int(value.text)]
    return f"{float(value.text):.15g}" if kind == "n" else value.text  # 0.743 is stored as 0.74299999999999999


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
