"""The meaning of cells in BIDS tables: which columns fill which values of the scan table.

Column names are matched regardless of case. Values that change between visits are taken from the row of the image, else
of its session, else of its participant; within a row the first filled column of `COLUMNS` is used. Baseline values
(Clinica's ``diagnosis_sc``, ``MMSE_bl``) are used only at month 0 and in datasets without sessions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from heatlas.pipeline.cohort.bids.tables import PARTICIPANTS, BidsTables, Cells
from heatlas.pipeline.cohort.cells import values
from heatlas.pipeline.cohort.people.diagnosis import Diagnosis
from heatlas.pipeline.cohort.people.visits import visit_of
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.plain_text import counted, listed

Value = TypeVar("Value", str, float, int)

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

_SAID_TWICE: Mapping[str, Callable[[str | None], object]] = {
    "diagnosis": values.diagnosis,
    "age": values.positive,
    "sex": values.sex,
    "mmse": values.score,
    "cdr": values.score,
}
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

    def scan_with(self, entry: str) -> Scan:
        return dataclasses.replace(self.scan, entry=entry)


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
    months = visit_of(scan.session_id.removeprefix("ses-")).months if scan.session_id else 0
    baseline = months == 0
    age, later = _age(row, months)
    diagnosis, diagnosis_source = row.value("diagnosis", values.diagnosis, baseline)
    tiv, tiv_source = row.value("intracranial", values.positive)
    stands_in = tiv is None
    if stands_in:
        tiv, tiv_source = row.value("brain", values.positive)
    both, left, right, source = _hippocampus(row)
    filled = dataclasses.replace(
        scan,
        diagnosis=diagnosis,
        diagnosis_source=diagnosis_source,
        age=age,
        sex=row.value("sex", values.sex)[0],
        site=row.value("site", values.identifier)[0],
        field_strength=row.value("field_strength", values.field_strength)[0] or nominal_tesla(sidecar),
        apoe4=_apoe4(row),
        mmse=row.value("mmse", values.score, baseline)[0],
        cdr=row.value("cdr", values.score, baseline)[0],
        tiv_mm3=tiv,
        tiv_source=tiv_source,
        hippocampus_mm3=both,
        hippocampus_left_mm3=left,
        hippocampus_right_mm3=right,
        hippocampus_source=source,
    )
    return ScanFacts(filled, stands_in and tiv is not None, later, row.doubled())


def diagnosis_histories(tables: BidsTables) -> tuple[dict[str, tuple[Diagnosis, ...]], list[str]]:
    """Diagnoses of each participant from the sessions tables, in order of time.

    Sessions without an image count as follow-up. Those not named by months are left out and noted.
    """
    histories: dict[str, list[Diagnosis]] = {}
    timeless: list[str] = []
    for (person, session), cells in tables.sessions.items():
        months = visit_of(session.removeprefix("ses-")).months
        value = _Rows({}, cells, {}).value("diagnosis", values.diagnosis)[0]
        if value is None:
            continue
        if months is None:
            timeless.append(f"{person} {session}")
            continue
        histories.setdefault(person, []).append(Diagnosis(value, None, session, months, "sessions table"))
    notes = []
    if timeless:
        notes.append(
            f"{counted(len(timeless), 'session')} with a diagnosis but not named by months (ses-M012), unusable for "
            f"conversion: {listed(timeless)}"
        )
    return {
        person: tuple(sorted(of, key=lambda diagnosis: diagnosis.months or 0)) for person, of in histories.items()
    }, notes


def diagnosis_of(scan: Scan) -> Diagnosis | None:
    """The diagnosis of a scan, at the months of its session."""
    months = visit_of(scan.session_id.removeprefix("ses-")).months if scan.session_id else None
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

    def value(
        self, fact: str, parse: Callable[[str | None], Value | None], baseline: bool = False
    ) -> tuple[Value | None, str | None]:
        """Value of the first usable cell of a fact, and its table and column."""
        found = self.cell(*COLUMNS[fact]) or (self.cell(*BASELINE_COLUMNS.get(fact, ())) if baseline else None)
        if found is None:
            return None, None
        text, column, table = found
        value = parse(text)
        return value, None if value is None else f"{table}: {column}"

    def doubled(self) -> tuple[tuple[str, str, bool], ...]:
        """Columns that say the same fact in one row: the one that is used, the other, and whether they differ."""
        differences = []
        for row in self.rows:
            for fact, parse in _SAID_TWICE.items():
                cells = [(row[name][0], parse(row[name][1])) for name in COLUMNS[fact] if name in row]
                known = [(column, value) for column, value in cells if value is not None]
                differences += [(known[0][0], column, value != known[0][1]) for column, value in known[1:]]
        return tuple(differences)


def _age(row: _Rows, months: int | None) -> tuple[float | None, bool]:
    """Age at the visit, and whether a later visit has only the age in ``participants.tsv``.

    Where only the age at baseline is known (Clinica's ``age_bl``), the months of the session are added.
    """
    age, source = row.value("age", values.positive)
    if age is not None:
        return age, bool(months) and source is not None and source.startswith(PARTICIPANTS)
    baseline_age = row.cell("age_bl")
    baseline = values.positive(baseline_age[0]) if baseline_age else None
    if baseline is None or months is None:
        return None, False
    return round(baseline + months / 12, 2), False


def _apoe4(row: _Rows) -> int | None:
    """Number of e4 alleles, as such or from the two alleles of Clinica's ``apoe_gen1`` and ``apoe_gen2``."""
    counted, _ = row.value("apoe4", values.count)
    if counted is not None:
        return counted
    alleles = [values.count(found[0]) if (found := row.cell(f"apoe_gen{i}")) else None for i in (1, 2)]
    return sum(allele == 4 for allele in alleles) if all(allele in (2, 3, 4) for allele in alleles) else None


def _hippocampus(row: _Rows) -> tuple[float | None, float | None, float | None, str | None]:
    """Volume in mm3 of both hippocampi, the left and the right, and the table and columns they come from."""
    both, source = row.value("hippocampus", values.positive)
    left, left_source = row.value("hippocampus_left", values.positive)
    right, right_source = row.value("hippocampus_right", values.positive)
    if both is None and left is not None and right is not None and left_source and right_source:
        return left + right, left, right, f"{left_source} + {right_source.split(': ')[1]}"
    return both, left, right, source
