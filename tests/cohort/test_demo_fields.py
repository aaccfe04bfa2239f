from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import ndimage

from heatlas.pipeline.cohort.demo.anatomy import (
    compose,
    exponential,
    jacobian_determinant,
    random_velocity,
    sample,
    velocity_with_divergence,
    voxel_indices,
)

SHAPE = (15, 18, 21)
INSIDE = (slice(None), slice(4, -4), slice(4, -4), slice(4, -4))


def centred(spacing: float) -> np.ndarray:
    """Position in mm from the middle of the grid."""
    middle = (np.array(SHAPE) - 1) / 2
    return (voxel_indices(SHAPE) - middle[:, None, None, None].astype(np.float32)) * np.float32(spacing)


def test_trilinear_interpolation_is_exact_on_linear_images() -> None:
    image = np.tensordot([1.0, -2.0, 0.5], voxel_indices(SHAPE), axes=1)
    points = np.array([[1.25, 3.5], [2.0, 7.75], [0.5, 11.0]], np.float32)
    assert_allclose(sample(image, points), [1.25 - 4 + 0.25, 3.5 - 15.5 + 5.5], rtol=1e-6)


def test_composition_applies_the_inner_map_first() -> None:
    spacing = 2.0
    shift = np.zeros((3, *SHAPE), np.float32)
    shift[1] = 1.5
    stretch = 0.2 * centred(spacing)
    # stretch(shift(x)) = 1.2 (x + t); shift(stretch(x)) = 1.2 x + t.
    assert_allclose(compose(stretch, shift, spacing)[INSIDE], (stretch + 1.2 * shift)[INSIDE], atol=1e-4)
    assert_allclose(compose(shift, stretch, spacing)[INSIDE], (stretch + shift)[INSIDE], atol=1e-4)


def test_constant_velocity_is_a_translation() -> None:
    velocity = np.broadcast_to(np.array([1.0, -2.0, 4.0], np.float32)[:, None, None, None], (3, *SHAPE))
    assert_allclose(exponential(velocity, 3.0), velocity, rtol=1e-6)
    assert_allclose(exponential(0 * velocity, 3.0), 0)


@pytest.mark.parametrize("rate", [-0.3, 0.2])
def test_linear_velocity_grows_exponentially(rate: float) -> None:
    spacing = 1.5
    flown = exponential(rate * centred(spacing), spacing)
    assert_allclose(flown[INSIDE], (np.expm1(rate) * centred(spacing))[INSIDE], rtol=1e-2, atol=1e-3)
    growth = jacobian_determinant(flown, spacing)[INSIDE[1:]]
    assert_allclose(growth, np.exp(3 * rate), rtol=0.02)


def test_jacobian_of_a_linear_map_is_its_determinant() -> None:
    matrix = np.array([[0.1, 0.2, 0.0], [-0.1, -0.2, 0.3], [0.05, 0.0, 0.4]])
    displacement = np.tensordot(matrix, centred(2.5), axes=1).astype(np.float32)
    assert_allclose(jacobian_determinant(displacement, 2.5), np.linalg.det(np.eye(3) + matrix), rtol=1e-4)


def test_integrals_of_opposite_velocities_undo_each_other() -> None:
    velocity = random_velocity(np.random.default_rng(3), (24, 27, 30), 3.0, 16.0, 2.0)
    there, back = exponential(velocity, 3.0), exponential(-velocity, 3.0)
    residual = compose(back, there, 3.0)[:, 4:-4, 4:-4, 4:-4]
    assert np.abs(there).max() > 3
    assert np.abs(residual).max() < 0.2  # of a voxel of 3 mm
    assert np.sqrt(np.square(residual).mean()) < 0.02 * np.sqrt(np.square(there).mean())
    assert jacobian_determinant(there, 3.0).min() > 0


def test_random_velocity_has_the_stated_size_and_repeats() -> None:
    first = random_velocity(np.random.default_rng(1), SHAPE, 3.0, 10.0, 1.7)
    assert_allclose(np.sqrt(np.square(first).mean(axis=(1, 2, 3))), 1.7, rtol=1e-5)
    assert np.array_equal(first, random_velocity(np.random.default_rng(1), SHAPE, 3.0, 10.0, 1.7))
    assert not np.allclose(first, random_velocity(np.random.default_rng(2), SHAPE, 3.0, 10.0, 1.7))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_divergence_of_a_wave_has_a_closed_form(axis: int) -> None:
    spacing = 2.0
    wave_number = 2 * np.pi * 2 / (SHAPE[axis] * spacing)
    position = voxel_indices(SHAPE)[axis] * spacing
    velocity = velocity_with_divergence(7 + np.cos(wave_number * position), spacing)  # the mean 7 cannot flow away
    expected = np.zeros((3, *SHAPE))
    expected[axis] = np.sin(wave_number * position) / wave_number
    assert_allclose(velocity, expected, atol=1e-5)


def test_divergence_of_a_bump_is_what_was_asked_for() -> None:
    shape, spacing = (32, 36, 40), 1.0
    distance = sum((index - n / 2) ** 2 for index, n in zip(voxel_indices(shape), shape, strict=True))
    bump = np.exp(-distance / (2 * 4.0**2))
    velocity = velocity_with_divergence(bump, spacing)
    divergence = sum(np.gradient(velocity[axis], spacing, axis=axis) for axis in range(3))
    inner = (slice(2, -2),) * 3
    assert_allclose(divergence[inner], (bump - bump.mean())[inner], atol=0.03)
    assert velocity[0, 26, 18, 20] > 0 > velocity[0, 6, 18, 20]  # away from a source


@pytest.mark.parametrize("kind", [np.float32, np.uint8])
def test_sampling_equals_scipy_inside_on_and_outside_the_edges(kind):
    rng = np.random.default_rng(3)
    image = (10 * rng.standard_normal((7, 5, 9)) ** 2).astype(kind)
    points = rng.uniform(-3, 12, (3, 40, 50)).astype(np.float32)
    points[:, 0, :10] = np.arange(10)
    expected = ndimage.map_coordinates(image, points, output=np.float32, order=1, mode="nearest")
    assert_allclose(sample(image, points), expected, rtol=2e-7, atol=1e-7)
    assert_allclose(sample(image[::-1], points[:, ::2, ::3]), sample(image[::-1].copy(), points)[::2, ::3], rtol=0)
