"""Volumes from the Jacobian: direction and size by closed forms, tables, test-retest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from heatlas.pipeline.registration.volumes.jacobian import jacobian_determinant, log_jacobian
from heatlas.pipeline.registration.volumes.region_volumes import (
    VOLUMES_TABLE,
    hippocampal_volumes,
    region_volumes,
    retest_table,
    tissue_volumes,
    volume_stability,
)

SHAPE = (7, 9, 11)
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
