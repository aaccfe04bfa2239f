"""Volumes from the Jacobian: closed forms, tables, test-retest, and as a run writes them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.spaces import template_grid, write_template_image
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.registration.ants_transform import read_displacement
from heatlas.pipeline.registration.scan import SMALLEST_DETERMINANT, jacobian_determinant, log_jacobian
from heatlas.pipeline.registration.volumes import (
    VOLUMES_TABLE,
    hippocampal_volumes,
    measure_volumes,
    region_volumes,
    retest_table,
    tissue_volumes,
    volume_stability,
)
from heatlas.pipeline.run.config.settings import RegistrationConfig
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table, write_json
from tests.registration.work_of_scans import work_of_scans

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


AFFINE = np.diag([-2.0, 2.0, 2.0, 1.0])
LABELS = np.zeros(SHAPE, int)
LABELS[:3, 2:5], LABELS[4:6], LABELS[6, 8, 10] = 48, 47, 205
WITHOUT_WARP = np.zeros((*SHAPE, 3), np.float32)


def change_of(linear: np.ndarray, displacement: np.ndarray = WITHOUT_WARP) -> np.ndarray:
    return log_jacobian(jacobian_determinant(displacement, AFFINE), linear)


@given(st.floats(0.5, 2.0), st.integers(0, 2**32 - 1))
def test_a_head_larger_by_s_has_regions_larger_by_s_cubed(s: float, seed: int) -> None:
    """Template -> scan is an isotropic scaling by s and any rotation: volumes are s**3 the template's."""
    rotation = Rotation.random(random_state=seed).as_matrix()
    found = region_volumes(change_of(s * rotation), LABELS, [48, 47, 205], 8.0)
    for number, volume in found.items():
        assert volume == pytest.approx(s**3 * np.count_nonzero(number == LABELS) * 8, rel=1e-5, abs=1e-3)


def test_a_warp_that_shrinks_one_side_shrinks_its_region_only() -> None:
    """x -> x + u(x) halves distances along x left of the middle; a piecewise linear warp has a known volume."""
    index = np.arange(SHAPE[0], dtype=np.float32)
    x = -2.0 * index
    u = np.zeros((*SHAPE, 3), np.float32)
    u[..., 0] = np.where(index >= 3, -0.5 * (x - x[3]), 0)[:, None, None]
    found = region_volumes(change_of(np.eye(3), u), LABELS, [47, 48], 8.0)
    assert found[47] == pytest.approx(0.5 * (LABELS == 47).sum() * 8, rel=1e-5)
    assert found[48] == pytest.approx((LABELS == 48).sum() * 8, rel=1e-5)


def test_a_region_without_a_voxel_is_not_known_rather_than_empty() -> None:
    found = region_volumes(change_of(np.eye(3)), LABELS, [99, 48], 8.0)
    assert np.isnan(found[99])
    assert list(found) == [99, 48]


GREY, FLUID = 60.0, 20.0


def made_of(labels: np.ndarray, fluid_share: float, contrast: float = 1.0) -> np.ndarray:
    """A scan whose ventricles (205) are dark, and so is this share of every region."""
    t1w = np.where(labels == 205, FLUID, GREY) * contrast
    for number in (47, 48):
        inside = np.flatnonzero(labels.ravel() == number)
        t1w.ravel()[inside[: round(fluid_share * len(inside))]] = FLUID * contrast
    return t1w


@pytest.mark.parametrize("contrast", [0.01, 1.0, 1000.0])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.4])
def test_fluid_in_the_label_is_not_counted(share: float, contrast: float) -> None:
    """Whatever the scanner's units: the volume is s**3 times that of the voxels that are not dark."""
    found = tissue_volumes(change_of(1.1 * np.eye(3)), made_of(LABELS, share, contrast), LABELS, [47, 48], [205], 8.0)
    for number, volume in found.items():
        n = np.count_nonzero(number == LABELS)
        assert volume == pytest.approx(1.1**3 * (n - round(share * n)) * 8, rel=1e-5)


@pytest.mark.parametrize(
    ("t1w", "regions", "ventricles"),
    [
        (made_of(LABELS, 0.1), [47, 48], [7]),  # the atlas has no ventricles
        (made_of(LABELS, 0.1), [47, 48], []),
        (made_of(LABELS, 0.1), [99], [205]),
        (100 - made_of(LABELS, 0.1), [47, 48], [205]),  # bright fluid: not T1-weighted
        (np.full(SHAPE, 5.0), [47, 48], [205]),
        (np.zeros(SHAPE), [47, 48], [205]),
    ],
)
def test_without_dark_ventricles_the_volume_is_not_known(
    t1w: np.ndarray, regions: list[int], ventricles: list[int]
) -> None:
    found = tissue_volumes(change_of(np.eye(3)), t1w, LABELS, regions, ventricles, 8.0)
    assert list(found) == regions
    assert np.isnan(list(found.values())).all()


def test_two_grids_are_refused() -> None:
    with pytest.raises(ValueError, match="different shape"):
        region_volumes(np.zeros((7, 9, 12)), LABELS, [48], 8.0)


def test_stability_tells_a_repeat_from_another_person() -> None:
    rng = np.random.default_rng(4)
    template = {n: 1000.0 * (n + 1) for n in range(60)}
    person = {n: v * np.exp(0.2 * rng.normal()) for n, v in template.items()}
    repeat = {n: v * np.exp(0.02 * rng.normal()) for n, v in person.items()}
    stranger = {n: v * np.exp(0.2 * rng.normal()) for n, v in template.items()}
    same, other = volume_stability(person, repeat, template), volume_stability(person, stranger, template)
    assert same[0] > 0.98  # correlation, and mean difference in per cent
    assert same[1] < 3
    assert other[0] < 0.4
    assert other[1] > 10
    # The volumes themselves would not tell: regions differ in size.
    assert np.corrcoef(list(person.values()), list(stranger.values()))[0, 1] > 0.8


def test_stability_leaves_out_what_is_unknown_and_says_when_nothing_is_left() -> None:
    first, second = {1: 10.0, 2: float("nan"), 3: 30.0}, {1: 11.0, 2: 20.0, 3: 33.0}
    assert volume_stability(first, second, {1: 10.0, 2: 10.0, 3: 20.0})[2] == 2
    with pytest.raises(ValueError, match="no region"):
        volume_stability({1: float("nan")}, {1: 3.0}, {1: 4.0})


def volumes(participant: str, session: str | None, scan_id: str, factor: float) -> pd.DataFrame:
    rows = [
        (47, "Right hippocampus", "right", "Hippocampus", 3000.0 * factor, 2900.0 * factor, 3500.0),
        (48, "Left hippocampus", "left", "Hippocampus", 2900.0 * factor**2, 2800.0 * factor**2, 3400.0),
        (31, "Right amygdala", "right", "Amygdala", 1000.0, np.nan, 900.0),
    ]
    return VOLUMES_TABLE.frame([(participant, session, scan_id, *row) for row in rows])


def test_retest_compares_sessions_of_one_person_only() -> None:
    table = pd.concat([
        volumes("sub-01", "ses-M012", "c", 0.9), volumes("sub-01", "ses-M000", "a", 1.0),
        volumes("sub-02", "ses-M000", "b", 1.1), volumes("sub-03", None, "d", 1.0),
    ])  # fmt: skip
    found = retest_table(table)
    assert found[["participant_id", "first_session_id", "second_session_id"]].values.tolist() == [
        ["sub-01", "ses-M000", "ses-M012"]
    ]
    differences = [200 * (1 - 0.9) / 1.9, 200 * (1 - 0.81) / 1.81, 0.0]
    assert found["mean_difference_percent"][0] == pytest.approx(np.mean(differences))


def test_hippocampi_keep_their_sides() -> None:
    assert hippocampal_volumes(volumes("sub-01", None, "a", 2.0)) == {"a": (11200.0, 5800.0)}
    one_sided = volumes("sub-01", None, "a", 2.0)
    one_sided.loc[one_sided["region"] == 48, "tissue_mm3"] = np.nan
    assert hippocampal_volumes(one_sided) == {}


def test_dark_volume_counts_a_hole_and_no_shift(tmp_path: Path) -> None:
    from heatlas.atlases.templates import load_template
    from heatlas.pipeline.registration.quality.measures import dark_volume

    template = load_template(4.0)
    indices = np.stack(np.meshgrid(*[np.arange(n) for n in template.grid.shape], indexing="ij"), -1)
    world = indices @ template.grid.affine[:3, :3].T + template.grid.affine[:3, 3]
    hole = np.linalg.norm(world - [-35.0, -20.0, 25.0], axis=-1) < 20  # 33 ml
    scan = np.sqrt(template.t1w) * 40  # another contrast
    assert dark_volume(scan, template.t1w, template.brain_mask, 4.0) == 0
    assert dark_volume(np.roll(scan, 1, axis=0), template.t1w, template.brain_mask, 4.0) < 5
    found = dark_volume(np.where(hole, 0.2 * scan, scan), template.t1w, template.brain_mask, 4.0)
    assert found == pytest.approx(33.5, rel=0.35)
    bright = dark_volume(np.where(hole, 2 * scan, scan), template.t1w, template.brain_mask, 4.0)
    assert bright < 3


ATLAS = "neuromorphometrics-cat12"
GRID = template_grid(4.0)
VENTRICLES = (49, 50, 51, 52)
FLUID_VOXELS = 5
"""Of the left hippocampus."""


def measure(layout: RunLayout, scans: list[Scan]) -> tuple[bool, list[str]]:
    with ThreadPoolExecutor(1) as executor:
        work = work_of_scans(layout, layout.root, RegistrationConfig(4.0), executor)
        written, outcomes = measure_volumes(work, scans)
    return written, [outcome.status for outcome in outcomes]


def registered(layout: RunLayout, scan: Scan, change: float, key: str = "a", bends: bool = True) -> None:
    """As if the whole head had been registered with one volume change."""
    files = layout.scan(scan.participant_id, scan.session_id, 4.0)
    files.log_jacobian.parent.mkdir(parents=True, exist_ok=True)
    field = np.full(GRID.shape, change, np.float32)
    field[0, 0, 0] += 0.1 * bends  # outside the brain
    write_template_image(files.log_jacobian, field, GRID)
    labels = np.asarray(load_atlas(ATLAS, GRID).labels)
    t1w = np.where(labels == 0, 90, np.where(np.isin(labels, VENTRICLES), 20, 60)).astype(np.float32)
    t1w[np.unravel_index(np.flatnonzero(labels == 48)[:FLUID_VOXELS], GRID.shape)] = 20
    write_template_image(files.t1w, t1w, GRID)
    write_json(layout.receipt("registration", files.name), {"key": key, "outputs": {}, "result": {}})


def test_after_an_affine_registration_regions_have_no_volume_but_hippocampi_have_tissue(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    scans = [Scan("sub-01", f"ses-M0{month}", f"I{month}", "x.nii.gz") for month in ("00", "12")]
    for scan in scans:
        registered(layout, scan, float(np.log(0.8)), bends=False)
    assert measure(layout, scans) == (True, ["done", "done"])
    table = read_table(layout.group / "volumes.tsv", list(VOLUMES_TABLE.meanings))
    assert table["volume_mm3"].isna().all()
    right = table[table["region"] == 47]
    np.testing.assert_allclose(right["tissue_mm3"], 0.8 * right["template_mm3"], rtol=1e-5)
    assert read_table(layout.group / "test_retest.tsv").empty


def test_volumes_of_two_visits(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    scans = [Scan("sub-01", f"ses-M0{month}", f"I{month}", "x.nii.gz") for month in ("00", "12")]
    registered(layout, scans[0], float(np.log(0.8)))
    registered(layout, scans[1], float(np.log(0.72)))
    assert measure(layout, scans) == (True, ["done", "done"])
    table = read_table(layout.group / "volumes.tsv", list(VOLUMES_TABLE.meanings))
    labels = np.asarray(load_atlas(ATLAS, GRID).labels)
    assert len(table) == 2 * 134
    for number, name, side in ((48, "Left hippocampus", "left"), (47, "Right hippocampus", "right")):
        own = table[(table["region"] == number) & (table["scan_id"] == "I00")].iloc[0]
        assert (own["name"], own["hemisphere"], own["group"]) == (name, side, "Hippocampus")
        assert own["template_mm3"] == (labels == number).sum() * 64
        assert own["volume_mm3"] == pytest.approx(0.8 * own["template_mm3"], rel=1e-5)
        dark = FLUID_VOXELS * 64 if side == "left" else 0
        assert own["tissue_mm3"] == pytest.approx(0.8 * (own["template_mm3"] - dark), rel=1e-5)
    assert set(table.loc[table["tissue_mm3"].notna(), "region"]) == {47, 48}
    for scan in scans:
        path = layout.scan(scan.participant_id, scan.session_id, 4.0).volumes
        described = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        assert list(described) == list(read_table(path).columns)
        assert "Jacobian" in described["volume_mm3"]["Description"]
    retest = read_table(layout.group / "test_retest.tsv")
    assert retest["mean_difference_percent"][0] == pytest.approx(200 * 0.08 / 1.52, rel=1e-4)
    assert measure(layout, scans) == (False, ["unchanged", "unchanged"])
    registered(layout, scans[1], float(np.log(0.8)), "b")
    assert measure(layout, scans) == (True, ["unchanged", "done"])
    assert read_table(layout.group / "test_retest.tsv")["mean_difference_percent"][0] == pytest.approx(0, abs=1e-4)


def test_a_scan_without_a_volume_change_fails_alone(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    scans = [Scan("sub-01", None, "I1", "x.nii.gz"), Scan("sub-02", None, "I2", "y.nii.gz")]
    registered(layout, scans[1], 0.0)
    assert measure(layout, scans) == (True, ["failed", "done"])
    assert set(read_table(layout.group / "volumes.tsv")["scan_id"]) == {"I2"}
    assert read_table(layout.failures)["stage"].tolist() == ["volumes"]
