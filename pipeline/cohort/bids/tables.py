"""The tables of a BIDS dataset: ``participants.tsv``, sessions tables and scans tables, also as Clinica writes them.

========================================= =====================================================================
table                                     holds
========================================= =====================================================================
``participants.tsv``                      one row per person: ``participant_id``
``sessions.tsv``                          one row per visit: ``participant_id``, ``session_id``
``sub-X/sub-X_sessions.tsv``              one row per visit of a person: ``session_id``
``sub-X/[ses-Y/]sub-X[_ses-Y]_scans.tsv`` one row per image: ``filename`` (Clinica: ``mri_field``)
========================================= =====================================================================

Every table is optional, and none is changed. Of several values the one closest to the image is used: scans, sessions,
participants. If a person, visit or image has two rows, the second only fills gaps of the first, and a note says where
they disagree. Columns whose names differ only in case must be equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from heatlas.pipeline.cohort.cells.ranges import possible_cells, require_clear_sex
from heatlas.pipeline.cohort.cells.text_tables import filled_rows, read_text_table, require_columns, same_column
from heatlas.pipeline.cohort.cells.values import is_missing
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted, listed
from heatlas.pipeline.run.regular_files import read_regular

PARTICIPANTS = "participants.tsv"
SESSIONS = "sessions.tsv"
_IDENTIFYING = frozenset({"participant_id", "session_id", "filename"})
_TABS = "Columns must be separated by tabs."

Key = TypeVar("Key", str, tuple[str, str])
Cells = Mapping[str, str]
"""Filled cells of a row by column name, as the table writes it."""


@dataclass
class BidsTables:
    """What the tables of a dataset say, and what is wrong with them."""

    participants: dict[str, Cells] = field(default_factory=dict)  # by ``sub-`` name
    sessions: dict[tuple[str, str], Cells] = field(default_factory=dict)  # by ``sub-`` and ``ses-`` name
    scans: dict[str, Cells] = field(default_factory=dict)  # by path of the image relative to the dataset
    # By ``sub-`` name, what is wrong with a table of that person; only their scans are dropped
    unreadable: dict[str, str] = field(default_factory=dict)
    impossible: list[str] = field(default_factory=list)  # cells with impossible values, by table, line, column and text
    notes: list[str] = field(default_factory=list)
    # What the tables of images, sessions and participants are called
    names: tuple[str, str, str] = ("scans table", "sessions table", PARTICIPANTS)

    @property
    def empty(self) -> bool:
        return not (self.participants or self.sessions)


def table_root(root: Path) -> Path:
    """Dataset that holds the tables: for a derivative without tables, the dataset that contains it.

    >>> table_root(Path("/data/bids/derivatives/fmriprep")).as_posix()
    '/data/bids'
    """
    inside = root.parent.name == "derivatives" and not (root / PARTICIPANTS).is_file()
    return root.parent.parent if inside else root


def read_bids_tables(root: Path, people: Iterable[str], visits: Iterable[tuple[str, str | None]]) -> BidsTables:
    """Read the tables of a dataset, for the participants and visits that have images.

    A ``participants.tsv`` or ``sessions.tsv`` that cannot be read or lacks its identifying column is an error.
    """
    tables = BidsTables()
    if (root / PARTICIPANTS).exists():
        rows = _rows(root / PARTICIPANTS, ["participant_id"], tables)
        keyed = [(_prefixed("sub", cells["participant_id"]), cells) for cells in rows]
        tables.participants = merged(keyed, PARTICIPANTS, tables.notes)
    if (root / SESSIONS).exists():
        rows = _rows(root / SESSIONS, ["participant_id", "session_id"], tables)
        by_visit = [(_visit(cells["participant_id"], cells), cells) for cells in rows]
        tables.sessions = merged(by_visit, SESSIONS, tables.notes)
    for person in people:
        _read_personal(root, person, tables)
    for person, session in visits:
        _read_scans(root, person, session, tables)
    return tables


def _read_personal(root: Path, person: str, tables: BidsTables) -> None:
    path = root / person / f"{person}_sessions.tsv"
    if not path.exists():
        return
    try:
        rows = _rows(path, ["session_id"], tables)
    except BadInputError as error:
        tables.unreadable[person] = _without_root(error, root)
        return
    keyed = [(_visit(person, cells), cells) for cells in rows]
    for visit, cells in merged(keyed, path.name, tables.notes).items():
        tables.sessions[visit] = {**tables.sessions.get(visit, {}), **cells}


def _read_scans(root: Path, person: str, session: str | None, tables: BidsTables) -> None:
    parts = [part for part in (person, session) if part]
    folder = "/".join(parts)
    path = root / folder / f"{'_'.join(parts)}_scans.tsv"
    if not path.exists():
        return
    try:
        rows = _rows(path, ["filename"], tables)
    except BadInputError as error:  # few of its values are used, so the scan is kept
        tables.notes.append(f"not read: {_without_root(error, root)}")
        return
    keyed = [(f"{folder}/{cells['filename']}", cells) for cells in rows]
    tables.scans.update(merged(keyed, path.name, tables.notes))


def _rows(path: Path, columns: Sequence[str], tables: BidsTables) -> list[dict[str, str]]:
    """Filled cells of rows that have the identifying `columns`; other rows are left out and noted."""
    plain = _plain_rows(path)
    if plain and set(columns) <= set(plain[0][1]):
        rows = [(line, {name: cell for name, cell in row.items() if not is_missing(cell)}) for line, row in plain]
    else:
        frame, notes = read_text_table(path, "\t")
        tables.notes += notes
        require_columns(path, frame, columns, _TABS)
        rows = filled_rows(frame)
    require_clear_sex(path, (row for _, row in rows))
    named = [possible_cells(path.name, line, row, tables.impossible) for line, row in rows if set(columns) <= set(row)]
    nameless = sum(bool(row) for _, row in rows) - len(named)
    if nameless:
        tables.notes.append(f"{counted(nameless, 'row')} without {' and '.join(columns)} left out: {path.name}")
    return named


def _plain_rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Lines and cells of a table in strict BIDS form, read ten times faster; empty if it is unusual in any way.

    A dataset has one or two small tables per visit, tens of thousands in all; the general reader spends a millisecond
    on each.
    """
    try:
        lines = read_regular(path).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    if any('"' in line for line in lines):
        return []
    numbered = [(n, [cell.strip() for cell in line.split("\t")]) for n, line in enumerate(lines, 1) if line.strip()]
    (_, header), *rows = numbered or [(1, [])]
    if len(set(map(same_column, header))) != len(header) or any(len(row) != len(header) for _, row in rows):
        return []
    return [(n, dict(zip(header, row, strict=True))) for n, row in rows]


def merged(keyed: Sequence[tuple[Key, Mapping[str, str]]], name: str, notes: list[str]) -> dict[Key, Cells]:
    """Merge rows by key; the first is used, others fill its gaps."""
    rows: dict[Key, Cells] = {}
    repeated: list[str] = []
    disagreeing: list[str] = []
    for key, row in keyed:
        cells = {column: value for column, value in row.items() if column not in _IDENTIFYING}
        if key in rows:
            known = rows[key]
            label = " ".join(key) if isinstance(key, tuple) else str(key)
            repeated.append(label)
            other = [column for column, value in cells.items() if known.get(column, value) != value]
            disagreeing += [f"{label} {column} ({known[column]}, not {cells[column]})" for column in other]
        rows[key] = {**cells, **rows.get(key, {})}
    if repeated:
        notes.append(f"{counted(len(repeated), 'row')} repeated, used only to fill gaps: {name}, {listed(repeated)}")
    if disagreeing:
        notes.append(f"repeated rows disagree, the first is used: {name}, {listed(disagreeing)}")
    return rows


def _visit(person: str, cells: Mapping[str, str]) -> tuple[str, str]:
    return _prefixed("sub", person), _prefixed("ses", cells["session_id"])


def _prefixed(entity: str, label: str) -> str:
    """A label with its entity before it, in whatever case it is written: ``SUB-01`` is ``sub-01``."""
    begun = label[: len(entity) + 1].lower() == f"{entity}-"
    return f"{entity}-{label[len(entity) + 1 :] if begun else label}"


def _without_root(error: BadInputError, root: Path) -> str:
    return str(error).replace(f"{root}/", "")
