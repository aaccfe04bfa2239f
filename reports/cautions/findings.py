"""Numbers that the summary and the cautions mention, read from the statistics; and what a caution is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from pipeline.statistics.associations.volume_association import ADJUSTED, VOLUME
from pipeline.statistics.performance.classification import ALL_FOLDS
from reports.read.run_record import RunRecord
from reports.words.numbers import is_missing

VOLUME_TITLES = {VOLUME: "as it is", ADJUSTED: "÷\xa0intracranial"}


@dataclass(frozen=True)
class Caution:
    """One reason for doubt."""

    level: str  # ``serious`` (conclusions may be wrong) or ``note`` (keep in mind)
    title: str  # a short sentence
    text: str
    section: str = ""  # anchor of the section with the details


@dataclass(frozen=True)
class Check:
    """A check of a run that gives a caution or None; it is made where the run has these tables."""

    find: Callable[[RunRecord], Caution | None]
    tables: tuple[str, ...] = ()

    def __call__(self, run: RunRecord) -> Caution | None:
        return self.find(run) if run.has(*self.tables) else None


@dataclass(frozen=True)
class Estimate:
    """A number with its interval, the people and scans behind it, and for a test its p."""

    value: float
    low: float
    high: float
    participants: int
    scans: int
    p: float = float("nan")
    p_fdr: float = float("nan")
    fold_held: bool = False


def performance_estimate(run: RunRecord, metric: str) -> Estimate | None:
    """A metric over all folds together; None if it is not known."""
    if not run.has("performance"):
        return None
    table = run.tables["performance"]
    rows = table[(table["fold"].astype(str) == ALL_FOLDS) & (table["metric"] == metric) & table["estimate"].notna()]
    if rows.empty:
        return None
    row = rows.iloc[0]
    return Estimate(row["estimate"], row["ci_low"], row["ci_high"], int(row["n_participants"]), int(row["n_scans"]))


def primary_volume(run: RunRecord) -> str:
    """The volume that leads: divided by intracranial volume where that is known, else as it is."""
    table = run.tables["volume_association"]
    return ADJUSTED if table.loc[table["volume"] == ADJUSTED, "r"].notna().any() else VOLUME


def volume_row(
    run: RunRecord, map_name: str, estimator: str = "pearson", unit: str = "participant"
) -> pd.Series | None:
    """Row of the association with the primary volume."""
    table = run.tables["volume_association"]
    chosen = {"volume": primary_volume(run), "map": map_name, "estimator": estimator, "unit": unit}
    for column, value in chosen.items():
        table = table[table[column] == value]
    return None if table.empty else table.iloc[0]


def volume_estimate(run: RunRecord, map_name: str, estimator: str = "pearson") -> Estimate | None:
    """Correlation of hippocampal relevance with volume over true-positive participants; None if it is not known."""
    if not run.has("volume_association"):
        return None
    row = volume_row(run, map_name, estimator)
    if row is None or is_missing(row["r"]):
        return None
    return Estimate(
        row["r"], row["ci_low"], row["ci_high"], int(row["n_participants"]), int(row["n_scans"]), row["p"],
        row["p_fdr"], bool(row["fold_held"]),
    )  # fmt: skip


def within_folds(estimate: Estimate) -> str:
    """Words that follow r: whether it is a correlation within test folds."""
    return " within test folds" if estimate.fold_held else ""


def summary_means(run: RunRecord, map_name: str, metric: str, scan_group: str) -> pd.Series:
    """Known participant means of a metric in a group of scans, by bilateral group."""
    if not run.has("region_summary"):
        return pd.Series(dtype=float)
    table = run.tables["region_summary"]
    rows = table[(table["map"] == map_name) & (table["scan_group"] == scan_group)]
    return rows.set_index("group")[f"mean_{metric}"].dropna()
