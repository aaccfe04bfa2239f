"""``distractors.tsv``: what no good map marks, and how much each map marks it."""

from __future__ import annotations

import numpy as np
import pandas as pd

from heatlas.pipeline.evaluation.bench.judging import CohortMaps, density_of, density_ratio
from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.evaluation.nulls import NO_NETWORK, REAL
from heatlas.pipeline.run.columns import Form, described
from heatlas.pipeline.run.declared import Table

MOST_UNUSED = 0.5
"""Largest |evidence| of something unused over that of what is used, of a map that does not mark it."""
MOST_RIM = 1.0
"""Largest share of the rim over its share of voxels: as of a map that is even everywhere."""
DISTRACTORS_TABLE = Table(
    "distractors",
    {
        **described("cohort"),
        "map": "Map, named as in file names; or a map made without a network",
        "network": "real, or none for a map that needs no network",
        "distractor": "What it is",
        "kind": "both classes: a change as large in both; correlated: an untouched region whose intensity goes with "
        "that of planted ones; marker: a bright spot outside the brain; rim: the surface of the brain",
        "n_scans": "Positive scans that have it",
        "ratio": "Mean |density| there over that in planted groups (both classes, correlated); mean |value| there over "
        "that in true regions (marker); share of |values| over share of voxels (rim)",
        "limit": "Largest ratio of a map that does not mark it",
        "marked": "Whether the ratio is above the limit",
    },
    "cohort, map and distractor", "Do maps mark what they should not?", stage="evaluation",
    filled=("cohort", "map", "network", "distractor", "kind"), forms={"map": Form.CODE, "network": Form.CODE},
)  # fmt: skip


def distractor_table(cohort: JudgedCohort, rows: CohortMaps) -> pd.DataFrame:
    """One row per map by the true network (or none) and distractor."""
    made: list[list[object]] = []
    positive = {scan.scan_id: scan for scan in cohort.positive}
    truth = cohort.truth
    planted = np.isin(rows.groups, truth.groups if truth else ())
    for (network, name), own in rows.scores.groupby(["network", "map"], sort=False):
        if network not in (REAL, NO_NETWORK):
            continue
        own = own[own["scan_id"].isin(set(positive))]
        for one in truth.distractors if truth else ():
            scans = [key for key, scan in positive.items() if not one.scans or scan.name in one.scans]
            if one.kind == "marker":
                ratio = float(own.loc[own["scan_id"].isin(scans), "marker"].mean())
            else:
                values = [density_of(rows, str(network), str(name), scan) for scan in scans]
                ratio = density_ratio(values, planted, np.isin(rows.groups, [one.group]))
            made.append(_row(cohort, network, name, one.name, one.kind, len(scans), ratio, MOST_UNUSED))
        rim = float(own["rim"].mean())
        made.append(_row(cohort, network, name, "rim of the brain", "rim", len(own), rim, MOST_RIM))
    return DISTRACTORS_TABLE.frame(made).astype({"marked": "boolean"})


def _row(
    cohort: JudgedCohort, network: object, name: object, what: str, kind: str, scans: int, ratio: float, limit: float
) -> list[object]:
    marked = None if np.isnan(ratio) else ratio > limit
    return [cohort.name, name, network, what, kind, scans, ratio, limit, marked]
