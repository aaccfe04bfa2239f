"""Quality of registrations: measures, and flags for scans in doubt."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.registration.quality.doubt import decide, dropped_reason, require_decisions
from heatlas.pipeline.registration.quality.measures import (
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
    flag_reasons,
    outlying_distance,
    region_distances,
    region_reasons,
    robust_distance,
    worst_regions,
)
from heatlas.pipeline.registration.quality.region_quality import (
    inverse_error,
    local_correlation,
    region_means,
    region_percentiles,
    region_voxels,
)
from heatlas.pipeline.registration.settled import RELIABILITY, settle_scans
from heatlas.pipeline.registration.stage import REGISTRATION_TABLE
from heatlas.pipeline.run.config.settings import RegistrationConfig
from heatlas.pipeline.run.errors import BadInputError, ResumableError
from heatlas.pipeline.run.tables import read_table

# Quality of a registration, whole and per region: each number against a case whose value is known.

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
    columns = list(REGISTRATION_TABLE.meanings)
    assert list(found) == columns[columns.index("correlation") : columns.index("t1w_mutual_information")]
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
    least, high = region_percentiles(values, regions, 0, 99)
    assert least == {3: 0, 8: 560}
    assert high == {3: pytest.approx(0.99 * 559), 8: 560}
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


# Which registrations are in doubt, and what happens to them.

GOOD = dict(correlation=0.71, normalised_mutual_information=1.06, dice=0.98, min_jacobian=0.45)
GOOD |= dict(nonpositive_jacobian_share=0.0, affine_residual_mm=1.9, scale=0.91, scale_x=0.9, scale_y=0.97)
GOOD |= dict(scale_z=0.86, brain_mm3=1.4e6, dark_ml=0.5, outside_share=0.02)


def flags_cohort(n: int, **changed: float) -> pd.DataFrame:
    """`n` ordinary scans; the first has other numbers."""
    rng = np.random.default_rng(2)
    spread = {"correlation": 0.015, "dice": 0.004, "brain_mm3": 1e5, "scale": 0.03, "affine_residual_mm": 0.25}
    rows = [
        {name: value + spread.get(name, 0) * rng.uniform(-1.5, 1.5) for name, value in GOOD.items()} for _ in range(n)
    ]
    rows[0].update(changed)
    return pd.DataFrame(rows)


@pytest.mark.parametrize("n", [1, MIN_COHORT - 1, MIN_COHORT, 200])
def test_ordinary_scans_are_not_flagged(n: int) -> None:
    assert flag_reasons(flags_cohort(n)) == [()] * n


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("correlation", 0.2, "correlation with the template 0.2 is below 0.25"),
        ("dice", 0.7, "Dice of the brain masks 0.7 is below 0.75"),
        ("nonpositive_jacobian_share", 0.001, "folded share of the warp 0.001 is above 0"),
        ("scale", 0.66, "size of the head against the template 0.66 is below 0.75"),
        ("brain_mm3", 5.7e5, "brain volume (mm3) 570,000 is below 800,000"),
        ("brain_mm3", 2.4e6, "brain volume (mm3) 2,400,000 is above 2,300,000"),
        ("scale_z", 1.27, "stretched 1.41 times more along one axis"),
    ],
)
@pytest.mark.parametrize("n", [1, 30])
def test_limits_hold_alone_and_in_a_cohort_flags(n: int, column: str, value: float, words: str) -> None:
    found = flag_reasons(flags_cohort(n, **{column: value}))
    assert any(words in reason for reason in found[0])
    assert found[1:] == [()] * (n - 1)


def test_a_lesion_alone_has_a_limit_only_after_a_warp_and_stands_out_among_others() -> None:
    assert flag_reasons(flags_cohort(1, dark_ml=15.0))[0] == ("part dark as a lesion (ml) 15 is above 10",)
    assert flag_reasons(flags_cohort(1, dark_ml=15.0, affine_residual_mm=0.0))[0] == ()
    assert (
        "lesion (ml) 19 is far above the others (median 0.5 of 30" in flag_reasons(flags_cohort(30, dark_ml=19.0))[0][0]
    )


def test_patients_after_an_affine_map_are_judged_by_each_other() -> None:
    """Numbers of the 131 good and the two misplaced older people of OASIS-1, at 4 mm."""
    rng = np.random.default_rng(3)
    table = flags_cohort(133)
    table["correlation"] = np.clip(rng.normal(0.57, 0.08, 133), 0.34, 0.72)
    table["dice"], table["affine_residual_mm"] = 0.91 + rng.uniform(-0.02, 0.02, 133), 0.0
    table["dark_ml"] = np.exp(rng.normal(2.3, 1.0, 133)).clip(0.2, 146)
    table["brain_mm3"], table["outside_share"] = 2.02e6 + rng.uniform(-1e5, 1e5, 133), 0.12
    table.loc[[5, 9], "correlation"] = [0.097, 0.171]
    found = [bool(reasons) for reasons in flag_reasons(table)]
    assert found[5]
    assert found[9]
    assert sum(found) <= 2 + 0.05 * 131
    few = flag_reasons(table.iloc[2:9])
    assert [bool(reasons) for reasons in few] == [False, False, False, True, False, False, False]


@pytest.mark.parametrize(("column", "value"), [("correlation", 0.6), ("dice", 0.93), ("affine_residual_mm", 4.0)])
def test_what_stands_out_on_its_bad_side_needs_a_cohort(column: str, value: float) -> None:
    found = flag_reasons(flags_cohort(30, **{column: value}))
    assert len(found[0]) == 1
    assert "others (median" in found[0][0]
    assert found[1:] == [()] * 29
    assert flag_reasons(flags_cohort(MIN_COHORT - 1, **{column: value}))[0] == ()


@pytest.mark.parametrize(("column", "value"), [("correlation", 0.9), ("dice", 1.0), ("affine_residual_mm", 0.2)])
def test_the_good_side_is_no_reason(column: str, value: float) -> None:
    assert flag_reasons(flags_cohort(30, **{column: value}))[0] == ()


def test_one_wild_scan_does_not_hide_the_next() -> None:
    table = flags_cohort(30, correlation=-0.9)
    table.loc[1, "correlation"] = 0.6
    found = flag_reasons(table)
    assert found[0]
    assert "far below the others" in found[1][0]


def test_a_cohort_of_equals_flags_no_trifle() -> None:
    table = pd.DataFrame([GOOD] * 30)
    table.loc[0, "correlation"] -= 0.08
    assert flag_reasons(table)[0] == ()
    table.loc[0, "correlation"] -= 0.01
    assert flag_reasons(table)[0] != ()


def test_a_child_is_flagged_and_missing_numbers_are_passed_over() -> None:
    table = flags_cohort(3, correlation=np.nan)
    assert flag_reasons(table, [9.0, 18.0, None]) == [("aged 9: the template is the brain of adults",), (), ()]


def test_robust_distance_is_the_score_of_normal_values() -> None:
    values = np.random.default_rng(0).normal(5, 2, 200_001)
    assert robust_distance(values, 0.0).std() == pytest.approx(1, abs=0.01)


SCANS = [Scan(f"sub-{i:02d}", "ses-M000", f"I{i}", f"x/{i}.nii.gz") for i in range(1, 4)]
FLAGS = {"sub-01_ses-M000": "dice 0.7 is below 0.75", "sub-03_ses-M000": "folded"}


def ask(file: Path, flags: dict[str, str] = FLAGS) -> dict[str, str]:
    return decide(SCANS, flags, "ask", file, {"sub-01_ses-M000": "sub-01/x.png"})


def fill_in(file: Path, old: str, new: str) -> None:
    file.write_text(file.read_text().replace(old, new))


@pytest.mark.parametrize("policy", ["keep", "drop"])
def test_keep_and_drop_decide_at_once_and_write_nothing(tmp_path: Path, policy: str) -> None:
    assert decide(SCANS, FLAGS, policy, tmp_path / "flagged.tsv", {}) == dict.fromkeys(FLAGS, policy)
    assert not list(tmp_path.iterdir())


def test_ask_stops_resumably_until_every_scan_has_a_decision(tmp_path: Path) -> None:
    file = tmp_path / "flagged.tsv"
    decisions = ask(file)
    with pytest.raises(ResumableError, match=r"flagged\.tsv: 2 of 2 .*sub-01_ses-M000") as stopped:
        require_decisions(decisions, file)
    assert stopped.value.exit_code == 75
    table = read_table(file)
    assert table["participant_id"].tolist() == ["sub-01", "sub-03"]
    assert table["figure"][0] == "sub-01/x.png"
    fill_in(file, "sub-01/x.png\tn/a", "sub-01/x.png\tKeep")
    assert ask(file) == {"sub-01_ses-M000": "keep", "sub-03_ses-M000": ""}
    fill_in(file, "folded\tn/a\tn/a", "folded\tn/a\tdrop")
    decisions = ask(file)
    assert decisions == {"sub-01_ses-M000": "keep", "sub-03_ses-M000": "drop"}
    require_decisions(decisions, file)
    # Other reasons than those decided on are asked about again.
    assert ask(file, {**FLAGS, "sub-01_ses-M000": "correlation 0.1"})["sub-01_ses-M000"] == ""


def test_a_decision_that_is_none_is_named(tmp_path: Path) -> None:
    file = tmp_path / "flagged.tsv"
    ask(file)
    fill_in(file, "folded\tn/a\tn/a", "folded\tn/a\tmaybe")
    with pytest.raises(BadInputError, match=r"flagged\.tsv: line 3, column decision: 'maybe'; write keep or drop"):
        ask(file)


def quality(**decisions: str) -> pd.DataFrame:
    return pd.DataFrame(
        [
            dict(scan_id=scan.scan_id, flags="folded" if scan.scan_id in decisions else None)
            | dict(decision=decisions.get(scan.scan_id), brain_mm3=1.4e6, brain_extraction="deepbet")
            for scan in SCANS
        ]
    )


OWN = {"I1": (3000.0, 3100.5), "I2": (2000.0, 2100.0)}


def test_a_dropped_scan_says_why_and_a_kept_one_stays() -> None:
    settings = RegistrationConfig(hippocampus_source="table")
    found = settle_scans(ScanTable(tuple(SCANS)), quality(I1="drop", I3="keep"), {}, "atlas", settings)
    assert [scan.kept for scan in found] == [False, True, True]
    assert found.scans[0].reason == dropped_reason("folded") == "registration in doubt: folded"
    assert found.scans[1:] == tuple(SCANS[1:])


def settled(source: Any, *scans: Scan, **settings: Any) -> list[tuple[float | None, str | None]]:
    config = RegistrationConfig(hippocampus_source=source, **settings)
    found = settle_scans(ScanTable(scans), quality(), OWN, "cat12", config)
    return [(scan.hippocampus_mm3, scan.hippocampus_source) for scan in found]


TABLED = Scan("sub-01", "ses-M000", "I1", "x/1.nii.gz", hippocampus_mm3=7000.0, hippocampus_source="ADNIMERGE")
OURS = f"Jacobian of the registration without fluid, cat12 ({RELIABILITY})"


def test_own_volumes_are_used_where_there_are_none_and_never_mixed_unasked() -> None:
    assert settled("auto", *SCANS) == [(6100.5, OURS), (4100.0, OURS), (None, None)]
    assert settled("auto", TABLED, *SCANS[1:]) == [(7000.0, "ADNIMERGE"), (None, None), (None, None)]
    assert settled("fill", TABLED, *SCANS[1:]) == [(7000.0, "ADNIMERGE"), (4100.0, OURS), (None, None)]
    assert settled("jacobian", TABLED, *SCANS[1:]) == [(6100.5, OURS), (4100.0, OURS), (None, None)]
    assert settled("table", *SCANS) == [(None, None)] * 3


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"resolution_mm": 2.1}, "at 2 mm or finer (here 2.1 mm)"),
        ({"resolution_mm": 4.0}, "at 2 mm or finer (here 4 mm)"),
        (
            {"transform": "antsRegistrationSyNQuick[s]"},
            "after the usual transform (here antsRegistrationSyNQuick[s])",
        ),
        (
            {"resolution_mm": 3.0, "transform": "antsRegistrationSyNQuickRepro[s]"},
            "at 2 mm or finer and after the usual transform (here 3 mm, antsRegistrationSyNQuickRepro[s])",
        ),
    ],
)
@pytest.mark.parametrize("source", ["auto", "fill", "jacobian"])
def test_settings_that_were_not_compared_with_manual_volumes_measure_no_hippocampus(
    source: Any, changed: dict[str, Any], why: str
) -> None:
    none = (None, f"none: hippocampi are measured only {why}")
    placed = dataclasses.replace(SCANS[2], entry="template")
    assert settled(source, *SCANS[:2], placed, **changed) == [none, none, (None, None)]
    if source == "fill":
        assert settled(source, TABLED, SCANS[1], **changed) == [(7000.0, "ADNIMERGE"), none]
    found = settle_scans(ScanTable(tuple(SCANS)), quality(), OWN, "cat12", RegistrationConfig(**changed))
    assert [scan.tiv_mm3 for scan in found] == [1.4e6] * 3  # the brain mask is measured in the scan


def test_volumes_of_the_input_stand_at_any_resolution_and_the_limit_itself_measures() -> None:
    assert settled("auto", TABLED, *SCANS[1:], resolution_mm=4.0) == [(7000.0, "ADNIMERGE"), (None, None), (None, None)]
    assert settled("table", *SCANS, resolution_mm=4.0) == [(None, None)] * 3
    assert settled("auto", *SCANS, resolution_mm=2.0)[0] == (6100.5, OURS)


def test_sides_and_brain_volume_come_along() -> None:
    first, *_ = settle_scans(ScanTable(tuple(SCANS)), quality(), OWN, "cat12", RegistrationConfig())
    assert (first.hippocampus_left_mm3, first.hippocampus_right_mm3) == (3000.0, 3100.5)
    assert (first.tiv_mm3, first.tiv_source) == (1.4e6, "brain mask of the registration (deepbet)")
