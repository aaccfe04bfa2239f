"""Evidence of regions in logits, read from the statistics: the numbers of the headline of a run with evidence maps.

An evidence map adds up to the evidence of a scan less that of its reference, so the sum over a region is its part of
this difference. The statistics compare densities; a density times the voxels of its region is the sum again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.reports.analyses.findings import Leaders, leaders, voxels_of
from heatlas.reports.analyses.verdicts import (
    Verdict,
    classes_compared,
    first_few,
    g_in_words,
    rows_where,
    survivors,
)
from heatlas.reports.frame.tables import Column, numeric
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
    if len(may) == len(rows):
        return f"Any of the {every} regions may be the first ({level}): the data do not order them."
    names = first_few([mid_sentence(group) for group in may], FEW_FIRSTS)
    if len(may) == 1:
        return f"The first of all {every} regions is {names} ({level})."
    return f"One of {number(len(may))} regions is the first of all {every} ({level}): {names}."


def follows_number(run: RunRecord) -> Verdict | None:
    """In which regions the leading map follows a predicted number most, and between which places these lie."""
    rows = rows_where(
        run, "associations", "r", biomarker="target", map=run.leading_map, metric="density", estimator="pearson"
    )
    if rows.empty:
        return None
    tested, what = survivors(rows, "p_fwe"), "Evidence" if run.leads_with_evidence else "Density"
    rows = rows.set_index("group").sort_values("r", ascending=False, kind="stable")
    first, names = rows.iloc[0], [str(group) for group in rows.index[:FEW_FIRSTS]]
    bounds = interval(first["ci_low"], first["ci_high"], 2, run.config.statistics.confidence)
    return Verdict(
        f"{what} rises with {run.task.column} most in {with_places(rows, names)}.",
        f"{firsts_in_words(run, rows)} Pearson's r in the first by estimate: {fixed(first['r'])} ({bounds}), "
        f"{count(int(first['n_participants']), 'participant')}, {map_title(run.leading_map)}; {tested}.".strip(),
    )


def leading_in_words(run: RunRecord, map_name: str, regions: Sequence[str]) -> list[str]:
    """Regions with the difference of the classes; its interval, and Hedges' g with its own, in brackets."""
    rows = evidence_differences(run, map_name).loc[list(regions)]
    return [
        f"{mid_sentence(region)} {signed(row['difference'])} ({fixed(row['ci_low'])} to {fixed(row['ci_high'])}; g "
        f"{g_in_words(row)})"
        for region, row in rows.iterrows()
    ]
