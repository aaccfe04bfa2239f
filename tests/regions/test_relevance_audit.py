"""Compartments of a scan and the shares of |relevance| in them."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.ndimage import distance_transform_edt
from toy_run import GRID, SCANS, toy_atlas, toy_brain, toy_maps, write_toy_run

from heatlas.atlases.spaces import read_brain, write_template_image
from heatlas.pipeline.regions.audit import (
    RELEVANCE_AUDIT_TABLE,
    Compartments,
    audit_rows,
    compartments,
    darkest,
    within_reach,
    write_audit_table,
)
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.tables import read_table

SHAPE = (5, 6, 7)
BALL_SHAPE = (31, 33, 35)


@settings(max_examples=60, deadline=None)
@given(arrays(bool, SHAPE), st.sampled_from([1.0, 1.5, 2.0, 3.5, 6.5]))
def test_reach_is_that_of_the_euclidean_distance(mask: np.ndarray, reach: float) -> None:
    expected = distance_transform_edt(~mask) <= reach if mask.any() else np.zeros(SHAPE, bool)
    np.testing.assert_array_equal(within_reach(mask, reach), expected)


def test_a_reach_beyond_the_number_type_is_refused_not_wrapped_round() -> None:
    with pytest.raises(ValueError, match="reach of 12"):
        within_reach(np.zeros(SHAPE, bool), 12.0)


def ball(radius: float) -> np.ndarray:
    centre = (np.array(BALL_SHAPE) - 1) / 2
    offsets = np.indices(BALL_SHAPE) - centre[:, None, None, None]
    inside: np.ndarray = (offsets**2).sum(0) <= radius**2
    return inside


def nothing() -> dict[str, np.ndarray]:
    return {name: np.zeros(BALL_SHAPE, bool) for name in ("CSF", "vessel", "no_region")}


@pytest.mark.parametrize(("voxel_mm", "layers"), [(1.0, 3), (2.0, 2), (3.0, 1)])
def test_rim_of_a_plane_is_the_layers_within_three_millimetres(voxel_mm: float, layers: int) -> None:
    brain = np.zeros((20, 4, 4), bool)
    brain[:10] = True
    tissue = {name: np.zeros(brain.shape, bool) for name in ("CSF", "vessel", "no_region")}
    masks = compartments(brain.astype(np.float32), brain, tissue, voxel_mm).masks
    assert sorted(np.unique(np.nonzero(masks["rim_inside"][1])[0])) == list(range(10 - layers, 10))
    assert sorted(np.unique(np.nonzero(masks["rim"][1])[0])) == list(range(10 - layers, 10 + layers))


def test_edge_of_the_box_is_no_surface_of_the_brain() -> None:
    brain = np.ones(BALL_SHAPE, bool)
    parts = compartments(brain.astype(np.float32), brain, nothing(), 1.0)
    assert not parts.masks["rim"][1].any()
    assert not parts.masks["outside"][1].any()


def test_planted_shares_come_back() -> None:
    brain = ball(12)
    tissue = nothing()
    tissue["CSF"][14:17, 14:17, 14:17] = True
    parts = compartments(np.where(brain, 0.5, 0).astype(np.float32), brain, tissue, 1.0)
    inner = parts.masks["rim_inside"][1]
    values = np.zeros(BALL_SHAPE, np.float32)
    values[tissue["CSF"]] = -1.0
    values[inner] = 0.25
    values[~brain] = 0.125
    rows = {str(row["compartment"]): row for row in audit_rows({"m": torch.from_numpy(values)}, parts)}
    in_brain = 27 + 0.25 * inner.sum()
    assert rows["fluid"]["share"] == pytest.approx(27 / in_brain)
    assert rows["fluid"]["enrichment"] == pytest.approx((27 / in_brain) / (27 / brain.sum()))
    assert rows["rim_inside"]["share"] == pytest.approx(0.25 * inner.sum() / in_brain)
    total = in_brain + 0.125 * (~brain).sum()
    assert rows["outside"]["share"] == pytest.approx(0.125 * (~brain).sum() / total)
    beyond = parts.masks["rim"][1] & ~brain
    around = in_brain + 0.125 * beyond.sum()
    assert rows["rim"]["share"] == pytest.approx((0.25 * inner.sum() + 0.125 * beyond.sum()) / around)
    assert rows["rim"]["voxel_share"] == pytest.approx((inner | beyond).sum() / (brain | beyond).sum())
    assert rows["vessel"]["n_voxels"] == 0
    assert math.isnan(float(rows["vessel"]["enrichment"]))


def test_relevance_spread_evenly_is_no_enrichment_anywhere() -> None:
    rng = np.random.default_rng(0)
    brain = ball(13)
    tissue = nothing()
    tissue["CSF"] = ball(4)
    volume = np.where(brain, rng.random(BALL_SHAPE), 0).astype(np.float32)
    rows = audit_rows({"flat": torch.full(BALL_SHAPE, -2.0)}, compartments(volume, brain, tissue, 1.0))
    for row in rows:
        expected = math.nan if row["compartment"] in ("vessel", "no_region") else 1.0
        np.testing.assert_allclose(float(row["enrichment"]), expected)


@pytest.mark.parametrize("covered", [0.0, 0.5, 1.0])
def test_relevance_in_no_region_is_counted_inside_the_mask_and_whatever_its_sign(tmp_path, covered: float) -> None:
    """An atlas that covers part of the mask: the rest of |relevance| in the mask is in no region."""
    layout = write_toy_run(tmp_path, toy_maps())
    scan = SCANS[1]
    brain = read_brain(layout.scan(scan.participant_id, scan.session_id, 1.0).brain_mask, GRID)
    atlas = toy_atlas()
    labels = np.where(np.indices(GRID.shape)[0] < covered * GRID.shape[0], atlas.regions.numbers[0], 0)
    packed = PackedAtlas.of(dataclasses.replace(atlas, labels=labels.astype(atlas.labels.dtype)))
    values = toy_maps()[scan.name, "gb"].astype(np.float32)
    path = tmp_path / "audit.tsv"
    mask = layout.scan(scan.participant_id, scan.session_id, 1.0).brain_mask
    write_audit_table(path, scan, {"gb": torch.from_numpy(values)}, values, mask, packed, GRID, None)
    row = read_table(path, text_columns=["compartment"]).set_index("compartment").loc["no_region"]
    uncovered = brain & (labels == 0)
    assert row["n_voxels"] == uncovered.sum()
    expected = np.abs(values[uncovered].astype(float)).sum() / np.abs(values[brain].astype(float)).sum()
    assert (0 if np.isnan(row["share"]) else row["share"]) == pytest.approx(expected)


def test_map_without_relevance_has_no_shares() -> None:
    brain = ball(12)
    parts = compartments(brain.astype(np.float32), brain, nothing(), 1.0)
    rows = audit_rows({"zero": torch.zeros(BALL_SHAPE)}, parts)
    assert all(math.isnan(float(row["share"])) for row in rows)


def test_darkest_class_is_the_planted_fluid() -> None:
    rng = np.random.default_rng(1)
    brain = ball(14)
    fluid, white = brain & ball(5), brain & ~ball(10)
    volume = np.where(fluid, 0.15, np.where(white, 0.9, 0.55)) + rng.normal(0, 0.03, BALL_SHAPE)
    np.testing.assert_array_equal(darkest(np.where(brain, volume, 0).astype(np.float32), brain), fluid)


def test_a_binarised_image_has_no_dark_class() -> None:
    assert not darkest(ball(9).astype(np.float32), ball(9)).any()


def test_table_of_a_scan_names_it_and_every_map(tmp_path) -> None:
    layout = write_toy_run(tmp_path, toy_maps())
    scan = SCANS[1]
    table = read_table(
        layout.scan(scan.participant_id, scan.session_id, 1.0).audit_table, list(RELEVANCE_AUDIT_TABLE.meanings)
    )
    assert set(table["scan_id"]) == {scan.scan_id}
    assert list(table["map"].unique()) == ["lrpB000", "lrpB100", "gb"]
    values = np.abs(toy_maps()[scan.name, "gb"].astype(float))
    outside = table[(table["map"] == "gb") & (table["compartment"] == "outside")].iloc[0]
    assert outside["absolute_sum"] == pytest.approx(values[~toy_brain()].sum(), rel=1e-6)
    assert outside["reference_sum"] == pytest.approx(values.sum(), rel=1e-6)


def test_unreadable_brain_mask_is_named(tmp_path) -> None:
    path = tmp_path / "mask.nii.gz"
    path.write_bytes(b"not an image")
    volume = np.zeros(GRID.shape, np.float32)
    maps = {"gb": torch.zeros(GRID.shape)}
    with pytest.raises(BadInputError, match=r"mask\.nii\.gz.*run the registration"):
        write_audit_table(tmp_path / "a.tsv", SCANS[0], maps, volume, path, PackedAtlas.of(toy_atlas()), GRID, None)


def test_no_map_gives_no_rows() -> None:
    assert audit_rows({}, Compartments({}, {})) == []


def test_an_empty_brain_mask_is_refused(tmp_path: Path) -> None:
    write_template_image(tmp_path / "mask.nii.gz", np.zeros(GRID.shape, np.uint8), GRID, "empty")
    with pytest.raises(BadInputError, match=r"mask.nii.gz: the brain mask is empty"):
        read_brain(tmp_path / "mask.nii.gz", GRID)
