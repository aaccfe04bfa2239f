"""Tests voxel by voxel: exact TFCE, planted and absent differences, chunks, clusters, and the step on a made-up run."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.ndimage import gaussian_filter, label

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.spaces import Grid, template_grid
from heatlas.atlases.templates import load_template
from heatlas.pipeline.models.inputs import NetworkInput
from heatlas.pipeline.statistics.images.differences import Adjusted
from heatlas.pipeline.statistics.images.voxel_test import cluster_table, enhanced, neighbours_of, voxel_test
from heatlas.pipeline.statistics.images.voxelwise import Voxels
from heatlas.pipeline.statistics.linear.fold_effect import model_within_folds

MASK = np.random.default_rng(0).random((8, 9, 7)) > 0.1


def smooth_noise(rng: np.random.Generator, *shape: int, fwhm: float = 2.5) -> np.ndarray:
    values = np.stack([gaussian_filter(rng.normal(size=MASK.shape), fwhm / 2.355)[MASK] for _ in range(shape[0])])
    return values / values.std()


def people_of(values: np.ndarray, first: np.ndarray, folds: np.ndarray | None = None) -> Adjusted:
    rng = np.random.default_rng(5)
    frame = pd.DataFrame({"age": rng.normal(70, 8, len(first)), "_first": first.astype(float)})
    if folds is not None:
        frame["fold"] = folds.astype(str)
    model = model_within_folds("age + _first", "_first", frame, folds is not None, first.tolist())
    return Adjusted.of(values, model, first.tolist())


def run_test(values: np.ndarray, first: np.ndarray, folds: np.ndarray | None = None, m=199, seed=1, **more):
    people = people_of(values, first, folds)
    permutations = people.exchange.permutations(m, np.random.default_rng(seed), people.model.alike.tolist())
    return voxel_test(people.values, people.model, permutations, MASK, **more)


def test_tfce_is_the_integral_over_heights_summed_in_fine_steps():
    x = gaussian_filter(np.random.default_rng(2).normal(size=MASK.shape), 1) * MASK
    x /= x.std()
    step, expected = 0.002, np.zeros(MASK.shape)
    for sign in (1, -1):
        for height in np.arange(step / 2, (sign * x).max(), step):
            bodies, _ = label(sign * x >= height)
            extent = np.bincount(bodies.ravel())
            extent[0] = 0
            expected += sign * extent[bodies] ** 0.5 * height**2 * step
    found = enhanced(x[MASK], neighbours_of(MASK))
    np.testing.assert_allclose(found, expected[MASK], atol=0.002 * np.abs(expected).max())


def test_tfce_of_flat_blocks_in_closed_form():
    line = np.array([2.0, 2.0, 1.0, 0.0, 3.0])  # heights 2, 2, 1 in one cluster, 3 alone
    found = enhanced(line, neighbours_of(np.ones((5, 1, 1), bool)))
    third = 1 / 3
    upper = np.sqrt(3) * third + np.sqrt(2) * (8 - 1) * third
    np.testing.assert_allclose(found, [upper, upper, np.sqrt(3) * third, 0.0, 27 * third])
    np.testing.assert_allclose(enhanced(-line, neighbours_of(np.ones((5, 1, 1), bool))), -found)


def test_planted_difference_is_found_where_it_is_and_the_sign_is_that_of_the_positive_class():
    rng, first = np.random.default_rng(3), np.arange(40) % 2 == 0
    values = smooth_noise(rng, 40)
    where = np.zeros(MASK.shape, bool)
    where[2:5, 2:5, 2:5] = True
    values[np.ix_(first, where[MASK])] -= 1.5
    found = run_test(values, first)
    clear = found.p_fwe_tfce < 0.05
    assert clear[where[MASK]].mean() > 0.9
    assert (found.t[clear] < 0).all()
    assert clear[~where[MASK]].mean() < 0.25  # smoothness carries it a little further
    assert found.p_fwe.min() == 1 / 200
    assert ((found.p_fwe <= 0.05) == (np.abs(found.t) > found.critical * (1 - 1e-9))).all()


def test_without_covariates_t_is_welchs():
    rng, first = np.random.default_rng(4), np.arange(60) % 3 == 0
    values = smooth_noise(rng, 60)
    frame = pd.DataFrame({"_first": first.astype(float)})
    people = Adjusted.of(values, model_within_folds("1 + _first", "_first", frame, False), first.tolist())
    permutations = people.exchange.permutations(99, rng, people.model.alike.tolist())
    found = voxel_test(people.values, people.model, permutations, MASK)
    welch = stats.ttest_ind(values[first], values[~first], equal_var=False).statistic
    np.testing.assert_allclose(found.t, welch, rtol=1e-9)


@pytest.mark.parametrize("folds", [None, np.arange(36) % 3])
def test_result_does_not_depend_on_the_size_of_a_chunk(folds):
    first = np.arange(36) % 4 == 0
    values = smooth_noise(np.random.default_rng(6), 36)
    one, other = (run_test(values, first, folds, chunk_bytes=size) for size in (1, 48_000_000))
    for name in ("t", "tfce"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-9, atol=1e-9)
    for name in ("p_fwe", "p_fwe_tfce"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_voxels_that_do_not_vary_are_no_part_of_it():
    first = np.arange(30) % 2 == 0
    values = smooth_noise(np.random.default_rng(7), 30)
    values[:, :40] = 3.0
    found = run_test(values, first)
    assert (found.t[:40] == 0).all()
    assert (found.p_fwe[:40] == 1).all()
    assert np.isfinite(found.tfce).all()
    assert (run_test(np.ones_like(values), first).p_fwe_tfce == 1).all()


@pytest.mark.slow
def test_family_wise_level_is_held_without_a_difference_in_groups_of_unequal_size_and_spread():
    first, rng = np.arange(48) % 4 == 0, np.random.default_rng(8)
    least = []
    for seed in range(200):
        values = smooth_noise(rng, 48) * np.where(first, 1.5, 1.0)[:, None]
        found = run_test(values, first, np.arange(48) % 3, m=99, seed=seed)
        least.append([found.p_fwe.min(), found.p_fwe_tfce.min()])
    share = (np.array(least) <= 0.05).mean(axis=0)
    assert (share < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)).all(), share
    assert (share > 0.005).all(), share


def test_cluster_has_its_peak_its_volume_and_its_regions():
    grid = template_grid(4.0)
    atlas = load_atlas("neuromorphometrics-cat12", grid)
    names = {number: group for group, numbers in atlas.regions.groups.items() for number in numbers}
    hippocampus = np.isin(atlas.labels, atlas.regions.groups["Hippocampus"])
    bodies, _ = label(hippocampus)
    left = bodies == np.bincount(bodies[bodies > 0]).argmax()
    t = np.where(left, -3.0, 0.0)
    peak = tuple(np.argwhere(left)[4])
    t[peak] = -5.0
    table = cluster_table(t, left, grid, atlas.labels, names)
    first = table.iloc[0]
    assert first["t"] == -5.0
    np.testing.assert_allclose(first[["x_mm", "y_mm", "z_mm"]].astype(float), grid.affine[:3] @ [*peak, 1])
    assert first["volume_mm3"] == 64 * left.sum()
    assert (first["group"], first["regions"]) == ("Hippocampus", "Hippocampus 100 %")
    both = np.where(hippocampus & ~left, 2.0, t)
    assert cluster_table(both, hippocampus, grid, atlas.labels, names)["cluster"].str.match(r"\d+$").sum() == 2
    assert set(cluster_table(both, hippocampus, grid, atlas.labels, names)["cluster"].str[0]) == {"1", "2"}
    assert cluster_table(t, np.zeros_like(left), grid, atlas.labels, names).empty


def test_fine_images_are_tested_on_voxels_of_half_the_smoothing_at_the_same_places():
    fine, coarse = Voxels.of(NetworkInput(2.0, None), 8.0), Voxels.of(NetworkInput(4.0, None), 8.0)
    assert (fine.step, coarse.step) == (2, 1)
    assert fine.mask.sum() == pytest.approx(coarse.mask.sum(), rel=0.05)
    x = np.zeros(template_grid(2.0).shape, np.float32)
    x[40, 50, 30] = 1.0
    values = np.zeros(fine.mask.shape)
    values[fine.mask] = fine.sampled(x)
    place = np.unravel_index(values.argmax(), values.shape)
    np.testing.assert_allclose(fine.grid.affine @ [*place, 1], template_grid(2.0).affine @ [40, 50, 30, 1])
    # The height of a Gaussian of 8 mm, per voxel of 2 mm
    assert values.max() == pytest.approx((2 / (8 / 2.3548 * np.sqrt(2 * np.pi))) ** 3, rel=0.01)
    assert isinstance(coarse.grid, Grid)
    assert (coarse.mask <= load_template(4.0).brain_mask).all()
