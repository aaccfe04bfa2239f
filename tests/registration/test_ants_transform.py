"""Transforms by ANTs, and what the resolution of the grid changes."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import nibabel as nib
import numpy as np
import pytest
import scipy.ndimage
from registration_phantom import BALL_MM, BALL_RADIUS_MM, TEMPLATE_TO_SCAN

from heatlas.atlases.spaces import Grid
from heatlas.atlases.templates import Template, brain_box, load_template
from heatlas.pipeline.registration import ants_transform
from heatlas.pipeline.registration.ants_transform import (
    AFFINE,
    AFFINE_TORCH,
    BOTH_METRICS,
    COARSE_LEVELS_MM,
    LEVELS_MM,
    NAMED,
    THREADS_VARIABLE,
    TO_4MM,
    RegistrationError,
    Volume,
    around_brain,
    closest_ras,
    coarsen,
    correct_bias_field,
    iterations,
    read_affine,
    read_displacement,
    require_one_thread,
    resample,
)
from heatlas.pipeline.registration.quality.outliers import MIN_COHORT
from heatlas.pipeline.registration.quality.sides import (
    Halves,
    asymmetry,
    compare_sides,
    halves_of,
    side_scores,
    sides_of,
    without_warp,
    write_asymmetry,
)
from heatlas.pipeline.registration.scan import RegisteredScan, register_image
from heatlas.pipeline.run.config.settings import RegistrationConfig

# Where things end up: sides, orientations and the direction of every transform.

QUICK = "antsRegistrationSyNQuick[s]"
CONFIG = RegistrationConfig(resolution_mm=4.0, brain_extraction="none", bias_correction=False, transform=QUICK)
"""4 mm: the same code in seconds. Places are known to the millimetre under mutual information only: the phantom is
even, and in even tissue cross-correlation follows the noise."""


@pytest.fixture
def register(one_thread: None, phantom: Any, template: Template, write: Any, tmp_path: Path) -> Any:
    def run(axes: str = "RAS", config: RegistrationConfig = CONFIG, seed: int = 7) -> RegisteredScan:
        path = write(phantom, axes, f"{axes}/scan.nii.gz")
        return register_image(path, template, config, seed, path.with_name("ants_"))

    return run


@pytest.mark.ci
def test_every_orientation_gives_the_same_brain_with_left_on_the_left(register: Any, template: Template) -> None:
    results = {axes: register(axes) for axes in ("RAS", "LAS", "PSR", "LIA")}
    first = results["RAS"]
    for result in results.values():
        assert result.t1w.dtype == np.float32
        assert result.t1w.shape == template.grid.shape
        assert (result.t1w[~result.brain_mask] == 0).all()
        # the ball is the only thing brighter than 110
        ball = np.argwhere(result.t1w > 110) @ template.grid.affine[:3, :3].T + template.grid.affine[:3, 3]
        assert np.linalg.norm(ball.mean(0) - BALL_MM) < 3
        assert len(ball) * 64 == pytest.approx(4 / 3 * np.pi * BALL_RADIUS_MM**3, rel=0.5)
        assert result.quality["correlation"] > 0.85
        assert result.quality["dice"] > 0.97
        inside = first.brain_mask & result.brain_mask
        assert np.corrcoef(result.t1w[inside], first.t1w[inside])[0, 1] > 0.9999
        assert abs(result.log_jacobian - first.log_jacobian)[inside].mean() < 1e-3


@pytest.mark.parametrize("transform", [QUICK, pytest.param(TO_4MM, marks=pytest.mark.ci)])
def test_the_affine_planted_is_the_affine_found(register: Any, template: Template, transform: str) -> None:
    """Template -> scan, in RAS millimetres, judged where the brain is."""
    result = register("PSR", replace(CONFIG, transform=transform))
    found = read_affine(result.transforms.affine)
    points = np.argwhere(template.brain_mask)[::50] @ template.grid.affine[:3, :3].T + template.grid.affine[:3, 3]
    planted = points @ TEMPLATE_TO_SCAN[:3, :3].T + TEMPLATE_TO_SCAN[:3, 3]
    reached = points @ found[:3, :3].T + found[:3, 3]
    assert np.linalg.norm(planted - points, axis=1).mean() > 8
    assert np.linalg.norm(reached - planted, axis=1).mean() < 2
    assert result.quality["scale"] == pytest.approx(np.cbrt(np.linalg.det(TEMPLATE_TO_SCAN[:3, :3])), abs=0.02)
    # The planted map shrinks every place alike, so the log-Jacobian is its logarithm, on average over the brain.
    expected = np.log(np.linalg.det(TEMPLATE_TO_SCAN[:3, :3]))
    assert expected < -0.1
    assert result.log_jacobian[template.brain_mask].mean() == pytest.approx(expected, abs=0.03)


def test_after_an_affine_registration_all_places_change_alike(register: Any, template: Template) -> None:
    """The affine is the one that was planted; there is no displacement, and no volume of a region to be had."""
    result = register("PSR", replace(CONFIG, transform="affine"))
    points = np.argwhere(template.brain_mask)[::50] @ template.grid.affine[:3, :3].T + template.grid.affine[:3, 3]
    found = read_affine(result.transforms.affine)
    reached = points @ found[:3, :3].T + found[:3, 3]
    planted = points @ TEMPLATE_TO_SCAN[:3, :3].T + TEMPLATE_TO_SCAN[:3, 3]
    assert np.linalg.norm(reached - planted, axis=1).mean() < 2  # half a voxel
    for path in (result.transforms.warp, result.transforms.inverse_warp):
        assert not read_displacement(path).any()
    assert np.ptp(result.log_jacobian) < 1e-5
    assert result.log_jacobian.mean() == pytest.approx(np.log(np.linalg.det(found[:3, :3])), abs=1e-5)
    assert (result.quality["affine_residual_mm"], result.quality["min_jacobian"]) == (0, pytest.approx(1))


@pytest.mark.parametrize(("name", "parameters"), [("syn", BOTH_METRICS), ("syn-quick", QUICK)])
def test_a_name_stands_for_the_parameters_of_ants(name: str, parameters: str, monkeypatch: Any, tmp_path: Path) -> None:
    asked = []
    monkeypatch.setenv(THREADS_VARIABLE, "1")
    monkeypatch.setattr(ants_transform, "run_ants", lambda fixed, moving, transform, *_, **__: asked.append(transform))
    volume = Volume(np.zeros((4, 5, 6), np.float32), np.eye(4))
    with pytest.raises(RegistrationError, match="without a result"):
        ants_transform.register(volume, volume, name, 1, tmp_path / "ants_")
    assert asked == [parameters]


def test_transform_files_mean_what_is_said(register: Any, phantom: Any, template: Template) -> None:
    """Pull the scan through A(x + u(x)) by hand; ANTs must agree."""
    result = register("RAS")
    grid = brain_box(template).grid(template.grid)
    u = read_displacement(result.transforms.warp)
    assert u.shape == (*grid.shape, 3)
    assert np.abs(u).max() > 0.5
    index = np.stack(np.meshgrid(*[np.arange(n) for n in grid.shape], indexing="ij"), -1)
    x = index @ grid.affine[:3, :3].T + grid.affine[:3, 3]
    matrix = np.linalg.inv(phantom.affine) @ read_affine(result.transforms.affine)
    where = (x + u) @ matrix[:3, :3].T + matrix[:3, 3]
    data = phantom.get_fdata(dtype=np.float32)
    by_hand = scipy.ndimage.map_coordinates(data, np.moveaxis(where, -1, 0), order=1)
    by_ants = resample(Volume(data, phantom.affine), result.transforms, grid.shape, grid.affine)
    np.testing.assert_allclose(by_hand, by_ants, atol=0.1)


@pytest.fixture
def few_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    """70 iterations at 4 mm would take half a minute, and the 8 mm level converges in fewer than 10."""
    monkeypatch.setattr(ants_transform, "LEVELS_MM", dict(zip(LEVELS_MM, (10, 2, 1), strict=True)))


def test_the_sets_that_can_be_named_are_the_ones_that_are_known() -> None:
    offered = get_args(get_type_hints(RegistrationConfig)["transform"])
    assert offered == (BOTH_METRICS, QUICK, "antsRegistrationSyNQuickRepro[s]", TO_4MM, *NAMED, AFFINE, AFFINE_TORCH)
    assert RegistrationConfig().transform == BOTH_METRICS
    for name, levels in ((BOTH_METRICS, LEVELS_MM), (TO_4MM, COARSE_LEVELS_MM)):
        listed = ",".join(f"{width:g}mm:{number}" for width, number in levels.items())
        assert name.endswith(f",{listed}]")


@pytest.mark.parametrize("voxel_mm", [0.5, 0.75, 0.8, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0])
def test_levels_are_counted_in_millimetres(voxel_mm: float) -> None:
    """Whatever the template, SyN works at voxels of about 8, 4 and 2 mm, and never where it would take hours."""
    found = iterations(voxel_mm)
    widths = [voxel_mm * 2**step for step in reversed(range(len(found)))]
    for wanted, number in LEVELS_MM.items():
        near = [n for width, n in zip(widths, found, strict=True) if 2**-0.5 <= width / wanted < 2**0.5]
        assert near == [number] or (wanted < voxel_mm and not near)
    assert all(n == 0 for width, n in zip(widths, found, strict=True) if width < 2**0.5)


@pytest.mark.ci
@pytest.mark.usefixtures("few_iterations")
@pytest.mark.parametrize("transform", [QUICK, pytest.param(BOTH_METRICS, marks=pytest.mark.slow)])
def test_same_seed_same_bytes_and_nothing_left_behind(
    register: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transform: Any
) -> None:
    config = replace(CONFIG, transform=transform)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    first = register("RAS", config)
    contents = {path.name: path.read_bytes() for path in (tmp_path / "RAS").iterdir()}
    second = register("RAS", config)
    assert sorted(contents) == [
        "ants_0GenericAffine.mat",
        "ants_1InverseWarp.nii.gz",
        "ants_1Warp.nii.gz",
        "scan.nii.gz",
    ]
    for name, content in contents.items():
        assert (tmp_path / "RAS" / name).read_bytes() == content, name
    np.testing.assert_array_equal(first.t1w, second.t1w)
    np.testing.assert_array_equal(first.log_jacobian, second.log_jacobian)
    assert not list(temporary.iterdir())


@pytest.mark.ci
def test_the_seed_reaches_ants(register: Any) -> None:
    assert not np.array_equal(register("RAS", seed=7).t1w, register("RAS", seed=8).t1w)


@pytest.mark.ci
@pytest.mark.usefixtures("few_iterations")
def test_both_metrics_start_from_the_linear_stages_of_the_other(register: Any, template: Template) -> None:
    """One affine for both; the warp is another, and brings the even phantom as near to the template."""
    quick = register("RAS")
    affine = read_affine(quick.transforms.affine)
    crossed = register("RAS", replace(CONFIG, transform=BOTH_METRICS))
    np.testing.assert_allclose(read_affine(crossed.transforms.affine), affine, atol=1e-5)
    assert not np.array_equal(crossed.t1w, quick.t1w)
    assert crossed.quality["correlation"] > quick.quality["correlation"] - 0.03


@pytest.mark.ci
def test_template_mask_cuts_what_the_own_mask_would_keep(register: Any, template: Template) -> None:
    own = register("RAS")
    cut = register("RAS", replace(CONFIG, brain_extraction="template-mask"))
    np.testing.assert_array_equal(cut.brain_mask, template.brain_mask)
    assert (cut.t1w[~template.brain_mask] == 0).all()
    assert cut.quality["dice"] == own.quality["dice"]
    assert not np.array_equal(own.brain_mask, template.brain_mask)


@pytest.mark.ci
def test_bias_field_is_taken_out(one_thread: None, phantom: Any) -> None:
    volume = coarsen(Volume(phantom.get_fdata(dtype=np.float32), phantom.affine), 8.0)
    data = volume.data
    mask = data > 8
    side = np.linspace(-1, 1, data.shape[0], dtype=np.float32)[:, None, None]
    field = np.exp(0.35 * side)
    corrected = correct_bias_field(Volume(data * field, volume.affine), mask)
    before, after = np.log(field) + 0 * data, np.log(np.where(mask, corrected / np.maximum(data, 1), 1))
    assert after[mask].std() < 0.6 * before[mask].std()
    assert (corrected[data == 0] == 0).all()


def test_several_threads_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(THREADS_VARIABLE, raising=False)
    with pytest.raises(RuntimeError, match=THREADS_VARIABLE):
        require_one_thread()


# Grids: coarsening, cropping, and left and right, where planted flips are named.

RESOLUTION_AFFINE = np.array(
    [[0, 0, 1.2, -30], [-1.0, 0, 0, 40], [0, 0.8, 0, -25], [0, 0, 0, 1.0]]
)  # PSR, 1 x .8 x 1.2 mm
SHAPE = (41, 53, 37)


def world(volume: Volume) -> np.ndarray:
    indices = np.stack(np.meshgrid(*[np.arange(n) for n in volume.data.shape], indexing="ij"), -1)
    return np.asarray(indices @ volume.affine[:3, :3].T + volume.affine[:3, 3])


def ramp() -> Volume:
    """Intensity = a linear function of world position, which neither smoothing nor resampling may move."""
    empty = Volume(np.zeros(SHAPE, np.float32), RESOLUTION_AFFINE)
    return Volume((world(empty) @ [1.0, 2.0, -3.0] + 500).astype(np.float32), RESOLUTION_AFFINE)


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
    box = around_brain(Volume(mask, RESOLUTION_AFFINE), mask, 2.0)
    assert box.data.dtype == bool
    assert box.data.sum() == 1


TEMPLATE = load_template(4.0)
HALVES = halves_of(np.asarray(TEMPLATE.brain_mask), TEMPLATE.grid.affine)
MASK = np.asarray(TEMPLATE.brain_mask)


def noise(rng: np.random.Generator) -> np.ndarray:
    values = scipy.ndimage.gaussian_filter(rng.normal(size=MASK.shape), 1.0)
    return np.asarray(values / values.std())


def head(seed: int, common: float = 1.0, tilt: float = 0.0, shift_mm: float = 0.0) -> np.ndarray:
    """A brain of random tissue on both sides, random asymmetry, and an asymmetry that all have, larger on one side."""
    rng = np.random.default_rng(seed)
    even, own = noise(rng), noise(rng)
    shared = noise(np.random.default_rng(1000))
    values = 100 + 10 * (
        (even + even[::-1]) + own + common * (shared * np.linspace(0.3, 1.7, MASK.shape[0])[:, None, None])
    )
    values = np.where(MASK & MASK[::-1], values, 0)
    if not (tilt or shift_mm):
        return np.asarray(values)
    turn = np.eye(3)
    turn[0, 1], turn[1, 0] = tilt, -tilt
    centre = (np.array(MASK.shape) - 1) / 2
    return np.asarray(
        scipy.ndimage.affine_transform(values, turn, centre - turn @ centre - [shift_mm / 4, 0, 0], order=1)
    )


def rows(n: int, flipped: tuple[int, ...] = (), common: float = 1.0) -> list[np.ndarray]:
    return [asymmetry(head(i, common)[::-1] if i in flipped else head(i, common), HALVES) for i in range(n)]


def test_halves_are_the_right_side_of_the_brain_and_of_its_mirror_image() -> None:
    assert (HALVES.points[:, 0] > 0).all()
    voxels = np.rint((HALVES.points - HALVES.affine[:3, 3]) / 4).astype(int)
    assert MASK[tuple(voxels.T)].all()
    voxels[:, 0] = MASK.shape[0] - 1 - voxels[:, 0]
    assert MASK[tuple(voxels.T)].all()
    with pytest.raises(ValueError, match="not symmetric"):
        halves_of(MASK[1:], HALVES.affine)


def test_the_asymmetry_of_the_mirror_image_is_the_negative_and_that_of_an_even_brain_is_none() -> None:
    found = asymmetry(head(1), HALVES)
    assert np.linalg.norm(found) == pytest.approx(1)
    assert found.mean() == pytest.approx(0, abs=1e-6)
    assert asymmetry(head(1)[::-1], HALVES) @ found == pytest.approx(-1, abs=1e-3)
    assert asymmetry(head(1) * 7, HALVES) @ found == pytest.approx(1, abs=1e-6)
    even = head(1) + head(1)[::-1]
    np.testing.assert_array_equal(asymmetry(even, HALVES), 0)
    np.testing.assert_array_equal(asymmetry(np.zeros(MASK.shape), HALVES), 0)


def test_a_tilted_and_shifted_head_is_moved_onto_its_midline() -> None:
    straight, tilted = (asymmetry(one, HALVES) for one in (head(1), head(1, tilt=0.05, shift_mm=3.0)))
    assert straight @ tilted > 0.8


@pytest.mark.sample(2)
@pytest.mark.parametrize("flipped", [(), (3,), (0, 4, 11)])
def test_planted_flips_are_named_and_nobody_else(flipped: tuple[int, ...]) -> None:
    found = compare_sides(rows(20, flipped))
    assert found.unknown == ""
    assert np.flatnonzero(found.mirrored).tolist() == list(flipped)
    assert (found.scores[list(flipped)] < -0.1).all()


def test_scores_leave_the_scan_itself_out() -> None:
    a, b = np.array([0.6, -0.8, 0.0]), np.array([0.0, 1.0, 0.0])
    spread = np.array([0.3, 0.9, 0.15])  # standard deviations over the two; the last, 0, is raised to half the median
    one, other = a / spread, b / spread
    expected = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
    np.testing.assert_allclose(side_scores([a, b]), expected)
    assert side_scores([]).tolist() == []
    assert side_scores([a]).tolist() == [0.0]


@pytest.mark.ci
def test_all_mirrored_look_alike_and_most_mirrored_cannot_be_told() -> None:
    everyone = compare_sides(rows(20, tuple(range(20))))
    assert not everyone.mirrored.any()
    assert everyone.unknown == ""
    most = compare_sides(rows(20, tuple(range(13))))
    assert not most.mirrored.any()
    assert "too many to tell which of the two groups is mirrored" in most.unknown
    half = compare_sides(rows(20, tuple(range(10))))
    assert not half.mirrored.any()
    assert half.unknown


def test_without_a_common_asymmetry_nothing_is_said() -> None:
    found = compare_sides(rows(20, common=0.0))
    assert not found.mirrored.any()
    assert "no asymmetry in common" in found.unknown


def test_few_scans_are_not_compared() -> None:
    found = compare_sides(rows(MIN_COHORT - 1, (2,)))
    assert np.isnan(found.scores).all()
    assert not found.mirrored.any()
    assert found.unknown == f"fewer than {MIN_COHORT} scans to compare with each other"
    assert np.flatnonzero(compare_sides(rows(MIN_COHORT, (2,))).mirrored).tolist() == [2]


@pytest.mark.sample(2)
@pytest.mark.parametrize("axes", ["RAS", "LAS", "PIR", "SAL"])
def test_files_of_any_orientation_give_the_same(axes: str, tmp_path: Path) -> None:
    for i in range(12):
        image = nib.Nifti1Image((head(i)[::-1] if i == 5 else head(i)).astype(np.float32), TEMPLATE.grid.affine)
        turned = image.as_reoriented(
            nib.orientations.ornt_transform(nib.io_orientation(image.affine), nib.orientations.axcodes2ornt(axes))
        )
        nib.save(turned, tmp_path / f"{i}.nii.gz")
        write_asymmetry(tmp_path / f"{i}.npy", tmp_path / f"{i}.nii.gz", 4.0)
    found = sides_of([tmp_path / f"{i}.npy" for i in range(12)])
    assert np.flatnonzero(found.mirrored).tolist() == [5]
    np.testing.assert_allclose(np.load(tmp_path / "3.npy"), asymmetry(head(3).astype(np.float32), HALVES), atol=1e-4)


def test_the_warp_is_taken_back() -> None:
    """A warp by 4 mm along x is undone; beyond its grid nothing moves."""
    grid = Grid((9, 5, 5), np.diag([4.0, 4.0, 4.0, 1.0]))
    values = np.arange(9.0)[:, None, None] * np.ones((9, 5, 5))
    inverse = np.zeros((8, 10, 10, 3), np.float32)
    inverse[..., 0] = 4.0
    box = np.diag([2.0, 2.0, 2.0, 1.0])
    found = without_warp(values, grid, inverse, box)
    np.testing.assert_allclose(found[:4, 2, 2], [1, 2, 3, 4], atol=1e-5)
    np.testing.assert_allclose(found[4:, 2, 2], [4, 5, 6, 7, 8], atol=1e-5)


def test_halves_are_a_record_of_their_grid() -> None:
    assert isinstance(HALVES, Halves)
    assert HALVES.mask.sum() == 2 * (HALVES.mask[: MASK.shape[0] // 2]).sum() + HALVES.mask[MASK.shape[0] // 2].sum()
