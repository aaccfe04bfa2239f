"""The region explorer: the table to sort, filter and save, and the brain coloured by the chosen column."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pipeline.run.columns import Form, column_of
from pipeline.run.tables import MISSING, unguarded
from pipeline.statistics.groups.region_explorer import BILATERAL, EXPLORER_COLUMNS
from reports.figures.slices import Plane
from reports.page.components import Component, embedded_json
from reports.page.pages import render_part, template_text
from reports.viewer.atlas import LIBRARY
from reports.viewer.volumes import packed
from reports.words.numbers import number, p_cell

CORTICAL: tuple[tuple[Plane, float], ...] = (
    ("sagittal", -52.0), ("sagittal", -6.0), ("sagittal", 6.0), ("sagittal", 52.0), ("coronal", -60.0), ("axial", 46.0),
)  # fmt: skip
SUBCORTICAL: tuple[tuple[Plane, float], ...] = (
    ("sagittal", -26.0), ("sagittal", 26.0), ("coronal", -20.0), ("coronal", 8.0), ("axial", -16.0), ("axial", 4.0),
)  # fmt: skip


@dataclass(frozen=True)
class Explored:
    """What an explorer is made of."""

    table: bytes  # the file on disk, `EXPLORER_COLUMNS`
    file: str  # its address relative to the page
    # ``map``, ``method``, ``method_title``, ``beta`` (None for methods without) of each map
    maps: Sequence[Mapping[str, str | float | None]]
    scan_groups: Mapping[str, str]  # titles, with their n; the first is shown first
    links: Mapping[str, str]  # address of a bilateral group's page, relative to the page
    contrast: str  # what the test compares between which classes, as a reader sees it

    @property
    def columns(self) -> list[dict[str, Any]]:
        """Columns on the page; without an evidence map there is none of evidence."""
        table = _read(self.table)
        known = set(table.columns[(table != MISSING).any()])
        return [column for column in COLUMNS if column["key"] != "mean_evidence" or column["key"] in known]


PAINTED = ("mean_evidence", "mean_share", "mean_density", "mean_sum", "mean_gain", "hedges_g", "p_fwe")
"""Columns by which the brain can be coloured."""
COLUMNS = [
    {"key": name, "title": declared.title, "paints": name in PAINTED,
     "kind": "text" if declared.is_text else "p" if declared.form is Form.P else "number"}
    for name in ("name", *PAINTED, "hemisphere", "lobe", "n_voxels", "p", "p_fdr")
    for declared in (column_of(name, ""),)
]  # fmt: skip
"""Columns on the page, left to right: key in the file, heading, and kind for the script."""


def explorer_component(explored: Explored) -> Component:
    """Make the explorer; the page also needs `reports.viewer.atlas.atlas_component`, once.

    Without scripts it is a plain table: bilateral groups by the first map in the first group of scans.
    """
    columns = explored.columns
    data = {
        "table": packed(np.frombuffer(explored.table, np.uint8)),
        "maps": list(explored.maps),
        "links": dict(explored.links),
        "columns": columns,
    }
    html = render_part(
        "components/explorer.html.j2",
        data=embedded_json(data),
        file=explored.file,
        caption=f"Hedges’ g and p compare {explored.contrast}. In the pictures, left is left.",
        columns=columns,
        hints=EXPLORER_COLUMNS,
        rows=_plain_rows(explored, columns),
        links=explored.links,
        methods={str(one["method"]): str(one["method_title"]) for one in explored.maps},
        scan_groups=explored.scan_groups,
        views={"Cortex": CORTICAL, "Deep structures": SUBCORTICAL},
    )
    return Component(html, template_text("components/explorer.css"), (LIBRARY, template_text("components/explorer.js")))


def _read(content: bytes) -> pd.DataFrame:
    """The file on disk as text, cell by cell."""
    table = pd.read_csv(io.BytesIO(content), sep="\t", keep_default_na=False, na_values={}, dtype=str)
    return table.map(unguarded)


def _plain_rows(explored: Explored, columns: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Bilateral group and formatted cells of each row shown without scripts, by the first column with values."""
    table = _read(explored.table)
    first = (table["map"] == explored.maps[0]["map"]) & (table["scan_group"] == next(iter(explored.scan_groups)))
    rows = table[first & (table["hemisphere"] == BILATERAL)]
    by = next((name for name in PAINTED if (rows[name] != MISSING).any()), PAINTED[0])
    order = pd.to_numeric(rows[by], errors="coerce").sort_values(ascending=False, kind="stable").index
    return [
        (str(row["group"]), [_cell(str(row[column["key"]]), str(column["kind"])) for column in columns])
        for _, row in rows.loc[order].iterrows()
    ]


def _cell(text: str, kind: str) -> str:
    if kind == "text" or text == MISSING:
        return text
    return p_cell(float(text)) if kind == "p" else number(float(text))
