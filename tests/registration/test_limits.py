"""Measures with limits of their own, on planted images."""

from __future__ import annotations

import numpy as np
import pytest

from heatlas.pipeline.registration.quality import sides
from heatlas.pipeline.registration.quality.likeness import LIMITED, Norm, places_among, side_of
from heatlas.pipeline.registration.quality.limits import (
    agreement,
    bright_air,
    bright_rim,
    enclosed_ml,
    fine_pattern,
    missing_ml,
    on_voxels,
)

MM = 4.0
PLACES = np.indices((40, 40, 40)) - 19.5
DEPTH = 14 - np.sqrt((PLACES**2).sum(0))
MASK = DEPTH > 0
AFFINE = np.diag([MM, MM, MM, 1.0])
AFFINE[:3, 3] = -19.5 * MM


def test_a_part_that_was_cut_out_is_measured_and_the_rim_does_not_count() -> None:
    brain = np.where(MASK & (DEPTH > 0.5), 1.0, 0.0)
    assert missing_ml(brain, MASK, MM) == 0
    brain[20:24, 20:25, 20:26] = 0

    assert missing_ml(brain, MASK, MM) == pytest.approx(4 * 5 * 6 * 0.064)


def test_the_rim_of_a_brain_is_dark_unless_it_was_cut_away() -> None:
    tones = np.select([DEPTH > 4, DEPTH > 2], [0.9, 1.0], 0.2)  # fluid, white matter, and what lies deep

    whole = bright_rim(tones, MASK, np.full(3, 2.0))
    tight = bright_rim(tones, DEPTH > 2, np.full(3, 2.0))

    assert whole < 0.1
    assert tight > 0.9


def test_a_dark_part_counts_where_white_matter_encloses_it() -> None:
    """A ventricle in the middle, grey matter at the rim, and a ball of fluid in white matter, or where it ends."""
    draw = np.random.default_rng(0)
    places = np.indices((64, 64, 64)) - 31.5
    depth = 28 - np.sqrt((places**2).sum(0))
    brain = depth > 0
    tones = np.select([depth > 18, depth > 6, depth > 0], [0.35, 1.0, 0.7], 0.0) + draw.normal(0, 0.02, brain.shape)

    def with_ball(x: float, radius: float, y_mm: float = 0.0) -> float:
        to_voxels[1, 3] = 31.5 - y_mm / 2
        ball = np.sqrt(((places - np.array([x, 0, 0])[:, None, None, None]) ** 2).sum(0)) < radius
        return enclosed_ml(1000 * np.where(ball & brain, 0.35, tones), brain, np.full(3, 2.0), to_voxels)

    to_voxels = np.diag([0.5, 0.5, 0.5, 1.0])
    assert with_ball(0, 0) == 0
    assert with_ball(16, 2.1) == pytest.approx(32 * 8e-3)  # centres of 32 voxels lie within it
    assert with_ball(10, 2.1) == 0  # part of the ventricle
    assert with_ball(25, 2.1) == 0  # a furrow
    assert with_ball(16, 2.1, y_mm=-70) == 0  # where ventricles end
    assert np.isnan(enclosed_ml(tones, brain, np.full(3, 4.0), to_voxels))


def test_a_mask_of_the_template_is_carried_to_the_voxels_of_a_scan() -> None:
    to_voxels = np.diag([0.5, 0.5, 0.5, 1.0])  # voxels of 2 mm, half a voxel of the template apart
    to_voxels[:3, 3] = 39.5

    found = on_voxels(MASK, AFFINE, to_voxels, (80, 80, 80))

    assert found.sum() == pytest.approx(8 * MASK.sum(), rel=0.02)
    assert np.argwhere(found).mean(0) == pytest.approx([39.5] * 3, abs=0.5)


def test_air_is_bright_where_half_of_it_holds_a_ghost() -> None:
    head = np.where(MASK, 100.0, 2.0)
    ghost = head.copy()
    ghost[:, :20][~MASK[:, :20]] += 20
    wide = np.pad(head, 12, constant_values=2.0), np.pad(ghost, 12, mode="edge")
    to_voxels = np.linalg.inv(AFFINE)
    to_voxels[:3, 3] += 12

    assert bright_air(wide[0], to_voxels, MASK, AFFINE) == 0
    assert bright_air(wide[1], to_voxels, MASK, AFFINE) == pytest.approx(0.5, abs=0.02)
    assert np.isnan(bright_air(head[10:30, 10:30, 10:30], np.linalg.inv(AFFINE), MASK, AFFINE))


def test_two_scans_of_one_person_agree_and_those_of_two_do_not() -> None:
    draw = np.random.default_rng(0)
    template, people = draw.normal(size=(2, *MASK.shape)).astype(np.float32), draw.normal(size=(2, *MASK.shape))
    scans = [template[0] + one + 0.3 * draw.normal(size=MASK.shape) for one in (people[0], people[1], people[0])]
    patterns = np.stack([fine_pattern(5 * scan + 100, MASK, MM) for scan in scans])
    mean = fine_pattern(5 * template[0] + 100, MASK, MM)

    found, whose = agreement(patterns, mean, ["a", "b", "c"])
    alone, _ = agreement(patterns, mean, ["a", "a", "a"])

    assert (patterns[0] @ patterns[1]) > 0.4  # what all share
    assert whose[[0, 2]].tolist() == [2, 0]
    assert found[[0, 2]] == pytest.approx(1 / 1.09, abs=0.03)
    assert abs(found[1]) < 0.1
    assert np.isnan(alone).all()


def test_a_lesion_on_one_side_is_measured_by_its_volume() -> None:
    points = sides._halves("MNI152NLin2009cAsym").points
    lesion = (np.abs(points - [38.0, 0.0, 20.0]) < 9).all(1)
    away = np.where(lesion, -9.0, np.random.default_rng(0).normal(size=len(points)))

    assert sides.one_sided_ml(away, "MNI152NLin2009cAsym") == pytest.approx(lesion.sum() * 0.064)
    assert sides.one_sided_ml(-away, "MNI152NLin2009cAsym") == pytest.approx(lesion.sum() * 0.064)
    assert np.isnan(sides.one_sided_ml(away[:-1], "MNI152NLin2009cAsym"))


def test_shading_of_a_scanner_does_not_exchange_the_sides() -> None:
    """Brighter on the right and in front, three times as much as what brains have in common."""
    template = "MNI152NLin2009cAsym"
    points = sides._halves(template).points
    common = np.random.default_rng(0).normal(size=len(points))
    scan = common + 3 * points[:, 0] / points[:, 0].std() + 3 * points[:, 1] / points[:, 1].std()
    spread = np.ones(len(points))
    norm = Norm(sides.without_shading(common, template), spread)

    found = side_of(sides.without_shading(scan, template), norm)

    assert side_of(scan, Norm(common, spread)) < 0.4
    assert found > 0.7  # what is left is at the midline, where the sides meet
    assert side_of(sides.without_shading(-scan, template), norm) == pytest.approx(-found)


@pytest.mark.parametrize("name", LIMITED)
def test_a_limit_needs_no_controls_and_is_drawn_where_others_have_theirs(name: str) -> None:
    limit, shares = LIMITED[name], (0.99, 1.01)
    values = [1 - share * (1 - limit) if name == "side" else share * limit for share in shares]
    (inside,), (beyond,) = (places_among({name: value}, {}) for value in values)

    assert (inside.unlike, beyond.unlike) == (False, True)
    assert beyond.distance == pytest.approx(4.04)
    assert beyond.controls == 0
