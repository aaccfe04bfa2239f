"""The region explorer: a table to sort, filter and save, and the brain coloured by the chosen column."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.regions.tables import RELEVANCE_TABLE
from heatlas.pipeline.run.declared import Form, column_of
from heatlas.pipeline.run.errors import HeatlasError
from heatlas.pipeline.run.tables import MISSING, require_numbers, require_whole, unguarded
from heatlas.pipeline.statistics.groups.summaries import BILATERAL, EXPLORER_TABLE, explorer_table, method_and_beta
from heatlas.reports.figures.gallery import OUTCOME_NAMES
from heatlas.reports.figures.slices import Plane
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.pages import Component, embedded_json, render_part, template_text
from heatlas.reports.questions.question import classes_compared
from heatlas.reports.read.run_record import KEYS, OUTCOMES, RunRecord
from heatlas.reports.viewer.component import LIBRARY, packed, space_of
from heatlas.reports.words.numbers import count, number, p_cell

CORTICAL: tuple[tuple[Plane, float], ...] = (
    ("sagittal", -52.0), ("sagittal", -6.0), ("sagittal", 6.0), ("sagittal", 52.0), ("coronal", -60.0), ("axial", 46.0),
)  # fmt: skip
SUBCORTICAL: tuple[tuple[Plane, float], ...] = (
    ("sagittal", -26.0), ("sagittal", 26.0), ("coronal", -20.0), ("coronal", 8.0), ("axial", -16.0), ("axial", 4.0),
)  # fmt: skip


SCALING = ("mean_density", "mean_sum")
"""Columns that grow with the prediction and compare no regions of two people; they come last."""
PAINTED = ("mean_evidence", "mean_share", "hedges_g", "p_fwe", "mean_gain", *SCALING)
"""Columns by which the brain can be coloured, those to look at first in front."""
COLUMNS = [
    {"key": name, "title": declared.title, "paints": name in PAINTED, "scales": name in SCALING,
     "kind": "text" if declared.is_text else "p" if declared.form is Form.P else "number"}
    for name in (
        "name", *PAINTED[:3], "hedges_g_low", "hedges_g_high", *PAINTED[3:], "hemisphere", "lobe", "n_voxels", "p",
        "p_fdr",
    )
    for declared in (column_of(name, ""),)
]  # fmt: skip
"""Columns on the page, left to right: key in the file, heading, and kind for the script."""


def _read(content: bytes) -> pd.DataFrame:
    """The file on disk as text, cell by cell."""
    table = pd.read_csv(io.BytesIO(content), sep="\t", keep_default_na=False, na_values={}, dtype=str)
    return table.map(unguarded)


def _plain_rows(rows: pd.DataFrame, columns: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Bilateral group and formatted cells of each row shown without scripts, by the first column with values."""
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


def region_explorer(material: Material) -> Component | None:
    """The explorer; writes its table beside the figures. The page also needs `viewer.component.shared_data`, once.

    Without scripts it is a plain table: bilateral groups by the first map in the first group of scans. None where the
    run has no summary of regions yet, or its atlas is not at hand.
    """
    run, space = material.run, space_of(material)
    if space is None or not run.has("region_summary", "predictions", "relevance_bilateral"):
        return None
    summary = run.tables["region_summary"]
    maps = [name for name in run.ordered_maps if name in set(summary["map"])]
    groups = [group for group in (*run.labels, *OUTCOMES) if run.group_sizes.get(group, (0, 0))[0]]
    if not maps or not groups:
        return None
    effects, measure = _effects(run)
    table = explorer_table(
        summary, effects, run.tables["relevance_bilateral"], _relevance(material), run.tables["predictions"],
        space.atlas.regions, maps, run.labels, run.evidence_maps,
    )  # fmt: skip
    path = EXPLORER_TABLE.write(run.layout, table)
    content = path.read_bytes()
    cells, described = _read(content), [_described(name) for name in maps]
    has_evidence = (cells["mean_evidence"] != MISSING).any()
    columns = [column for column in COLUMNS if has_evidence or column["key"] != "mean_evidence"]
    first = (cells["map"] == maps[0]) & (cells["scan_group"] == groups[0]) & (cells["hemisphere"] == BILATERAL)
    links = {group: link for group in summary["group"].unique() if (link := material.links.region(group))}
    data = {"table": packed(np.frombuffer(content, np.uint8)), "maps": described, "links": links, "columns": columns}
    html = render_part(
        "components/explorer.html.j2", data=embedded_json(data), file=path.relative_to(run.layout.root).as_posix(),
        caption=f"Hedges’ g and p compare the {measure} of {run.positive} with that of {run.negative}. In the "
        "pictures, left is left.", columns=columns, hints=EXPLORER_TABLE.meanings,
        rows=_plain_rows(cells[first], columns), links=links,
        methods={str(one["method"]): str(one["method_title"]) for one in described},
        scan_groups={group: _title(run, group) for group in groups},
        views={"Cortex": CORTICAL, "Deep structures": SUBCORTICAL},
    )  # fmt: skip
    return Component(html, template_text("components/explorer.css"), (LIBRARY, template_text("components/explorer.js")))


def _effects(run: RunRecord) -> tuple[pd.DataFrame | None, str]:
    """Tests between the classes, and of which measure: evidence; of other maps share, or density without it."""
    shares, densities = (classes_compared(run, metric=m) for m in ("share", "density"))
    if len(shares):
        shares = shares[~shares["map"].isin(run.evidence_maps)]
        evidence = densities[densities["map"].isin(run.evidence_maps)] if len(densities) else densities
        measure = "evidence or, of maps without it, the share of the map" if len(evidence) else "share of the map"
        return pd.concat([evidence.assign(tested="evidence"), shares.assign(tested="share")]), measure
    if densities.empty:
        return None, "density"
    tested = densities["map"].isin(run.evidence_maps).map({True: "evidence", False: "density"})
    return densities.assign(tested=tested), "density"


def _relevance(material: Material) -> pd.DataFrame | None:
    """Relevance of single regions; None where there is no table to read, and then only bilateral groups are shown."""
    path = RELEVANCE_TABLE.path(material.run.layout)
    if not path.is_file():
        return None
    columns = [*KEYS, "map", "region", "name", "hemisphere", "group", "n_voxels", "sum", "density"]
    try:
        require_whole(path)
        table = RELEVANCE_TABLE.read(path, columns)
        require_numbers(path, table, ["region", "n_voxels", "sum", "density"])
    except HeatlasError as error:
        file = path.relative_to(material.run.layout.root).as_posix()
        material.faults.add(f"Single regions are missing. {str(error).replace(str(path), file)}")
        return None
    return table


def _described(name: str) -> dict[str, str | float | None]:
    method, beta = method_and_beta(name)
    is_lrp = method == "lrp"
    title = "LRP" if is_lrp else map_title(name)
    return {"map": name, "method": method, "method_title": title, "beta": beta if is_lrp else None}


def _title(run: RunRecord, group: str) -> str:
    scans, people = run.group_sizes[group]
    name = OUTCOME_NAMES[group].capitalize() + "s" if group in OUTCOMES else group
    return f"{name}: {count(scans, 'scan')} of {count(people, 'person', 'people')}"
