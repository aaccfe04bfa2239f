"""Regions and voxels that differ in the images: planted effects, closed forms, exact TFCE, level."""

from __future__ import annotations

import dataclasses

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
from folded_cohort import GROUPS, MAPS, inputs_of, quick_config, scans_of
from scipy import stats
from scipy.ndimage import gaussian_filter, label

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.regions import neuromorphometrics
from heatlas.atlases.spaces import Grid, template_grid
from heatlas.atlases.templates import load_template
from heatlas.pipeline.models.inputs import NetworkInput
from heatlas.pipeline.regions.effect_size import hedges_g
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.statistics.data.values import group_means, volume_change
from heatlas.pipeline.statistics.images.differences import Adjusted, image_differences_tables, rank_correlation
from heatlas.pipeline.statistics.images.voxel_test import cluster_table, enhanced, neighbours_of, voxel_test
from heatlas.pipeline.statistics.images.voxelwise import Voxels
from heatlas.pipeline.statistics.linear.fold_effect import model_within_folds
from heatlas.pipeline.statistics.linear.permutations import Permutations

SCANS = scans_of(60)
IS_FIRST = np.array([scan.label == "AD" for scan in SCANS])
PERSON = [scan.participant_id for scan in SCANS]


def with_images(images: np.ndarray, densities: np.ndarray, scans=SCANS, jacobian=np.nan, **statistics):
    """Inputs whose images hold the values (scans, groups)."""
    inputs = inputs_of(scans, densities, None, quick_config(**statistics))
    rows = [
        {"scan_id": scan.scan_id, "group": group, "intensity": value, "log_jacobian": jacobian * value}
        for scan, of_scan in zip(scans, images, strict=True)
        for group, value in zip(GROUPS, of_scan, strict=True)
    ]
    return dataclasses.replace(inputs, image_regions=pd.DataFrame(rows))


def noise(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def test_planted_regions_get_their_verdicts():
    images, densities = noise(1, 64, 6), noise(2, 64, len(MAPS), 6)
    images[IS_FIRST, 1] -= 2.0  # Hippocampus: differs and is used
    images[IS_FIRST, 2] += 2.0  # Putamen: differs only
    densities[IS_FIRST, :, 1] += 2.0
    densities[IS_FIRST, :, 3] += 2.0  # Precuneus: used only
    table = image_differences_tables(with_images(images, densities))["image_differences"]
    assert set(table["map"]) == set(MAPS)
    assert set(table["measure"]) == {"intensity"}  # nobody has a log-Jacobian
    for _, rows in table.groupby("map"):
        found = rows.set_index("group")["verdict"]
        assert found["Hippocampus"] == "differs and is used"
        assert found["Putamen"] == "differs, not used"
        assert found["Precuneus"] == "used, does not differ"
        assert (found[["Amygdala", "Lateral ventricle", "Thalamus"]] == "neither").all()
    one = table[table["group"] == "Hippocampus"].iloc[0]
    assert one["difference"] < one["ci_high"] < 0
    assert one["hedges_g"] < -1.3
    assert one["evidence_g"] > 1.3
    assert (one["n_positive"], one["n_negative"]) == (30, 30)  # people, of whom four were scanned twice
    assert one["covariates"] == "fold, age, sex[T.M]"


def test_agreement_is_high_where_the_network_uses_what_differs_and_by_chance_elsewhere():
    effect = np.array([-2.5, 2.0, -1.5, 1.0, -0.5, 0.0])
    images, densities = noise(3, 64, 6), noise(4, 64, len(MAPS), 6)
    images += IS_FIRST[:, None] * effect
    densities[:, 0] += IS_FIRST[:, None] * np.abs(effect)
    table = image_differences_tables(with_images(images, densities, jacobian=2.0))["image_agreement"]
    assert set(table["measure"]) == {"intensity", "log_jacobian"}
    rows = table[table["measure"] == "intensity"].set_index("map")
    used, unused = rows.loc[MAPS[0]], rows.loc[MAPS[1]]
    assert used["r"] > 0.9
    assert used["p"] < 0.05
    assert used["ci_low"] < used["r"]
    assert used["n_regions"] == 6
    assert used["n_participants"] == 60
    assert abs(used["by_chance"]) < 0.15
    assert unused["p"] > 0.05
    other = table[table["measure"] == "log_jacobian"].set_index("map")
    assert other["r"].to_numpy() == pytest.approx(rows["r"].to_numpy())  # a factor changes no rank


def test_without_covariates_t_is_welchs_over_people_and_g_is_hedges():
    images = noise(5, 64, 6)
    inputs = with_images(images, noise(6, 64, len(MAPS), 6), covariates="")
    table = image_differences_tables(inputs)["image_differences"].query("map == @MAPS[0]")
    means = pd.DataFrame(images).groupby(PERSON).mean().to_numpy()
    of_first = pd.Series(IS_FIRST).groupby(PERSON).first().to_numpy()
    welch = stats.ttest_ind(means[of_first], means[~of_first], equal_var=False)
    np.testing.assert_allclose(table["t"], welch.statistic, rtol=1e-9)
    np.testing.assert_allclose(table["df"], welch.df, rtol=1e-9)
    np.testing.assert_allclose(table["hedges_g"], hedges_g(means, of_first), rtol=1e-9)


def test_adjusted_g_is_the_coefficient_of_ordinary_least_squares_in_residual_standard_deviations():
    rng = np.random.default_rng(7)
    frame = pd.DataFrame({"age": rng.normal(70, 8, 40), "_first": np.arange(40) % 2.0})
    values = rng.normal(size=(40, 3)) + 0.05 * frame[["age"]].to_numpy() + frame[["_first"]].to_numpy()
    people = Adjusted.of(values, model_within_folds("age + _first", "_first", frame, False))
    x = np.column_stack([frame["_first"], np.ones(40), frame["age"]])
    b, left, *_ = np.linalg.lstsq(x, values, rcond=None)
    j = 1 - 3 / (4 * 37 - 1)  # Hedges' approximation of the correction
    np.testing.assert_allclose(people.hedges_g, j * b[0] / np.sqrt(left / 37), rtol=2e-4)


def test_a_draw_is_the_fit_of_people_drawn_twice_and_an_exchange_that_of_exchanged_people():
    frame = pd.DataFrame({"age": noise(8, 30), "_first": np.arange(30) % 2.0})
    values, weights = noise(9, 30, 4), np.random.default_rng(1).integers(0, 3, 30).astype(float)
    people = Adjusted.of(values, model_within_folds("age + _first", "_first", frame, False))
    again = np.repeat(np.arange(30), weights.astype(int))
    drawn = Adjusted.of(values[again], model_within_folds("age + _first", "_first", frame.iloc[again], False))
    np.testing.assert_allclose(
        people.drawn_sizes(weights[None])[0], (drawn.model.tested[:, 0] @ drawn.residuals) ** 2, rtol=1e-9
    )
    as_they_are = Permutations(np.arange(30, dtype=np.int32)[None], False)
    np.testing.assert_allclose(people.sizes(as_they_are)[0], people.drawn_sizes(np.ones((1, 30)))[0], rtol=1e-9)


def test_a_map_without_an_order_of_regions_has_no_agreement_and_small_classes_are_said():
    images = noise(12, 64, 6)
    found = image_differences_tables(with_images(images, np.zeros((64, len(MAPS), 6))))
    agreement = found["image_agreement"]
    assert agreement[["r", "p"]].isna().all(axis=None)
    assert agreement["note"].str.contains("no order").all()
    assert found["image_differences"]["note"].str.contains("fewer than 100 participants").all()


@pytest.mark.slow
def test_p_is_uniform_without_a_difference_whatever_sizes_and_spreads():
    """12 patients of twice the spread among 48 people: 5 % of regions below .05, and 5 % of families."""
    scans = [dataclasses.replace(s, label="AD" if k % 4 == 0 else "CN") for k, s in enumerate(scans_of(48))]
    first = np.array([scan.label == "AD" for scan in scans])
    p, least = [], []
    for seed in range(150):
        images = noise(seed, len(scans), 6) * np.where(first, 2.0, 1.0)[:, None]
        table = image_differences_tables(with_images(images, noise(seed + 999, len(scans), len(MAPS), 6), scans))
        rows = table["image_differences"].query("map == @MAPS[0]")
        p, least = [*p, *rows["p"], *rows["evidence_p"]], [*least, rows["p_fwe"].min(), rows["evidence_p_fwe"].min()]
    assert np.mean(np.array(p) < 0.05) == pytest.approx(0.05, abs=0.02)
    assert np.mean(np.array(least) < 0.05) == pytest.approx(0.05, abs=0.035)


def test_scans_without_a_measure_are_left_out_and_said():
    images, densities = noise(10, 64, 6), noise(11, 64, len(MAPS), 6)
    images[:2] = np.nan
    table = image_differences_tables(with_images(images, densities))["image_differences"]
    assert table["note"].str.contains("2 scans without this measure left out").all()
    with pytest.raises(BadInputError, match="no scan was measured"):
        image_differences_tables(inputs_of(SCANS, densities, None, quick_config()))


def test_group_means_take_both_sides_together():
    regions = neuromorphometrics()
    labels = np.array([47, 47, 48, 0, 4], np.int64)
    means, n = group_means(np.array([1.0, 2.0, 6.0, 50.0, 7.0], np.float32), labels, regions)
    found = dict(zip(regions.groups, zip(means, n, strict=True), strict=True))
    assert found["Hippocampus"] == (3.0, 3)
    assert found["Third ventricle"] == (7.0, 1)
    assert np.isnan(found["Amygdala"][0])
    assert found["Amygdala"][1] == 0


def test_volume_change_has_no_size_of_the_brain_and_none_after_an_affine_registration(tmp_path):
    spec = NetworkInput(4.0, None)
    files, grid = ScanFiles(tmp_path, "sub-1", None, 4.0), spec.template_grid
    files.t1w.parent.mkdir(parents=True)
    brain, change = np.zeros(grid.shape, np.uint8), np.full(grid.shape, 0.2, np.float32)
    brain[10:20, 10:20, 10:20] = 1
    nib.save(nib.Nifti1Image(brain, grid.affine), files.brain_mask)
    assert volume_change(files, spec) is None
    nib.save(nib.Nifti1Image(change, grid.affine), files.log_jacobian)
    assert volume_change(files, spec) is None
    change[10:15] += 0.4
    nib.save(nib.Nifti1Image(change, grid.affine), files.log_jacobian)
    found = volume_change(files, spec)
    assert found[12, 12, 12] == pytest.approx(0.2)
    assert found[17, 12, 12] == pytest.approx(-0.2)
    files.log_jacobian.write_bytes(files.log_jacobian.read_bytes()[:300])
    with pytest.raises(BadInputError, match="cannot be read"):
        volume_change(files, spec)


def test_rank_correlation_is_spearmans():
    a, b = noise(12, 3, 20), np.round(noise(13, 3, 20))  # with ties
    np.testing.assert_allclose(
        rank_correlation(a, b), [stats.spearmanr(*pair).statistic for pair in zip(a, b, strict=True)]
    )


def test_agreement_is_within_folds_for_images_as_for_maps():
    """What the images of a fold have in common goes into neither r nor p."""
    images, densities = noise(14, 64, 6), noise(15, 64, len(MAPS), 6)
    inputs = with_images(images, densities)
    of_fold = pd.factorize(inputs.frame["fold"])[0][:, None] * 5.0
    moved = with_images(images + of_fold, densities)
    rows, same = (image_differences_tables(one)["image_agreement"] for one in (inputs, moved))
    np.testing.assert_allclose(same["r"], rows["r"])
    np.testing.assert_array_equal(same["p"], rows["p"])


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


@pytest.mark.ci
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
