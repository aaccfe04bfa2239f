"""Tables from other sources, read as text, in any encoding, separator and quoting in use.

`pipeline.run.tables` reads the tables of this project. Here no cell is converted to a number before the meaning of its
column is known (``0012`` is an identifier, ``-4`` a code for missing).
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pandas as pd

from heatlas.pipeline.cohort.cells.values import is_missing
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted, listed
from heatlas.pipeline.run.regular_files import irregular_kind, read_regular

_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

_BINARY = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
"""Beginnings of ``.xlsx``, ``.ods`` and other ZIP archives, and of ``.xls``."""


def read_text_table(
    path: Path, separator: str | None = None, used: Collection[str] | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """Read a table, every cell as text, indexed by the line on which each row begins.

    Accepts UTF-8 with or without byte-order mark, UTF-16 (a spreadsheet's "Unicode text") and Latin-1. The separator
    (comma, semicolon or tab) is detected in the header line if not given; with semicolons, ``7123,5`` becomes
    ``7123.5``. A duplicated column (in any case) is kept once if both copies are equal or it is not among the `used`
    ones; a used one with different cells is refused. Notes name duplicated columns and rows left out because they do
    not fit the header.
    """
    text = _decoded(path)
    if not text.strip():
        raise BadInputError(f"{path}: empty table. Download or export it again.")
    separator = separator or header_separator(text.lstrip("\r\n").split("\n", 1)[0])
    rows, refused = _rows(text, separator)
    (_, header), *body = rows or [(1, [""])]
    if refused and not body:
        raise BadInputError(f"{path}: not a readable table ({refused[0]}). Download or export it again.")
    columns = zip(*(cells for _, cells in body), strict=True) if body else [()] * len(header)
    frame = pd.DataFrame(dict(enumerate(columns)), index=[line for line, _ in body], dtype=str)
    header = [name.strip() for name in header]
    positions, ignored = _columns_once(path, header, frame, used)
    frame = frame.iloc[:, positions].set_axis([header[position] for position in positions], axis="columns")
    text = f"{counted(len(refused), 'row')} whose cells do not fit the header left out; correct them"
    notes = [f"{text}: {path.name} {listed(refused)}"] if refused else []
    if ignored:
        notes.append(f"{path.name}: columns with the same name differ, the first is used: {listed(ignored)}")
    if separator == ";" and len(frame):  # decimal commas
        frame = frame.apply(lambda column: column.str.replace(r"^(\s*[+-]?\d+),(\d+\s*)$", r"\1.\2", regex=True))
    return frame, notes


def _rows(text: str, separator: str) -> tuple[list[tuple[int, list[str]]], list[str]]:
    """Line number and cells of the header and of each matching row, and what is wrong with the other rows.

    An unclosed quote merges cells or whole lines, so that values end up in other columns. After a refused row, reading
    continues on the next line; after a refused header it stops.
    """
    lines = _Lines(text)
    # Tab-separated text is often written without quoting: a quoted word at the start of a cell is valid there.
    reader = csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=separator != "\t")
    rows: list[tuple[int, list[str]]] = []
    refused: list[str] = []
    while True:
        start = lines.position
        try:
            cells = next(reader)
        except StopIteration:
            return rows, refused
        except csv.Error:
            problem: str | None = "a quote in it is not closed or not doubled"
        else:
            if not any(cells):
                continue
            problem = _row_problem(cells, lines.lines[start : lines.position], rows[0][1] if rows else cells, separator)
        if problem is None:
            rows.append((start + 1, cells))
            continue
        refused.append(f"line {start + 1} ({problem})")
        if not rows:
            return rows, refused
        lines.position = start + 1


def _row_problem(cells: Sequence[str], row_lines: Sequence[str], header: Sequence[str], separator: str) -> str | None:
    """Why the cells of a row may be misplaced; `row_lines` are its lines in the file."""
    if len(cells) != len(header):
        return f"{len(cells)} cells, the header has {len(header)}"
    # If the first and a later line could each be a row, the quote merged them; else a cell has a line break.
    whole = [len(_cells(line, separator)) <= len(header) <= line.count(separator) + 1 for line in row_lines]
    return "a quote in it merges the next row" if whole[0] and any(whole[1:]) else None


class _Lines(Iterator[str]):
    """Lines of a text with their ends; `position` counts the lines read and may be set back."""

    def __init__(self, text: str) -> None:
        self.lines = list(io.StringIO(text, newline=""))
        self.position = 0

    def __next__(self) -> str:
        if self.position == len(self.lines):
            raise StopIteration
        self.position += 1
        return self.lines[self.position - 1]


def same_column(name: str) -> str:
    """Normalised name of a column: spellings that differ in case, or in a dot for an underscore, are the same.

    >>> same_column("Age") == same_column("AGE"), same_column("DX.bl") == same_column("dx_BL")
    (True, True)
    """
    return name.casefold().replace(".", "_")


def _columns_once(
    path: Path, header: Sequence[str], body: pd.DataFrame, used: Collection[str] | None
) -> tuple[list[int], list[str]]:
    """Positions of the columns to keep, the first of each name, and duplicates that differ from it."""
    first: dict[str, int] = {}
    ignored = []
    for position, name in enumerate(header):
        kept = first.setdefault(same_column(name), position)
        if kept == position or body[kept].equals(body[position]):
            continue
        if used is None or same_column(name) in {same_column(column) for column in used}:
            names = {header[kept]: None, name: None}
            named = " and ".join(names) or "(nothing)"
            raise BadInputError(
                f"{path}: two columns are named {named} and hold different values. Rename or remove one."
            )
        ignored.append(f"{header[kept]} (not {name})" if header[kept] != name else name)
    return list(first.values()), ignored


def header_separator(header: str) -> str:
    """Separator that splits a header line into most columns, respecting quotes; comma if none does."""
    return max(",;\t", key=lambda separator: len(_cells(header, separator)))


def _cells(line: str, separator: str) -> list[str]:
    try:
        return next(csv.reader([line.rstrip("\r\n")], delimiter=separator, skipinitialspace=True), [""])
    except csv.Error:  # not text: an image or an archive named .csv
        return [line]


def read_header(path: Path) -> list[str]:
    """Column names of a comma-, semicolon- or tab-separated file; empty if it cannot be read."""
    try:
        if irregular_kind(path) is not None:
            return []
        with path.open("rb") as handle:
            start = handle.readline(100_000)
            if start.startswith(_UTF16):
                handle.seek(0)
                start = handle.read(100_000)
    except OSError:
        return []
    encoding = "utf-16" if start.startswith(_UTF16) else "utf-8-sig"
    line = start.decode(encoding, errors="replace").split("\n", 1)[0]
    return [cell.strip() for cell in _cells(line.strip(), header_separator(line.strip()))]


def require_columns(path: Path, frame: pd.DataFrame, columns: Sequence[str], remedy: str) -> None:
    """Refuse a table that lacks a column, naming those missing, those found, and the remedy."""
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        found = ", ".join(map(str, frame.columns[:20])) + (" ..." if len(frame.columns) > 20 else "")
        raise BadInputError(f"{path}: column {', '.join(missing)} is missing; found: {found}. {remedy}")


def filled_rows(frame: pd.DataFrame) -> list[tuple[int, dict[str, str]]]:
    """Rows of a table with their line in the file and their filled cells only."""
    columns = [_filled_cells(frame[name].tolist()) for name in frame.columns]
    names = [str(name) for name in frame.columns]
    return [
        (line, {name: cell for name, cell in zip(names, row, strict=True) if cell is not None})
        for line, row in zip(frame.index, zip(*columns, strict=True), strict=True)
    ]


def _filled_cells(cells: Sequence[object]) -> list[str | None]:
    """Cells stripped of blanks, None for empty ones; each distinct text is processed once."""
    held = {text: None if is_missing(text) else text.strip() for text in set(cells) if isinstance(text, str)}
    return [held.get(text) if isinstance(text, str) else None for text in cells]


def _decoded(path: Path) -> str:
    try:
        content = read_regular(path)
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read ({error.strerror}). Check the path and permissions.") from error
    if content.startswith(_BINARY):
        raise BadInputError(f"{path}: a workbook or archive, not a text table. Save it as CSV.")
    try:
        if content.startswith(_UTF16):
            return content.decode("utf-16")
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")
