"""Columns of ``registration.tsv`` on registrations in doubt and the decisions about them."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pandas as pd

from pipeline.cohort.records import Scan
from pipeline.registration.quality.decisions import decide
from pipeline.registration.quality.flags import MIN_COHORT, OUTLYING, flag_reasons
from pipeline.registration.quality.local_outliers import region_reasons, worst_regions
from pipeline.run.config.settings import RegistrationConfig
from pipeline.run.layout.run_layout import RunLayout

DOUBT_COLUMNS = {
    "worst_regions": "Regions in which the scan lies worst on the template, with the correlation there: farthest below "
    f"the other scans or, among fewer than {MIN_COHORT}, lowest; see region_quality.tsv",
    "flags": "Why the registration is in doubt: beyond what any adult brain shows, or, among at least "
    f"{MIN_COHORT} scans, more than {OUTLYING} robust standard deviations from the median on the bad side (in one of "
    "many regions as rarely); n/a if it is not",
    "decision": "Decision on a scan in doubt: keep or drop; n/a if there is no doubt or no decision yet",
}


def add_doubt(
    quality: pd.DataFrame,
    regions: pd.DataFrame,
    scans: Sequence[Scan],
    layout: RunLayout,
    config: RegistrationConfig,
    decided: bool = True,
) -> pd.DataFrame:
    """Fill in the columns of `DOUBT_COLUMNS`; with ``flagged = "ask"`` also write ``flagged.tsv``.

    `quality` has one row per scan, in the order of `scans`; `regions` is ``region_quality.tsv``. `decided` is False
    while scans are still being registered: the cohort may change, so nothing is decided.
    """
    registered = (quality["status"] == "registered").to_numpy()
    good = [scan for scan, fine in zip(scans, registered, strict=True) if fine]
    reasons = flag_reasons(quality[registered], [scan.age for scan in good])
    local = region_reasons(regions)
    every = [[*found, *local.get(scan.scan_id, ())] for scan, found in zip(good, reasons, strict=True)]
    flags = {scan.name: "; ".join(found) for scan, found in zip(good, every, strict=True) if found}
    figures = {
        scan.name: os.path.relpath(
            layout.scan(scan.participant_id, scan.session_id, config.resolution_mm).overview, layout.root
        )
        for scan in good
    }
    decisions = decide(scans, flags, config.flagged, layout.flagged, figures) if decided else {}
    worst = worst_regions(regions)
    columns = {
        "worst_regions": pd.Series([worst.get(scan.scan_id) for scan in scans], quality.index, dtype=object),
        "flags": pd.Series([flags.get(scan.name) for scan in scans], quality.index, dtype=object),
        "decision": pd.Series([decisions.get(scan.name) or None for scan in scans], quality.index, dtype=object),
    }
    return quality.assign(**columns)
