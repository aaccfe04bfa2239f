"""Relevance of all scans as arrays, and averaging over the scans of a participant.

Relevance of all maps and bilateral groups as columns of one array, for tests over a family.

Over scans explained by one network, sum, density and gain of a region differ only by a factor, so they have the same
correlations and t. The share of the map is different: it measures where relevance lies, whatever its amount.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.statistics.arrays import Floats

OUTCOMES = ("TP", "FP", "TN", "FN")


@dataclass(frozen=True, eq=False)
class RelevanceValues:
    """Region relevance of all scans.

    Parameters
    ----------
    scans : pandas.DataFrame
        One row per scan: its prediction.
    maps, groups : tuple of str
        Relevance maps and bilateral groups, in the order of the table.
    sums, densities, gains : array, shape (scans, maps, groups)
        NaN where missing.
    evidence : tuple of str
        Maps that are evidence relative to controls, so that their sums are in logits.
    """

    scans: pd.DataFrame
    maps: tuple[str, ...]
    groups: tuple[str, ...]
    sums: Floats
    densities: Floats
    gains: Floats
    evidence: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, relevance: pd.DataFrame, predictions: pd.DataFrame, predicted_in: str = "predictions.tsv"
    ) -> RelevanceValues:
        """Arrays of ``relevance_bilateral.tsv`` (or ``relevance_applied_bilateral.tsv``).

        BadInputError if a scan has no prediction, or a scan, map and group have two rows.
        """
        relevance_in = predicted_in.replace("predictions", "relevance").replace(".tsv", "_bilateral.tsv")
        for table, keys, frame in (
            (relevance_in, ["scan_id", "map", "group"], relevance),
            (predicted_in, ["scan_id"], predictions),
        ):
            repeated = frame["scan_id"][frame.duplicated(keys)]
            if len(repeated):
                raise BadInputError(f"{table}: scan {repeated.iloc[0]} is listed twice. Run its stage again.")
        scan, scan_ids = pd.factorize(relevance["scan_id"])
        map_, maps = pd.factorize(relevance["map"])
        group, groups = pd.factorize(relevance["group"])
        lacking = sorted(set(scan_ids) - set(predictions["scan_id"]))
        if lacking:
            raise BadInputError(f"{predicted_in}: scan {lacking[0]} of {relevance_in} has no row. Run training again.")

        def spread(column: str) -> Floats:
            values = np.full((len(scan_ids), len(maps), len(groups)), np.nan)
            values[scan, map_, group] = relevance[column].to_numpy(float)
            return values

        scans = predictions.set_index("scan_id").loc[list(scan_ids)].reset_index()
        signed = set(relevance.loc[relevance["evidence"].notna(), "map"]) if "evidence" in relevance else set()
        evidence = tuple(name for name in maps if name in signed)
        return cls(scans, tuple(maps), tuple(groups), spread("sum"), spread("density"), spread("gain"), evidence)

    def above(self, more: RelevanceValues) -> RelevanceValues:
        """These scans followed by others, in the maps and groups of these (by name); NaN where the others lack one.

        ``scans`` are the rows of both tables of predictions.
        """
        place = [[names_there.index(name) if name in names_there else -1 for name in names_here]
                 for names_here, names_there in ((self.maps, more.maps), (self.groups, more.groups))]  # fmt: skip
        absent = (np.array(place[0])[:, None] < 0) | (np.array(place[1]) < 0)

        def stacked(names_here: Floats, theirs: Floats) -> Floats:
            chosen = np.where(absent, np.nan, theirs[:, place[0]][:, :, place[1]])
            return np.concatenate([names_here, chosen])

        scans = pd.concat([self.scans, more.scans], ignore_index=True)
        return RelevanceValues(
            scans, self.maps, self.groups, stacked(self.sums, more.sums), stacked(self.densities, more.densities),
            stacked(self.gains, more.gains), self.evidence,
        )  # fmt: skip

    def members(self, scan_group: str, negative: str, positive: str) -> NDArray[np.bool_]:
        """Mask of the scans of a class (by label) or outcome (TP, FP, TN, FN)."""
        if scan_group in OUTCOMES:
            belongs = self.scans["outcome"] == scan_group
        else:
            belongs = self.scans["target"] == {negative: 0, positive: 1}[scan_group]
        return belongs.to_numpy(bool)


def participant_codes(participants: Sequence[str]) -> tuple[NDArray[np.intp], list[str]]:
    """Integer code of each row's participant, and the participants in order of appearance."""
    codes, names = pd.factorize(pd.Series(participants, dtype=object))
    return codes.astype(np.intp), [str(name) for name in names]


def participant_means(values: Floats, codes: NDArray[np.intp]) -> Floats:
    """Mean over each participant's rows, without NaN rows; NaN if there are none.

    `values` (rows, ...); `codes` (rows,): participant 0..P-1 of each row.

    Gives an array (P, ...).

    Examples
    --------
    >>> participant_means(np.array([1.0, 3.0, 10.0]), np.array([0, 0, 1])).tolist()
    [2.0, 10.0]
    """
    n_participants = int(codes.max()) + 1 if len(codes) else 0
    sums = np.zeros((n_participants, *values.shape[1:]))
    counts = np.zeros_like(sums)
    known = ~np.isnan(values)
    np.add.at(sums, codes, np.where(known, values, 0.0))
    np.add.at(counts, codes, known.astype(float))
    means = np.full_like(sums, np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    return means


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
