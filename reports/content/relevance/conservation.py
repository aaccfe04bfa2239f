"""Does the relevance add up? Shares of the start value that reached the voxels or were lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from heatlas.pipeline.run.layout.map_names import map_title
from heatlas.reports.page.material import Material
from heatlas.reports.page.tables import Column, numeric, page_table
from heatlas.reports.words.numbers import number, percent

LOSSES = ("absorbed_by_bias", "lost_no_contribution", "stabiliser")

_COLUMNS = (
    Column("title", "Map"),
    numeric("scans", "Scans"),
    numeric("negative_start", "Start value below 0", hint="scans whose explained output is negative"),
    numeric("in_map", "In the map", percent, "median share of the start value"),
    *(
        numeric(name, title, percent, "median share of the start value, in absolute value")
        for name, title in zip(LOSSES, ("Absorbed by biases", "Lost, no contribution", "Stabiliser"), strict=True)
    ),
    numeric("residual", "Largest residual", number, "relative to the start value: rounding error"),
)


def shares(conservation: pd.DataFrame) -> pd.DataFrame:
    """Medians over scans of the shares of the start value, for each map."""
    start = conservation["start_value"]
    relative = conservation[["map_sum", *LOSSES, "residual"]].div(start, axis=0).where(start != 0)
    relative = relative.assign(map=conservation["map"], negative=start < 0)
    rows = []
    for name, frame in relative.groupby("map", sort=False):
        rows.append({
            "map": name, "title": map_title(str(name)), "scans": len(frame),
            "negative_start": int(frame["negative"].sum()), "in_map": frame["map_sum"].median(),
            **{loss: frame[loss].abs().median() for loss in LOSSES}, "residual": frame["residual"].abs().max(),
        })  # fmt: skip
    return pd.DataFrame(rows)


def build(material: Material) -> Mapping[str, Any]:
    """One row per LRP map."""
    table = shares(material.run.tables["conservation"])
    return {"table": page_table(table, _COLUMNS, "Where the relevance went, per LRP map.")}
