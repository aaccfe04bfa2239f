"""The tables of OASIS-1 (``oasis_cross-sectional``) and OASIS-2 (``oasis_longitudinal``), as CSV or workbook.

They are recognised by their columns, whatever they are called (downloads carry a digest in the name). One row is one
session: ``OAS1_0001_MR1``.

=============================  =======================  ==========================================
meaning                        OASIS-1                  OASIS-2
=============================  =======================  ==========================================
session                        ID                       MRI ID
sex, age, handedness           M/F, Age, Hand           M/F, Age, Hand
education                      Educ (levels 1 to 5)     EDUC (years)
clinical                       MMSE, CDR, SES           MMSE, CDR, SES, Group
intracranial volume            eTIV (cm³)               eTIV (cm³)
share of it, scaling           nWBV, ASF                nWBV, ASF
days since the first session   Delay (of MR2)           MR Delay
=============================  =======================  ==========================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from heatlas.pipeline.cohort.cells.ranges import possible_cells
from heatlas.pipeline.cohort.cells.text_tables import filled_rows, read_header
from heatlas.pipeline.cohort.cells.values import number
from heatlas.pipeline.cohort.cells.workbooks import SUFFIXES, read_sheet, read_workbook
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import listed

SESSION = {"OAS1": "ID", "OAS2": "MRI ID"}
"""Column of the session by release."""
NAMES = {"OAS1": "oasis_cross-sectional", "OAS2": "oasis_longitudinal"}
REQUIRED = {"OAS1": ("M/F", "Age", "CDR"), "OAS2": ("M/F", "Age", "CDR", "Visit")}
DELAY = {"OAS1": "Delay", "OAS2": "MR Delay"}
_MM3_PER_CM3 = 1000.0
_LARGEST_CM3 = 10_000.0


@dataclass
class OasisTable:
    """Rows by session as the source has them, the intracranial volume in mm³, and what is wrong with them."""

    name: str
    rows: dict[str, Mapping[str, str]] = field(default_factory=dict)
    impossible: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_oasis_table(root: Path, tables: Sequence[str], release: str) -> OasisTable:
    """Find and read the table of a release among the CSV files and workbooks of a folder.

    BadInputError if there is none or only that of another release, a column is missing, or two tables disagree.
    """
    columns = {name: _columns(root / name) for name in tables}
    fitting = [name for name, held in columns.items() if SESSION[release] in held and "CDR" in held]
    of_release = [name for name in fitting if release != "OAS1" or "MRI ID" not in columns[name]]
    found = {name: _read(root / name, release) for name in of_release}
    right = {name: table for name, table in found.items() if table.rows}
    if not right:
        raise BadInputError(_no_table(root, columns, release))
    first, *others = right.values()
    for other in others:
        differing = sorted(
            key
            for key, row in other.rows.items()
            if not all(_agree(first.rows.get(key, row), row, name) for name in row)
        )
        if differing:
            raise BadInputError(
                f"{root}: {first.name} and {other.name} disagree on {listed(differing, 3)}. Keep only one of them."
            )
        first.rows = {**other.rows, **first.rows}
    return first


def _agree(one: Mapping[str, str], other: Mapping[str, str], name: str) -> bool:
    """Whether two rows have the same value in a column, as a number where it is one, or one of them has none."""
    if name not in one or name not in other:
        return True
    return one[name] == other[name] or number(one[name]) == number(other[name]) is not None


def _columns(path: Path) -> list[str]:
    if path.suffix.lower() not in SUFFIXES:
        return read_header(path)
    try:
        return [str(name) for name in read_workbook(path).columns]
    except BadInputError:  # a workbook of something else
        return []


def _read(path: Path, release: str) -> OasisTable:
    table = OasisTable(path.name)
    frame, table.notes = read_sheet(path)
    lacking = [name for name in REQUIRED[release] if name not in frame.columns]
    if lacking:
        raise BadInputError(
            f"{path}: column {', '.join(lacking)} is missing, so this is no {NAMES[release]} table as released; found: "
            f"{', '.join(map(str, frame.columns))}. Download it again from the page of OASIS-{release[-1]}."
        )
    seen: dict[str, tuple[int, Mapping[str, str]]] = {}
    for line, cells in filled_rows(frame):
        session = cells.get(SESSION[release], "")
        if not session.startswith(f"{release}_"):
            continue
        first, known = seen.get(session, (line, cells))
        if differing := [name for name in known if not _agree(known, cells, name)]:
            values = f"{differing[0]} {known[differing[0]]} and {cells[differing[0]]}"
            raise BadInputError(
                f"{path}: lines {first} and {line} are both of {session} and contradict each other ({values}). Correct "
                "or remove one of them."
            )
        seen[session] = first, {**cells, **known}
        row = possible_cells(path.name, line, _in_mm3(cells, release), table.impossible)
        table.rows[session] = {**row, **table.rows.get(session, {})}
    return table


def _in_mm3(cells: Mapping[str, str], release: str) -> dict[str, str]:
    """Cells with the intracranial volume in mm³ as ``tiv_mm3``, and OASIS-2's years of education as ``education``."""
    row = dict(cells)
    volume = number(row.pop("eTIV", None))
    if volume is not None:
        row["tiv_mm3"] = str(volume * _MM3_PER_CM3 if volume < _LARGEST_CM3 else volume)
    if release == "OAS2" and "EDUC" in row:
        row["education"] = row.pop("EDUC")
    return row


def _no_table(root: Path, columns: Mapping[str, Sequence[str]], release: str) -> str:
    """Why there is no table of a release: none at all, or one of another release."""
    wanted = f"{NAMES[release]}.csv (or .xlsx) from the page of OASIS-{release[-1]}"
    other = "OAS1" if release == "OAS2" else "OAS2"
    for name, held in columns.items():
        if "CDR" in held and (SESSION[other] in held or any("OASIS" in one or one == "Subject" for one in held)):
            which = f"OASIS-{other[-1]}" if SESSION[other] in held else "another release"
            return (
                f"{root / name}: a table of {which}, and the images are of OASIS-{release[-1]}: no row is of a session "
                f"such as {release}_0001_MR1. Put {wanted} here."
            )
    seen = f"; tables seen: {listed(columns, 5)}" if columns else ""
    return f"{root}: no table with the sessions of OASIS-{release[-1]} and their CDR{seen}. Put {wanted} here."
