"""Who was analysed and what their maps are like: demographics by class, and relevance by region and group of scans.

Relevance is averaged over participants (scans averaged first). The table of the region explorer has a row per region or
bilateral group, method and group of scans: rows of bilateral groups repeat the tables of the statistics; rows of single
regions are means of ``group/relevance.tsv``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from heatlas.atlases.regions import RegionTable
from heatlas.pipeline.cohort.people.tasks import TWO_CLASSES, task_of
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.regions.effect_size import hedges_g
from heatlas.pipeline.regions.region_sums import REST
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.declared import declared
from heatlas.pipeline.run.layout.scan_files import LRP, beta_of
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Flags, Floats
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.data.members import interval_of_g
from heatlas.pipeline.statistics.data.values import (
    OUTCOMES,
    RelevanceValues,
    joined,
    map_totals,
    participant_codes,
    participant_means,
    with_shares,
)
from heatlas.pipeline.statistics.groups.gains import write_places
from heatlas.pipeline.statistics.resampling.bootstrap import MIN_PARTICIPANTS
from heatlas.pipeline.statistics.resampling.means import mean_intervals

TOTAL = "all"

DEMOGRAPHICS_TABLE = declared("demographics", __file__)
DEMOGRAPHIC_TESTS_TABLE = declared("demographic_tests", __file__)
_NOTHING = {**dict.fromkeys(("statistic", "p", "hedges_g", "hedges_g_low", "hedges_g_high"), np.nan), "note": None}
_VARIABLES = ("scans", "age", "female", "mmse", "tiv_mm3", "hippocampus_mm3")


def demographics(scans: Sequence[Scan], cohort: CohortConfig) -> pd.DataFrame:
    """One row per class and variable, including classes without scans."""
    frame = pd.DataFrame([_facts(scan) for scan in scans], columns=["participant_id", "label", *_VARIABLES])
    rows = []
    classes = () if cohort.target else tuple(reversed(cohort.labels))  # positive first
    for label in (TOTAL, *classes):
        rows_of_class = frame if label == TOTAL else frame[frame["label"] == label]
        people = rows_of_class.groupby("participant_id")
        values = people[list(_VARIABLES[1:])].mean().assign(scans=people.size().astype(float))
        for variable in _VARIABLES:
            there = values[variable].dropna()
            summary = (there.mean(), there.std(ddof=1), there.min(), there.max())
            rows.append([label, variable, len(values), len(rows_of_class), len(there), *summary])
    return DEMOGRAPHICS_TABLE.frame(rows)


def demographics_tables(inputs: StatisticsInputs) -> Mapping[str, pd.DataFrame]:
    cohort = inputs.config.cohort
    tables = {"demographics": demographics(inputs.scans, cohort)}
    if task_of(cohort).kind.name == TWO_CLASSES:
        tables["demographic_tests"] = demographic_tests(inputs.scans, cohort, inputs.config.statistics.confidence)
    return tables


def demographic_tests(scans: Sequence[Scan], cohort: CohortConfig, confidence: float = 0.95) -> pd.DataFrame:
    """Tests of differences between the classes, one row per variable, with participants as units.

    Participants with scans of both classes are left out and counted in the note.
    """
    frame = pd.DataFrame([_facts(scan) for scan in scans], columns=["participant_id", "label", *_VARIABLES])
    classes = frame.groupby("participant_id")["label"].nunique()
    both = set(classes.index[classes > 1])
    frame = frame[~frame["participant_id"].isin(both)]
    people = frame.groupby("participant_id")
    values = people[list(_VARIABLES[1:])].mean()
    values = values.assign(scans=people.size().astype(float), label=people["label"].first())
    left_out = f"{counted(len(both), 'participant')} with scans of both classes left out" if both else None
    rows = []
    for variable in _VARIABLES:
        a, b = (values.loc[values["label"] == name, variable].dropna() for name in (cohort.positive, cohort.negative))
        test = _fisher(a, b) if variable == "female" else welch(a, b, confidence)
        counts = {"n_positive": len(a), "n_negative": len(b)}
        rows.append({"variable": variable, **test, **counts, "note": joined(test["note"], left_out)})
    return DEMOGRAPHIC_TESTS_TABLE.frame(rows)


def welch(a: pd.Series, b: pd.Series, confidence: float = 0.95) -> dict[str, Any]:
    """Welch's t of two groups of participants, and Hedges' g with its interval, or a note why not."""
    answer: dict[str, Any] = _NOTHING | {"test": "Welch's t"}
    alike = [np.ptp(side) <= 1e-12 * np.abs(side).max() for side in (a.to_numpy(float), b.to_numpy(float)) if len(side)]
    if min(len(a), len(b)) < 2 or all(alike):
        return answer | {"note": "fewer than two values in a class, or all values are equal"}
    result = stats.ttest_ind(a, b, equal_var=False)
    if not np.isfinite(result.statistic):
        return answer | {"note": "values are too close together, or too large, for a variance"}
    values = np.concatenate([a, b]).astype(float)[:, None]
    g = hedges_g(values, np.arange(len(values)) < len(a))
    critical = stats.t.isf((1 - confidence) / 2, result.df)
    low, high = interval_of_g(g, np.zeros(len(values), np.intp), np.array([result.statistic]), critical)
    answer |= {"statistic": float(result.statistic), "p": float(result.pvalue)}
    return answer | {"hedges_g": float(g[0]), "hedges_g_low": float(low[0]), "hedges_g_high": float(high[0])}


def _fisher(a: pd.Series, b: pd.Series) -> dict[str, Any]:
    answer: dict[str, Any] = _NOTHING | {"test": "Fisher's exact"}
    if not len(a) or not len(b):
        return answer | {"note": "no value in a class"}
    table = [[int((x > 0.5).sum()), int((x <= 0.5).sum())] for x in (a, b)]
    if not np.sum(table, axis=0).all():
        return answer | {"note": "all values are equal"}
    odds, p = stats.fisher_exact(table)
    if not np.isfinite(odds):
        return answer | {"p": float(p), "note": "the odds ratio is not finite"}
    return answer | {"statistic": float(odds), "p": float(p)}


def _facts(scan: Scan) -> dict[str, Any]:
    numbers = {name: getattr(scan, name) for name in ("age", "mmse", "tiv_mm3", "hippocampus_mm3")}
    female = None if scan.sex is None else float(scan.sex == "F")
    values = {name: np.nan if value is None else float(value) for name, value in {**numbers, "female": female}.items()}
    return {"participant_id": scan.participant_id, "label": scan.label, "scans": 1.0, **values}


REGION_SUMMARY_TABLE = declared("region_summary", __file__)


def region_summary(values: RelevanceValues, cohort: CohortConfig, confidence: float, seed: int) -> pd.DataFrame:
    """One row per map, bilateral group and group of scans, including groups without scans."""
    negative, positive = cohort.negative, cohort.positive
    controls = _mean(values.sums[values.members(negative, negative, positive)])
    blocks = []
    for scan_group in (positive, negative, *OUTCOMES):
        members = values.members(scan_group, negative, positive)
        rng = generator(seed, "statistics", "region_summary", "places") if scan_group == positive else None
        blocks.append(_block(values, scan_group, members, controls, confidence, rng))
    table = pd.concat(blocks, ignore_index=True)
    order = {name: i for i, name in enumerate(values.maps)}
    return table.sort_values("map", key=lambda names: names.map(order), kind="stable")


def region_summary_tables(inputs: StatisticsInputs) -> pd.DataFrame:
    return region_summary(inputs.values, inputs.config.cohort, inputs.config.statistics.confidence, inputs.seed)


def _block(
    values: RelevanceValues,
    scan_group: str,
    members: Flags,
    controls: Floats,
    confidence: float,
    rng: np.random.Generator | None,
) -> pd.DataFrame:
    """Rows of one group of scans; with bounds of places if there is an `rng`."""
    codes, names = participant_codes(values.scans["participant_id"][members].tolist())
    sums, densities, gains = (
        participant_means(array[members], codes) for array in (values.sums, values.densities, values.gains)
    )
    scan_sums = _mean(values.sums[members])
    shape = (len(values.maps), len(values.groups))
    intervals, interval_notes = mean_intervals(densities.reshape(len(names), shape[0] * shape[1]), confidence)
    mean_density = _mean(densities)
    why_empty = "the group has no voxel on this grid" if names else "no scan in this group"
    spread = densities.std(axis=0, ddof=1) if len(names) > 1 else np.full(shape, np.nan)
    columns = {
        "map": np.repeat(values.maps, shape[1]),
        "group": np.tile(values.groups, shape[0]),
        "mean_sum": _mean(sums).ravel(),
        "mean_density": mean_density.ravel(),
        "sd_density": spread.ravel(),
        "ci_low": intervals.low,
        "ci_high": intervals.high,
        "interval": intervals.method,
        "mean_gain": _mean(gains).ravel(),
        "n_gain": (~np.isnan(gains)).sum(axis=0).ravel(),
        "scan_mean_sum": scan_sums.ravel(),
        "scan_mean_density": _mean(values.densities[members]).ravel(),
        "ratio_of_means": np.divide(scan_sums, controls, out=np.full(shape, np.nan), where=controls > 0).ravel(),
        "note": [
            why_empty if empty else note
            for empty, note in zip(np.isnan(mean_density.ravel()), interval_notes, strict=True)
        ],
    }
    table = pd.DataFrame(columns).astype({"map": str, "group": str})
    table = table.assign(scan_group=scan_group, n_participants=len(names), n_scans=int(members.sum()))
    if rng is not None and len(names) >= MIN_PARTICIPANTS:
        each = densities.reshape(len(names), -1)
        influence = (each - each.mean(axis=0)) / np.sqrt(len(names) * (len(names) - 1))
        write_places(table, "mean_density", influence, np.zeros(len(names), np.intp), confidence, rng)
    return table.reindex(columns=list(REGION_SUMMARY_TABLE.meanings))


def _mean(values: Floats) -> Floats:
    """Mean over the first axis without NaN; NaN if there are no values."""
    present = ~np.isnan(values)
    means = np.full(values.shape[1:], np.nan)
    np.divide(np.where(present, values, 0.0).sum(axis=0), present.sum(axis=0), out=means, where=present.any(axis=0))
    return means


BILATERAL = "bilateral"

EXPLORER_TABLE = declared("region_explorer", __file__)

_EFFECTS = ["hedges_g", "hedges_g_low", "hedges_g_high", "p", "p_fwe", "p_fdr"]
_MEASURES = ["share", "density", "sum"]


def method_and_beta(map_name: str) -> tuple[str, float]:
    """Method of a map, and its beta.

    >>> method_and_beta("lrpB025"), method_and_beta("gb")
    (('lrp', 0.25), ('gb', nan))
    """
    beta = beta_of(map_name)
    return (map_name, float("nan")) if beta is None else (LRP, beta)


def explorer_table(
    summary: pd.DataFrame,
    effects: pd.DataFrame | None,
    bilateral: pd.DataFrame,
    relevance: pd.DataFrame | None,
    predictions: pd.DataFrame,
    regions: RegionTable,
    map_names: Sequence[str],
    labels: Sequence[str],
    evidence: Collection[str] = (),
) -> pd.DataFrame:
    """All rows of `EXPLORER_TABLE`: by map, scan group, bilateral before single regions, then by name.

    `effects`: tests between the classes: ``map``, ``group`` and the columns from ``tested`` on. Without `relevance`
    (``relevance.tsv``) there are only bilateral groups. `map_names` are in display order; `labels` the positive and the
    negative class; `evidence` the evidence maps.
    """
    scan_groups = [*labels, *OUTCOMES]
    members = predictions.set_index("scan_id")[["label", "outcome"]]
    blocks = [_bilateral(summary, effects, with_shares(bilateral).join(members, on="scan_id"), relevance, regions)]
    if relevance is not None:
        totals = bilateral.assign(total=map_totals(bilateral)).drop_duplicates(["scan_id", "map"])
        blocks.append(_single(relevance, totals, members, regions, scan_groups))
    table = pd.concat(blocks, ignore_index=True)
    table = table[table["map"].isin(list(map_names)) & table["scan_group"].isin(scan_groups)]
    methods = table["map"].map(method_and_beta)
    table = table.assign(
        method=methods.str[0],
        beta=methods.str[1].astype(float),
        mean_evidence=table["mean_sum"].where(table["map"].isin(list(evidence))),
    )
    for column in ("region", "n_voxels", "n_participants", "n_scans"):
        table[column] = table[column].astype("Int64")
    rank = {name: place for place, name in enumerate([*map_names, *scan_groups])}
    order = pd.DataFrame({name: table[name].map(rank) for name in ("map", "scan_group")})
    order = order.assign(single=table["hemisphere"] != BILATERAL, name=table["name"], region=table["region"].fillna(-1))
    in_order: pd.DataFrame = table.loc[order.sort_values(order.columns.tolist()).index]
    return in_order[list(EXPLORER_TABLE.meanings)].reset_index(drop=True)


def _bilateral(
    summary: pd.DataFrame, effects: pd.DataFrame | None, bilateral: pd.DataFrame, relevance: pd.DataFrame | None,
    regions: RegionTable,
) -> pd.DataFrame:  # fmt: skip
    kept = ["map", "group", "scan_group", "n_participants", "n_scans", "mean_density", "mean_sum", "mean_gain"]
    table = summary[kept].assign(region=np.nan, hemisphere=BILATERAL, name=summary["group"])
    shares = [
        _person_means(bilateral, scan_group, ["map", "group"], ["share"]).assign(scan_group=scan_group)
        for scan_group in table["scan_group"].unique()
    ]
    table = table.merge(pd.concat(shares, ignore_index=True), on=["map", "group", "scan_group"], how="left")
    lobes = {group: {regions.by_number(n).lobe for n in numbers} for group, numbers in regions.groups.items()}
    table["lobe"] = table["group"].map({group: min(names) for group, names in lobes.items() if len(names) == 1})
    table["n_voxels"] = np.nan
    if relevance is not None:
        n_voxels = relevance.drop_duplicates(["region"]).groupby("group")["n_voxels"].sum()
        table["n_voxels"] = table["group"].map(n_voxels)
    if effects is None:
        return table.assign(tested=None, **dict.fromkeys(_EFFECTS, np.nan))
    return table.merge(effects[["map", "group", "tested", *_EFFECTS]], on=["map", "group"], how="left")


def _person_means(rows: pd.DataFrame, scan_group: str, keys: list[str], measures: list[str]) -> pd.DataFrame:
    """Means over the participants of a group of scans (scans averaged first)."""
    members = rows[(rows["outcome"] if scan_group in OUTCOMES else rows["label"]) == scan_group]
    people = members.groupby([*keys, "participant_id"], sort=False)[measures].mean()
    means = people.groupby(keys, sort=False).mean()
    return means.set_axis([f"mean_{name}" for name in measures], axis=1).reset_index()


def _single(
    relevance: pd.DataFrame, totals: pd.DataFrame, members: pd.DataFrame, regions: RegionTable, groups: Sequence[str]
) -> pd.DataFrame:
    keys = ["map", "region"]
    described = relevance[[*keys, "name", "hemisphere", "group", "n_voxels"]].drop_duplicates(keys)
    lobes = {region.number: region.lobe for region in map(regions.by_number, regions.numbers)}
    sides = described["hemisphere"].where(described["region"] != REST, "both")
    described = described.assign(lobe=described["region"].map(lobes), hemisphere=sides)
    values = relevance[[*keys, "participant_id", "scan_id", "sum", "density"]]
    values = values.merge(totals[["scan_id", "map", "total"]], on=["scan_id", "map"], how="left")
    values["share"] = (values["sum"] / values["total"]).where((values["total"] > 0) & values["density"].notna())
    values = values.join(members, on="scan_id")
    blocks = []
    for scan_group in groups:
        members_rows = values[(values["outcome"] if scan_group in OUTCOMES else values["label"]) == scan_group]
        means = _person_means(values, scan_group, keys, _MEASURES)
        people, scans = members_rows["participant_id"].nunique(), members_rows["scan_id"].nunique()
        rows = described.merge(means, on=keys, how="left")
        blocks.append(rows.assign(scan_group=scan_group, n_participants=people, n_scans=scans))
    missing = dict.fromkeys(["mean_gain", *_EFFECTS], np.nan)
    return pd.concat(blocks, ignore_index=True).assign(tested=None, **missing)
