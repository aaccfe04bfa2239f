import itertools

import nibabel as nib
import numpy as np
import pytest
from atlas_grids import oblique, oriented, small_grid
from hypothesis import given, settings
from hypothesis import strategies as st
from label_volumes import label_volumes_mm3
from nilearn.image import resample_img

from heatlas.atlases.spaces import Grid, resample_labels
from heatlas.pipeline.run.errors import BadInputError

ORIENTATIONS = ["".join(p) for axes in itertools.permutations(["RL", "AP", "SI"]) for p in itertools.product(*axes)]


def random_labels(seed=3):
    return np.random.default_rng(seed).integers(0, 5, (7, 9, 11)).astype(np.int32)


@pytest.mark.parametrize("axes", ORIENTATIONS)
def test_reorientation_is_a_permutation_of_voxels(axes):
    labels, grid = random_labels(), small_grid()
    turn = nib.orientations.ornt_transform(
        nib.orientations.axcodes2ornt("RAS"), nib.orientations.axcodes2ornt(tuple(axes))
    )
    expected = nib.orientations.apply_orientation(labels, turn)
    moved = resample_labels(labels, grid, oriented(grid, axes))
    assert np.array_equal(moved, expected)
    assert moved.dtype == np.int32


@settings(deadline=None, max_examples=30)
@given(st.tuples(*[st.floats(-0.5, 0.5)] * 3), st.sampled_from(["RAS", "LAS", "PSR"]))
def test_oblique_grids_against_brute_force(turn, axes):
    labels, source = random_labels(), oriented(small_grid(), "LPS")
    target = oblique(oriented(source, axes), turn)
    expected = np.zeros(target.shape, np.int32)
    for voxel in itertools.product(*map(range, target.shape)):
        place = source.to_voxel(target.to_world(voxel))
        if np.abs(place - np.floor(place) - 0.5).min() < 1e-6:
            return  # a tie: either neighbour is right
        nearest = np.floor(place + 0.5).astype(int)
        if ((nearest >= 0) & (nearest < labels.shape)).all():
            expected[voxel] = labels[tuple(nearest)]
    assert np.array_equal(resample_labels(labels, source, target), expected)


def test_agrees_with_nilearn():
    source, target = oriented(small_grid(), "LAS"), oblique(small_grid(), (0.2, 0.1, -0.3))
    labels = random_labels()
    image = nib.Nifti1Image(labels, source.affine)
    theirs = resample_img(
        image, target.affine, target.shape, interpolation="nearest", force_resample=True, copy_header=True
    )
    places = source.to_voxel(target.to_world(np.stack(np.indices(target.shape), axis=-1)))
    inside = ((places > 0) & (places < np.array(source.shape) - 1)).all(axis=-1)  # their border rule differs
    ours = resample_labels(labels, source, target)
    assert inside.sum() > 200
    assert np.array_equal(ours[inside], np.asarray(theirs.dataobj)[inside])


def test_blocks_at_half_the_resolution_keep_every_second_voxel():
    labels = np.zeros((40, 36, 44), np.int32)
    labels[4:20, 6:31, 7:40] = 1
    labels[20:37, 6:31, 7:40] = 2
    source, target = Grid(labels.shape, np.eye(4)), Grid((20, 18, 22), np.diag([2.0, 2.0, 2.0, 1.0]))
    assert label_volumes_mm3(labels, source) == {1: 16 * 25 * 33, 2: 17 * 25 * 33}
    # Even indices in 4..19, 20..36, 6..30 and 7..39: 8, 9, 13 and 16 of them, each 2 mm long.
    moved = resample_labels(labels, source, target)
    assert label_volumes_mm3(moved, target) == {1: 16 * 26 * 32, 2: 18 * 26 * 32}


def test_a_label_between_the_voxels_is_lost_and_one_outside_is_refused():
    labels = np.zeros((8, 9, 10), np.int32)
    labels[2:6, 2:6, 2:6] = 3
    labels[7, 7, 7] = 9  # odd indices: never hit by a grid of 2 mm on the even ones
    source = Grid(labels.shape, np.eye(4))
    coarse = resample_labels(labels, source, Grid((4, 5, 5), np.diag([2.0, 2.0, 2.0, 1.0])))
    assert set(np.unique(coarse)) == {0, 3}
    with pytest.raises(BadInputError, match=r"labels 9 lie outside the field of view"):
        resample_labels(labels, source, Grid((6, 6, 6), np.eye(4)))
    shifted = np.eye(4)
    shifted[:3, 3] = 3.0  # both labels partly inside
    assert set(np.unique(resample_labels(labels, source, Grid((5, 5, 5), shifted)))) == {0, 3, 9}
    shifted[:3, 3] = 6.0  # now its last layer is one voxel before the first
    with pytest.raises(BadInputError, match=r"labels 3 lie outside"):
        resample_labels(labels, source, Grid((2, 2, 2), shifted))


def test_labels_that_do_not_fit_their_grid_are_refused():
    with pytest.raises(BadInputError, match="cannot lie on the grid"):
        resample_labels(np.zeros((7, 9, 11), np.int32), Grid((7, 11, 9), np.eye(4)), small_grid())
