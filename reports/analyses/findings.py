"""What the summary, figures and cautions mention: numbers from the statistics, and the leading regions.

All regions are ranked, but headlines, figures and the summary leave out unreliable ones, for one of two reasons. A
region is small, so that a slight misregistration moves much of its relevance into its neighbours. Or, for gain,
controls have almost no relevance there, so that the ratio is large by chance.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from heatlas.pipeline.regions.ranking import least_voxels as least_voxels_at
from heatlas.pipeline.regions.ranking import mean_over_participants, top_groups
from heatlas.pipeline.statistics.associations.volume_association import ADJUSTED, VOLUME
from heatlas.pipeline.statistics.performance.classification import ALL_FOLDS
from heatlas.reports.analyses.verdicts import classes_compared
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import count, is_missing, listing, mid_sentence, number, shortened


@dataclass(frozen=True)
class Leaders:
    """The head of a ranking."""

    regions: tuple[str, ...]  # those that may lead, best first
    passed_over: Mapping[str, str]  # regions that would be among them, with the reason why they are not

    @property
    def sentence(self) -> str:
        """The regions that were passed over, with reasons; empty without any."""
        if not self.passed_over:
            return ""
        named = listing([f"{shortened(group)} ({reason})" for group, reason in self.passed_over.items()])
        return f" Ranked, but not shown here: {named}."


def voxels_of(run: RunRecord) -> pd.Series:
    """Voxels of each bilateral group on the grid of the atlas, both sides together."""
    return run.region_sums.groupby("group", sort=False)["n_voxels"].max()


def least_voxels(run: RunRecord) -> int:
    """Voxels below which a region is small in this run."""
    return least_voxels_at(run.config.registration.resolution_mm)


def small_regions(run: RunRecord) -> dict[str, int]:
    """Small regions that have voxels, with their number."""
    voxels = voxels_of(run)
    return {str(group): int(n) for group, n in voxels.items() if 0 < n < least_voxels(run)}


def weak_in_controls(run: RunRecord, map_name: str) -> frozenset[str]:
    """Regions whose mean in the negative class lies below the floor of the log-gain."""
    rows = classes_compared(run, map=map_name, metric="density")
    return frozenset(rows.loc[rows["mean_second"] < rows["floor"], "group"].astype(str) if len(rows) else ())


def leaders(run: RunRecord, means: pd.Series, map_name: str, metric: str, top: int) -> Leaders:
    """The first regions of a ranking (value by bilateral group) that may lead; the first ones if none may."""
    reasons = {group: count(n, "voxel") for group, n in small_regions(run).items()} if metric != "sum" else {}
    if metric == "gain":
        weak = weak_in_controls(run, map_name)
        reasons |= {group: f"almost no relevance in {run.negative}" for group in sorted(weak - set(reasons))}
    order = top_groups(means, len(means))
    kept = [group for group in order if group not in reasons][:top]
    if not kept:
        return Leaders(tuple(order[:top]), {})
    last = order.index(kept[-1])
    passed = {group: f"{reasons[group]}, number {number(place + 1)}"
              for place, group in enumerate(order[:last]) if group in reasons}  # fmt: skip
    return Leaders(tuple(kept), passed)


def ranking(run: RunRecord, map_name: str, metric: str) -> tuple[pd.Series, str]:
    """Known means of a metric over participants by region, and the group of scans that they are taken over.

    As in the founding study, sum and density are ranked in scans of the positive class, gain in true positives.
    Where there are none, the positive class or all scans are used.
    """
    groups = [("true positives", "TP")] if metric == "gain" else []
    for name, group in (*groups, (f"scans labelled {run.positive}", run.positive)):
        means = summary_means(run, map_name, metric, group)
        if len(means):
            return means, name
    values = run.region_values
    values = values[values["map"] == map_name]
    positive = values[values["label"] == run.positive]
    hits = positive[(positive["outcome"] == "TP") & (metric == "gain")]
    for name, rows in (("true positives", hits), (f"scans labelled {run.positive}", positive), ("all scans", values)):
        if rows[metric].notna().any():
            return mean_over_participants(rows, metric).droplevel("map").dropna(), name
    return pd.Series(dtype=float), ""


def rule(run: RunRecord) -> str:
    """Which regions may lead, in a sentence."""
    return (
        f"A region of fewer than {count(least_voxels(run), 'voxel')} of the atlas's grid "
        f"({number(run.config.registration.resolution_mm)} mm) keeps its place in every ranking but is not shown as a "
        "leading region, because a slight misregistration moves its relevance into its neighbours."
        + ("" if run.task.is_number else f" The same holds for gain where {run.negative} have almost no relevance.")
    )


def map_shares(run: RunRecord, map_name: str, label: str) -> pd.Series:
    """Mean share of a map in each region in one of the classes, from ``group_comparisons.tsv``; empty without it."""
    rows = classes_compared(run, map=map_name, metric="share")
    if rows.empty:
        return pd.Series(dtype=float)
    return rows.set_index("group")["mean_first" if label == run.positive else "mean_second"]


def in_words(regions: Sequence[str], parts: Mapping[str, float] | pd.Series | None = None) -> str:
    r"""Regions in a sentence, with their share of the map where that is known.

    Examples
    --------
    >>> in_words(["Hippocampus", "Amygdala"], {"Hippocampus": 0.031})
    'hippocampus (3.1\xa0%) and amygdala'
    """
    said = []
    for region in regions:
        part = None if parts is None else parts.get(region)
        known = part is not None and np.isfinite(part)
        said.append(mid_sentence(region) + (f" ({100 * float(part):.1f}\xa0%)" if known else ""))  # type: ignore[arg-type]
    return listing(said)


def overlap_in_words(first: Collection[str], second: Collection[str]) -> str:
    """How many regions two lists of at most five share."""
    shared = len(set(first) & set(second))
    if not shared:
        return "No region is in both lists."
    words = ("", "One", "Two", "Three", "Four", "Five")
    return f"{words[shared]} of the {words[len(second)].lower()} {'is' if shared == 1 else 'are'} in both lists."


VOLUME_TITLES = {VOLUME: "as it is", ADJUSTED: "÷\xa0intracranial"}


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


def volume_row(run: RunRecord, map_name: str, estimator: str = "pearson") -> pd.Series | None:
    """Row of the association with the primary volume over participants."""
    table = run.tables["volume_association"]
    chosen = {"volume": primary_volume(run), "map": map_name, "estimator": estimator, "unit": "participant"}
    for column, value in chosen.items():
        table = table[table[column] == value]
    return None if table.empty else table.iloc[0]


def volume_estimate(run: RunRecord, map_name: str) -> Estimate | None:
    """Correlation of hippocampal relevance with volume over true-positive participants; None if it is not known."""
    if not run.has("volume_association"):
        return None
    row = volume_row(run, map_name)
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
