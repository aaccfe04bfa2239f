import pickle

import nibabel as nib
import numpy as np
import pytest
from atlas_grids import oblique, oriented, small_grid
from hypothesis import given
from hypothesis import strategies as st

from heatlas.atlases.spaces import TOLERANCE_MM, Grid, require_same_grid, template_grid
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
