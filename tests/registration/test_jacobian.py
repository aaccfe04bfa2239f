from __future__ import annotations

from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatlas.pipeline.registration.ants_transform import read_displacement
from heatlas.pipeline.registration.volumes.jacobian import SMALLEST_DETERMINANT, jacobian_determinant, log_jacobian

SHAPE = (7, 9, 11)
OBLIQUE = np.array([[-1.9, 0.2, 0.1, 30], [0.3, 0.1, 2.4, -20], [0.1, -1.4, 0.2, 9], [0, 0, 0, 1.0]])


def world(affine: np.ndarray = OBLIQUE) -> np.ndarray:
    indices = np.stack(np.meshgrid(*[np.arange(n) for n in SHAPE], indexing="ij"), -1)
    return np.asarray(indices @ affine[:3, :3].T + affine[:3, 3])


@given(st.lists(st.floats(-0.3, 0.3), min_size=9, max_size=9))
def test_linear_displacement_has_the_determinant_of_its_matrix(entries: list[float]) -> None:
    matrix = np.array(entries).reshape(3, 3)
    found = jacobian_determinant((world() @ matrix.T).astype(np.float64), OBLIQUE)
    np.testing.assert_allclose(found, np.linalg.det(np.eye(3) + matrix), atol=2e-6)


def test_quadratic_displacement_against_its_derivative() -> None:
    """Central differences are exact for quadratics, so the inner voxels have the analytic value."""
    x, y, z = np.moveaxis(world(), -1, 0)
    field = np.stack([0.002 * x * y, 0.003 * z**2 - 0.1 * x, 0.001 * x * z + 0.05 * y], -1)
    matrix = np.zeros((*SHAPE, 3, 3))
    matrix[..., 0, 0], matrix[..., 0, 1] = 0.002 * y, 0.002 * x
    matrix[..., 1, 0], matrix[..., 1, 2] = -0.1, 0.006 * z
    matrix[..., 2, 0], matrix[..., 2, 1], matrix[..., 2, 2] = 0.001 * z, 0.05, 0.001 * x
    inner = (slice(1, -1),) * 3
    expected = np.linalg.det(np.eye(3) + matrix)
    np.testing.assert_allclose(jacobian_determinant(field, OBLIQUE)[inner], expected[inner], atol=1e-6)


def test_a_fold_is_negative_and_its_logarithm_floored() -> None:
    folded = world() * np.array([-2.0, 0, 0])  # x -> -x
    determinant = jacobian_determinant(folded, OBLIQUE)
    np.testing.assert_allclose(determinant, -1, atol=1e-5)
    np.testing.assert_allclose(log_jacobian(determinant, np.eye(3)), np.log(SMALLEST_DETERMINANT), atol=1e-5)


def test_larger_scan_is_positive_and_gives_its_volume() -> None:
    """Template -> scan stretches by 1.1 x 1.2 x 1.3 in the affine part and 1.05 along x in the warp."""
    linear = np.diag([1.1, 1.2, 1.3])
    determinant = jacobian_determinant(world() * np.array([0.05, 0, 0]), OBLIQUE)
    change = log_jacobian(determinant, linear)
    assert change.dtype == np.float32
    np.testing.assert_allclose(change, np.log(1.1 * 1.2 * 1.3 * 1.05), atol=1e-5)
    assert (change > 0).all()


def test_agrees_with_ants(one_thread: None, tmp_path: Path) -> None:
    """ITK's filter on a field file written in ITK's convention (LPS components)."""
    ants = pytest.importorskip("ants")
    affine = np.diag([2.0, 2.0, 2.0, 1.0])
    affine[:3, 3] = (-10, 5, 7)
    x, y, z = np.moveaxis(world(affine), -1, 0)
    ras = np.stack([0.6 * np.sin(x / 7) * y / 9, 0.5 * np.cos(z / 6), 0.04 * x * np.sin(y / 5)], -1).astype(np.float32)
    lps = (ras * np.array([-1, -1, 1], np.float32))[:, :, :, None, :]
    field = nib.Nifti1Image(lps, affine)
    field.header.set_intent("vector")
    path = tmp_path / "warp.nii.gz"
    field.to_filename(path)
    np.testing.assert_array_equal(read_displacement(path), ras)
    domain = ants.from_numpy(
        np.zeros(SHAPE, np.float32),
        origin=(10.0, -5.0, 7.0),
        spacing=(2.0, 2.0, 2.0),
        direction=np.diag([-1.0, -1.0, 1.0]),
    )
    theirs = ants.create_jacobian_determinant_image(domain, str(path), do_log=False, geom=False).numpy()
    ours = jacobian_determinant(read_displacement(path), affine)
    inner = (slice(2, -2),) * 3
    assert ours[inner].std() > 0.02
    # ITK differentiates over two neighbours on each side, we over one: equal to third order.
    np.testing.assert_allclose(ours[inner], theirs[inner], atol=4e-3)
    assert np.corrcoef(ours[inner].ravel(), theirs[inner].ravel())[0, 1] > 0.9999
