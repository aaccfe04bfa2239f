"""Evidence of regions in logits, read from the statistics: the numbers of the headline of a run with evidence maps.

An evidence map adds up to the evidence of a scan less that of its reference, so the sum over a region is its part of
this difference. The statistics compare densities; a density times the voxels of its region is the sum again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import pandas as pd

from heatlas.reports.analyses.findings import Leaders, leaders, voxels_of
from heatlas.reports.analyses.verdicts import classes_compared, g_in_words, rows_where
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import fixed, interval, mid_sentence, percent, signed

_PER_VOXEL = ["mean_first", "mean_second", "difference", "ci_low", "ci_high"]


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


def place_of(run: RunRecord, map_name: str, group: str) -> tuple[int, int] | None:
    """The place of a region by Hedges' g, and the number of regions ranked; None for a region without a g."""
    order = list(evidence_differences(run, map_name).index)
    return (order.index(group) + 1, len(order)) if group in order else None


def leading_in_words(run: RunRecord, map_name: str, regions: Sequence[str]) -> list[str]:
    """Regions with the difference of the classes; its interval, and Hedges' g with its own, in brackets."""
    rows = evidence_differences(run, map_name).loc[list(regions)]
    return [
        f"{mid_sentence(region)} {signed(row['difference'])} ({fixed(row['ci_low'])} to {fixed(row['ci_high'])}; g "
        f"{g_in_words(row)})"
        for region, row in rows.iterrows()
    ]
