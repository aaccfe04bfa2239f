"""Relevance of all scans as arrays, and averaging over the scans of a participant."""

from __future__ import annotations

from collections.abc import Sequence
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
