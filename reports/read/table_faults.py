"""Cells, rows and files that cannot be what the run wrote: the first one of a table, with the remedy.

A number that is not one, a class that the run does not know, a cut row or file: a table that has one is not used, and
the sections that need it say why. Nothing is guessed.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from heatlas.pipeline.cohort.cells.ranges import RANGES
from heatlas.pipeline.cohort.people.clinical import MEASURES, TIMES
from heatlas.pipeline.run.cells import REMEDY, first_wrong
from heatlas.pipeline.run.columns import DescribedColumn, Form, column_of
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.declared import CLASSES, Table
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.map_names import map_names
from heatlas.pipeline.run.tables import read_table
from heatlas.reports.read.written_tables import ALL_TABLES, PREDICTIONS_OF, of_another_version

MAKE_AGAIN = "Repeat the command that made this run."

_FREE_TEXTS = sorted({column for table in ALL_TABLES.values() for column in table.texts})
"""Columns of text of a table whose columns are those of the input."""
CLINICAL = frozenset({"scans", "clinical"})  # tables whose columns have the ranges of `pipeline.cohort.cells.ranges`


def read_checked(name: str, path: Path) -> pd.DataFrame:
    """Read a table of a run, its text columns as text.

    Raises BadInputError if the file cannot be read as a table.
    """
    return read_table(path, text_columns=ALL_TABLES[name].texts or _FREE_TEXTS)


def read_sound(name: str, path: Path, config: Config) -> pd.DataFrame:
    """Read a table of a run that must be as the run wrote it.

    `name`: of `reports.read.written_tables.ALL_TABLES`.

    Raises BadInputError with what is wrong, and the remedy.
    """
    frame, file = read_checked(name, path), str(path)
    if wrong := cut_row(path, file) or of_another_version(name, file, frame) or bad_cell(name, file, frame, config):
        raise BadInputError(wrong)
    return frame


def cut_row(path: Path, file: str) -> str:
    """Which row has too few or too many cells, or where the file ends too soon; empty where none does.

    `file`: what to call it.
    """
    content = path.read_bytes()
    if not content.endswith(b"\n"):
        last = content.count(b"\n") + 1
        return f"{file}: line {last} has no end, so the file is cut short. {REMEDY}"
    head, _, rows = content.partition(b"\n")
    if b'"' not in content and rows.count(b"\t") == head.count(b"\t") * rows.count(b"\n"):
        return ""  # a row that is too long does not get here: the reader has refused it
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines, delimiter="\t")
        wanted = len(next(reader))
        for cells in reader:
            if cells and len(cells) != wanted:
                return f"{file}: line {reader.line_num} has {len(cells)} cells, the header {wanted}. {REMEDY}"
    return ""


def bad_cell(name: str, file: str, table: pd.DataFrame, config: Config) -> str:
    """The first cell or row of a table that the run cannot have written, in a sentence; empty where there is none.

    `name`: of `reports.read.written_tables.ALL_TABLES`. `file`: what to call it. `table`: as `read_checked` gives it.
    `config`: of the run, whose classes it knows.

    Examples
    --------
    >>> from heatlas.pipeline.run.config.files import load_config
    >>> table = pd.DataFrame({"participant_id": ["sub-1", "sub-2"], "fold": ["0", "one"], "part": ["train", "test"]})
    >>> bad_cell("splits", "splits.tsv", table, load_config(overrides={}))
    "splits.tsv: line 3, column fold: 'one' is not a number. Restore the file, or delete it and repeat the command that made this run."
    """  # noqa: E501
    declared = ALL_TABLES[name]
    for column in declared.required or table.columns.intersection([*MEASURES, *TIMES]):
        for wrong, why in _checks(declared, column, table[column], config):
            if wrong.any():
                return f"{file}: {first_wrong(table, column, wrong, why)} {REMEDY}"
    if name in ("scans", *PREDICTIONS_OF.values()) and table["scan_id"].duplicated().any():
        return f"{file}: {first_wrong(table, 'scan_id', table['scan_id'].duplicated(), 'appears twice')} {REMEDY}"
    if len(again := np.flatnonzero(table.duplicated())):
        return f"{file}: row {again[0] + 1} repeats an earlier one. {REMEDY}"
    return ""


def _checks(table: Table, name: str, values: pd.Series, config: Config) -> Iterator[tuple[pd.Series, str]]:
    """Wrong cells of a column, and what to say of them; each check relies on those before it."""
    column, known = _declared(table, name), values.notna()
    if column.form is Form.FLAG:
        yield known & ~values.isin([True, False, "true", "false", "True", "False"]), "is neither true nor false"
    elif not column.is_text and values.dtype.kind in "iuf":
        yield _out_of_range(table, name, values)
    elif not column.is_text:
        is_number = pd.to_numeric(values.astype(object), errors="coerce").notna() & (values.dtype != bool)
        yield known & ~is_number, "is not a number"
    if name in table.filled:
        yield ~known, "is missing"
    if name in table.values:
        allowed = _allowed(table.values[name], config)
        yield known & ~values.isin(allowed) & bool(allowed), f"is not one of {', '.join(allowed)}"
    if column.form is Form.MAP:
        yield known & ~values.isin(["volume", *map_names(config.attribution)]), "is not a map of this run"


def _declared(table: Table, name: str) -> DescribedColumn:
    """A column of a table, or of one whose columns are those of the input."""
    return table.columns.get(name) or column_of(name, "")


def _allowed(values: Sequence[str], config: Config) -> list[str]:
    """The only values of a column, the classes filled in, positive first; none where a number is predicted."""
    classes = () if config.cohort.target else tuple(reversed(config.cohort.labels))
    return [one for value in values for one in (classes if value == CLASSES else (value,))]


def _out_of_range(table: Table, name: str, values: pd.Series) -> tuple[pd.Series, str]:
    """Numbers that a column cannot hold: parts of what is counted, probabilities beyond 0 and 1, infinite values."""
    column = _declared(table, name)
    if column.form is Form.COUNT:
        return values.notna() & ((values % 1 != 0) | (values < 0)), "is not a number to count with"
    if column.form in (Form.P, Form.PROBABILITY):
        return values.notna() & ~values.between(0, 1), "is not between 0 and 1"
    if table.name in CLINICAL and name in RANGES and not name.endswith("_mm3"):  # our own volumes have no range
        return values.notna() & ~values.map(RANGES[name].holds).astype(bool), f"is not {RANGES[name]}"
    return values.isin([float("inf"), float("-inf")]) & table.finite, "is not a finite number"
