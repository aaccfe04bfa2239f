"""Volumes of a registered scan as the run writes them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from heatlas.atlases.images import write_template_image
from heatlas.atlases.labels import load_atlas
from heatlas.atlases.spaces import template_grid
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.registration.volumes.region_volumes import VOLUMES_TABLE, measure_volumes
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table, write_json
from heatlas.pipeline.run.work.digests import DigestCache

ATLAS = "neuromorphometrics-cat12"
GRID = template_grid(4.0)
VENTRICLES = (49, 50, 51, 52)
FLUID_VOXELS = 5
"""Of the left hippocampus."""


def measure(layout: RunLayout, scans: list[Scan]) -> tuple[bool, list[str]]:
    with ThreadPoolExecutor(1) as executor:
        written, outcomes = measure_volumes(layout, scans, ATLAS, 4.0, executor, DigestCache(layout.digests))
    return written, [outcome.status for outcome in outcomes]


def registered(layout: RunLayout, scan: Scan, change: float, key: str = "a", bends: bool = True) -> None:
    """As if the whole head had been registered with one volume change."""
    files = layout.scan(scan.participant_id, scan.session_id, 4.0)
    files.log_jacobian.parent.mkdir(parents=True, exist_ok=True)
    field = np.full(GRID.shape, change, np.float32)
    field[0, 0, 0] += 0.1 * bends  # outside the brain
    write_template_image(files.log_jacobian, field, GRID)
    labels = np.asarray(load_atlas(ATLAS, GRID).labels)
    t1w = np.where(labels == 0, 90, np.where(np.isin(labels, VENTRICLES), 20, 60)).astype(np.float32)
    t1w[np.unravel_index(np.flatnonzero(labels == 48)[:FLUID_VOXELS], GRID.shape)] = 20
    write_template_image(files.t1w, t1w, GRID)
    write_json(layout.receipt("registration", files.name), {"key": key, "outputs": {}, "result": {}})


def test_after_an_affine_registration_regions_have_no_volume_but_hippocampi_have_tissue(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    scans = [Scan("sub-01", f"ses-M0{month}", f"I{month}", "x.nii.gz") for month in ("00", "12")]
    for scan in scans:
        registered(layout, scan, float(np.log(0.8)), bends=False)
    assert measure(layout, scans) == (True, ["done", "done"])
    table = read_table(layout.group / "volumes.tsv", list(VOLUMES_TABLE.meanings))
    assert table["volume_mm3"].isna().all()
    right = table[table["region"] == 47]
    np.testing.assert_allclose(right["tissue_mm3"], 0.8 * right["template_mm3"], rtol=1e-5)
    assert read_table(layout.group / "test_retest.tsv").empty


def test_volumes_of_two_visits(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    scans = [Scan("sub-01", f"ses-M0{month}", f"I{month}", "x.nii.gz") for month in ("00", "12")]
    registered(layout, scans[0], float(np.log(0.8)))
    registered(layout, scans[1], float(np.log(0.72)))
    assert measure(layout, scans) == (True, ["done", "done"])
    table = read_table(layout.group / "volumes.tsv", list(VOLUMES_TABLE.meanings))
    labels = np.asarray(load_atlas(ATLAS, GRID).labels)
    assert len(table) == 2 * 134
    for number, name, side in ((48, "Left hippocampus", "left"), (47, "Right hippocampus", "right")):
        own = table[(table["region"] == number) & (table["scan_id"] == "I00")].iloc[0]
        assert (own["name"], own["hemisphere"], own["group"]) == (name, side, "Hippocampus")
        assert own["template_mm3"] == (labels == number).sum() * 64
        assert own["volume_mm3"] == pytest.approx(0.8 * own["template_mm3"], rel=1e-5)
        dark = FLUID_VOXELS * 64 if side == "left" else 0
        assert own["tissue_mm3"] == pytest.approx(0.8 * (own["template_mm3"] - dark), rel=1e-5)
    assert set(table.loc[table["tissue_mm3"].notna(), "region"]) == {47, 48}
    for scan in scans:
        path = layout.scan(scan.participant_id, scan.session_id, 4.0).volumes
        described = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        assert list(described) == list(read_table(path).columns)
        assert "Jacobian" in described["volume_mm3"]["Description"]
    retest = read_table(layout.group / "test_retest.tsv")
    assert retest["mean_difference_percent"][0] == pytest.approx(200 * 0.08 / 1.52, rel=1e-4)
    assert measure(layout, scans) == (False, ["unchanged", "unchanged"])
    registered(layout, scans[1], float(np.log(0.8)), "b")
    assert measure(layout, scans) == (True, ["unchanged", "done"])
    assert read_table(layout.group / "test_retest.tsv")["mean_difference_percent"][0] == pytest.approx(0, abs=1e-4)


def test_a_scan_without_a_volume_change_fails_alone(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    scans = [Scan("sub-01", None, "I1", "x.nii.gz"), Scan("sub-02", None, "I2", "y.nii.gz")]
    registered(layout, scans[1], 0.0)
    assert measure(layout, scans) == (True, ["failed", "done"])
    assert set(read_table(layout.group / "volumes.tsv")["scan_id"]) == {"I2"}
    assert read_table(layout.failures)["stage"].tolist() == ["volumes"]
