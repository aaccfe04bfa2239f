"""Quality of a registration, whole and per region: each number against a case whose value is known."""

from __future__ import annotations

import numpy as np
import pandas as pd
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
from heatlas.pipeline.registration.quality.outliers import (
    LARGEST_INVERSE_ERROR_MM,
    LOWEST_CORRELATION,
    MIN_COHORT,
    outlying_distance,
    region_distances,
    region_reasons,
    worst_regions,
)
from heatlas.pipeline.registration.quality.region_quality import (
    inverse_error,
    local_correlation,
    region_means,
    region_percentiles,
    region_voxels,
)

WHOLE_SHAPE = (7, 9, 11)


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
    first, second = np.zeros(WHOLE_SHAPE, bool), np.zeros(WHOLE_SHAPE, bool)
    first[:4], second[2:5] = True, True
    assert dice(first, second) == pytest.approx(2 * 2 / (4 + 3))
    assert dice(first, ~first) == 0
    assert dice(first & False, first & False) == 0


def test_assess_looks_inside_the_template_mask_only() -> None:
    rng = np.random.default_rng(1)
    mask = np.zeros(WHOLE_SHAPE, bool)
    mask[1:5, 2:7, 3:9] = True
    template = np.where(mask, rng.uniform(1, 2, WHOLE_SHAPE), 0).astype(np.float32)
    determinant = np.full(WHOLE_SHAPE, -5.0, np.float32)
    determinant[mask] = 1.5
    determinant[2, 3, 4] = -0.25
    linear = Rotation.from_rotvec([0, 0, 0.1]).as_matrix() @ np.diag([1.2, 1.5, 0.96])
    displacement = np.full((*WHOLE_SHAPE, 3), 99.0, np.float32)
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


SHAPE = (12, 14, 10)
LABELS = np.zeros(SHAPE, dtype=np.int32)
LABELS[:4], LABELS[6, 6, 6] = 3, 8
"""A slab and a single voxel; region 5 has none."""


@pytest.mark.parametrize(("margin", "slab", "voxel"), [(0, 4 * 140, 1), (1, 5 * 140, 7), (2, 6 * 140, 25)])
def test_regions_grow_by_whole_voxels_and_stay_in_the_image(margin: int, slab: int, voxel: int) -> None:
    found = region_voxels(LABELS, [3, 5, 8], margin)
    assert found.numbers == (3, 8)
    assert found.counts.tolist() == [slab, voxel]
    places = found.voxels[found.starts[1] :]
    assert np.abs(np.stack(np.unravel_index(places, SHAPE)) - 6).sum(axis=0).max() == margin


def test_correlation_is_that_of_the_region_alone_and_blind_to_contrast() -> None:
    rng = np.random.default_rng(1)
    template = rng.normal(size=SHAPE)
    scan = 7 * template + 3
    scan[LABELS == 3] = rng.normal(size=(LABELS == 3).sum())
    found = local_correlation(scan, template, region_voxels(LABELS, [3, 8], 1))
    assert found[8] == pytest.approx(1)
    regions = region_voxels(LABELS, [3], 0)
    own = local_correlation(scan, template, regions)[3]
    assert own == pytest.approx(np.corrcoef(scan[LABELS == 3], template[LABELS == 3])[0, 1])


def test_an_empty_or_even_place_has_no_correlation() -> None:
    template = np.random.default_rng(1).normal(size=SHAPE)
    for value in (0.0, 51.7):
        assert local_correlation(np.full(SHAPE, value), template, region_voxels(LABELS, [3, 8], 1)) == {3: 0, 8: 0}
    assert local_correlation(template, template, region_voxels(LABELS, [5])) == {}


@pytest.mark.parametrize("turn", [np.eye(3), np.diag([-1, 1, 1]), np.array([[0, 0, 1], [1, 0, 0], [0, 1, 0]])])
def test_error_of_an_inverse_that_is_off_by_a_known_vector(turn: np.ndarray) -> None:
    """Whatever the order of the axes; where the warp leaves the grid nothing brings the point back."""
    affine = np.eye(4)
    affine[:3, :3] = turn * 2.0
    affine[:3, 3] = (-9, 4, 1)
    step = turn @ np.array([2.0, 4.0, 0.0])  # one voxel along the first axis, two along the second
    displacement = np.broadcast_to(step, (*SHAPE, 3))
    inverse = np.broadcast_to(-step + np.array([0.3, 0.0, 0.4]), (*SHAPE, 3))
    middle, rim = region_voxels(LABELS, [8]), region_voxels(np.roll(LABELS, 5, axis=0), [8])
    assert inverse_error(displacement, inverse, affine, middle) == pytest.approx(0.5)
    assert inverse_error(displacement, inverse, affine, rim) == pytest.approx(np.hypot(2, 4))


def test_warp_and_inverse_of_a_shear_undo_each_other() -> None:
    places = np.moveaxis(np.indices(SHAPE), 0, -1).astype(float)
    shear = np.array([[0.0, 0.2, 0.0], [0, 0, 0], [0, 0, 0]])
    displacement, inverse = places @ shear.T, -places @ shear.T
    assert inverse_error(displacement, inverse, np.eye(4), region_voxels(LABELS, [3, 8])) == pytest.approx(0, abs=1e-9)


def test_extremes_and_means_are_those_of_each_region() -> None:
    regions = region_voxels(LABELS, [3, 8])
    values = np.arange(561.0)
    assert region_percentiles(values, regions, 0) == {3: 0, 8: 560}
    assert region_percentiles(values, regions, 99) == {3: pytest.approx(0.99 * 559), 8: 560}
    assert region_means(values, regions) == {3: 279.5, 8: 560}


def cohort(scans: int, regions: int = 134, seed: int = 0) -> np.ndarray:
    """Correlations of ordinary scans: regions and scans differ in level, regions in spread."""
    rng = np.random.default_rng(seed)
    level, spread = rng.uniform(1.0, 1.4, regions), 0.1 * np.exp(rng.normal(0, 0.3, regions))
    shared = 0.3 * rng.normal(size=(scans, 1))
    return np.asarray(np.tanh(level + spread * (shared + rng.normal(size=(scans, regions)))))


def table(correlations: np.ndarray, **columns: float) -> pd.DataFrame:
    """``region_quality.tsv`` of these scans."""
    scans, regions = correlations.shape
    return pd.DataFrame({
        "scan_id": np.repeat([f"I{scan}" for scan in range(scans)], regions),
        "region": np.tile(np.arange(1, regions + 1), scans),
        "name": np.tile([f"R{region}" for region in range(1, regions + 1)], scans),
        "correlation": correlations.ravel(),
        "distance": region_distances(correlations).ravel(),
        "inverse_error_max_mm": 0.3,
        **columns,
    })  # fmt: skip


@pytest.mark.sample(3)
@pytest.mark.parametrize("scans", [1, MIN_COHORT - 1, MIN_COHORT, 40, 200])
def test_ordinary_scans_are_rarely_flagged_however_many_regions_there_are(scans: int) -> None:
    flagged = [len(region_reasons(table(cohort(scans, seed=seed)))) for seed in range(max(400 // scans, 1))]
    assert sum(flagged) / (scans * len(flagged)) <= 0.03


def test_one_bad_region_of_one_scan_is_found_in_a_cohort_and_named_first() -> None:
    correlations = cohort(20)
    correlations[4, 30] = np.tanh(np.arctanh(correlations[:, 30]).mean() - 0.85)
    found = table(correlations)
    assert list(region_reasons(found)) == ["I4"]
    shown = f"R31 ({correlations[4, 30]:.2f})"
    assert region_reasons(found)["I4"] == [f"correlation with the template far below the others in a region: {shown}"]
    assert worst_regions(found)["I4"].startswith(f"{shown}, R")
    assert worst_regions(found)["I4"].count("(") == 3


def test_a_region_in_its_place_is_not_flagged_however_alike_the_others_are() -> None:
    level = np.random.default_rng(0).uniform(2.2, 2.5, 134)
    correlations = np.tanh(level + 0.02 * np.random.default_rng(1).normal(size=(20, 134)))
    correlations[4, 30] = 0.9
    found = table(correlations)
    assert found["distance"].min() < -10
    assert region_reasons(found) == {}
    assert worst_regions(found)["I4"].startswith("R31 (0.90)")


def test_a_scan_that_is_worse_everywhere_is_no_matter_of_regions() -> None:
    correlations = cohort(20)
    correlations[4] = np.tanh(np.arctanh(correlations[4]) - 0.4)
    assert region_reasons(table(correlations)) == {}


@pytest.mark.parametrize("scans", [1, 20])
def test_limits_hold_alone_and_in_a_cohort(scans: int) -> None:
    correlations = cohort(scans)
    correlations[0, 2:23] = LOWEST_CORRELATION - 0.05 - 0.01 * np.arange(21)  # 21 of 134 are 15.7 %
    found = region_reasons(table(correlations))["I0"]
    words = "correlation with the template below 0.1 in more than 15% of the regions"
    assert f"{words}: R23 (-0.15), R22 (-0.14), R21 (-0.13) and 18 more" in found
    correlations[0, 2:4] = 0.5  # 19 are 14.2 %
    assert not any(words in reason for reason in region_reasons(table(correlations)).get("I0", []))
    torn = table(cohort(scans), inverse_error_max_mm=LARGEST_INVERSE_ERROR_MM + 0.5)
    assert any("warp and inverse warp more than 2 mm apart in a region: R1 (2.50)" in words
               for words in region_reasons(torn)["I0"])  # fmt: skip


def test_a_small_cohort_has_no_distances_and_names_the_lowest() -> None:
    correlations = cohort(MIN_COHORT - 1)
    found = table(correlations)
    assert found["distance"].isna().all()
    lowest = int(np.argmin(correlations[0]))
    assert worst_regions(found)["I0"].startswith(f"R{lowest + 1} ({correlations[0, lowest]:.2f})")


def test_regions_without_voxels_and_scans_without_a_warp_are_passed_over() -> None:
    correlations = cohort(20)
    correlations[:, 5] = np.nan
    found = table(correlations, inverse_error_max_mm=np.nan)
    assert found.loc[found["region"] == 6, "distance"].isna().all()
    assert found.loc[found["region"] != 6, "distance"].notna().all()
    assert region_reasons(found) == {}
    assert "R6 " not in " ".join(worst_regions(found).values())


def test_more_regions_ask_for_a_larger_distance() -> None:
    assert outlying_distance(1) == pytest.approx(3.5)
    assert outlying_distance(134) == pytest.approx(4.641, abs=0.001)
