"""Files of a run as they were written: which tables the report reads, and what is wrong with a file that is not used.

A table of another version of Heatlas may lack a column. A number that is not one, a class that the run does not know, a
cut row or file: a table that has one of these is not used, the first fault is named with the remedy, the sections that
need the table say so, and the rest of the report is made. Nothing is guessed. An image is compared with the receipts of
its units: another person's map in place of one is refused.
"""

from __future__ import annotations

import csv
import glob
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from heatlas.pipeline.cohort.cells.tables import RANGES
from heatlas.pipeline.cohort.people.balance import SPLIT_BALANCE_TABLE
from heatlas.pipeline.cohort.people.inclusion import MEASURES, TIMES
from heatlas.pipeline.cohort.people.splits import SPLITS_TABLE
from heatlas.pipeline.cohort.people.tasks import NUMBER, SEVERAL_CLASSES, TWO_CLASSES, KindName
from heatlas.pipeline.cohort.records import CLINICAL_TABLE, SCANS_TABLE
from heatlas.pipeline.cohort.sharing import MANIFEST_COMPARISON_TABLE
from heatlas.pipeline.evaluation.parts import BENCH_TABLES
from heatlas.pipeline.evaluation.planted import PLANTED_EFFECTS_TABLE, PLANTED_RECOVERY_TABLE
from heatlas.pipeline.explaining.likeness import LIKENESS_TABLE
from heatlas.pipeline.explaining.own_regions import OWN_REGIONS_TABLE
from heatlas.pipeline.explaining.planted_in_scan import PLANTED_IN_SCAN_TABLE
from heatlas.pipeline.explaining.stage import (
    CONSERVATION_APPLIED_TABLE,
    CONSERVATION_TABLE,
    EVIDENCE_APPLIED_TABLE,
    EVIDENCE_TABLE,
)
from heatlas.pipeline.regions.audit import RELEVANCE_AUDIT_TABLE
from heatlas.pipeline.regions.maps import PARTIAL_TABLE
from heatlas.pipeline.regions.packed_atlas import RELEVANCE_CHANNELS_TABLE
from heatlas.pipeline.regions.ranking import BETA_OVERLAP_TABLE, FINGERPRINTS_TABLE
from heatlas.pipeline.regions.stage import MAPS_STAGE, RELEVANCE_APPLIED_BILATERAL_TABLE, RELEVANCE_APPLIED_TABLE
from heatlas.pipeline.regions.tables import RELEVANCE_BILATERAL_TABLE, RELEVANCE_TABLE
from heatlas.pipeline.registration.quality.doubt import FLAGGED_TABLE
from heatlas.pipeline.registration.quality.region_quality import REGION_QUALITY_TABLE
from heatlas.pipeline.registration.stage import REGISTRATION_TABLE
from heatlas.pipeline.registration.volumes import TEST_RETEST_TABLE, VOLUMES_TABLE
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.declared import CLASSES, DescribedColumn, Form, Table, column_of
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.layout.scan_files import map_names
from heatlas.pipeline.run.plugins import plugged_in
from heatlas.pipeline.run.tables import REMEDY, first_wrong, read_table
from heatlas.pipeline.run.work.digests import read_receipt, same_content, stamp_of
from heatlas.pipeline.run.work.jobs import FAILURES_TABLE
from heatlas.pipeline.statistics.data.values import IMAGE_REGIONS_TABLE
from heatlas.pipeline.statistics.images.voxelwise import VOXELWISE_TABLES
from heatlas.pipeline.statistics.performance.conventions import CONVENTIONS_TABLE
from heatlas.pipeline.statistics.stage import STATISTICS_TABLES
from heatlas.pipeline.training.application import PREDICTIONS_APPLIED_NUMBER_TABLE, PREDICTIONS_APPLIED_TABLE
from heatlas.pipeline.training.baselines.stage import PREDICTIONS_BASELINES_TABLE
from heatlas.pipeline.training.prediction import PREDICTIONS_CLASSES_TABLE, PREDICTIONS_NUMBER_TABLE, PREDICTIONS_TABLE
from heatlas.pipeline.training.stage import HISTORIES_NUMBER_TABLE, HISTORIES_TABLE, PREDICTIONS_REPEATS_TABLE

OWN = (
    SCANS_TABLE, MANIFEST_COMPARISON_TABLE, SPLITS_TABLE, SPLIT_BALANCE_TABLE, FAILURES_TABLE, FLAGGED_TABLE,
    REGISTRATION_TABLE, REGION_QUALITY_TABLE, CLINICAL_TABLE, VOLUMES_TABLE, TEST_RETEST_TABLE, HISTORIES_TABLE,
    HISTORIES_NUMBER_TABLE, PREDICTIONS_TABLE, PREDICTIONS_CLASSES_TABLE, PREDICTIONS_NUMBER_TABLE,
    PREDICTIONS_REPEATS_TABLE, PREDICTIONS_BASELINES_TABLE, RELEVANCE_BILATERAL_TABLE, PREDICTIONS_APPLIED_TABLE,
    PREDICTIONS_APPLIED_NUMBER_TABLE, RELEVANCE_APPLIED_BILATERAL_TABLE, CONSERVATION_TABLE,
    CONSERVATION_APPLIED_TABLE, EVIDENCE_TABLE, EVIDENCE_APPLIED_TABLE, PARTIAL_TABLE, RELEVANCE_TABLE,
    RELEVANCE_APPLIED_TABLE, RELEVANCE_AUDIT_TABLE, FINGERPRINTS_TABLE, BETA_OVERLAP_TABLE, OWN_REGIONS_TABLE,
    RELEVANCE_CHANNELS_TABLE, PLANTED_RECOVERY_TABLE, PLANTED_EFFECTS_TABLE, LIKENESS_TABLE, PLANTED_IN_SCAN_TABLE,
    IMAGE_REGIONS_TABLE, CONVENTIONS_TABLE,
    *STATISTICS_TABLES, *VOXELWISE_TABLES, *BENCH_TABLES,
)  # fmt: skip
DECLARED = (*OWN, *plugged_in("tables", Table, [table.name for table in OWN]))
"""All tables of a run and of what is made from it."""
ALL_TABLES: Mapping[str, Table] = {table.name: table for table in DECLARED}
TABLES: Mapping[str, Table] = {table.name: table for table in DECLARED if table.on_pages}
"""Those the report is made from, by the name its sections use."""

PREDICTIONS_OF: Mapping[KindName, str] = {
    TWO_CLASSES: "predictions", SEVERAL_CLASSES: "predictions_classes", NUMBER: "predictions_number",
}  # fmt: skip
"""Name of ``predictions.tsv`` by task: only sections that are made for a task find its predictions."""
APPLIED_OF: Mapping[KindName, str] = {
    TWO_CLASSES: "predictions_applied", SEVERAL_CLASSES: "predictions_applied", NUMBER: "predictions_applied_number",
}  # fmt: skip
"""Name of ``predictions_applied.tsv`` by task."""
HISTORIES_OF: Mapping[KindName, str] = {
    TWO_CLASSES: "histories", SEVERAL_CLASSES: "histories", NUMBER: "histories_number",
}  # fmt: skip
"""Name of ``history.tsv`` by task."""


def tables_of(kind: KindName) -> dict[str, Table]:
    """Those of `TABLES` that a run with this kind of task can have; the same file has other columns for another."""
    by_task = (PREDICTIONS_OF, APPLIED_OF, HISTORIES_OF)
    others = {name for names in by_task for name in names.values()} - {names[kind] for names in by_task}
    return {name: table for name, table in TABLES.items() if name not in others}


def of_another_version(name: str, file: str, table: pd.DataFrame) -> str:
    """Return what a table lacks and what to do about it, in a sentence; empty where it lacks nothing.

    Examples
    --------
    >>> of_another_version("splits", "splits.tsv", pd.DataFrame({"participant_id": ["sub-1"], "fold": [0]}))
    'splits.tsv has no column part: another version of Heatlas wrote it. Repeat the command that made this run; it redoes what the new version does otherwise, then the report.'
    """  # noqa: E501
    missing = [column for column in ALL_TABLES[name].required if column not in table]
    if not missing:
        return ""
    return (
        f"{file} has no column {', '.join(missing)}: another version of Heatlas wrote it. Repeat the command that made "
        "this run; it redoes what the new version does otherwise, then the report."
    )


MAKE_AGAIN = "Repeat the command that made this run."

_FREE_TEXTS = sorted({column for table in ALL_TABLES.values() for column in table.texts})
"""Columns of text of a table whose columns are those of the input."""
CLINICAL = frozenset({"scans", "clinical"})  # tables whose columns have the ranges of `pipeline.cohort.cells.tables`


def read_checked(name: str, path: Path) -> pd.DataFrame:
    """Read a table of a run, its text columns as text.

    Raises BadInputError if the file cannot be read as a table.
    """
    return read_table(path, text_columns=ALL_TABLES[name].texts or _FREE_TEXTS)


def read_sound(name: str, path: Path, config: Config) -> pd.DataFrame:
    """Read a table of a run that must be as the run wrote it.

    `name`: of `reports.read.run_files.ALL_TABLES`.

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

    `name`: of `reports.read.run_files.ALL_TABLES`. `file`: what to call it. `table`: as `read_checked` gives it.
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
        is_numeric = pd.to_numeric(values.astype(object), errors="coerce").notna() & (values.dtype != bool)
        yield known & ~is_numeric, "is not a number"
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


_OF_SCAN = re.compile(r"sub-[^_]+(_ses-[^_]+)?")
"""Beginning of the files of a scan, which names its units of work."""


def not_as_written(layout: RunLayout, path: Path) -> str:
    """That a map of a scan or a group is not the one that the run wrote, in a sentence; empty if it is, or is unknown.

    A file whose size and times are those of its receipt is not read. Of a map without a receipt nothing is known.
    """
    file = path.relative_to(layout.root).as_posix()
    known = [one.outputs[file] for one in map(read_receipt, _receipts(layout, path)) if one and file in one.outputs]
    if not known or any(same_content(stamp_of(path, stamp), stamp) for stamp in known):
        return ""
    return f"{file}: not the map that the run wrote there (SHA-256 differs). {REMEDY}"


def _receipts(layout: RunLayout, path: Path) -> Iterable[Path]:
    """Receipts of the units that may have written a map."""
    of_scan = _OF_SCAN.match(path.name)
    pattern = f"*/{glob.escape(of_scan[0])}.json" if of_scan else f"{MAPS_STAGE}/*.json"
    return sorted(layout.receipt("any", "any").parents[1].glob(pattern))
