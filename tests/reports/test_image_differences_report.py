"""The sections on what differs in images: which regions are named for what, and clusters voxel by voxel."""

from __future__ import annotations

import numpy as np
import pytest
from run_factory import PLANTED, RunPlan, make_run

from heatlas.atlases.spaces import template_grid, write_template_image
from heatlas.pipeline.statistics.images.voxelwise import VOXELWISE_TABLES
from heatlas.reports.content.relevance import differences
from heatlas.reports.content.relevance.differences import draw_differences, named
from heatlas.reports.frame.material import Material


@pytest.fixture(scope="module")
def layout(tmp_path_factory):
    """AD is darker in the hippocampus and the putamen; evidence differs in the planted regions."""
    plan = RunPlan(people=12, betas=(0.0,), guided=False, evidence=True)
    layout = make_run(tmp_path_factory.mktemp("run") / "run", plan)
    test = dict(source="expectedGradients", n_voxels=900, voxel_mm=4.0, fwhm_mm=8.0, t=-5.5, critical_t=4.4, p_fwe=0.01)
    test |= dict(p_fwe_tfce=0.01, n_higher=0, n_lower=27, covariates="fold, age", n_positive=12, n_negative=12)
    test |= dict(n_permutations=99, note=None)
    nothing = {"source": "intensity", "p_fwe_tfce": 0.4, "n_lower": 0, "t": 2.0}
    cluster = dict(source="expectedGradients", cluster="1", x_mm=-26.0, y_mm=-20.0, z_mm=-16.0, t=-5.5, p_fwe=0.01)
    cluster |= dict(p_fwe_tfce=0.01, volume_mm3=1728.0, group="Hippocampus", regions="Hippocampus 60 %")
    for table, rows in zip(VOXELWISE_TABLES, ([test | nothing, test], [cluster]), strict=True):
        table.write(layout, rows)
    grid = template_grid(4.0)
    values = np.zeros(grid.shape)
    values[16:19, 25:28, 13:16] = -5.5
    path = layout.voxel_map("expectedGradients", "tThresholded")
    path.parent.mkdir()
    write_template_image(path, values, grid)
    return layout


def test_each_region_is_named_for_what_was_found(layout):
    material = Material.of(layout)
    content = differences.build_regions(material)
    (block,) = content["blocks"]
    assert "1 region differs and is used: hippocampus." in block["said"]
    assert "1 region differs without being used clearly: putamen." in block["said"]
    assert "4 regions are used without differing clearly: " in block["said"]
    assert "entorhinal area" in block["said"]
    assert "Over 67 regions" in block["said"] or "Over 68 regions" in block["said"]
    assert block["figure"] is not None
    verdict = differences.verdict_on_regions(material.run)
    assert verdict.answer.startswith("1 region differs and is used: hippocampus.")
    rows = differences.rows_of_leader(material.run)
    first = [str(rows["group"].iloc[place]) for place in named(rows)]
    assert {PLANTED[0], "Putamen"} <= set(first)
    texts = [text.get_text() for text in draw_differences(rows, "images", "map").axes[0].texts]
    assert {PLANTED[0], "Putamen", "Entorhinal area"} <= set(texts)


def test_voxels_are_counted_placed_and_drawn(layout):
    material = Material.of(layout)
    content = differences.build_voxels(material)
    first, second = content["blocks"]
    assert "Intensity of the images: no voxel with a corrected p below 0.05 (smallest p\xa0=\xa00.40)." in first["said"]
    assert first["figure"] is None
    assert second["said"] == (
        "The map of Expected gradients: 27 of 900 voxels (27 lower and 0 higher in AD), first at hippocampus."
    )
    assert second["figure"] is not None
    assert content["folder"] == "group/voxelwise"
    assert not material.faults.said
    assert "27 of 900 voxels" in differences.verdict_on_voxels(material.run).answer


def test_a_damaged_map_is_a_fault_and_no_crash(layout):
    path = layout.voxel_map("expectedGradients", "tThresholded")
    whole = path.read_bytes()
    path.write_bytes(b"no image")
    try:
        material = Material.of(layout)
        assert differences.build_voxels(material)["blocks"][1]["figure"] is None
        assert "stat-tThresholded" in next(iter(material.faults.said))
    finally:
        path.write_bytes(whole)  # the other tests share it
