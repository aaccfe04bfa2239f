"""How far the ranking of regions depends on beta: overlap of the top ten, per metric (Böhle et al. 2019)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import pandas as pd

from heatlas.pipeline.regions.ranking import METRICS, mean_over_participants, top_groups
from heatlas.pipeline.run.columns import Form
from heatlas.pipeline.run.declared import Table

TOP = 10

BETA_OVERLAP_TABLE = Table(
    "beta_overlap",
    {
        "metric": "Metric that groups are ranked by: sum or density (mean over participants of the positive class) or "
        "gain (mean over participants with TP scans)",
        "map_a": "LRP map",
        "map_b": "LRP map",
        "top": "Number of top groups compared",
        "overlap": "Percentage of the top groups that both maps share",
        "note": "Why there is no overlap",
    },
    "pair of LRP maps and metric", "Does another beta put the same regions first?", stage="regions",
    file="group/statistics/beta_overlap.tsv", forms={"overlap": Form.VALUE},
    filled=("map_a", "map_b", "metric", "top"),
)  # fmt: skip


def top_overlap(a: Sequence[str], b: Sequence[str]) -> float:
    """Percentage of two equally long lists that is in both.

    Examples
    --------
    >>> top_overlap(["x", "y"], ["y", "z"])
    50.0
    """
    if len(a) != len(b) or not a:
        raise ValueError(f"lists of {len(a)} and {len(b)} names have no overlap in per cent")
    return 100.0 * len(set(a) & set(b)) / len(a)


def overlap_table(table: pd.DataFrame, map_names: Sequence[str], top: int = TOP) -> pd.DataFrame:
    """Overlap matrices, one row per metric and ordered pair of maps.

    `table`: a row per scan, map and group, with ``target`` and ``outcome`` of the scan and the three metrics.
    `map_names`: LRP maps, in the order of beta. Returns columns of `BETA_OVERLAP_TABLE`.
    """
    rows = [row for metric in METRICS for row in _matrix(table, metric, map_names, top)]
    return BETA_OVERLAP_TABLE.frame(rows)


def _matrix(
    table: pd.DataFrame, metric: str, map_names: Sequence[str], top: int
) -> Iterator[tuple[str, str, str, int, float, str | None]]:
    of_whom = table[table["outcome"] == "TP"] if metric == "gain" else table[table["target"] == 1]
    means = mean_over_participants(of_whom, metric)
    lists = {name: top_groups(means.xs(name, level="map"), top) if len(means) else [] for name in map_names}
    for a, b in product(map_names, repeat=2):
        fewest = min(len(lists[a]), len(lists[b]))
        if fewest < top:
            yield metric, a, b, top, float("nan"), f"{metric} is known for only {fewest} groups"
        else:
            yield metric, a, b, top, top_overlap(lists[a], lists[b]), None
