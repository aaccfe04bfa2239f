"""Which regions of a scan are named: the same in the sentence, the picture, the table and the cautions of a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import pandas as pd

from heatlas.reports.analyses.findings import leading_evidence
from heatlas.reports.read.run_record import RunRecord

NAMED = 3
"""Regions with the largest parts of a scan's evidence that are named."""
DENSEST = 5
"""Regions named where no evidence map leads."""


@dataclass(frozen=True)
class ScanRegions:
    """The leading map of one scan by bilateral group."""

    values: pd.Series  # evidence, or density of a map without a unit; groups without a voxel are left out
    largest: tuple[str, ...]  # of the largest parts, first those that speak most for what the scan is predicted to be
    headline: tuple[str, ...] = ()  # the region that differs most between the classes, where it is not among them

    @property
    def named(self) -> tuple[str, ...]:
        """Regions in the order of their numbers in the picture."""
        return (*self.largest, *self.headline)


@lru_cache(maxsize=8)  # every page asks
def regions_of_scans(run: RunRecord) -> Mapping[str, ScanRegions]:
    """The regions of every explained scan, labelled or not, by its id.

    An evidence map has a unit in which regions add up, so those with the largest parts are named: the most positive
    where the scan has more evidence than its controls, else the most negative. Sums of another map follow the size of
    regions; of it the densest are named.
    """
    evidence, found = run.leads_with_evidence, {}
    headline = leading_evidence(run, run.leading_map, 1).regions if evidence else ()
    for table in ("relevance_bilateral", "relevance_applied_bilateral"):
        if not run.has(table):
            continue
        rows = run.tables[table]
        rows = rows[rows["map"] == run.leading_map]
        more = _more_than_controls(run, table.replace("relevance", "evidence").removesuffix("_bilateral"))
        for scan, of_scan in rows.groupby("scan_id", sort=False):
            values = of_scan.set_index("group")["sum" if evidence else "density"].dropna()
            found[str(scan)] = (
                _by_evidence(values, more.get(str(scan), values.sum() >= 0), headline)
                if evidence
                else _by_density(values)
            )
    return found


def _more_than_controls(run: RunRecord, table: str) -> Mapping[str, bool]:
    """Whether a scan has more evidence than the controls that the leading map compares it with, by its id."""
    if not run.has(table):
        return {}
    rows = run.tables[table]
    rows = rows[rows["map"] == run.leading_map]
    return dict(zip(rows["scan_id"].astype(str), rows["evidence"] >= rows["reference_evidence"], strict=True))


def _by_evidence(values: pd.Series, more: bool, headline: tuple[str, ...]) -> ScanRegions:
    largest = tuple(map(str, values.sort_values(ascending=not more, kind="stable").index[:NAMED]))
    return ScanRegions(values, largest, tuple(one for one in headline if one in values.index and one not in largest))


def _by_density(values: pd.Series) -> ScanRegions:
    positive = values[values > 0].sort_index().sort_values(ascending=False, kind="stable")
    return ScanRegions(values, tuple(map(str, positive.index[:DENSEST])))
