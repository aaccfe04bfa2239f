from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from heatlas.pipeline.registration.quality.measures import (
    QUALITY_COLUMNS,
    assess,
    correlation,
    dice,
    mutual_information,
    rotation_angle,
)

SHAPE = (7, 9, 11)


@given(st.floats(0.01, 3.1), st.lists(st.floats(0.5, 2), min_size=3, max_size=3), st.integers(0, 2**32 - 1))
def test_rotation_angle_of_a_rotated_stretch(angle: float, sizes: list[float], seed: int) -> None:
    rng = np.random.default_rng(seed)
    axis = rng.normal(size=3)
    rotation = Rotation.from_rotvec(angle * axis / np.linalg.norm(axis)).as_matrix()
    axes = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    stretch = axes @ np.diag(sizes) @ axes.T
    assert rotation_angle(rotation @ stretch) == pytest.approx(np.degrees(angle), abs=1e-4)


def test_no_rotation() -> None:
    assert rotation_angle(np.diag([1.1, 0.9, 1.2])) == pytest.approx(0, abs=1e-5)


def test_correlation_is_that_of_numpy_and_0_for_a_constant() -> None:
    rng = np.random.default_rng(5)
    a, b = rng.normal(size=(2, 501)).astype(np.float32)
    assert correlation(a, b) == pytest.approx(np.corrcoef(a, b)[0, 1], abs=1e-7)
    assert correlation(a, np.ones(501)) == 0


def test_mutual_information_sees_through_contrast_and_outliers() -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(size=20_000)
    inverted = -(values**3)
    inverted[:3] = 1e9  # vessels
    assert mutual_information(values, inverted) > 1.95
    assert mutual_information(values, rng.normal(size=20_000)) < 1.01
    noisy = [mutual_information(values, values + level * rng.normal(size=20_000)) for level in (0.2, 1, 5)]
    assert noisy[0] > noisy[1] > noisy[2]


def test_mutual_information_of_a_known_table() -> None:
    """A fair coin copied with certainty: H = ln 2 each and together; 2 at best, as defined by Studholme."""
    coin = np.repeat([0.0, 1.0], 5000)
    other = np.tile([0.0, 1.0], 5000)
    assert mutual_information(coin, coin) == pytest.approx(2)
    assert mutual_information(coin, other) == pytest.approx(1)


def test_dice_of_known_masks() -> None:
    first, second = np.zeros(SHAPE, bool), np.zeros(SHAPE, bool)
    first[:4], second[2:5] = True, True
    assert dice(first, second) == pytest.approx(2 * 2 / (4 + 3))
    assert dice(first, ~first) == 0
    assert dice(first & False, first & False) == 0


def test_assess_looks_inside_the_template_mask_only() -> None:
    rng = np.random.default_rng(1)
    mask = np.zeros(SHAPE, bool)
    mask[1:5, 2:7, 3:9] = True
    template = np.where(mask, rng.uniform(1, 2, SHAPE), 0).astype(np.float32)
    determinant = np.full(SHAPE, -5.0, np.float32)
    determinant[mask] = 1.5
    determinant[2, 3, 4] = -0.25
    linear = Rotation.from_rotvec([0, 0, 0.1]).as_matrix() @ np.diag([1.2, 1.5, 0.96])
    displacement = np.full((*SHAPE, 3), 99.0, np.float32)
    displacement[mask] = (1.0, -2.0, 2.0)
    found = assess(3 * template, mask, template, mask, determinant, displacement, linear, 2.0)
    assert {name for name in QUALITY_COLUMNS if not name.startswith("t1w_")} == set(found)  # those are of other kinds
    assert found["correlation"] == pytest.approx(1)
    assert found["dice"] == 1
    assert found["min_jacobian"] == -0.25
    assert found["nonpositive_jacobian_share"] == pytest.approx(1 / mask.sum())
    assert found["rotation_degrees"] == pytest.approx(np.degrees(0.1))
    assert found["scale"] == pytest.approx(1.2)
    assert (found["scale_x"], found["scale_y"], found["scale_z"]) == pytest.approx((1.2, 1.5, 0.96))
    assert found["affine_residual_mm"] == pytest.approx(3)
    assert found["normalised_mutual_information"] == pytest.approx(2)
    assert found["dark_ml"] == 0
