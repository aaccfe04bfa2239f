"""Whether maps move with a scan that is moved, by how far: a table, and a curve of each map."""

from __future__ import annotations

import pandas as pd

from heatlas.pipeline.evaluation.scores.stability import LOST
from heatlas.reports.analyses.map_verdicts import title_of
from heatlas.reports.content.relevance.evaluation_networks import ROWS
from heatlas.reports.figures.gallery import Picture
from heatlas.reports.figures.grids import draw_shift_curves
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.tables import Column, PageTable, numeric, page_table
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import count, fixed, shortened

LONGEST = 40
"""Letters of a map's name in the figure."""
LEFT_OUT = (
    f"n/a: more than {100 * LOST:g} % of the brain leaves the volume when the scan is moved, so that the maps cannot "
    "be compared. Scans of which this is true are left out."
)


def shifts(run: RunRecord, table: pd.DataFrame) -> tuple[str, tuple[PageTable, ...]]:
    """Correlation of every map with that of the moved scan, a column per shift; the steadiest first."""
    wide = table.pivot_table(index="map", columns="shift", values="correlation", sort=False, dropna=False)
    wide = wide[sorted(wide.columns)]
    rows = pd.DataFrame({"title": [title_of(str(name)) for name in wide.index]})
    columns = [Column("title", "Map")]
    for shift in wide.columns:
        rows[f"at_{shift}"] = wide[shift].to_numpy()
        columns.append(numeric(f"at_{shift}", count(int(shift), "voxel"), fixed))
    known = [f"at_{shift}" for shift in wide.columns if wide[shift].notna().any()]
    if known:
        rows = rows.sort_values(known[-1], ascending=False, kind="stable")
    text = (
        "The scans are moved along the diagonal, forward and back, and the maps of the moved scans are moved back. A "
        "map that moves with its scan correlates by 1 with that of the scan as it is. A map "
        "that stays in its place correlates by less."
    )
    fewest, most = int(table["n_participants"].min()), int(table["n_participants"].max())
    people = ("" if fewest == most else "at most ") + count(most, "participant")
    caption = f"Mean correlation over {people}. Intervals and cosines are in evaluation/shift_curve.tsv. {LEFT_OUT}"
    return text, (page_table(rows, columns, caption, ROWS),)


def draw_shifts(material: Material) -> tuple[Picture, ...]:
    """Curves over shifts; nothing of one shift alone."""
    table = material.run.tables["shift_curve"]
    table = table[table["correlation"].notna()]
    if table["shift"].nunique() < 2:
        return ()
    curves = table.assign(title=[shortened(title_of(str(name)), LONGEST) for name in table["map"]])
    return (
        material.gallery.add(
            draw_shift_curves(curves.sort_values(["map", "shift"], kind="stable")), "shift_curve",
            f"Curves of the correlation of {count(table['map'].nunique(), 'map')} with those of moved scans, by shift.",
            "Correlation of a map with that of the moved scan, by how far it is moved; bars are 95 % intervals over "
            "participants. Dashed: what the map would have if it stayed in its place. Shifts are left out by which "
            f"more than {100 * LOST:g} % of the brain leaves the volume.",
        ),
    )  # fmt: skip
