"""How much of the start value reached the voxels of a map, and where the rest went."""

from __future__ import annotations

import pandas as pd

from heatlas.pipeline.attribution.titles import map_title

LOSSES = ("absorbed_by_bias", "lost_no_contribution", "stabiliser")


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
