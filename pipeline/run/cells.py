"""Checks of tables of a run; a wrong cell is a `BadInputError` with file, line, column and value."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from heatlas.pipeline.run.errors import BadInputError

REMEDY = "Restore the file, or delete it and repeat the command that made this run."
_LONGEST = 40


def require_whole(path: Path) -> None:
    """Refuse a table whose last line has no end, since a truncated number looks like another number."""
    with path.open("rb") as handle:
        handle.seek(-1, os.SEEK_END)
        if handle.read(1) != b"\n":
            raise BadInputError(f"{path}: its last line has no end, so the file was truncated. {REMEDY}")


def require_filled(path: Path, frame: pd.DataFrame, columns: Sequence[str]) -> None:
    """Refuse an empty cell."""
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
