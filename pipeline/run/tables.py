"""Tables as BIDS writes them (tab-separated, UTF-8, ``n/a`` for missing), and checks of their cells.

Floats are written with their shortest exact representation, so equal numbers give equal bytes and reading returns the
numbers that were written. A wrong cell is a `BadInputError` with file, line, column and value.

Spreadsheets run cells that begin like a formula (``=``, ``+``, ``-``, ``@``). Such text, unless it is a number, is
written after an apostrophe, the spreadsheets' mark of plain text; `read_table` removes it.
"""

from __future__ import annotations

import csv
import json
import os
import re
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from heatlas.pipeline.run.errors import BadInputError

MISSING = "n/a"
CLASS_COLUMNS = frozenset({"label", "predicted"})
"""Columns that hold class names, in every table; ``0``, ``1.5`` or ``true`` may be one."""

_FORMULA = "[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]"
"""First characters of cells that a spreadsheet would run: OWASP's list, with the full-width forms."""
_RUNS = re.compile(f"'*{_FORMULA}")
_GUARDED = re.compile(f"'+{_FORMULA}")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_EXACT: dict[str, Any] = (
    {"float_precision": "round_trip"} if tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1) else {}
)
"""How numbers are read as they were written; from pandas 3.1 on they always are."""


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file atomically, keys in the given order."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically: a reader sees the old file or the new one, never half of it.

    A file that already holds this content is not touched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file() and path.read_bytes() == content:
        return
    # Not the number of the process, which programs on two computers of a cluster may share.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_table(path: Path, frame: pd.DataFrame) -> None:
    """Write the columns of a frame, without its index; `pipeline.run.declared.Table.write` adds the data dictionary."""
    for column in frame.select_dtypes("bool").columns:
        frame = frame.assign(**{column: frame[column].map({True: "true", False: "false"})})
    frame = _with_text(frame, guarded)
    text = frame.to_csv(sep="\t", index=False, na_rep=MISSING, lineterminator="\n")
    if "\r" in text:  # ends a line for most readers, and is not quoted by default
        text = frame.to_csv(sep="\t", index=False, na_rep=MISSING, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    write_text(path, text)


def guarded(text: str) -> str:
    """Protect the text of a cell from being run by a spreadsheet; `unguarded` reverses it.

    >>> guarded("=1+1"), guarded("-1.5"), guarded("'=1+1"), unguarded(guarded("'=1+1"))
    ("'=1+1", '-1.5', "''=1+1", "'=1+1")
    """
    return f"'{text}" if _RUNS.match(text) and not _NUMBER.fullmatch(text) else text


def unguarded(text: str) -> str:
    return text[1:] if _GUARDED.match(text) else text


def _with_text(frame: pd.DataFrame, change: Callable[[str], str]) -> pd.DataFrame:
    """Change all texts and column names of a table; each distinct text is processed once."""
    frame = frame.rename(columns={name: change(name) for name in frame.columns if isinstance(name, str)})
    for column in frame.columns[[str(kind) in ("object", "str", "string") for kind in frame.dtypes]]:
        changed = {t: change(t) for t in frame[column].unique() if isinstance(t, str) and change(t) != t}
        if changed:
            frame = frame.assign(**{column: [changed.get(t, t) if isinstance(t, str) else t for t in frame[column]]})
    return frame


def read_table(path: Path, required: Sequence[str] = (), text_columns: Sequence[str] = ()) -> pd.DataFrame:
    """Read a table written by `write_table` or by any BIDS tool.

    `required`: columns that must exist. `text_columns`: columns kept as text even where they look like numbers
    (identifiers such as ``0012``) or truth values; every ``*_id`` column and those of `CLASS_COLUMNS` are always text.
    Raises BadInputError if the file is missing, not a table, lacks a required column or has a column twice.
    """
    if not path.is_file():
        what = "not a file" if path.exists() else "no such table"
        raise BadInputError(f"{path}: {what}. Run the stage that writes it, or check the path.")
    try:
        first = pd.read_csv(path, sep="\t", nrows=1, header=None, dtype=str, na_filter=False, encoding="utf-8-sig")
        header = first.iloc[0]
        wanted = CLASS_COLUMNS | set(text_columns)
        as_text = {name: str for name in header if name.endswith("_id") or unguarded(name) in wanted}
        frame = pd.read_csv(
            path, sep="\t", dtype=as_text, na_values=[MISSING], keep_default_na=False, encoding="utf-8-sig", **_EXACT
        )
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError, OSError) as error:
        reason = str(error).strip().replace("\n", " ")
        raise BadInputError(f"{path}: not a readable tab-separated table ({reason}).") from error
    if header.duplicated().any():  # pandas gives the second another name
        raise BadInputError(f"{path}: column {header[header.duplicated()].iloc[0]} appears twice. Remove one of them.")
    frame = _with_text(frame, unguarded)
    missing = [name for name in required if name not in frame.columns]
    if missing:
        raise BadInputError(f"{path}: column {', '.join(missing)} is missing; found: {', '.join(frame.columns)}.")
    for column in frame.columns.difference([unguarded(name) for name in as_text]):
        values = set(frame[column].dropna().unique()) if frame[column].dtype != float else set()
        if values and values <= {"true", "false"}:
            frame[column] = frame[column].map({"true": True, "false": False})
    return frame


REMEDY = "Restore the file, or delete it and repeat the command that made this run."
_LONGEST = 40


def require_whole(path: Path) -> None:
    """Refuse a table whose last line has no end, since a truncated number looks like another number."""
    with path.open("rb") as handle:
        handle.seek(-1, os.SEEK_END)
        if handle.read(1) != b"\n":
            raise BadInputError(f"{path}: its last line has no end, so the file was truncated. {REMEDY}")


def require_filled(path: Path, frame: pd.DataFrame, columns: Sequence[str]) -> None:
    for column in columns:
        _refuse(path, frame, column, frame[column].isna(), "is missing")


def require_known(path: Path, frame: pd.DataFrame, column: str, values: Collection[object]) -> None:
    """Refuse a cell that is not one of the known values; empty cells are skipped."""
    listed = ", ".join(str(value).lower() if isinstance(value, bool) else str(value) for value in values)
    wrong = frame[column].notna() & ~frame[column].isin(list(values))
    _refuse(path, frame, column, wrong, f"is not one of {listed}")


def require_digests(path: Path, frame: pd.DataFrame, column: str, remedy: str) -> None:
    """Refuse a cell that is not a SHA-256; empty cells are skipped."""
    wrong = frame[column].notna() & ~frame[column].astype(str).str.fullmatch("[0-9a-f]{64}")
    _refuse(path, frame, column, wrong, "is not a SHA-256 (64 hexadecimal digits)", remedy)


def require_numbers(path: Path, frame: pd.DataFrame, columns: Sequence[str], whole: bool = False) -> None:
    """Refuse a cell that is not a finite number, or not a whole one; empty cells are skipped."""
    for column in columns:
        cells = frame[column]
        if cells.dtype == object or cells.dtype == bool:  # true and false are not numbers
            cells = cells.map(lambda cell: str(cell) if isinstance(cell, bool | np.bool_) else cell)
        numbers = pd.to_numeric(cells.astype(object), errors="coerce").astype(float)
        wrong = cells.notna() & ~np.isfinite(numbers)
        _refuse(path, frame, column, wrong, "is not a number")
        if whole:
            _refuse(path, frame, column, cells.notna() & (numbers != np.round(numbers)), "is not a whole number")


def _refuse(path: Path, frame: pd.DataFrame, column: str, wrong: pd.Series, why: str, remedy: str = REMEDY) -> None:
    if wrong.any():
        raise BadInputError(f"{path}: {first_wrong(frame, column, wrong, why)} {remedy}")


def first_wrong(frame: pd.DataFrame, column: str, wrong: pd.Series, why: str) -> str:
    """A sentence on the first wrong cell of a column, with line and text."""
    row = int(wrong.to_numpy(bool).argmax())
    above = frame.iloc[:row].select_dtypes(exclude=["number", "bool"])
    line = row + 2 + sum(str(cell).count("\n") for cell in above.to_numpy().ravel())  # a cell may hold line breaks
    cell = frame[column].iloc[row]
    text = str(cell)
    shown = "n/a" if pd.isna(cell) else repr(text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…")
    return f"line {line}, column {column}: {shown} {why}."
