"""Tables from other sources: read as text, in any encoding, separator and quoting in use; impossible cells go.

No cell is converted to a number before the meaning of its column is known (``0012`` is an identifier). Workbooks
(``.xlsx``, ``.xls``, ``.ods``) are read by calamine in a process of its own (`workbook_cells`): a file that asks for
too much ends that process and is refused here.

The possible range of each clinical column is declared once (`RANGES`), and widely. A value outside is a typing error,
another unit or a damaged file: it is treated as missing, and a note names its file, line, column and text.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from heatlas.pipeline.cohort.cells import values
from heatlas.pipeline.cohort.cells.values import is_missing
from heatlas.pipeline.run.documents import irregular_kind, read_regular, require_regular
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted, listed, note_on

_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

_BINARY = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
"""Beginnings of ``.xlsx``, ``.ods`` and other ZIP archives, and of ``.xls``."""
_GZIP = b"\x1f\x8b"


def read_text_table(
    path: Path, separator: str | None = None, used: Collection[str] | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """Read a table, every cell as text, indexed by the line on which each row begins.

    UTF-8, UTF-16 (a spreadsheet's "Unicode text") or Latin-1; with semicolons, ``7123,5`` becomes ``7123.5``. A
    duplicated column (in any case) is kept once if both copies are equal or it is not among the `used` ones, else
    refused. Notes name duplicated columns and rows that do not fit the header.
    """
    text = _decode(path)
    if not text.strip():
        raise BadInputError(f"{path}: empty table. Download or export it again.")
    first = _first_line(text.lstrip("\r\n"))
    if re.fullmatch(r"sep=.", first, re.IGNORECASE):
        raise BadInputError(f"{path}: line 1: '{first}' is for Excel only, and no header. Remove this line.")
    separator = separator or header_separator(first)
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

    An unclosed quote merges cells or lines. After a refused row, reading continues on the next line.
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
            named = " and ".join(dict.fromkeys((header[kept], name))) or "(nothing)"
            raise BadInputError(
                f"{path}: two columns are named {named} and hold different values. Rename or remove one."
            )
        ignored.append(f"{header[kept]} (not {name})" if header[kept] != name else name)
    return list(first.values()), ignored


def _first_line(text: str) -> str:
    return re.split(r"[\r\n]", text, maxsplit=1)[0]


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
    line = _first_line(start.decode(encoding, errors="replace"))
    return [cell.strip() for cell in _cells(line.strip(), header_separator(line.strip()))]


def require_columns(path: Path, frame: pd.DataFrame, columns: Sequence[str], remedy: str) -> None:
    """Refuse a table that lacks a column, naming those missing, those found, and the remedy."""
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        present = ", ".join(map(str, frame.columns[:20])) + (" ..." if len(frame.columns) > 20 else "")
        raise BadInputError(f"{path}: column {', '.join(missing)} is missing; found: {present}. {remedy}")


def filled_rows(frame: pd.DataFrame) -> list[tuple[int, dict[str, str]]]:
    columns = []
    for name in frame.columns:
        texts = frame[name].tolist()
        stripped = {text: None if is_missing(text) else text.strip() for text in set(texts) if isinstance(text, str)}
        columns.append([stripped.get(text) if isinstance(text, str) else None for text in texts])
    names = [str(name) for name in frame.columns]
    return [
        (line, {name: cell for name, cell in zip(names, row, strict=True) if cell is not None})
        for line, row in zip(frame.index, zip(*columns, strict=True), strict=True)
    ]


def _decode(path: Path) -> str:
    try:
        content = read_regular(path)
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read ({error.strerror}). Check the path and permissions.") from error
    if content.startswith(_BINARY):
        raise BadInputError(f"{path}: a workbook or archive, not a text table. Save it as CSV.")
    if content.startswith(_GZIP):
        raise BadInputError(f"{path}: a compressed file, not a text table. Unpack it (gunzip), or save it as CSV.")
    try:
        if content.startswith(_UTF16):
            return content.decode("utf-16")
        if b"\0" in content:
            raise BadInputError(
                f"{path}: not a text table: it holds zero bytes, as an image or UTF-16 without its mark does. Give a "
                "table, saved as CSV in UTF-8."
            )
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


SUFFIXES = (".xlsx", ".xls", ".ods")
MAX_BYTES = 2**27
"""Size of a workbook, and of what it unpacks to but pictures; a table of ten thousand rows has a few MB."""
TIMEOUT_S = 120
_PROGRAM = Path(__file__).with_name("workbook_cells.py")


def read_sheet(path: Path) -> tuple[pd.DataFrame, list[str]]:
    return read_workbook(path) if path.suffix.lower() in SUFFIXES else read_text_table(path)


def read_workbook(path: Path) -> tuple[pd.DataFrame, list[str]]:
    """Read the first sheet, every cell as text ("" if empty), indexed by row; the first row holds the names."""
    try:
        _require_moderate(path)
        sheet = _workbook_sheet(path)
        rows: list[list[str]] = sheet["rows"]
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read ({error.strerror or error}). Check the file.") from error
    except (zipfile.BadZipFile, ValueError, subprocess.TimeoutExpired) as error:
        raise BadInputError(f"{path}: no readable workbook ({error}). Save it as CSV.") from error
    filled = [(number, cells) for number, cells in enumerate(rows, 1) if any(text.strip() for text in cells)]
    if not filled:
        raise BadInputError(f"{path}: empty table. Download or export it again.")
    (_, header), *body = filled
    names = {column: text.strip() for column, text in enumerate(header) if text.strip()}
    table = [[cells[column] for column in names] for _, cells in body]
    frame = pd.DataFrame(table, index=[number for number, _ in body], columns=range(len(names)), dtype=str)
    header = list(names.values())
    positions, _ = _columns_once(path, header, frame, None)
    frame = frame.iloc[:, positions].set_axis([header[position] for position in positions], axis=1)
    return frame, _sheet_notes(path.name, sheet, names)


def _sheet_notes(file: str, sheet: Mapping[str, Any], names: Mapping[int, str]) -> list[str]:
    """Notes on what a sheet shows otherwise than it is read, by line and column."""

    def named(cells: Sequence[Sequence[Any]]) -> list[str]:
        return [
            " ".join([f"line {row + 1}, {names[column]}", *(f"'{text}'" for text in rest)])
            for row, column, *rest in cells
            if column in names
        ]

    unsaved = "without a saved value, read as empty; open the workbook in a spreadsheet and save it"
    hidden = [f"line {row + 1}" for row in sheet["hidden"]]
    shown = "read as the others are; remove rows that are not meant"
    where = f"{file}: "
    return [
        *note_on(named(sheet["errors"]), "cell", "with an error of the spreadsheet", before=where, limit=NAMED),
        *note_on(named(sheet["unsaved"]), "formula", unsaved, before=where, limit=NAMED),
        *note_on(hidden, "hidden or filtered row", shown, before=where, verb="is", limit=NAMED),
    ]


def _require_moderate(path: Path) -> None:
    """Raise ValueError for a file that is large, or unpacks to something large."""
    require_regular(path)
    with path.open("rb") as file:
        begin = file.read(4)
        if begin not in _BINARY:
            raise ValueError(f"its content is not of the kind that {path.suffix} says, but perhaps text or a web page")
        size = path.stat().st_size
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                size = max(size, sum(part.file_size for part in archive.infolist() if part.filename.endswith(".xml")))
    if size > MAX_BYTES:
        raise ValueError(f"it holds {size:,} bytes, more than {MAX_BYTES:,}")


def _workbook_sheet(path: Path) -> dict[str, Any]:
    command = [sys.executable, "-P", str(_PROGRAM), str(path)]
    done = subprocess.run(
        command, capture_output=True, encoding="utf-8", errors="replace", timeout=TIMEOUT_S, check=False
    )
    if done.returncode:
        reason = done.stderr.strip().rpartition("\n")[2] if done.returncode > 0 else "it asks for too much memory"
        raise ValueError(reason)
    sheet: dict[str, Any] = json.loads(done.stdout)
    return sheet


NAMED = 20
"""Largest number of impossible cells that a note names."""


@dataclass(frozen=True)
class PlausibleRange:
    """Possible values of a column."""

    low: float
    high: float
    names: tuple[str, ...] = ()  # other names of the column in sources, as `plain_name` spells them
    only: tuple[float, ...] = ()  # the possible values, if there are only a few
    whole: bool = False  # a sum of points, so no fraction
    read: Callable[[str], float | None] = values.number  # reads the number in the text of a cell; None if there is none

    def holds(self, value: float) -> bool:
        if self.only:
            return value in self.only
        return self.low <= value <= self.high and not (self.whole and value % 1)

    def __str__(self) -> str:
        if self.only:
            return ", ".join(f"{value:g}" for value in self.only)
        low, high = (f"{end:.0f}" if end == int(end) else f"{end:g}" for end in (self.low, self.high))
        return f"a whole number from {low} to {high}" if self.whole else f"{low} to {high}"


def without_bound(text: str | None) -> str | None:
    """An age without the sign before an open class, as in ``>89``.

    >>> without_bound(">89"), without_bound("≥ 90"), without_bound("71.5")
    ('89', '90', '71.5')
    """
    return None if text is None else re.sub(r"^\s*(>=?|≥)\s*", "", text)


RANGES = {
    "age": PlausibleRange(1, 120, ("agebl", "subjectage"), read=lambda text: values.number(without_bound(text))),
    "field_strength": PlausibleRange(
        0.05, 12, ("magneticfieldstrength", "mrifield", "fldstreng", "magstrength"), read=values.field_strength
    ),
    "apoe4": PlausibleRange(0, 2, only=(0, 1, 2)),
    "mmse": PlausibleRange(0, 30, ("mms", "mmsebl"), whole=True),
    "cdr": PlausibleRange(0, 3, ("cdrglobal", "cdrcdglobal", "cdglobal", "cdrbl"), only=(0, 0.5, 1, 2, 3)),
    "tiv_mm3": PlausibleRange(800_000, 2_500_000, ("icvmm3", "icv", "adniicv", "etiv", "st10cv")),
    "hippocampus_mm3": PlausibleRange(1_000, 16_000, ("hippocampus", "adnihippocampusvol")),
    "hippocampus_left_mm3": PlausibleRange(500, 8_000, ("st29sv",)),
    "hippocampus_right_mm3": PlausibleRange(500, 8_000, ("st88sv",)),
    "brain_volume_mm3": PlausibleRange(400_000, 2_500_000),
    "apoe_allele": PlausibleRange(2, 4, ("apoegen1", "apoegen2"), only=(2, 3, 4)),
    "years_bl": PlausibleRange(0, 60),
    "cdrsb": PlausibleRange(0, 18, ("cdrsumofboxes", "cdglobalsb")),
    "adas11": PlausibleRange(0, 70, ("adascog11",)),
    "adas13": PlausibleRange(0, 85, ("adascog13",)),
    "faq": PlausibleRange(0, 30, ("faqtotal",)),
    "moca": PlausibleRange(0, 30, ("mocatotal",)),
    "ravlt_immediate": PlausibleRange(0, 75),
    "logical_memory_delayed": PlausibleRange(0, 25, ("ldeltotal",)),
    "abeta": PlausibleRange(1, 10_000, ("csfabeta", "abeta42"), read=values.up_to_limit),
    "tau": PlausibleRange(1, 10_000, ("csftau", "ttau"), read=values.up_to_limit),
    "ptau": PlausibleRange(0.1, 2_000, ("csfptau", "ptau181"), read=values.up_to_limit),
    "amyloid_pet": PlausibleRange(0.1, 10, ("av45",)),
    "fdg_pet": PlausibleRange(0.1, 20, ("fdg",)),
    "education": PlausibleRange(0, 40, ("pteducat", "educationyears", "yearsofeducation", "educationlevel")),
    "nwbv": PlausibleRange(0.3, 1),
}
"""Columns of numbers in ``scans.tsv`` and ``clinical.tsv``, and those they are computed from.

Scores have the range of their instrument. Older tables give FDG as a sum over regions, newer ones as a mean.
"""

_SEX = frozenset({"sex", "gender", "ptgender", "subjectsex"})


def plain_name(column: str) -> str:
    """A column's name in lower case, letters and digits only.

    >>> plain_name("CDR-SB"), plain_name("hippocampus_mm3")
    ('cdrsb', 'hippocampusmm3')
    """
    return re.sub(r"[^a-z0-9]", "", column.lower())


_BY_NAME = {name: column for column, one in RANGES.items() for name in (plain_name(column), *one.names)}


@cache
def _declared_name(column: str) -> str | None:
    """Name under which a source's column is declared; ``sex`` has words instead of a range."""
    plain = plain_name(column)
    return "sex" if plain in _SEX else _BY_NAME.get(plain)


@cache
def _problem(declared: str, text: str) -> tuple[str, bool] | None:
    """Why a cell's text cannot be a value of a column, and whether it is a number all the same."""
    number = values.number(text)
    if number in (-1, -4) or (number == 0 and declared.endswith("_mm3")):
        return None
    if declared == "sex":
        return None if values.sex(text) else ("not F or M", False)
    allowed = RANGES[declared]
    value = allowed.read(text)
    if value is None:
        return "not a number", False
    return None if allowed.holds(value) else (f"must be {allowed}", True)


def possible_cells(table: str, line: int | None, cells: Mapping[str, str], problems: list[str]) -> dict[str, str]:
    """Remove impossible numbers from a row, adding them to `problems`; text that is not a number is only reported."""
    possible = dict(cells)
    for column, text in cells.items():
        declared = _declared_name(column)
        problem = None if declared is None else _problem(declared, text)
        if problem is None:
            continue
        why, is_impossible = problem
        where = table if line is None else f"{table} line {line}"
        problems.append(f"{where}, {column} '{text}' ({why})")
        if is_impossible:
            del possible[column]
    return possible


SexCodes = dict[str, dict[float | None, tuple[Path, str]]]
"""By column of sex, the first table with each code and how it writes the column."""


def sex_codes(path: Path, rows: Iterable[Mapping[str, str]], earlier: SexCodes | None = None) -> SexCodes:
    """Codes of sex in the rows of a table, with those of `earlier` tables."""
    codes: SexCodes = {} if earlier is None else earlier
    for cells in rows:
        for name in cells:
            if _declared_name(name) == "sex":
                codes.setdefault(plain_name(name), {}).setdefault(values.number(cells[name]), (path, name))
    return codes


def require_clear_sex(codes: SexCodes) -> None:
    """Refuse a column of sex in which 0 and 1 occur and 2 does not: some write 0 for men, others for women.

    With a 2, 1 is male and 2 female (ISO 5218), as 1 and 2 are without a 0 (ADNI).
    """
    for of_column in codes.values():
        if {0, 1} <= of_column.keys() and 2 not in of_column:
            (path, name), (other, _) = of_column[0], of_column[1]
            elsewhere = "" if other == path else f"that of {other} "
            raise BadInputError(
                f"{path}: column {name} holds 0 and {elsewhere}1, and nothing says which of them is female. Write F "
                "and M, or 1 for male and 2 for female."
            )


def possible_rows(table: str, frame: pd.DataFrame) -> tuple[list[dict[str, str]], list[str]]:
    problems: list[str] = []
    rows = [possible_cells(table, line, cells, problems) for line, cells in filled_rows(frame) if cells]
    return rows, problem_notes(problems)


def problem_notes(problems: Sequence[str]) -> list[str]:
    text = f"impossible values, treated as missing ({len(problems)}): {listed(problems, NAMED)}"
    return [text] if problems else []
