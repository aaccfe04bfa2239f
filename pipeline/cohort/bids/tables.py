"""The tables of a BIDS dataset, also as Clinica writes them, and which columns fill which values of a scan.

========================================= =====================================================================
table                                     holds
========================================= =====================================================================
``participants.tsv``                      one row per person: ``participant_id``
``sessions.tsv``                          one row per visit: ``participant_id``, ``session_id``
``sub-X/sub-X_sessions.tsv``              one row per visit of a person: ``session_id``
``sub-X/[ses-Y/]sub-X[_ses-Y]_scans.tsv`` one row per image: ``filename`` (Clinica: ``mri_field``)
========================================= =====================================================================

Every table is optional, and none is changed. If a person, visit or image has two rows, the second only fills gaps of
the first, and a note says where they disagree. Columns whose names differ only in case must be equal.

Values that change between visits are taken from the row of the image, else of its session, else of its participant;
within a row the first filled column of `COLUMNS` is used, regardless of case. Baseline values (Clinica's
``diagnosis_sc``, ``MMSE_bl``) are used only at month 0 and in datasets without sessions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from heatlas.pipeline.cohort.cells import values
from heatlas.pipeline.cohort.cells.tables import (
    SexCodes,
    filled_rows,
    possible_cells,
    read_text_table,
    require_clear_sex,
    require_columns,
    same_column,
    sex_codes,
    without_bound,
)
from heatlas.pipeline.cohort.cells.values import is_missing, visit_of_session
from heatlas.pipeline.cohort.people.diagnosis import Diagnosis
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.documents import read_regular
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted, listed, note_on

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
    sex_codes: SexCodes = field(default_factory=dict)
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
    """Read the tables of a dataset, for the participants and visits that have images."""
    tables = BidsTables()
    tables.participants = _merged(
        root / PARTICIPANTS, ["participant_id"], lambda cells: _with_prefix("sub", cells["participant_id"]), tables
    )
    tables.sessions = _merged(root / SESSIONS, ["participant_id", "session_id"], _visit, tables)
    for person in people:
        path = root / person / f"{person}_sessions.tsv"
        try:
            rows = _merged(path, ["session_id"], partial(_visit, person=person), tables)
        except BadInputError as error:
            tables.unreadable[person] = _without_root(error, root)
            continue
        for visit, cells in rows.items():
            tables.sessions[visit] = {**tables.sessions.get(visit, {}), **cells}
    for person, session in visits:
        parts = [part for part in (person, session) if part]
        folder = "/".join(parts)
        path = root / folder / f"{'_'.join(parts)}_scans.tsv"
        try:
            tables.scans |= _merged(path, ["filename"], partial(_path, folder), tables)
        except BadInputError as error:  # few of its values are used, so the scan is kept
            tables.notes.append(f"not read: {_without_root(error, root)}")
    require_clear_sex(tables.sex_codes)  # of all tables together: that of a person may hold one code alone
    return tables


def _merged(path: Path, columns: Sequence[str], key: Callable[[Cells], Key], tables: BidsTables) -> dict[Key, Cells]:
    """Rows of a table by key, if there is one; one that cannot be read or lacks its columns is an error."""
    if not path.exists():
        return {}
    keyed = [(key(cells), cells) for cells in _rows(path, columns, tables)]
    return merge_rows(keyed, path.name, tables.notes)


def _rows(path: Path, columns: Sequence[str], tables: BidsTables) -> list[dict[str, str]]:
    """Filled cells of rows that have the identifying `columns`; other rows are left out and noted."""
    plain = _plain_rows(path)
    if plain and set(columns) <= set(plain[0][1]):
        rows = [(line, {name: cell for name, cell in row.items() if not is_missing(cell)}) for line, row in plain]
    else:
        frame, notes = read_text_table(path, "\t")
        spelling = {same_column(column): column for column in columns}
        frame = frame.rename(columns=lambda name: spelling.get(same_column(name), name))
        tables.notes += notes
        require_columns(path, frame, columns, _TABS)
        rows = filled_rows(frame)
    sex_codes(path, (row for _, row in rows), tables.sex_codes)
    identified = [
        possible_cells(path.name, line, row, tables.impossible) for line, row in rows if set(columns) <= set(row)
    ]
    nameless = sum(bool(row) for _, row in rows) - len(identified)
    if nameless:
        tables.notes.append(f"{counted(nameless, 'row')} without {' and '.join(columns)} left out: {path.name}")
    return identified


def _plain_rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Lines and cells of a table in strict BIDS form, read ten times faster; empty if it is unusual in any way.

    A dataset has one or two small tables per visit, and the general reader spends a millisecond on each.
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


def merge_rows(keyed: Sequence[tuple[Key, Mapping[str, str]]], name: str, notes: list[str]) -> dict[Key, Cells]:
    rows: dict[Key, Cells] = {}
    repeated: list[str] = []
    disagreeing: list[str] = []
    for key, row in keyed:
        cells = {column: value for column, value in row.items() if column not in _IDENTIFYING}
        if key in rows:
            first = rows[key]
            label = " ".join(key) if isinstance(key, tuple) else str(key)
            repeated.append(label)
            other = [column for column, value in cells.items() if first.get(column, value) != value]
            disagreeing += [f"{label} {column} ({first[column]}, not {cells[column]})" for column in other]
        rows[key] = {**cells, **rows.get(key, {})}
    if repeated:
        notes.append(f"{counted(len(repeated), 'row')} repeated, used only to fill gaps: {name}, {listed(repeated)}")
    if disagreeing:
        notes.append(f"repeated rows disagree, the first is used: {name}, {listed(disagreeing)}")
    return rows


def _path(folder: str, cells: Cells) -> str:
    return f"{folder}/{cells['filename']}"


def _visit(cells: Cells, person: str = "") -> tuple[str, str]:
    return _with_prefix("sub", person or cells["participant_id"]), _with_prefix("ses", cells["session_id"])


def _with_prefix(entity: str, label: str) -> str:
    """A label with its entity before it, in whatever case it is written: ``SUB-01`` is ``sub-01``."""
    begun = label[: len(entity) + 1].lower() == f"{entity}-"
    return f"{entity}-{label[len(entity) + 1 :] if begun else label}"


def _without_root(error: BadInputError, root: Path) -> str:
    return str(error).replace(f"{root}/", "")


COLUMNS = {
    "diagnosis": ("diagnosis", "dx"),
    "age": ("age",),
    "sex": ("sex", "gender"),
    "site": ("site", "site_id", "center", "centre"),
    "field_strength": ("field_strength", "magneticfieldstrength", "mri_field"),
    "apoe4": ("apoe4",),
    "mmse": ("mmse", "mms"),
    "cdr": ("cdr", "cdr_global", "cdr_cdglobal", "cdglobal"),
    "intracranial": ("tiv_mm3", "icv_mm3", "icv", "adni_icv", "etiv"),
    "brain": ("brain_volume_mm3",),
    "hippocampus": ("hippocampus_mm3", "hippocampus", "adni_hippocampus_vol"),
    "hippocampus_left": ("hippocampus_left_mm3",),
    "hippocampus_right": ("hippocampus_right_mm3",),
}
"""Columns, in lower case, that fill the scan table. Clinica's are ``MMS`` or ``MMSE``, ``cdr_global``, ``adni_...``."""

BASELINE_COLUMNS = {"diagnosis": ("diagnosis_bl", "diagnosis_sc", "dx_bl"), "mmse": ("mmse_bl",), "cdr": ("cdr_bl",)}
"""The same at baseline or screening, for month 0 only."""

_PARSERS: Mapping[str, Callable[[str | None], Any]] = {
    "diagnosis": values.diagnosis,
    "age": lambda text: values.positive(without_bound(text)),
    "sex": values.sex,
    "site": values.identifier,
    "field_strength": values.field_strength,
    "apoe4": values.count,
    "mmse": values.score,
    "cdr": values.score,
    **dict.fromkeys(("intracranial", "brain", "hippocampus", "hippocampus_left", "hippocampus_right"), values.positive),
}
"""What reads the cells of `COLUMNS`."""
_NOT_TWICE = ("diagnosis", "age", "sex", "mmse", "cdr")
"""Facts that two columns of a table must not contradict. Sites have several names, volumes several methods."""

_TESLA = (0.5, 1.0, 1.5, 3.0, 4.0, 4.7, 5.0, 7.0, 9.4, 11.7)


@dataclass(frozen=True)
class ScanFacts:
    """A scan filled in from its tables."""

    scan: Scan
    brain_stands_in: bool = False  # whether the intracranial volume is a brain volume
    # Whether the scan is after month 0 and its age comes from ``participants.tsv``
    age_of_participant_later: bool = False
    # Pairs of columns of one row that both say something of a fact: used, other, and whether they contradict each other
    doubled: tuple[tuple[str, str, bool], ...] = ()


def facts_of(
    scan: Scan,
    of_participant: Cells,
    of_session: Cells,
    of_image: Cells,
    sidecar: Mapping[str, object],
    tables: Sequence[str] = BidsTables().names,
) -> ScanFacts:
    """Fill a scan from the rows of its tables and its sidecar; `tables` are their names, as `BidsTables.names`."""
    row = _Rows(of_image, of_session, of_participant, tables=tables)
    months = visit_of_session(scan.participant_id, scan.session_id).months if scan.session_id else 0
    facts: dict[str, Any] = {}
    sources: dict[str, str | None] = {}
    for fact, parse in _PARSERS.items():
        facts[fact], sources[fact] = row.value(fact, parse, baseline=months == 0)
    age, later = _age(row, months)
    tiv = "intracranial" if facts["intracranial"] is not None else "brain"
    both, left, right = (facts[name] for name in ("hippocampus", "hippocampus_left", "hippocampus_right"))
    source = sources["hippocampus"]
    if both is None and left is not None and right is not None:
        both = left + right
        source = f"{sources['hippocampus_left']} + {str(sources['hippocampus_right']).split(': ')[1]}"
    filled = dataclasses.replace(
        scan,
        diagnosis_source=sources["diagnosis"],
        age=age,
        field_strength=facts["field_strength"] or nominal_tesla(sidecar),
        apoe4=_apoe4(row) if facts["apoe4"] is None else facts["apoe4"],
        tiv_mm3=facts[tiv],
        tiv_source=sources[tiv],
        hippocampus_mm3=both,
        hippocampus_left_mm3=left,
        hippocampus_right_mm3=right,
        hippocampus_source=source,
        **{name: facts[name] for name in ("diagnosis", "sex", "site", "mmse", "cdr")},
    )
    return ScanFacts(filled, tiv == "brain" and facts["brain"] is not None, later, row.doubled())


def diagnosis_histories(tables: BidsTables) -> tuple[dict[str, tuple[Diagnosis, ...]], list[str]]:
    """Diagnoses of each participant from the sessions tables by time, also at sessions without an image; notes."""
    histories: dict[str, list[Diagnosis]] = {}
    timeless: list[str] = []
    for (person, session), cells in tables.sessions.items():
        months = visit_of_session(person, session).months
        value = _Rows({}, cells, {}).value("diagnosis", values.diagnosis)[0]
        if value is None:
            continue
        if months is None:
            timeless.append(f"{person} {session}")
            continue
        histories.setdefault(person, []).append(Diagnosis(value, None, session, months, "sessions table"))
    text = "with a diagnosis but not named by months (ses-M012), unusable for conversion"
    return {
        person: tuple(sorted(of, key=lambda diagnosis: diagnosis.months or 0)) for person, of in histories.items()
    }, note_on(timeless, "session", text)


def diagnosis_of(scan: Scan) -> Diagnosis | None:
    """The diagnosis of a scan, at the months of its session."""
    months = visit_of_session(scan.participant_id, scan.session_id).months if scan.session_id else None
    if scan.diagnosis is None or months is None:
        return None
    return Diagnosis(scan.diagnosis, None, scan.session_id or "", months, scan.diagnosis_source or "")


def nominal_tesla(sidecar: Mapping[str, object]) -> float | None:
    """Nominal field strength in tesla from the value in a sidecar.

    >>> nominal_tesla({"MagneticFieldStrength": 2.89362}), nominal_tesla({"MagneticFieldStrength": 1.494})
    (3.0, 1.5)
    >>> nominal_tesla({"MagneticFieldStrength": 30000}), nominal_tesla({})
    (3.0, None)
    """
    stated = sidecar.get("MagneticFieldStrength")
    if isinstance(stated, bool) or not isinstance(stated, int | float) or not 0 < stated < float("inf"):
        return None
    tesla = stated / 10_000 if stated > 1000 else float(stated)  # some scanners write gauss
    nearest = min(_TESLA, key=lambda nominal: abs(nominal - tesla))
    return nearest if abs(nearest - tesla) <= 0.15 * nearest else round(tesla, 2)


class _Rows:
    """The rows that describe one image, closest first, with column names in lower case."""

    def __init__(self, *rows: Cells, tables: Sequence[str] = BidsTables().names) -> None:
        self.tables = tables
        self.rows = [{name.lower(): (name, text) for name, text in row.items()} for row in rows]

    def cell(self, *names: str) -> tuple[str, str, str] | None:
        """Text, column and table of the first cell in one of the columns."""
        for row, table in zip(self.rows, self.tables, strict=True):
            for name in names:
                if name in row:
                    column, text = row[name]
                    return text, column, table
        return None

    def value(self, fact: str, parse: Callable[[str | None], Any], baseline: bool = False) -> tuple[Any, str | None]:
        """Value of the first usable cell of a fact, and its table and column."""
        cell = self.cell(*COLUMNS[fact]) or (self.cell(*BASELINE_COLUMNS.get(fact, ())) if baseline else None)
        if cell is None:
            return None, None
        text, column, table = cell
        value = parse(text)
        return value, None if value is None else f"{table}: {column}"

    def doubled(self) -> tuple[tuple[str, str, bool], ...]:
        """Columns that say the same fact in one row: the one that is used, the other, and whether they differ."""
        differences = []
        for row in self.rows:
            for fact in _NOT_TWICE:
                cells = [(row[name][0], _PARSERS[fact](row[name][1])) for name in COLUMNS[fact] if name in row]
                readable = [(column, value) for column, value in cells if value is not None]
                differences += [(readable[0][0], column, value != readable[0][1]) for column, value in readable[1:]]
        return tuple(differences)


def _age(row: _Rows, months: int | None) -> tuple[float | None, bool]:
    """Age at the visit, and whether a later visit has only the age in ``participants.tsv``."""
    age, source = row.value("age", _PARSERS["age"])
    if age is not None:
        return age, bool(months) and source is not None and source.startswith(PARTICIPANTS)
    cell = row.cell("age_bl")
    baseline = _PARSERS["age"](cell[0]) if cell else None
    return (None if baseline is None or months is None else round(baseline + months / 12, 2)), False


def _apoe4(row: _Rows) -> int | None:
    """Number of e4 alleles, from the two alleles of Clinica's ``apoe_gen1`` and ``apoe_gen2``."""
    alleles = [values.count(cell[0]) if (cell := row.cell(f"apoe_gen{i}")) else None for i in (1, 2)]
    return sum(allele == 4 for allele in alleles) if all(allele in (2, 3, 4) for allele in alleles) else None
