"""Tables as others write them, read as text: any encoding, separator and quoting that people send.

`pipeline.run.tables` reads the tables of this project; here nothing may be assumed, and no cell is turned into a
number before the column's meaning is known (``0012`` is an identifier, ``-4`` a code for missing).
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from pipeline.cohort.values import is_missing
from pipeline.run.errors import BadInputError


def read_text_table(path: Path, separator: str | None = None) -> pd.DataFrame:
    """Read a table, every cell as text.

    Parameters
    ----------
    path : Path
        UTF-8 with or without byte-order mark, or Latin-1.
    separator : str, optional
        Told from the header line (comma, semicolon or tab) if not given.

    Raises
    ------
    BadInputError
        If the file cannot be opened, is empty, or is not a table.
    """
    text = _decoded(path)
    if not text.strip():
        raise BadInputError(f"{path}: empty table. Download or export it again.")
    if separator is None:
        separator = header_separator(text.lstrip("\r\n").split("\n", 1)[0])
    try:
        frame = pd.read_csv(io.StringIO(text), sep=separator, dtype=str, keep_default_na=False, skipinitialspace=True)
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise BadInputError(f"{path}: not a readable table ({error}). Download or export it again.") from error
    if not isinstance(frame.index, pd.RangeIndex):
        raise BadInputError(f"{path}: its rows have more cells than its header. Download or export it again.")
    return frame.rename(columns=lambda name: str(name).strip())


def header_separator(header: str) -> str:
    """The separator that splits a header line into most columns; comma if none does."""
    return max(",;\t", key=header.count)


def read_header(path: Path) -> list[str]:
    """Column names of a comma- or semicolon-separated file; empty if it cannot be read."""
    try:
        with path.open("rb") as handle:
            line = handle.readline(100_000).decode("utf-8-sig", errors="replace")
    except OSError:
        return []
    return [cell.strip().strip('"') for cell in line.strip().split(header_separator(line))]


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
    return [
        {str(name): value.strip() for name, value in row.items() if isinstance(value, str) and not is_missing(value)}
        for row in frame.to_dict("records")
    ]


def _decoded(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read ({error.strerror}). Check the path and permissions.") from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")
