"""Cells, rows and files that cannot be what the run wrote: the first one of a table, with the remedy.

A number that is not one, a class that the run does not know, a cut row or file: a table that has one is not used, and
the sections that need it say why. Nothing is guessed.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from pipeline.cohort.cells.ranges import RANGES
from pipeline.cohort.people.clinical import MEASURES, TIMES
from pipeline.run.cells import REMEDY, first_wrong
from pipeline.run.config.settings import Config
from pipeline.run.layout.map_names import map_names
from pipeline.run.tables import read_table
from pipeline.statistics.data.values import OUTCOMES
from reports.read.written_tables import COLUMNS

MAKE_AGAIN = "Repeat the command that made this run."

TEXT = frozenset({
    "analysis", "between", "biomarker", "brain_extraction", "class_difference_interval", "cluster", "compared",
    "comparison", "compartment", "contrast", "control", "covariates", "decision", "diagnosis", "difference_interval",
    "effect", "entry", "error", "estimate_is", "estimator", "event", "expected", "family", "first_groups", "flags",
    "found", "group", "hemisphere", "hippocampus_source", "image", "interval", "label", "levels", "magnitude_unit",
    "map", "map_a", "map_b", "means", "measure", "message", "metric", "model", "name", "networks", "note",
    "orientation", "outcome", "p_is", "part", "participant_id", "planted", "predicted", "predictor", "random_effects",
    "rankings", "reason", "reference", "response", "result", "rows", "scan_group", "scan_id", "scans", "session_id",
    "sex", "site", "source", "stage", "status", "tables", "term", "test", "traceback", "treatment", "unit", "variable",
    "verdict", "volume", "where", "worst_regions",
})  # fmt: skip
"""Columns of text, whatever they hold; a class or a site can be called ``0``."""
TEXT_HERE = frozenset({
    ("performance", "fold"), ("roc", "fold"), ("precision_recall", "fold"), ("calibration", "fold"),
    ("harmonisation_models", "fold"), ("w_calibration", "fold"), ("site_prediction", "target"),
    ("subgroups", "level"), ("fairness", "level"), ("performance_classes", "fold"), ("confusion", "fold"),
    ("performance_number", "fold"), ("performance_repeats", "repeat"),
})  # fmt: skip
"""Columns of text in these tables, and of numbers in others."""
FLAGS = frozenset({"best", "chosen", "exact", "fold_held", "kept"})
"""Columns of ``true`` and ``false``. All others that a run writes hold numbers."""

COUNTS = frozenset({"epoch", "fold", "hits", "k", "patient", "rank", "region", "subtype", "target", "top"})
"""Columns of whole numbers, beside those that begin with ``n_``."""
CLINICAL = frozenset({"scans", "clinical"})
"""Tables whose columns have the ranges of `pipeline.cohort.cells.ranges`."""
MEASURED = frozenset({
    "clinical", "conservation", "predictions", "predictions_applied", "registration", "relevance",
    "relevance_applied", "scans", "volume_points", "volumes",
})  # fmt: skip
"""Tables of what was measured on scans, where no number is infinite; a test's statistic or interval can be."""

_SCAN, _PLACE = ("participant_id", "scan_id"), ("map", "group")
FILLED: Mapping[str, Collection[str]] = {
    "scans": (*_SCAN, "kept"),
    "splits": ("participant_id", "fold", "part"),
    "failures": ("stage", "unit"),
    "registration": (*_SCAN, "status"),
    "volumes": (*_SCAN, "group"),
    "predictions": (*_SCAN, "fold", "label", "target", "predicted", "outcome", "probability"),
    "predictions_number": (*_SCAN, "fold", "target", "prediction"),
    "predictions_classes": (*_SCAN, "fold", "label", "target", "predicted", "outcome", "probability"),
    "predictions_applied": (*_SCAN, "probability"),
    "conservation": (*_SCAN, "map"),
    "relevance": (*_SCAN, *_PLACE, "n_voxels"),
    "relevance_applied": (*_SCAN, *_PLACE, "n_voxels"),
    "beta_overlap": ("map_a", "map_b", "metric", "top"),
    "performance": ("fold", "metric", "n_participants", "n_scans"),
    "calibration": ("low", "high", "n_participants"),
    "demographics": ("label", "variable", "n_participants", "n_known"),
    "demographic_tests": ("variable",),
    "volume_association": ("map", "volume", "unit", "estimator", "fold_held", "n_participants", "n_scans"),
    "volume_points": ("participant_id", "map", "fold"),
    "region_summary": (*_PLACE, "scan_group", "n_participants", "n_scans"),
    "region_effects": (*_PLACE, "n_positive", "n_negative"),
    "group_comparisons": (*_PLACE, "comparison", "metric", "n_first", "n_second"),
    "associations": ("n_participants",),
    "progression": ("predictor", "measure", "n_participants", "n_events"),
    "notes": ("analysis", "reason"),
    "w_fingerprints": ("participant_id", "source", "group"),
    "planted_recovery": ("map", "metric", "n_participants", "n_groups", "n_planted", "top", "hits"),
    "planted_effects": ("effect", "verdict"),
}  # fmt: skip
"""Cells that a run never leaves empty, by table."""


def _is_text(name: str, column: str) -> bool:
    return column in TEXT or (name, column) in TEXT_HERE


def read_checked(name: str, path: Path) -> pd.DataFrame:
    """Read a table of a run, its text columns as text.

    Raises
    ------
    BadInputError
        If the file cannot be read as a table.
    """
    names = [column for column in COLUMNS.get(name, ()) if _is_text(name, column)]
    return read_table(path, text_columns=names or sorted(TEXT))


def cut_row(path: Path, file: str) -> str:
    """Which row has too few or too many cells, or where the file ends too soon; empty where none does.

    Parameters
    ----------
    path : Path
    file : str
        What to call it.
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
    """The first cell of a table that the run cannot have written, in a sentence; empty where there is none.

    Parameters
    ----------
    name : str
        Of `reports.read.written_tables.COLUMNS`.
    file : str
        What to call it.
    table : pandas.DataFrame
        As `read_checked` gives it.
    config : Config
        Of the run, whose classes it knows.

    Examples
    --------
    >>> from pipeline.run.config.files import load_config
    >>> table = pd.DataFrame({"participant_id": ["sub-1", "sub-2"], "fold": ["0", "one"], "part": ["train", "test"]})
    >>> bad_cell("splits", "splits.tsv", table, load_config(overrides={}))
    "splits.tsv: line 3, column fold: 'one' is not a number. Restore the file, or delete it and repeat the command that made this run."
    """  # noqa: E501
    for column in COLUMNS.get(name) or table.columns.intersection([*MEASURES, *TIMES]):
        for wrong, why in _checks(name, column, table[column], config):
            if wrong.any():
                return f"{file}: {first_wrong(table, column, wrong, why)} {REMEDY}"
    if name in ("scans", "predictions") and table["scan_id"].duplicated().any():
        return f"{file}: {first_wrong(table, 'scan_id', table['scan_id'].duplicated(), 'appears twice')} {REMEDY}"
    return ""


def _checks(name: str, column: str, values: pd.Series, config: Config) -> Iterator[tuple[pd.Series, str]]:
    """Wrong cells of a column, and what to say of them; each check relies on those before it."""
    known, allowed = values.notna(), _known_values(name, config).get(column)
    if _is_text(name, column):
        pass
    elif column in FLAGS:
        yield known & ~values.isin([True, False, "true", "false", "True", "False"]), "is neither true nor false"
    elif values.dtype.kind in "iuf":
        yield _out_of_range(name, column, values)
    else:
        is_number = pd.to_numeric(values.astype(object), errors="coerce").notna() & (values.dtype != bool)
        yield known & ~is_number, "is not a number"
    if column in FILLED.get(name, ()):
        yield ~known, "is missing"
    if allowed is not None:
        yield known & ~values.isin(allowed), f"is not one of {', '.join(allowed)}"
    if column in ("map", "map_a", "map_b") or (column == "source" and name != "volumes"):
        yield known & ~values.isin(["volume", *map_names(config.attribution)]), "is not a map of this run"


def _out_of_range(name: str, column: str, values: pd.Series) -> tuple[pd.Series, str]:
    """Numbers that a column cannot hold: parts of what is counted, probabilities beyond 0 and 1, infinite values."""
    if column.startswith("n_") or (column in COUNTS and (name, column) != ("predictions_number", "target")):
        return values.notna() & ((values % 1 != 0) | (values < 0)), "is not a number to count with"
    if column in ("probability", "p") or column.startswith("p_"):
        return values.notna() & ~values.between(0, 1), "is not between 0 and 1"
    if name in CLINICAL and column in RANGES and not column.endswith("_mm3"):  # our own volumes have no range
        return values.notna() & ~values.map(RANGES[column].holds).astype(bool), f"is not {RANGES[column]}"
    return values.isin([float("inf"), float("-inf")]) & (name in MEASURED), "is not a finite number"


def _known_values(name: str, config: Config) -> Mapping[str, Sequence[str]]:
    """The only values of some columns of a table."""
    labels = tuple(reversed(config.cohort.labels))
    known: Mapping[str, Mapping[str, Sequence[str]]] = {
        "scans": {} if config.cohort.target else {"label": labels},
        "splits": {"part": ("train", "validation", "test")},
        "predictions": {"label": labels, "predicted": labels, "outcome": OUTCOMES},
        "predictions_classes": {"label": labels, "predicted": labels, "outcome": OUTCOMES},
        "demographics": {"label": (*labels, "all")},
        "region_summary": {"scan_group": (*labels, *OUTCOMES)},
        "w_fingerprints": {"label": labels},
    }
    return known.get(name, {})
