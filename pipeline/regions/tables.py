"""Tables of region relevance (per scan, over all scans, by bilateral group), and the metrics of Böhle et al. (2019)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heatlas.atlases.regions import RegionTable
from heatlas.pipeline.cohort.people.persons import name_of_person
from heatlas.pipeline.regions.region_sums import REST
from heatlas.pipeline.run.config.settings import GainReference
from heatlas.pipeline.run.declared import declared
from heatlas.pipeline.run.errors import BadInputError


def density(sums: NDArray[np.float64], n_voxels: NDArray[np.integer]) -> NDArray[np.float64]:
    """Sum per voxel; NaN where there is no voxel.

    >>> density(np.array([6.0, 0.0]), np.array([4, 0])).tolist()
    [1.5, nan]
    """
    result = np.full(np.shape(sums), np.nan)
    np.divide(sums, n_voxels, out=result, where=np.asarray(n_voxels) > 0)
    return result


def gain(sums: NDArray[np.float64], reference: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum relative to the mean sum of controls; NaN where that mean is not positive or not known.

    A ratio to zero or to negative relevance (which beta > 0 can give) has no meaning as "times as much".

    >>> gain(np.array([3.0, 3.0, 3.0]), np.array([2.0, 0.0, -1.0])).tolist()
    [1.5, nan, nan]
    """
    result = np.full(np.shape(sums), np.nan)
    np.divide(sums, reference, out=result, where=np.asarray(reference) > 0)
    return result


def negative_class_reference(table: pd.DataFrame, over: GainReference) -> pd.Series:
    """Mean sum of the negative class in the test fold of each row: the denominator of gain; NaN without such scans.

    Only scans of one fold were explained by one network, so only they are on one scale. The mean is over participants,
    each by the mean of their scans, so that a control with five scans counts once; or over scans, as in the founding
    study.
    """
    keys = ["fold", "map", "group"]
    controls = table[table["target"] == 0]
    if over == "participants":
        person = controls["participant_id"].map(name_of_person(controls["participant_id"].unique()))
        controls = controls.groupby([*keys, person], sort=False)["sum"].mean().reset_index()
    means = controls.groupby(keys, sort=False)["sum"].mean().rename("reference_sum")
    return table[keys].join(means, on=keys)["reference_sum"]


REST_NAME = "unlabelled rest"


SPREADS = ("evidence_sd", "group_evidence_sd")
"""Further columns of ``relevance.tsv`` where networks are ensembles."""
RELEVANCE_TABLE = declared("relevance", __file__)

RELEVANCE_BILATERAL_TABLE = declared("relevance_bilateral", __file__)

OUTCOMES = ("TP", "FP", "TN", "FN")
ALL = "all"
"""Outcome of every scan where a number is predicted."""
PREDICTION_COLUMNS = ("scan_id", "fold", "target", "probability", "outcome")
"""Columns of the predictions that this room needs."""


class RegionIndex(Protocol):
    """Which regions the sums belong to, in which order, and how many voxels each has."""

    @property
    def numbers(self) -> tuple[int, ...]: ...

    @property
    def n_voxels(self) -> NDArray[np.int64]: ...


def scan_rows(
    identity: Mapping[str, str | None],
    sums: Mapping[str, NDArray[np.float64]],
    index: RegionIndex,
    regions: RegionTable,
    evidence: Collection[str] = (),
    errors: Mapping[str, NDArray[np.float64]] | None = None,
    members: Mapping[str, NDArray[np.float64]] | None = None,
) -> pd.DataFrame:
    """Rows of one scan: every map, the unlabelled rest and every region of the table.

    `sums`: by map name, in the order of ``index.numbers``. `evidence`: names of those maps whose sums are evidence.
    `errors`: standard errors of the sums, of maps that have some. `members`: (M, regions), sums of the members of an
    ensemble.
    """
    names = regions.frame().set_index("number")[["name", "hemisphere", "group"]]
    names.loc[REST] = [REST_NAME, None, None]
    described = names.loc[list(index.numbers)].rename_axis("region").reset_index()
    blocks = [
        described.assign(
            map=name,
            n_voxels=index.n_voxels,
            sum=values,
            density=density(values, index.n_voxels),
            evidence=values if name in evidence else np.nan,
            standard_error=(errors or {}).get(name, np.nan),
            **_spreads((members or {}).get(name), described["group"]),
        )
        for name, values in sums.items()
    ]
    rows = pd.concat(blocks, ignore_index=True).assign(**identity)
    return rows[[name for name in RELEVANCE_TABLE.meanings if name in rows]]


def _spreads(sums: NDArray[np.float64] | None, groups: pd.Series) -> dict[str, NDArray[np.float64]]:
    """Standard deviations over members of the sums (M, regions), of each region and of its bilateral group."""
    if sums is None:
        return {}
    pooled = pd.DataFrame(sums.T, index=groups.index).groupby(groups, sort=False).transform("sum")
    return {"evidence_sd": sums.std(0, ddof=1), "group_evidence_sd": pooled.to_numpy(float).std(1, ddof=1)}


def bilateral_sums(relevance: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Voxels, sums and evidence of regions pooled over hemispheres: one row per value of `keys` and bilateral group."""
    in_region = relevance[relevance["region"] != REST]
    groups = in_region.groupby([*keys, "group"], sort=False, dropna=False)
    pooled = groups[["n_voxels", "sum"]].sum().join(groups["evidence"].sum(min_count=1))
    if "group_evidence_sd" in relevance:
        pooled["evidence_sd"] = groups["group_evidence_sd"].first()
    return pooled.reset_index()


def bilateral_rows(relevance: pd.DataFrame, predictions: pd.DataFrame, gain_reference: GainReference) -> pd.DataFrame:
    """Regions pooled over hemispheres, with gain, and `PREDICTION_COLUMNS` last, for the rankings."""
    table = bilateral_sums(relevance, ["participant_id", "session_id", "scan_id", "map"])
    table = table.merge(predictions[list(PREDICTION_COLUMNS)], on="scan_id", how="left")
    reference = negative_class_reference(table, gain_reference)
    sums = table["sum"].to_numpy(float)
    return table.assign(
        density=density(sums, table["n_voxels"].to_numpy()),
        reference_sum=reference,
        gain=gain(sums, reference.where(table["evidence"].isna()).to_numpy(float)),
    )


def with_outcomes(predictions: pd.DataFrame) -> pd.DataFrame:
    """Predictions with an outcome each, and a target of 0 (negative), 1 (the class explained) or -1 (another class).

    Predictions of a number have none: all scans form one group, and no scan is negative, so that there is no gain.
    """
    if "prediction" in predictions:
        return predictions.assign(outcome=ALL, probability=float("nan"), target=1)
    if any(str(name).startswith("probability_") for name in predictions):
        target = (predictions["target"] == 0).map({True: 0, False: -1})
        return predictions.assign(target=target.mask(predictions["outcome"].isin(["TP", "FN"]), 1))
    return predictions


def predictions_of(scan_ids: Sequence[str], predictions: pd.DataFrame) -> pd.DataFrame:
    predictions = with_outcomes(predictions)
    missing = [name for name in PREDICTION_COLUMNS if name not in predictions.columns]
    if missing:
        raise BadInputError(f"predictions.tsv: column {', '.join(missing)} is missing. Run training again.")
    rows = predictions[predictions["scan_id"].isin(list(scan_ids))].reset_index(drop=True)
    lonely = sorted(set(scan_ids) - set(rows["scan_id"]))
    if lonely:
        raise BadInputError(f"predictions.tsv: scan {lonely[0]} has no row. Run training again.")
    twice = rows["scan_id"][rows["scan_id"].duplicated()]
    if len(twice):
        raise BadInputError(f"predictions.tsv: scan {twice.iloc[0]} has two rows. Run training again.")
    unknown = sorted(set(rows["outcome"]) - {*OUTCOMES, ALL})
    if unknown:
        raise BadInputError(f"predictions.tsv: outcome {unknown[0]!r}; known are {', '.join(OUTCOMES)}.")
    return rows
