"""What the report mentions of the statistics: performance, volume, the leading regions, and evidence in logits.

All regions are ranked, but headlines, figures and the summary leave out unreliable ones, for one of two reasons. A
region is small, so that a slight misregistration moves much of its relevance into its neighbours. Or, for gain,
controls have almost no relevance there, so that the ratio is large by chance.

An evidence map adds up to the evidence of a scan less that of its reference, so the sum over a region is its part of
this difference. The statistics compare densities; a density times the voxels of its region is the sum again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from heatlas.pipeline.regions.ranking import least_voxels as least_voxels_at
from heatlas.pipeline.regions.ranking import mean_over_participants, top_groups
from heatlas.pipeline.statistics.performance.classification import ALL_FOLDS
from heatlas.reports.frame.tables import Column, numeric
from heatlas.reports.questions.question import CLEAR, classes_compared, first_few, g_in_words, rows_where
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import (
    count,
    fixed,
    interval,
    is_missing,
    listing,
    mid_sentence,
    number,
    percent,
    signed,
)
from heatlas.reports.words.sentences import Words

WORDS = Words(__file__)


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
        named = listing([f"{mid_sentence(group)} ({reason})" for group, reason in self.passed_over.items()])
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
    return WORDS.say(
        "rule", voxels=least_voxels(run), run=run
    ) + f" The same holds for gain where {run.negative} have almost no relevance." * bool(run.task.classes)


def map_shares(run: RunRecord, map_name: str, label: str) -> pd.Series:
    """Mean share of a map in each region in one of the classes, from ``group_comparisons.tsv``; empty without it."""
    rows = classes_compared(run, map=map_name, metric="share")
    if rows.empty:
        return pd.Series(dtype=float)
    return rows.set_index("group")["mean_first" if label == run.positive else "mean_second"]


BY_MEASURE = 5  # regions named for each measure


def leading_regions(run: RunRecord, name: str, metric: str) -> tuple[str, ...]:
    """Regions that the summary names in the positive class: the densest, or those with the largest shares."""
    if metric == "density":
        return leaders(run, summary_means(run, name, metric, run.positive), name, metric, BY_MEASURE).regions
    return leaders(run, map_shares(run, name, run.positive), name, metric, 3).regions


def smaller_shares(run: RunRecord, name: str, regions: Sequence[str]) -> str:
    """Which of some regions hold a smaller share of the map in the positive class, after correction.

    If such a region is denser there, this is only because the whole map is stronger.
    """
    rows = classes_compared(run, map=name, metric="share")
    if rows.empty:
        return ""
    rows = rows[(rows["p_fwe"] < CLEAR) & (rows["difference"] < 0)].set_index("group")
    found = rows.to_dict("index")
    fewer = [f"{mid_sentence(group)} (g {g_in_words(found[group])})" for group in regions if group in found]
    if not fewer:
        return ""
    verb = "holds" if len(fewer) == 1 else "hold"
    return WORDS.say("smaller_shares", fewer=fewer, verb=verb, run=run)


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
    rows = rows_where(run, "performance", "estimate", metric=metric)
    rows = rows[rows["fold"].astype(str) == ALL_FOLDS] if len(rows) else rows
    if rows.empty:
        return None
    row = rows.iloc[0]
    return Estimate(row["estimate"], row["ci_low"], row["ci_high"], int(row["n_participants"]), int(row["n_scans"]))


def summary_means(run: RunRecord, map_name: str, metric: str, scan_group: str) -> pd.Series:
    """Known participant means of a metric in a group of scans, by bilateral group."""
    rows = rows_where(run, "region_summary", map=map_name, scan_group=scan_group)
    return rows.set_index("group")[f"mean_{metric}"].dropna() if len(rows) else pd.Series(dtype=float)


_PER_VOXEL = ["mean_first", "mean_second", "difference", "ci_low", "ci_high"]
FEW_FIRSTS = 3
"""Regions that may be first, at most, for one of them to stand in large type."""


@dataclass(frozen=True)
class SumError:
    """By how much maps miss the evidence that they must add up to, over scans, in units of evidence."""

    median: float
    largest: float
    share: float  # the median as a share of the median evidence

    @property
    def in_words(self) -> str:
        """The median, its share, and the largest."""
        share = percent(self.share) if self.share >= 0.001 else "under 0.1 %"
        return f"{fixed(self.median)} in the median ({share} of the median evidence), {fixed(self.largest)} at most"


def sum_error(run: RunRecord, map_name: str, column: str = "completeness_error") -> SumError | None:
    """The error of a map over the scans of the contrast; None where the run does not know it or there is no evidence.

    `column` is ``completeness_error``, or ``sampling_error``: what it would be without the control variate.
    """
    rows = rows_where(run, "evidence", map=map_name)
    if rows.empty or column not in rows or rows[column].isna().all():
        return None
    error, evidence = rows[column].abs(), (rows["evidence"] - rows["reference_evidence"]).abs()
    if not evidence.median() > 0:
        return None
    return SumError(float(error.median()), float(error.max()), float(error.median() / evidence.median()))


@lru_cache(maxsize=8)  # every page asks
def evidence_differences(run: RunRecord, map_name: str) -> pd.DataFrame:
    """Classes compared by the evidence of each region, by region, largest Hedges' g first; empty where not tested.

    Columns of ``group_comparisons.tsv``; means, difference and interval are in logits.
    """
    rows = classes_compared(run, map=map_name, metric="density")
    if rows.empty or map_name not in run.evidence_maps:
        return pd.DataFrame()
    rows = rows[rows["hedges_g"].notna()].set_index("group")
    rows = rows.sort_values("hedges_g", ascending=False, kind="stable")
    return rows.assign(**{name: rows[name] * voxels_of(run).reindex(rows.index) for name in _PER_VOXEL})


def leading_evidence(run: RunRecord, map_name: str, top: int) -> Leaders:
    """The regions whose evidence differs most between the classes, by Hedges' g; none where this was not tested."""
    rows = evidence_differences(run, map_name)
    return Leaders((), {}) if rows.empty else leaders(run, rows["hedges_g"], map_name, "evidence", top)


def difference_of(run: RunRecord, row: pd.Series) -> str:
    """The difference of the classes in one region, in logits, with its interval."""
    bounds = interval(row["ci_low"], row["ci_high"], 2, run.config.statistics.confidence)
    return f"{signed(row['difference'])} {run.evidence_unit}, {bounds}"


@dataclass(frozen=True)
class Place:
    """The place of a region by Hedges' g, among how many, and between which it lies where a run knows this."""

    number: int
    of: int
    low: int | None = None
    high: int | None = None

    @property
    def span(self) -> str:
        """Between which places the region lies; empty where that is not known.

        Examples
        --------
        >>> Place(2, 67, 1, 9).span, Place(1, 67, 1, 1).span, Place(1, 67).span
        ('1 to 9', '1', '')
        """
        if self.low is None or self.high is None:
            return ""
        return number(self.low) if self.low == self.high else f"{number(self.low)} to {number(self.high)}"

    @property
    def bracket(self) -> str:
        """The same of how many, in brackets with a space before it, to follow the name of the region."""
        if not self.span:
            return ""
        between = f"between place {self.low} and {self.high}" if self.low != self.high else f"place {self.low}"
        return f" ({between} of {number(self.of)})"


def with_places(rows: pd.DataFrame, regions: Sequence[str]) -> str:
    """Regions in a sentence, each with the places between which it lies where that is known."""
    found = [(mid_sentence(region), place_in(rows, region)) for region in regions]
    return listing([
        name if place is None or not place.span else f"{name} ({place.span})" if rank else f"{name}{place.bracket}"
        for rank, (name, place) in enumerate(found)
    ])  # fmt: skip


def place_in(rows: pd.DataFrame, group: str) -> Place | None:
    """The place of a region among rows of the classes by region, largest Hedges' g first; None for a region without."""
    if group not in rows.index:
        return None
    bounds = [rows[name].get(group) if name in rows else None for name in ("place_low", "place_high")]
    low, high = (None if bound is None or is_missing(bound) else int(bound) for bound in bounds)
    return Place(list(rows.index).index(group) + 1, len(rows), low, high)


def place_of(run: RunRecord, map_name: str, group: str) -> Place | None:
    """The place of a region by the difference of its evidence; None for a region without a g."""
    return place_in(evidence_differences(run, map_name), group)


def densest(run: RunRecord, map_name: str) -> pd.DataFrame:
    """Regions by their mean density in the positive class, densest first; columns of ``region_summary.tsv``."""
    rows = rows_where(run, "region_summary", "mean_density", map=map_name, scan_group=run.positive)
    return rows.set_index("group").sort_values("mean_density", ascending=False, kind="stable") if len(rows) else rows


def place_columns(rows: pd.DataFrame) -> list[Column]:
    """Between which places regions lie, in a table of them; none where this is not known."""
    if not firsts(rows):
        return []
    hint = "among the regions by Hedges' g, with the confidence of the intervals"
    return [numeric("place_low", "Place from", number, hint), numeric("place_high", "to", number)]


def firsts(rows: pd.DataFrame) -> tuple[str, ...]:
    """All regions that may be first, the largest Hedges' g first; none where this is not known."""
    if "place_low" not in rows:  # written by an earlier version
        return ()
    return tuple(map(str, rows.index[rows["place_low"].astype(float) == 1]))


def firsts_in_words(run: RunRecord, rows: pd.DataFrame) -> str:
    """Which regions may be first, in a sentence; empty where this is not known."""
    may, every = firsts(rows), number(len(rows))
    level = f"{100 * run.config.statistics.confidence:g} % confidence"
    if not may:
        return ""
    if len(may) == len(rows) or len(may) > max(FEW_FIRSTS, len(rows) / 2):
        which = f"the {every}" if len(may) == len(rows) else f"{number(len(may))} of the {every}"
        return f"Any of {which} regions may be the first ({level}): the data do not order them."
    names = first_few([mid_sentence(group) for group in may], FEW_FIRSTS)
    if len(may) == 1:
        return f"The first of all {every} regions is {names} ({level})."
    return f"The first of all {every} regions is one of {number(len(may))} ({level}): {names}."


def leading_in_words(run: RunRecord, map_name: str, regions: Sequence[str]) -> list[str]:
    """Regions with the difference of the classes; its interval, and Hedges' g with its own, in brackets."""
    rows = evidence_differences(run, map_name).loc[list(regions)]
    return [
        WORDS.say("leading_in_words", region=region, row=row, g_in_words=g_in_words(row))
        for region, row in rows.iterrows()
    ]
