from __future__ import annotations

import nibabel as nib
import numpy as np
import pytest

from heatlas.pipeline.registration.ants_transform import Volume
from heatlas.pipeline.registration.images.preparation import around_brain, closest_ras, coarsen

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
