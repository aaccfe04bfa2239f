"""Relevance of all maps and bilateral groups as columns of one array, for tests over a family.

Over scans explained by one network, sum, density and gain of a region differ only by a factor, so they have the same
correlations and t. The share of the map is different: it measures where relevance lies, whatever its amount.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.statistics.arrays import Floats
from heatlas.pipeline.statistics.data.values import RelevanceValues

METRIC_MEANINGS: Mapping[str, str] = {
    "density": "relevance per voxel",
    "sum": "relevance of the region",
    "gain": "sum relative to the mean sum of the negative class in the same test fold",
    "share": "sum divided by the sum of all regions' absolute sums in the scan's map",
}


@dataclass(frozen=True, eq=False)
class RelevanceColumns:
    """Columns of relevance.

    `table`: ``map``, ``group``, ``metric`` of each column; `values` (scans, columns): NaN where missing.
    """

    table: pd.DataFrame
    values: Floats

    @classmethod
    def of(cls, values: RelevanceValues, metrics: Sequence[str]) -> RelevanceColumns:
        """Columns ordered by metric, then by map.

        BadInputError for an unknown metric.
        """
        unknown = [name for name in metrics if name not in METRIC_MEANINGS]
        if unknown:
            raise BadInputError(f"metric {unknown[0]} is unknown. Available: {', '.join(METRIC_MEANINGS)}.")
        arrays = {"density": values.densities, "sum": values.sums, "gain": values.gains, "share": shares(values.sums)}
        names = [(m, group, metric) for metric in metrics for m in values.maps for group in values.groups]
        table = pd.DataFrame(names, columns=["map", "group", "metric"])
        columns = [
            arrays[metric].reshape(len(values.scans), len(values.maps) * len(values.groups)) for metric in metrics
        ]
        return cls(table, np.concatenate(columns, axis=1))


def kinds_of(columns: pd.DataFrame) -> list[str]:
    """What has a scale of its own in each network, one per column: its map and metric."""
    return (columns["map"].astype(str) + " " + columns["metric"].astype(str)).tolist()


def with_shares(relevance: pd.DataFrame) -> pd.DataFrame:
    """Add the column ``share`` (see `shares`) to a table of relevance; NaN for groups without a voxel.

    `relevance`: all groups of each scan and map: ``scan_id``, ``map``, ``sum``, ``n_voxels``.

    Examples
    --------
    >>> table = pd.DataFrame({"scan_id": "s", "map": "gb", "sum": [3.0, -1.0, 0.0], "n_voxels": [9, 9, 0]})
    >>> with_shares(table)["share"].tolist()
    [0.75, -0.25, nan]
    """
    total = map_totals(relevance)
    return relevance.assign(share=(relevance["sum"] / total).where((total > 0) & (relevance["n_voxels"] > 0)))


def map_totals(relevance: pd.DataFrame) -> pd.Series:
    """Denominator of the shares: the sum over groups of absolute sums of a scan's map, on each of its rows."""
    return relevance["sum"].abs().groupby([relevance["scan_id"], relevance["map"]]).transform("sum")


def shares(sums: Floats) -> Floats:
    """Share of each region in a map: its sum divided by the sum of all regions' absolute sums; signed, from -1 to 1.

    Absolute values, since positive and negative relevance would otherwise cancel for beta > 0.

    `sums` (..., groups): NaN for groups without a voxel.

    Examples
    --------
    >>> shares(np.array([3.0, -1.0, np.nan])).tolist()
    [0.75, -0.25, nan]
    """
    total = np.nansum(np.abs(sums), axis=-1, keepdims=True)
    result: Floats = np.divide(sums, total, out=np.full(sums.shape, np.nan), where=total > 0)
    return result
