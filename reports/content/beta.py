"""Figure 6: how far the ranking of regions depends on beta."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from reports.figures.overlap import draw_overlap
from reports.material import Material
from reports.numbers import number


def matrices(overlap: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Square tables of overlap in per cent by metric, beta by beta."""
    frame = overlap.assign(a=overlap["map_a"].map(beta_of), b=overlap["map_b"].map(beta_of))
    result = {}
    for metric, rows in frame.groupby("metric", sort=False):
        if rows["overlap"].notna().any():
            result[str(metric)] = rows.pivot_table(index="a", columns="b", values="overlap")
    return result


def beta_of(map_name: str) -> float:
    """The number in the name of an LRP map.

    Examples
    --------
    >>> beta_of("lrpB025")
    0.25
    """
    return int(map_name.removeprefix("lrpB")) / 100


def build(material: Material) -> Mapping[str, Any]:
    """One matrix per metric that is known."""
    overlap = material.run.tables["beta_overlap"]
    notes = sorted(set(overlap["note"].dropna())) if "note" in overlap else []
    known = matrices(overlap)
    picture = None
    if known:
        top = int(overlap["top"].iloc[0])
        picture = material.gallery.add(
            draw_overlap(known, top),
            "fig-06_beta-overlap",
            f"Matrices of the overlap of the top {top} regions between values of beta, for {', '.join(known)}.",
            f"Figure 6. Overlap of the {number(top)} leading bilateral groups between values of β, in per cent, per "
            "metric. 100 means the same regions; a low number means that the answer depends on the choice of β.",
        )
    return {"figure": picture, "notes": notes}
