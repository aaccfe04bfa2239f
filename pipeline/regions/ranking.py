"""Ranking of bilateral groups.

The statistic is a mean over participants, each participant's scans averaged first: someone scanned five times counts
once. The founding study averaged over scans; both averages are in ``region_summary.tsv``.
"""

from __future__ import annotations

import pandas as pd

METRICS = ("sum", "density", "gain")
FEW_VOXELS = 50
SMALL_MM3 = 400.0  # 50 voxels of 2 mm: a cube of 7 mm, a quarter of which leaves its place in a shift by 2 mm


def least_voxels(resolution_mm: float) -> int:
    """Voxels below which a region is small: a slight misregistration moves its relevance into its neighbours.

    Examples
    --------
    >>> least_voxels(1.0), least_voxels(2.0), least_voxels(4.0)
    (400, 50, 50)
    """
    return max(FEW_VOXELS, round(SMALL_MM3 / resolution_mm**3))


def mean_over_participants(table: pd.DataFrame, metric: str) -> pd.Series:
    """Mean of a metric per map and bilateral group.

    `table`: with ``participant_id``, ``map``, ``group`` and the metric; a row per scan, map and group. Missing values
    are left out; a group without any value has NaN. Returns indexed by map and group, in the order of `table`.
    """
    per_participant = table.groupby(["participant_id", "map", "group"], sort=False)[metric].mean()
    return per_participant.groupby(level=["map", "group"], sort=False).mean()


def top_groups(means: pd.Series, count: int) -> list[str]:
    """Names of the groups with the largest means, largest first; ties in table order, unknown ones left out.

    Examples
    --------
    >>> top_groups(pd.Series({"a": 1.0, "b": 3.0, "c": float("nan"), "d": 3.0}), 2)
    ['b', 'd']
    """
    known = means.dropna().sort_values(ascending=False, kind="stable")
    return [str(name) for name in known.index[:count]]
