"""Spaces and grids: their records, resampling between them, and the box of the brain."""

from __future__ import annotations

import itertools
import pickle

import nibabel as nib
import numpy as np
import pytest
from atlas_grids import label_volumes_mm3, oblique, oriented, small_grid
from hypothesis import given, settings
from hypothesis import strategies as st
from nilearn.image import resample_img

from heatlas.atlases.spaces import TOLERANCE_MM, Box, Grid, require_same_grid, resample_labels, template_grid
from heatlas.atlases.templates import Template, brain_box, load_template
from heatlas.pipeline.run.errors import BadInputError

angles = st.tuples(*[st.floats(-0.6, 0.6)] * 3)


@pytest.mark.parametrize(("mm", "shape"), [(1.0, (193, 229, 193)), (2.0, (97, 115, 97)), (4.0, (49, 58, 49))])
def test_template_grid_keeps_the_first_voxel_and_stays_in_the_field_of_view(mm, shape):
    grid = template_grid(mm)
    assert grid.shape == shape
    assert grid.to_world([0, 0, 0]).tolist() == [-96, -132, -78]
    last = grid.to_world(np.array(shape) - 1)
    assert (last <= [96, 96, 114]).all()
    assert (last + mm > [96, 96, 114]).all()
    assert grid.orientation == "RAS"


@given(st.floats(0.5, 4.0))
def test_template_grid_at_any_resolution_covers_the_field_of_view(mm):
    grid = template_grid(mm)
    missing = np.array([96, 96, 114]) - grid.to_world(np.array(grid.shape) - 1)
    assert (missing >= -1e-5).all()
    assert (missing < mm).all()


def test_psr_grid_by_hand():
    # First array axis to posterior in 3 mm, second to superior in 1.5 mm, third to the right in 2 mm.
    grid = oriented(small_grid(), "PSR")
    assert grid.shape == (9, 11, 7)
    assert grid.orientation == "PSR"
    assert grid.voxel_sizes_mm == (3.0, 1.5, 2.0)
    assert grid.voxel_volume_mm3 == 9.0
    assert grid.to_world([0, 0, 0]).tolist() == [-6.0, 12.0, -7.5]
    assert grid.to_world([8, 10, 6]).tolist() == [6.0, -12.0, 7.5]


@given(angles, st.tuples(*[st.floats(-300, 300)] * 3))
def test_to_voxel_inverts_to_world(turn, point):
    grid = oblique(oriented(small_grid(), "LPS"), turn)
    assert np.allclose(grid.to_world(grid.to_voxel(point)), point, atol=1e-9)
    assert np.isclose(grid.voxel_volume_mm3, 9.0)


@given(angles, st.floats(0.9, 1.1))
def test_the_corners_bound_every_voxel(turn, scale):
    """Sameness looks at eight corners only; brute force over all voxels must agree."""
    a = small_grid()
    affine = oblique(a, turn).affine.copy()
    affine[:3, :3] *= scale
    b = Grid(a.shape, affine)
    voxels = np.stack(np.indices(a.shape), axis=-1)
    largest = np.linalg.norm(a.to_world(voxels) - b.to_world(voxels), axis=-1).max()
    assert a.same_as(b, largest + 1e-6)
    assert largest < 2e-6 or not a.same_as(b, largest - 1e-6)


def test_single_precision_headers_are_the_same_grid_and_a_voxel_shift_is_not(tmp_path):
    grid = oblique(template_grid(1.0), (0.1, -0.2, 0.3))
    image = nib.Nifti1Image(np.zeros(grid.shape, np.uint8), grid.affine)
    image.set_sform(grid.affine, 2)
    nib.save(image, tmp_path / "a.nii.gz")
    stored = Grid.of(nib.load(tmp_path / "a.nii.gz"))
    assert stored != grid
    assert stored.same_as(grid)
    # A quaternion is a coarser record of the same rotation.
    image.set_qform(grid.affine, 2)
    assert Grid(grid.shape, image.get_qform()).same_as(grid)
    moved = grid.affine.copy()
    moved[1, 3] += 2 * TOLERANCE_MM
    assert not grid.same_as(Grid(grid.shape, moved))


def test_turned_and_flipped_grids_are_refused_with_both_in_the_message():
    a, b = template_grid(2.0), oriented(template_grid(2.0), "LAS")
    with pytest.raises(BadInputError, match=r"map and atlas .*97x115x97 RAS.*97x115x97 LAS.*\[-2 0 0 96"):
        require_same_grid(a, b, "map and atlas")
    require_same_grid(a, template_grid(2.0), "map and atlas")


def test_grids_compare_by_value_hash_and_pickle():
    a, b = small_grid(), small_grid()
    negative_zero = a.affine.copy()
    negative_zero[0, 1] = -0.0
    assert a == b == Grid(a.shape, negative_zero)
    assert len({a, b, Grid(a.shape, negative_zero), oriented(a, "LAS")}) == 2
    assert pickle.loads(pickle.dumps(a)) == a
    with pytest.raises(ValueError, match="read-only"):
        a.affine[0, 0] = 5


def test_a_fourth_axis_of_length_one_is_not_part_of_the_grid():
    assert Grid.of(nib.Nifti1Image(np.zeros((7, 9, 11, 1)), np.eye(4))).shape == (7, 9, 11)
    with pytest.raises(BadInputError, match="3D volume"):
        Grid.of(nib.Nifti1Image(np.zeros((7, 9, 11, 2)), np.eye(4)))


@pytest.mark.parametrize(
    "affine",
    [
        np.diag([1.0, 1.0, 0.0, 1.0]),
        np.diag([1.0, np.nan, 1.0, 1.0]),
        np.ones((4, 4)),
        np.eye(3),
        np.array([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]]),
    ],
)
def test_affines_that_say_nothing_are_refused(affine):
    with pytest.raises(BadInputError, match="affine"):
        Grid((7, 9, 11), affine)


def test_small_voxels_are_not_mistaken_for_a_flat_space():
    assert Grid((7, 9, 11), np.diag([1e-4, 1e-4, 1e-4, 1.0])).voxel_volume_mm3 == pytest.approx(1e-12)


@pytest.mark.parametrize("mm", [0.0, -1.0, float("nan")])
def test_impossible_resolution(mm):
    with pytest.raises(BadInputError, match="resolution"):
        template_grid(mm)


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


def template(mask, grid):
    return Template(grid, mask.astype(np.float32), mask, "test", "")


def test_box_of_the_template():
    box = brain_box(load_template(2.0))
    assert (box.start, box.shape) == ((9, 9, 0), (79, 97, 84))
    mask = load_template(2.0).brain_mask
    assert box.crop(mask).sum() == mask.sum()
    tight = brain_box(load_template(1.0), 0.0)
    assert (tight.start, tight.shape) == ((24, 24, 6), (145, 182, 155))


def test_margin_is_in_millimetres_rounded_up_and_clipped_to_the_grid():
    mask = np.zeros((7, 9, 11), bool)
    mask[3, 2:5, 1:9] = True  # voxels of 2, 3 and 1.5 mm
    box = brain_box(template(mask, small_grid()), margin_mm=3.0)
    assert (box.start, box.shape) == ((1, 1, 0), (5, 5, 11))


spans = [st.tuples(st.integers(0, side - 1), st.integers(1, side)) for side in (7, 9, 11)]


@given(st.tuples(*spans))
def test_crop_and_paste_are_inverse_and_keep_world_positions(parts):
    start = tuple(first for first, _ in parts)
    shape = tuple(min(side, full - first) for (first, side), full in zip(parts, (7, 9, 11), strict=True))
    box, whole = Box(start, shape), np.arange(2 * 7 * 9 * 11, dtype=np.int64).reshape(2, 7, 9, 11) + 1
    cropped = box.crop(whole)
    pasted = box.paste(cropped, whole.shape)
    assert np.array_equal(box.crop(pasted), cropped)
    assert pasted.sum() == cropped.sum()
    grid = oriented(small_grid(), "RAS")
    last = np.array(shape) - 1
    assert np.allclose(box.grid(grid).to_world(last), grid.to_world(np.array(start) + last))


def test_arrays_and_grids_that_do_not_fit_are_refused():
    box = Box((1, 0, 0), (7, 9, 11))
    for refused in (
        lambda: box.crop(np.zeros((7, 9, 11))),
        lambda: box.paste(np.zeros((7, 9, 11)), (7, 9, 11)),
        lambda: box.grid(Grid((7, 9, 11), np.eye(4))),
    ):
        with pytest.raises(BadInputError, match="reaches beyond"):
            refused()
    with pytest.raises(BadInputError, match="does not fit"):
        box.paste(np.zeros((7, 9, 10)), (8, 9, 11))
    with pytest.raises(BadInputError, match="not a box"):
        Box((0, 0, -1), (7, 9, 11))
