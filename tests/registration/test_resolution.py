"""Grids: coarsening, cropping, and left and right, where planted flips are named."""

from __future__ import annotations

from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import scipy.ndimage

from heatlas.atlases.spaces import Grid
from heatlas.atlases.templates import load_template
from heatlas.pipeline.registration.ants_transform import Volume, around_brain, closest_ras, coarsen
from heatlas.pipeline.registration.quality.outliers import MIN_COHORT
from heatlas.pipeline.registration.quality.sides import (
    Halves,
    asymmetry,
    compare_sides,
    halves_of,
    side_scores,
    sides_of,
    without_warp,
    write_asymmetry,
)

AFFINE = np.array([[0, 0, 1.2, -30], [-1.0, 0, 0, 40], [0, 0.8, 0, -25], [0, 0, 0, 1.0]])  # PSR, 1 x .8 x 1.2 mm
SHAPE = (41, 53, 37)


def world(volume: Volume) -> np.ndarray:
    indices = np.stack(np.meshgrid(*[np.arange(n) for n in volume.data.shape], indexing="ij"), -1)
    return np.asarray(indices @ volume.affine[:3, :3].T + volume.affine[:3, 3])


def ramp() -> Volume:
    """Intensity = a linear function of world position, which neither smoothing nor resampling may move."""
    empty = Volume(np.zeros(SHAPE, np.float32), AFFINE)
    return Volume((world(empty) @ [1.0, 2.0, -3.0] + 500).astype(np.float32), AFFINE)


@pytest.mark.parametrize("voxel_mm", [1.5, 2.0, 2.7])
def test_positions_in_the_world_are_kept(voxel_mm: float) -> None:
    coarse = coarsen(ramp(), voxel_mm)
    np.testing.assert_allclose(coarse.voxel_sizes, voxel_mm)
    expected = world(coarse) @ [1.0, 2.0, -3.0] + 500
    inner = (slice(3, -3),) * 3
    np.testing.assert_allclose(coarse.data[inner], expected[inner], rtol=1e-4)


def test_only_finer_axes_change() -> None:
    coarse = coarsen(ramp(), 1.1)
    np.testing.assert_allclose(coarse.voxel_sizes, [1.1, 1.1, 1.2])
    assert coarse.data.shape[2] == SHAPE[2]
    volume = ramp()
    assert coarsen(volume, 0.8) is volume


def test_fine_detail_does_not_alias() -> None:
    """A checkerboard of single voxels has no detail at 3 mm; taking every third voxel would keep all of it."""
    board = np.indices((60, 60, 60)).sum(0) % 2
    coarse = coarsen(Volume(board.astype(np.float32), np.eye(4)), 3.0)
    assert coarse.data[2:-2, 2:-2, 2:-2].std() < 0.02 * board.std()
    assert coarse.data[2:-2, 2:-2, 2:-2].mean() == pytest.approx(0.5, abs=0.01)


def test_axes_are_put_in_order_and_values_stay_in_place() -> None:
    volume = ramp()
    ordered = closest_ras(volume)
    assert ordered.data.shape == (SHAPE[2], SHAPE[0], SHAPE[1])
    assert nib.aff2axcodes(ordered.affine) == ("R", "A", "S")
    np.testing.assert_allclose(ordered.data, world(ordered) @ [1.0, 2.0, -3.0] + 500, rtol=1e-5)


@pytest.mark.parametrize("margin", [0.0, 5.0, 30.0])
def test_box_around_the_brain_keeps_values_in_place(margin: float) -> None:
    """Cut where the image is larger, filled with 0 where it is smaller."""
    volume = ramp()
    mask = np.zeros(SHAPE, bool)
    mask[3:20, 10:50, 30:33] = True
    box = around_brain(volume, mask, margin)
    steps = np.ceil(margin / volume.voxel_sizes).astype(int)
    assert box.data.shape == tuple(np.array([17, 40, 3]) + 2 * steps)
    expected = world(box) @ [1.0, 2.0, -3.0] + 500
    filled = box.data != 0
    np.testing.assert_allclose(box.data[filled], expected[filled], rtol=1e-5)
    corner = np.array([3, 10, 30]) - steps
    start, stop = np.maximum(corner, 0), np.minimum(corner + box.data.shape, SHAPE)
    assert filled.sum() == np.prod(stop - start)


def test_box_of_a_mask_stays_a_mask() -> None:
    mask = np.zeros(SHAPE, bool)
    mask[5, 6, 7] = True
    box = around_brain(Volume(mask, AFFINE), mask, 2.0)
    assert box.data.dtype == bool
    assert box.data.sum() == 1


TEMPLATE = load_template(4.0)
HALVES = halves_of(np.asarray(TEMPLATE.brain_mask), TEMPLATE.grid.affine)
MASK = np.asarray(TEMPLATE.brain_mask)


def noise(rng: np.random.Generator) -> np.ndarray:
    values = scipy.ndimage.gaussian_filter(rng.normal(size=MASK.shape), 1.0)
    return np.asarray(values / values.std())


def head(seed: int, common: float = 1.0, tilt: float = 0.0, shift_mm: float = 0.0) -> np.ndarray:
    """A brain of random tissue on both sides, random asymmetry, and an asymmetry that all have, larger on one side."""
    rng = np.random.default_rng(seed)
    even, own = noise(rng), noise(rng)
    shared = noise(np.random.default_rng(1000))
    values = 100 + 10 * (
        (even + even[::-1]) + own + common * (shared * np.linspace(0.3, 1.7, MASK.shape[0])[:, None, None])
    )
    values = np.where(MASK & MASK[::-1], values, 0)
    if not (tilt or shift_mm):
        return np.asarray(values)
    turn = np.eye(3)
    turn[0, 1], turn[1, 0] = tilt, -tilt
    centre = (np.array(MASK.shape) - 1) / 2
    return np.asarray(
        scipy.ndimage.affine_transform(values, turn, centre - turn @ centre - [shift_mm / 4, 0, 0], order=1)
    )


def rows(n: int, flipped: tuple[int, ...] = (), common: float = 1.0) -> list[np.ndarray]:
    return [asymmetry(head(i, common)[::-1] if i in flipped else head(i, common), HALVES) for i in range(n)]


def test_halves_are_the_right_side_of_the_brain_and_of_its_mirror_image() -> None:
    assert (HALVES.points[:, 0] > 0).all()
    voxels = np.rint((HALVES.points - HALVES.affine[:3, 3]) / 4).astype(int)
    assert MASK[tuple(voxels.T)].all()
    voxels[:, 0] = MASK.shape[0] - 1 - voxels[:, 0]
    assert MASK[tuple(voxels.T)].all()
    with pytest.raises(ValueError, match="not symmetric"):
        halves_of(MASK[1:], HALVES.affine)


def test_the_asymmetry_of_the_mirror_image_is_the_negative_and_that_of_an_even_brain_is_none() -> None:
    found = asymmetry(head(1), HALVES)
    assert np.linalg.norm(found) == pytest.approx(1)
    assert found.mean() == pytest.approx(0, abs=1e-6)
    assert asymmetry(head(1)[::-1], HALVES) @ found == pytest.approx(-1, abs=1e-3)
    assert asymmetry(head(1) * 7, HALVES) @ found == pytest.approx(1, abs=1e-6)
    even = head(1) + head(1)[::-1]
    np.testing.assert_array_equal(asymmetry(even, HALVES), 0)
    np.testing.assert_array_equal(asymmetry(np.zeros(MASK.shape), HALVES), 0)


def test_a_tilted_and_shifted_head_is_moved_onto_its_midline() -> None:
    straight, tilted = (asymmetry(one, HALVES) for one in (head(1), head(1, tilt=0.05, shift_mm=3.0)))
    assert straight @ tilted > 0.8


@pytest.mark.sample(2)
@pytest.mark.parametrize("flipped", [(), (3,), (0, 4, 11)])
def test_planted_flips_are_named_and_nobody_else(flipped: tuple[int, ...]) -> None:
    found = compare_sides(rows(20, flipped))
    assert found.unknown == ""
    assert np.flatnonzero(found.mirrored).tolist() == list(flipped)
    assert (found.scores[list(flipped)] < -0.1).all()


def test_scores_leave_the_scan_itself_out() -> None:
    a, b = np.array([0.6, -0.8, 0.0]), np.array([0.0, 1.0, 0.0])
    spread = np.array([0.3, 0.9, 0.15])  # standard deviations over the two; the last, 0, is raised to half the median
    one, other = a / spread, b / spread
    expected = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
    np.testing.assert_allclose(side_scores([a, b]), expected)
    assert side_scores([]).tolist() == []
    assert side_scores([a]).tolist() == [0.0]


@pytest.mark.ci
def test_all_mirrored_look_alike_and_most_mirrored_cannot_be_told() -> None:
    everyone = compare_sides(rows(20, tuple(range(20))))
    assert not everyone.mirrored.any()
    assert everyone.unknown == ""
    most = compare_sides(rows(20, tuple(range(13))))
    assert not most.mirrored.any()
    assert "too many to tell which of the two groups is mirrored" in most.unknown
    half = compare_sides(rows(20, tuple(range(10))))
    assert not half.mirrored.any()
    assert half.unknown


def test_without_a_common_asymmetry_nothing_is_said() -> None:
    found = compare_sides(rows(20, common=0.0))
    assert not found.mirrored.any()
    assert "no asymmetry in common" in found.unknown


def test_few_scans_are_not_compared() -> None:
    found = compare_sides(rows(MIN_COHORT - 1, (2,)))
    assert np.isnan(found.scores).all()
    assert not found.mirrored.any()
    assert found.unknown == f"fewer than {MIN_COHORT} scans to compare with each other"
    assert np.flatnonzero(compare_sides(rows(MIN_COHORT, (2,))).mirrored).tolist() == [2]


@pytest.mark.sample(2)
@pytest.mark.parametrize("axes", ["RAS", "LAS", "PIR", "SAL"])
def test_files_of_any_orientation_give_the_same(axes: str, tmp_path: Path) -> None:
    for i in range(12):
        image = nib.Nifti1Image((head(i)[::-1] if i == 5 else head(i)).astype(np.float32), TEMPLATE.grid.affine)
        turned = image.as_reoriented(
            nib.orientations.ornt_transform(nib.io_orientation(image.affine), nib.orientations.axcodes2ornt(axes))
        )
        nib.save(turned, tmp_path / f"{i}.nii.gz")
        write_asymmetry(tmp_path / f"{i}.npy", tmp_path / f"{i}.nii.gz", 4.0)
    found = sides_of([tmp_path / f"{i}.npy" for i in range(12)])
    assert np.flatnonzero(found.mirrored).tolist() == [5]
    np.testing.assert_allclose(np.load(tmp_path / "3.npy"), asymmetry(head(3).astype(np.float32), HALVES), atol=1e-4)


def test_the_warp_is_taken_back() -> None:
    """A warp by 4 mm along x is undone; beyond its grid nothing moves."""
    grid = Grid((9, 5, 5), np.diag([4.0, 4.0, 4.0, 1.0]))
    values = np.arange(9.0)[:, None, None] * np.ones((9, 5, 5))
    inverse = np.zeros((8, 10, 10, 3), np.float32)
    inverse[..., 0] = 4.0
    box = np.diag([2.0, 2.0, 2.0, 1.0])
    found = without_warp(values, grid, inverse, box)
    np.testing.assert_allclose(found[:4, 2, 2], [1, 2, 3, 4], atol=1e-5)
    np.testing.assert_allclose(found[4:, 2, 2], [4, 5, 6, 7, 8], atol=1e-5)


def test_halves_are_a_record_of_their_grid() -> None:
    assert isinstance(HALVES, Halves)
    assert HALVES.mask.sum() == 2 * (HALVES.mask[: MASK.shape[0] // 2]).sum() + HALVES.mask[MASK.shape[0] // 2].sum()
