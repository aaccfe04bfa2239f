"""Does the relevance add up? Shares of the start value that reached the voxels or were lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heatlas.reports.cautions.conserved import LOSSES, shares
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.tables import Column, numeric, page_table
from heatlas.reports.words.numbers import number, percent

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


def build(material: Material) -> Mapping[str, Any]:
    """One row per LRP map."""
    table = shares(material.run.tables["conservation"])
    return {"table": page_table(table, _COLUMNS, "Where the relevance went, per LRP map.")}
