"""The possible range of each clinical column, declared once for every table that is read.

The ranges are wide: they include any adult at any stage of disease and any scanner in use. A value outside is a typing
error, another unit or a damaged file. It is treated as missing, and a note names its file, line, column and text.
ADNI's codes for missing values (-1, -4), and a volume of 0, are missing without a note.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from heatlas.pipeline.cohort.candidates import Candidate
from heatlas.pipeline.cohort.cells import values
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import listed

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


RANGES = {
    "age": PlausibleRange(1, 120, ("agebl", "subjectage")),
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
def _declared(column: str) -> str | None:
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
        declared = _declared(column)
        problem = None if declared is None else _problem(declared, text)
        if problem is None:
            continue
        why, is_number = problem
        where = table if line is None else f"{table} line {line}"
        problems.append(f"{where}, {column} '{text}' ({why})")
        if is_number:
            del possible[column]
    return possible


def require_clear_sex(path: Path, rows: Iterable[Mapping[str, str]]) -> None:
    """Refuse a column of sex in which 0 and 1 occur and 2 does not: some write 0 for men, others for women.

    With a 2, 0 is not known, 1 male and 2 female (ISO 5218), as 1 and 2 are without a 0 (ADNI).
    """
    codes: dict[str, set[float | None]] = {}
    for cells in rows:
        for name in cells:
            if _declared(name) == "sex":
                codes.setdefault(name, set()).add(values.number(cells[name]))
    if unclear := [name for name, of_column in codes.items() if {0, 1} <= of_column and 2 not in of_column]:
        raise BadInputError(
            f"{path}: column {unclear[0]} holds 0 and 1, and nothing says which of them is female. Write F and M, or 1 "
            "for male and 2 for female."
        )


def problem_notes(problems: Sequence[str]) -> list[str]:
    """A note on impossible cells."""
    if not problems:
        return []
    return [f"impossible values, treated as missing ({len(problems)}): {listed(problems, NAMED)}"]


def possible_scans(candidates: Sequence[Candidate]) -> tuple[list[Candidate], list[str]]:
    """Remove impossible values of any origin from scans: image headers, sidecars, ages computed from dates."""
    checked, problems = [], []
    for candidate in candidates:
        scan = candidate.scan
        for column, allowed in RANGES.items():
            value = getattr(scan, column, None)
            if value is not None and not allowed.holds(value):
                problems.append(f"{scan.image or scan.scan_id}, {column} {value:g} (must be {allowed})")
                scan = dataclasses.replace(scan, **{column: None})  # type: ignore[arg-type]
        checked.append(candidate if scan is candidate.scan else dataclasses.replace(candidate, scan=scan))
    return checked, problem_notes(problems)
