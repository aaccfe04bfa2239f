"""Every bilateral group and map in one table that can be sorted and searched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from pipeline.run.layout.map_names import map_title
from reports.explorer.of_run import region_explorer
from reports.page.material import Material
from reports.page.tables import Column, numeric, page_table
from reports.read.run_record import RunRecord
from reports.words.numbers import fixed, number, p_cell

_QUANTITIES = (("mean_density", "Density"), ("mean_sum", "Sum"), ("mean_gain", "Gain"))


def region_rows(run: RunRecord) -> pd.DataFrame:
    """One row per map and bilateral group: means of both classes, gain in true positives, corrected p."""
    summary = run.tables["region_summary"]
    keys = ["map", "group"]
    table = summary[keys].drop_duplicates()
    for column, _ in _QUANTITIES:
        for group in (*run.labels, "TP"):
            rows = summary[summary["scan_group"] == group][[*keys, column]]
            table = table.merge(rows.rename(columns={column: f"{column}_{group}"}), on=keys, how="left")
    if run.has("region_effects"):
        table = table.merge(run.tables["region_effects"][[*keys, "hedges_g", "p_fwe"]], on=keys, how="left")
    order = {name: place for place, name in enumerate(run.map_names)}
    table = table.assign(order=table["map"].map(order), title=table["map"].map(map_title))
    return table.sort_values(["order", f"mean_density_{run.positive}"], ascending=[True, False], kind="stable")


def build(material: Material) -> Mapping[str, Any]:
    """The explorer; without an atlas at hand a table, of which the script of the page shows one map at a time."""
    run = material.run
    explorer = region_explorer(material)
    if explorer is not None:
        lead = (
            "Means over participants (each person's scans averaged first); gain is that of each scan against "
            f"{run.negative} of the same test fold. All maps and groups of scans are here, and each side apart."
        )
        return {"lead": lead, "components": [explorer], "table": None, "maps": ()}
    table = region_rows(run)
    shown = [("mean_density", label) for label in run.labels] + [("mean_sum", label) for label in run.labels]
    shown.append(("mean_gain", "TP"))
    titles = dict(_QUANTITIES)
    columns = [
        Column("group", "Region"),
        Column("title", "Map"),
        *(numeric(f"{column}_{group}", f"{titles[column]}, {group}", number) for column, group in shown),
        numeric("hedges_g", "Hedges' g", fixed, f"difference in density, {run.positive} - {run.negative}"),
        numeric("p_fwe", "Corrected p (family-wise)", p_cell, "family-wise, over all maps and regions"),
    ]
    lead = (
        f"Means over participants (each person's scans averaged first); gain is that of true positives against "
        f"{run.negative} of the same test fold. Choose a map, search for a region, click a heading to sort. More "
        "columns are in group/statistics/region_summary.tsv, values per scan and hemisphere in group/relevance.tsv."
    )
    maps = [(name, map_title(name)) for name in run.map_names if name in set(table["map"])]
    caption = "Relevance of all bilateral groups."
    shown_table = page_table(table, columns, caption, row_key="map")
    return {"lead": lead, "components": [], "maps": maps, "table": shown_table}
