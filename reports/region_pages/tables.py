"""Tables of a region's page: left and right, clinical measures, and the classes against each other."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.regions.tables import RELEVANCE_TABLE
from heatlas.pipeline.run.errors import HeatlasError
from heatlas.reports.analyses.verdicts import classes_compared, difference_in_words
from heatlas.reports.analyses.views import rows_in_words
from heatlas.reports.frame.tables import Column, PageTable, columns_of, numeric, page_table
from heatlas.reports.read.run_files import TABLES
from heatlas.reports.read.run_record import RunRecord

SIDES = ("left", "right")
_READ = ["participant_id", "scan_id", "map", "hemisphere", "group", "n_voxels", "sum"]
_SIDE_COLUMNS = (
    Column("title", "Map"),
    Column("label", "Scans of"),
    numeric("n_participants", "Participants"),
    numeric("density_left", "Density, left"),
    numeric("density_right", "Density, right"),
    numeric("sum_left", "Sum, left"),
    numeric("sum_right", "Sum, right"),
)
_ASSOCIATED = (
    "biomarker", "scan_group", "estimator", "covariates", "map", "r", "ci_low", "ci_high", "p", "p_fwe", "p_fdr",
    "n_participants", "note",
)  # fmt: skip
_EFFECTS = (
    "map",
    "difference",
    "ci_low",
    "ci_high",
    "hedges_g",
    "hedges_g_low",
    "hedges_g_high",
    "n_first",
    "n_second",
    "p",
    "p_fwe",
    "p_fdr",
    "note",
)
_MEASURES = {"share": "Share of the map", "density": "Density"}
MOST_ASSOCIATIONS = 24  # rows of a page


def side_means(relevance: pd.DataFrame, predictions: pd.DataFrame) -> pd.DataFrame:
    """Sum and density of each side of every bilateral group, mean over participants.

    `relevance`: rows of ``relevance.tsv``: one per scan, map and region. `predictions`: with ``scan_id`` and ``label``.
    Returns one row per group, map and label, in this order: ``n_participants``; ``density_left``, ``density_right``,
    ``sum_left`` and ``sum_right`` (mean over participants of the mean over their scans).
    """
    keys = ["group", "map", "label"]
    rows = relevance[relevance["hemisphere"].isin(SIDES)].merge(predictions[["scan_id", "label"]], on="scan_id")
    scans = rows.groupby([*keys, "participant_id", "scan_id", "hemisphere"])[["sum", "n_voxels"]].sum()
    scans["density"] = (scans["sum"] / scans["n_voxels"]).where(scans["n_voxels"] > 0)
    people = scans.groupby(level=[*keys, "participant_id", "hemisphere"])[["density", "sum"]].mean().reset_index()
    means = people.pivot_table(index=keys, columns="hemisphere", values=["density", "sum"], aggfunc="mean")
    means.columns = ["_".join(map(str, names)) for names in means.columns]
    counts = rows.groupby(keys)["participant_id"].nunique().rename("n_participants")
    return means.join(counts).reset_index()


def sides_by_group(run: RunRecord) -> Mapping[str, PageTable]:
    """Table of both sides of each bilateral group that has two, for the leading maps; empty before the regions stage.

    A region without a voxel on one side has no density there.
    """
    try:
        relevance = RELEVANCE_TABLE.read(run.layout, _READ)
    except HeatlasError:
        return {}
    if not run.has("predictions"):
        return {}
    means = side_means(relevance[relevance["map"].isin(run.main_maps)], run.tables["predictions"])
    if not {f"density_{side}" for side in SIDES} <= set(means):
        return {}
    place = {name: rank for rank, name in enumerate([*run.main_maps, *run.labels])}
    means = means.assign(title=means["map"].map(map_title), m=means["map"].map(place), c=means["label"].map(place))
    means = means.sort_values(["m", "c"], kind="stable")
    caption = "Each side of the brain alone; means over participants, each person's scans averaged first."
    return {
        str(group): page_table(rows, _SIDE_COLUMNS, caption)
        for group, rows in means.groupby("group", sort=False)
        if rows[["density_left", "density_right"]].notna().all(axis=1).any()
    }


def associations_by_group(run: RunRecord) -> Mapping[str, PageTable]:
    """Each bilateral group against volumes and clinical measures, clearest first; by share where that was tested."""
    if not run.has("associations"):
        return {}
    table = run.tables["associations"]
    metric = "share" if (table["metric"] == "share").any() else "density"
    rows = table[(table["metric"] == metric) & table["map"].isin(run.main_maps)]
    rows = rows.assign(size=-rows["r"].abs(), map=rows["map"].map(map_title))
    rows = rows_in_words(rows.sort_values(["p_fwe", "size"], kind="stable", na_position="last"), run)
    columns = columns_of(run, "associations", _ASSOCIATED)
    caption = (
        f"{_MEASURES[metric]} against volumes and clinical measures, clearest first. With all scans together, a "
        "correlation may only show that the classes differ; the primary outcome is adjusted for the class. Corrected "
        "over all regions and maps of a question; every row and column is in group/statistics/associations.tsv. "
        f"{TABLES['associations'].tests}"
    )
    return {
        str(group): page_table(own, columns, caption, MOST_ASSOCIATIONS)
        for group, own in rows.groupby("group", sort=False)
    }


def effects_by_group(run: RunRecord) -> Mapping[str, list[PageTable]]:
    """Each bilateral group between the classes, in every map: share of the map, then density; where it was tested."""
    found: dict[str, list[PageTable]] = {}
    for metric, title in _MEASURES.items():
        table = classes_compared(run, metric=metric)
        if len(table):
            columns = columns_of(run, "group_comparisons", _EFFECTS)
            rows = table.assign(map=table["map"].map(map_title))
            caption = f"{title}, {run.positive} (first) against {run.negative}, every map."
            caption += f"{difference_in_words(table)} {TABLES['group_comparisons'].tests}"
            for group, own in rows.groupby("group", sort=False):
                found.setdefault(str(group), []).append(page_table(own, columns, caption))
    return found
