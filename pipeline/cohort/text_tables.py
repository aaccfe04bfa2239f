"""Tables as others write them, read as text: any encoding, separator and quoting that people send.

`pipeline.run.tables` reads the tables of this project; here nothing may be assumed, and no cell is turned into a
number before the column's meaning is known (``0012`` is an identifier, ``-4`` a code for missing).
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Collection, Sequence
from pathlib import Path

import pandas as pd

from pipeline.cohort.values import is_missing
from pipeline.run.errors import BadInputError

_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_text_table(path: Path, separator: str | None = None, used: Collection[str] | None = None) -> pd.DataFrame:
    """Read a table, every cell as text.

    Parameters
    ----------
    path : Path
        UTF-8 with or without byte-order mark, UTF-16 (a spreadsheet's "Unicode text"), or Latin-1.
    separator : str, optional
        Told from the header line (comma, semicolon or tab) if not given. In a table with semicolons ``7123,5`` is a
        number with a decimal comma and becomes ``7123.5``.
    used : collection of str, optional
        Columns that matter, in any case. Of others that the header names twice, only the first is kept.

    Returns
    -------
    pandas.DataFrame
        A column that the header names twice is there once if both hold the same.

    Raises
    ------
    BadInputError
        If the file cannot be opened, is empty, is not a table, or names a used column twice with different cells.
    """
    text = _decoded(path)
    if not text.strip():
        raise BadInputError(f"{path}: empty table. Download or export it again.")
    text = text.lstrip("\r\n")
    if separator is None:
        separator = header_separator(text.split("\n", 1)[0])
    try:
        frame = pd.read_csv(
            io.StringIO(text),
            sep=separator,
            dtype=str,
            keep_default_na=False,
            skipinitialspace=True,
            header=None,
            names=range(len(_cells(text.split("\n", 1)[0], separator))),
            index_col=None,
        )
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise BadInputError(
            f"{path}: not a readable table ({str(error).strip()}). Download or export it again."
        ) from error
    if not isinstance(frame.index, pd.RangeIndex):
        raise BadInputError(f"{path}: its rows have more cells than its header. Download or export it again.")
    header = [str(name).strip() for name in frame.iloc[0]]
    body = frame.iloc[1:].reset_index(drop=True).fillna("")
    body = body.iloc[:, _columns_once(path, header, body, used)].set_axis(list(dict.fromkeys(header)), axis="columns")
    return body.apply(_with_decimal_points) if separator == ";" and len(body) else body


def _columns_once(path: Path, header: Sequence[str], body: pd.DataFrame, used: Collection[str] | None) -> list[int]:
    """Positions of the columns to keep: the first of each name."""
    first: dict[str, int] = {}
    for position, name in enumerate(header):
        if first.setdefault(name, position) == position or body[first[name]].equals(body[position]):
            continue
        if used is None or name.upper() in {column.upper() for column in used}:
            raise BadInputError(
                f"{path}: two columns are named {name or '(nothing)'} and hold different values. Rename or remove one."
            )
    return list(first.values())


def _with_decimal_points(column: pd.Series[str]) -> pd.Series[str]:
    return column.str.replace(r"^(\s*[+-]?\d+),(\d+\s*)$", r"\1.\2", regex=True)


def header_separator(header: str) -> str:
    """The separator that splits a header line into most columns, quoted cells left whole; comma if none does."""
    return max(",;\t", key=lambda separator: len(_cells(header, separator)))


def _cells(line: str, separator: str) -> list[str]:
    try:
        return next(csv.reader([line.rstrip("\r")], delimiter=separator, skipinitialspace=True), [""])
    except csv.Error:  # no text: an image or an archive named .csv
        return [line]


def read_header(path: Path) -> list[str]:
    """Column names of a comma-, semicolon- or tab-separated file; empty if it cannot be read."""
    try:
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
    """Refuse a table that lacks a column, naming it.

    Raises
    ------
    BadInputError
        Naming the missing columns, those found, and the remedy.
    """
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        found = ", ".join(map(str, frame.columns[:20])) + (" ..." if len(frame.columns) > 20 else "")
        raise BadInputError(f"{path}: column {', '.join(missing)} is missing; found: {found}. {remedy}")


def filled_rows(frame: pd.DataFrame) -> list[dict[str, str]]:
    """The rows of a table, each with only the cells that hold something."""
    columns = [_filled_cells(frame[name].tolist()) for name in frame.columns]
    names = [str(name) for name in frame.columns]
    return [
        {name: cell for name, cell in zip(names, row, strict=True) if cell is not None}
        for row in zip(*columns, strict=True)
    ]


def _filled_cells(cells: Sequence[object]) -> list[str | None]:
    """Cells without blanks around them, None for those that hold nothing; each distinct text is looked at once."""
    held = {text: None if is_missing(text) else text.strip() for text in set(cells) if isinstance(text, str)}
    return [held.get(text) if isinstance(text, str) else None for text in cells]


def _decoded(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read ({error.strerror}). Check the path and permissions.") from error
    try:
        if content.startswith(_UTF16):
            return content.decode("utf-16")
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")
