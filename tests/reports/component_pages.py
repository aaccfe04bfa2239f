"""A page that holds the viewer and the explorer of a made-up run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
from run_factory import RESOLUTION, RunPlan, make_run

from heatlas.atlases.regions import neuromorphometrics
from heatlas.atlases.spaces import template_grid
from heatlas.pipeline.regions.tables import RELEVANCE_TABLE
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.pages import Frame, render
from heatlas.reports.viewer.component import group_viewer, shared_data
from heatlas.reports.viewer.explorer import region_explorer

HOSTILE_CLASS = '=C"N</script><b>'


@dataclass(frozen=True)
class MadePage:
    layout: RunLayout
    page: Path
    lopsided: Path


def make_component_page(folder: Path) -> MadePage:
    """A finished run whose AD map of LRP with beta 0 lies in the left half of the brain alone."""
    layout = make_run(folder / "run", RunPlan(people=4, contrast=("AD", HOSTILE_CLASS)))
    write_single_regions(layout)
    lopsided = layout.group_map("AD", "lrpB000")
    write_lopsided(lopsided)
    material = Material.of(layout)
    parts = [part for part in (shared_data(material), group_viewer(material), region_explorer(material)) if part]
    frame = Frame("Components", [], parts, "report.html")
    page = layout.root / "components.html"
    html = render("scan_viewer.html.j2", frame, name="Components", participant="none", person="none.html", cautions=())
    page.write_text(html, encoding="utf-8")
    return MadePage(layout, page, lopsided)


def write_lopsided(path: Path) -> None:
    """Values of many sizes and both signs where x < 0, nothing elsewhere."""
    grid = template_grid(RESOLUTION)
    rng = np.random.default_rng(5)
    values = rng.normal(size=grid.shape) * 10 ** rng.uniform(-4, 0, grid.shape)
    x = grid.affine[0, 3] + grid.affine[0, 0] * np.arange(grid.shape[0])
    values[x >= 0] = 0
    nib.save(nib.Nifti1Image(values.astype(np.float32), grid.affine), path)


def write_single_regions(layout: RunLayout) -> None:
    """``relevance.tsv`` of a run of the factory: random sums of three regions and the rest, one region empty."""
    rng = np.random.default_rng(11)
    scans = read_table(layout.group / "relevance_bilateral.tsv")[
        ["participant_id", "session_id", "scan_id", "map"]
    ].drop_duplicates()
    regions = neuromorphometrics()
    chosen = [(n, regions.by_number(n)) for n in regions.numbers if regions.by_number(n).group == "Hippocampus"]
    chosen.append((4, regions.by_number(4)))
    rows = []
    for scan in scans.to_dict("records"):
        rows.append({**scan, "region": 0, "name": "unlabelled rest", "n_voxels": 500, "sum": rng.normal()})
        for number, region in chosen:
            voxels = 0 if number == 4 else 10
            rows.append({
                **scan, "region": number, "name": region.name, "hemisphere": region.hemisphere, "group": region.group,
                "n_voxels": voxels, "sum": rng.normal() if voxels else 0.0,
            })  # fmt: skip
    frame = pd.DataFrame(rows)
    frame["density"] = (frame["sum"] / frame["n_voxels"]).where(frame["n_voxels"] > 0)
    frame[["evidence", "standard_error"]] = np.nan
    RELEVANCE_TABLE.write(layout, frame)
