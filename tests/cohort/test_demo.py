"""The demo cohort: its people, fields, scanner and files."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy import ndimage

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.spaces import template_grid
from heatlas.atlases.templates import load_template
from heatlas.pipeline.cohort.demo import cohort as demo_cohort
from heatlas.pipeline.cohort.demo.anatomy import (
    ATLAS,
    SPACING_MM,
    PersonShape,
    ReferenceAnatomy,
    compose,
    draw_shape,
    exponential,
    jacobian_determinant,
    random_velocity,
    reference_anatomy,
    sample,
    velocity_with_divergence,
    voxel_indices,
)
from heatlas.pipeline.cohort.demo.cohort import SEVERITY_TABLE, adnimerge_csv, adnimerge_row, write_demo_cohort
from heatlas.pipeline.cohort.demo.people import (
    CHANGES,
    COIL_SITE,
    EFFECTS,
    PLANTED_GROUPS,
    SCORES,
    SEVERITY_RANGE,
    SITES,
    coil_log_gain_per_mm,
    draw_course,
    draw_people,
)
from heatlas.pipeline.cohort.demo.scanner import ORIENTATIONS, draw_acquisition, nifti_bytes, nifti_image, scan
from heatlas.pipeline.cohort.reading import read_cohort
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.errors import ResumableError, UsageError
from heatlas.pipeline.run.tables import read_table


def test_planted_groups_are_those_of_the_contract() -> None:
    assert PLANTED_GROUPS == (
        "Hippocampus",
        "Amygdala",
        "Entorhinal area",
        "Parahippocampal gyrus",
        "Lateral ventricle",
    )


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.short)
def test_contraction_and_loss_make_up_the_planted_change(change) -> None:
    assert np.exp(change.log_size - change.loss_rate) - 1 == pytest.approx(change.volume_change)
    if change.tissue:
        assert change.log_size < 0 < change.loss_rate
    else:
        assert change.log_size > 0 == change.loss_rate


def test_severity_adds_age_and_time_and_scales_by_region() -> None:
    course = draw_course(np.random.default_rng(5), "AD")
    young, old = np.array(course.severities(65, 0)), np.array(course.severities(80, 0))
    factors = np.array(course.region_factors)
    assert young == pytest.approx(course.baseline * factors)
    assert old - young == pytest.approx(0.1 * factors)
    # Two years on, the hippocampus has lost 4.66 % twice.
    later = np.array(course.severities(65, 2)) - young
    hippocampus = [change.group for change in CHANGES].index("Hippocampus")
    assert 0.73 ** (later[hippocampus] / factors[hippocampus]) == pytest.approx(0.9534**2)


def test_diagnosis_sets_the_range_of_severity_and_nothing_else() -> None:
    for seed in range(50):
        streams = {name: np.random.default_rng(seed) for name in SEVERITY_RANGE}
        courses = {name: draw_course(rng, name) for name, rng in streams.items()}
        for name, (low, high) in SEVERITY_RANGE.items():
            assert low <= courses[name].baseline <= high
        assert len({course.region_factors for course in courses.values()}) == 1
        assert len({rng.random() for rng in streams.values()}) == 1  # the streams stay in step


def test_nothing_but_disease_and_its_risk_depends_on_the_diagnosis() -> None:
    # Person 30 is the first with MCI among 30 and an ordinary participant among 36.
    small, large = draw_people(43, 30)[30], draw_people(43, 36)[30]
    assert (small.diagnosis, large.diagnosis) == ("MCI", "CN")
    for name in ("rid", "age", "education"):
        assert getattr(small, name) == getattr(large, name)


@pytest.mark.parametrize("seed", [1, 43])
def test_sites_sexes_and_field_strengths_are_even_within_each_diagnosis(seed) -> None:
    regular = draw_people(seed, 30)[:30]
    for diagnosis in ("CN", "AD"):
        group = [person for person in regular if person.diagnosis == diagnosis]
        assert Counter(person.site for person in group) == dict.fromkeys(SITES, 5)
        assert sorted(Counter(person.sex for person in group).values()) == [7, 8]
        assert sorted(Counter(person.field_strength for person in group).values()) == [7, 8]
        sexes = Counter((person.site, person.sex) for person in group)
        assert set(sexes.values()) == {2, 3}
    assert Counter(person.sex for person in regular) == {"F": 15, "M": 15}
    assert Counter(person.field_strength for person in regular) == {1.5: 15, 3.0: 15}
    # In random order: who has a second visit must not decide where they are seen.
    assert [p.site for p in regular if p.diagnosis == "CN"] != [SITES[n % 3] for n in range(15)]


def test_thirty_people_give_thirty_five_scans_those_with_mci_and_the_dirt() -> None:
    people = draw_people(43, 30)
    regular, mci, (imageless, rowless) = people[:30], people[30:35], people[35:]
    assert Counter(person.diagnosis for person in regular) == {"AD": 15, "CN": 15}
    assert Counter(person.diagnosis for person in regular for _ in person.visits) == {"AD": 17, "CN": 18}
    assert {person.diagnosis for person in mci} == {"MCI"}
    assert [visit.has_image for visit in imageless.visits] == [False]
    assert [visit.in_table for visit in rowless.visits] == [False]
    assert all(visit.in_table and visit.has_image for person in regular for visit in person.visits)
    imaged = [visit for person in people for visit in person.visits if visit.has_image]
    assert len({visit.image_number for visit in imaged}) == len(imaged) == 35 + 5 + 1
    visits = [visit for person in people for visit in person.visits]
    assert len({person.ptid for person in people}) == len(people)
    assert {"bl", "sc", "m12", "m06", "y1", "m24"} == {visit.code for person in regular for visit in person.visits}
    assert all(visit.date <= visit.scanned.date() for visit in visits)


def test_people_with_mci_are_seen_for_four_years_and_the_more_severe_convert_sooner() -> None:
    months_of = {"pMCI": 0, "sMCI": 0}
    for seed in range(30):
        mci = draw_people(seed, 30)[30:35]
        low, high = SEVERITY_RANGE["MCI"]
        fifths = sorted(int((person.course.baseline - low) / (high - low) * 5) for person in mci)
        assert fifths == [0, 1, 2, 3, 4]
        for person in mci:
            assert [visit.month for visit in person.visits] == [0, 6, 12, 24, 36, 48]
            assert [visit.has_image for visit in person.visits] == [True] + [False] * 5
            diagnoses = [visit.diagnosis for visit in person.visits]
            assert diagnoses[0] == "MCI"
            assert diagnoses == sorted(diagnoses, reverse=True)  # nobody returns from AD to MCI
            for visit in person.visits[1:]:
                severe = person.course.mean_severity(person.age, visit.years) > high
                assert visit.diagnosis == ("AD" if severe else "MCI")
            months_of["pMCI" if diagnoses[4] == "AD" else "sMCI"] += 1
        courses = {visits.visits[4].diagnosis for visits in mci}
        assert courses == {"MCI", "AD"}  # some of both kinds in every cohort
    assert 0.3 < months_of["pMCI"] / 150 < 0.65


def test_everybody_in_the_longitudinal_cohort_has_three_scans_and_the_people_are_those_of_the_other() -> None:
    people = draw_people(43, 40, longitudinal=True)
    regular, mci, dirt = people[:40], people[40:60], people[60:]
    assert Counter(person.diagnosis for person in people[:60]) == {"AD": 20, "CN": 20, "MCI": 20}
    for person in (*regular, *mci):
        scanned = [visit for visit in person.visits if visit.has_image]
        assert [visit.month for visit in scanned] == [0, 12, 24]
        severities = [person.course.mean_severity(person.age, visit.years) for visit in scanned]
        assert severities[2] - severities[1] == pytest.approx(severities[1] - severities[0])
        assert severities[1] > severities[0]
    assert [len(person.visits) for person in dirt] == [1, 1]
    images = [visit.image_number for person in people for visit in person.visits if visit.has_image]
    assert len(set(images)) == len(images) == 181
    converted = [person for person in mci if person.visits[-1].diagnosis == "AD"]
    assert 5 < len(converted) < 20
    usual = draw_people(43, 40)
    assert [person.course for person in regular] == [person.course for person in usual[:40]]


def test_scores_follow_the_planted_severity_and_nothing_else() -> None:
    # In controls the end of the scale cuts the noise off.
    drawn = [(seed, one) for seed in range(12) for one in draw_people(seed, 30)[:30] if one.diagnosis == "AD"]
    people = [person for _, person in drawn]
    rows = [adnimerge_row(seed, person, person.visits[0], None) for seed, person in drawn]
    severity = np.array([person.course.mean_severity(person.age, 0) for person in people])
    for score in SCORES:
        residual = np.array([float(str(row[score.column])) for row in rows])
        residual -= score.healthy + score.per_severity * severity
        assert residual.mean() == pytest.approx(0, abs=3 * score.noise / np.sqrt(len(people)))
        assert np.std(residual) == pytest.approx(score.noise, rel=0.15)
        for other in (severity, [person.education for person in people], [person.age for person in people]):
            assert abs(np.corrcoef(residual, other)[0, 1]) < 3 / np.sqrt(len(people))


@pytest.mark.parametrize("score", SCORES, ids=lambda score: score.column)
def test_scores_stay_on_their_scale(score) -> None:
    assert (
        score.measured(0.0, -9.0 * np.sign(score.per_severity)) == {"MMSE": 30, "CDRSB": 0, "ADAS13": 0}[score.column]
    )
    assert (score.measured(1.1, 0.3) / score.step) % 1 == 0


def test_every_effect_names_groups_that_exist_and_nulls_have_no_size() -> None:
    groups = load_atlas(ATLAS, template_grid(2.0)).regions.groups
    assert len({effect.effect for effect in EFFECTS}) == len(EFFECTS)
    for effect in EFFECTS:
        assert set(effect.groups) <= set(groups)
        assert effect.expected == (effect.magnitude is not None)
    assert {effect.effect for effect in EFFECTS if not effect.expected} == {
        "null_education", "null_field_strength", "null_sex_difference",
    }  # fmt: skip


def test_seeds_make_different_people_and_equal_seeds_equal_ones() -> None:
    assert draw_people(1, 10) == draw_people(1, 10)
    assert [person.age for person in draw_people(1, 10)] != [person.age for person in draw_people(2, 10)]


def test_a_row_says_what_adni_would_say() -> None:
    people = draw_people(43, 30)
    patient = next(person for person in people if person.diagnosis == "AD" and len(person.visits) == 2)
    volumes = {change.group: 1000.0 * (n + 1) for n, change in enumerate(CHANGES)} | {"intracranial": 1_500_000.4}
    rows = [adnimerge_row(43, patient, visit, volumes) for visit in patient.visits]
    first, second = csv.DictReader(io.StringIO(adnimerge_csv(rows)))
    assert (first["PTID"], first["DX"], first["DX_bl"]) == (patient.ptid, "Dementia", "AD")
    assert first["IMAGEUID"] == str(patient.visits[0].image_number)
    assert second["IMAGEUID"] == ""
    assert first["ICV"] == "1500000"
    assert int(first["Hippocampus"]) == pytest.approx(1000, rel=0.25)
    assert int(first["Hippocampus"]) != int(second["Hippocampus"])
    assert float(first["AGE"]) == float(second["AGE"]) == patient.age  # age at baseline, as in ADNI
    days = (patient.visits[1].date - patient.visits[0].date).days
    assert float(second["Years_bl"]) == pytest.approx(days / 365.25, abs=1e-5)
    assert "SYNTHETIC" in first["FSVERSION"]


def test_measured_volumes_scatter_by_five_per_cent() -> None:
    person = draw_people(43, 4)[0]
    volumes = {change.group: 1e6 for change in CHANGES} | {"intracranial": 1e6}
    measured = [
        float(str(adnimerge_row(seed, person, person.visits[0], volumes)["Hippocampus"])) for seed in range(400)
    ]
    assert np.mean(measured) == pytest.approx(1e6, rel=0.01)
    assert np.std(measured) == pytest.approx(5e4, rel=0.15)


def test_a_visit_without_a_scan_has_no_volumes() -> None:
    person = draw_people(43, 4)[-2]
    assert not person.visits[0].has_image
    row = adnimerge_row(43, person, person.visits[0], None)
    assert [row[name] for name in ("Hippocampus", "ICV", "Ventricles", "IMAGEUID")] == [None] * 4


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


HEALTHY = (0.0,) * len(CHANGES)
SEVERE = (1.0,) * len(CHANGES)


@pytest.fixture(scope="module")
def reference() -> ReferenceAnatomy:
    return reference_anatomy()


@pytest.fixture(scope="module")
def nobody(reference: ReferenceAnatomy) -> PersonShape:
    """The reference brain itself, a little smaller, of unequal sides."""
    return PersonShape(np.zeros(reference.velocities.shape[1:], np.float32), np.array([0.95, 0.9, 1.0]))


@pytest.mark.ci
def test_severity_one_changes_volumes_as_published(reference: ReferenceAnatomy, nobody: PersonShape) -> None:
    acquisition = draw_acquisition(np.random.default_rng(0), reference, nobody, 2.0)
    healthy, severe = (scan(reference, nobody, level, acquisition) for level in (HEALTHY, SEVERE))
    change = np.array(severe.volumes_mm3) / np.array(healthy.volumes_mm3) - 1
    assert change[:-1] == pytest.approx([one.volume_change for one in CHANGES], abs=0.01)
    assert change[-1] == pytest.approx(0, abs=0.006)  # the putamen hardly feels its neighbours
    # The disease does not show in the size or outline of the brain.
    assert severe.intracranial_mm3 == pytest.approx(healthy.intracranial_mm3, rel=0.002)
    masks = [np.asanyarray(one.image.dataobj) > 0 for one in (healthy, severe)]
    assert 2 * (masks[0] & masks[1]).sum() / (masks[0].sum() + masks[1].sum()) > 0.995


def test_the_disease_strikes_the_same_regions_in_a_warped_head(reference: ReferenceAnatomy) -> None:
    for seed in (1, 2):
        person = draw_shape(np.random.default_rng(seed), "F", reference)
        acquisition = draw_acquisition(np.random.default_rng(seed), reference, person, 2.0)
        healthy, severe = (scan(reference, person, level, acquisition) for level in (HEALTHY, SEVERE))
        change = np.array(severe.volumes_mm3) / np.array(healthy.volumes_mm3) - 1
        assert change[:-1] == pytest.approx([one.volume_change for one in CHANGES], abs=0.03)
        assert change[-1] == pytest.approx(0, abs=0.005)


@pytest.mark.ci
def test_men_have_a_larger_putamen_and_nothing_else_that_is_larger(reference: ReferenceAnatomy) -> None:
    people = {sex: draw_shape(np.random.default_rng(5), sex, reference) for sex in "MF"}
    acquisitions = {
        sex: draw_acquisition(np.random.default_rng(6), reference, person, 2.0) for sex, person in people.items()
    }
    scanned = {sex: scan(reference, people[sex], HEALTHY, acquisitions[sex]) for sex in "MF"}
    relative = {sex: np.array(one.volumes_mm3) / one.intracranial_mm3 for sex, one in scanned.items()}
    ratio = np.log(relative["M"] / relative["F"])
    assert ratio[-1] == pytest.approx(np.log(1.24), abs=0.015)
    # Registration sees volume by volume: what the deformation does to any region, of the disease or none of it.
    assert np.abs(ratio[:-1]).max() < 0.015
    growth = np.log(jacobian_determinant(exponential(2 * reference.sex_velocity, SPACING_MM), SPACING_MM))
    atlas = load_atlas(ATLAS, load_template(1.0).grid)
    means = {}
    for name in ("Putamen", "Cuneus", "Hippocampus", "Precuneus", "Cerebellum"):
        where = np.argwhere(np.isin(atlas.labels, atlas.regions.groups[name]))[::7]
        means[name] = float(sample(growth, (where.T / SPACING_MM).astype(np.float32)).mean())
    assert means.pop("Putamen") == pytest.approx(np.log(1.24), abs=0.02)
    assert np.abs(list(means.values())).max() < 0.005


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_the_coil_brightens_the_back_in_every_orientation(
    reference: ReferenceAnatomy, nobody: PersonShape, orientation: str
) -> None:
    drawn = (draw_acquisition(np.random.default_rng(seed), reference, nobody, 4.0) for seed in range(60))
    plain = next(one for one in drawn if "".join(nib.aff2axcodes(one.voxel_to_world)) == orientation)
    plain = dataclasses.replace(plain, noise=0.0, slope=0.05)
    coil = coil_log_gain_per_mm(COIL_SITE)
    before, after = (
        scan(reference, nobody, HEALTHY, one).image for one in (plain, dataclasses.replace(plain, coil=coil))
    )
    bright = np.asanyarray(before.dataobj) > 500
    gain = after.get_fdata()[bright] / before.get_fdata()[bright]
    forward = np.argwhere(bright) @ before.affine[1, :3]
    slope, _ = np.polyfit(forward, np.log(gain), 1)
    assert slope == pytest.approx(-np.log(1.2) / 180, rel=0.01)
    assert gain.max() / gain.min() == pytest.approx(1.2 ** (0.9 * 178 / 180), rel=0.02)  # the head is 0.9 as long


def test_one_site_has_such_a_coil() -> None:
    assert [site for site in SITES if coil_log_gain_per_mm(site)] == [COIL_SITE]


def test_true_volumes_follow_the_size_of_the_head(reference: ReferenceAnatomy, nobody: PersonShape) -> None:
    acquisition = draw_acquisition(np.random.default_rng(1), reference, nobody, 2.0)
    healthy = scan(reference, nobody, HEALTHY, acquisition)
    size = np.prod(nobody.scale)
    assert healthy.volumes_mm3 == pytest.approx((reference.regions.sum(axis=(1, 2, 3)) * size).tolist(), rel=0.005)
    assert healthy.intracranial_mm3 == pytest.approx(reference.brain.sum() * size, rel=0.002)


def test_two_thirds_of_the_loss_of_grey_matter_are_loss_in_place(
    reference: ReferenceAnatomy, nobody: PersonShape
) -> None:
    # Without deformation only the exchange of tissue for fluid is left.
    still = dataclasses.replace(reference, velocities=np.zeros_like(reference.velocities))
    acquisition = draw_acquisition(np.random.default_rng(0), reference, nobody, 2.0)
    acquisition = dataclasses.replace(acquisition, noise=0.0, blur_voxels=0.0, gamma=1.0, gain=1000.0, slope=1.0)
    acquisition = dataclasses.replace(acquisition, bias=np.zeros((4, 4, 4)))
    healthy, severe = (scan(still, nobody, level, acquisition) for level in (HEALTHY, SEVERE))
    assert severe.volumes_mm3[0] / healthy.volumes_mm3[0] == pytest.approx(0.73 ** (2 / 3), rel=1e-6)
    assert severe.volumes_mm3[4] == healthy.volumes_mm3[4]
    before, after = (np.asanyarray(one.image.dataobj) / 1000 for one in (healthy, severe))
    changed = before != after
    # Where the hippocampus fills the voxel, contrast to fluid falls by its planted share; nowhere by more than in the
    # entorhinal area.
    left = (after[changed] - reference.fluid) / (before[changed] - reference.fluid)
    bright = before[changed] > reference.fluid + 0.2
    assert left[bright].min() == pytest.approx(0.61 ** (2 / 3), abs=0.02)
    assert np.any(np.abs(left[bright] - 0.73 ** (2 / 3)) < 0.005)
    assert 0.001 < changed.mean() < 0.05


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(8))
def test_an_image_shows_the_head_where_its_affine_says(
    reference: ReferenceAnatomy, nobody: PersonShape, seed: int
) -> None:
    acquisition = draw_acquisition(np.random.default_rng(seed), reference, nobody, 3.0)
    image = scan(reference, nobody, HEALTHY, acquisition).image
    assert "".join(nib.aff2axcodes(image.affine)) in ORIENTATIONS
    assert not np.allclose(image.affine[:3, 3], 0)
    # Back to the template through affine and head position; a swapped or mirrored axis would not fit.
    step = 4
    grid = np.indices([n // step for n in reference.t1w.shape]).astype(float) * step
    template_mm = grid.reshape(3, -1) + reference.origin[:, None]
    to_voxel = np.linalg.inv(image.affine) @ acquisition.template_to_world
    voxels = to_voxel[:3, :3] @ template_mm + to_voxel[:3, 3:]
    seen = ndimage.map_coordinates(np.asanyarray(image.dataobj).astype(float), voxels, order=1).reshape(grid.shape[1:])
    expected = ndimage.gaussian_filter(reference.t1w, 1.0)[::step, ::step, ::step][tuple(map(slice, seen.shape))]
    inside = ndimage.binary_erosion(reference.brain, iterations=5)[::step, ::step, ::step][
        tuple(map(slice, seen.shape))
    ]
    right = np.corrcoef(seen[inside], expected[inside])[0, 1]
    mirrored = np.corrcoef(seen[::-1][inside & inside[::-1]], expected[inside & inside[::-1]])[0, 1]
    assert right > 0.8
    assert right > mirrored + 0.1


def test_all_orientations_and_both_kinds_of_header_occur(reference: ReferenceAnatomy, nobody: PersonShape) -> None:
    drawn = [draw_acquisition(np.random.default_rng(seed), reference, nobody, 2.0) for seed in range(40)]
    assert {"".join(nib.aff2axcodes(one.voxel_to_world)) for one in drawn} == set(ORIENTATIONS)
    assert {one.qform_only for one in drawn} == {True, False}
    sizes = np.array([nib.affines.voxel_sizes(one.voxel_to_world) for one in drawn])
    assert 1.85 < sizes.min() < sizes.max() < 2.25
    assert np.ptp(sizes, axis=1).min() > 0


def test_images_are_stripped_scaled_integers(reference: ReferenceAnatomy) -> None:
    person = draw_shape(np.random.default_rng(2), "F", reference)
    acquisition = draw_acquisition(np.random.default_rng(3), reference, person, 3.0)
    acquisition = dataclasses.replace(acquisition, qform_only=True)
    image = nib.Nifti1Image.from_bytes(nifti_bytes(scan(reference, person, HEALTHY, acquisition).image, False))
    assert image.get_data_dtype() == np.int16
    assert (image.header["sform_code"], image.header["qform_code"]) == (0, 1)
    np.testing.assert_allclose(image.affine, acquisition.voxel_to_world, atol=1e-3)
    values = image.get_fdata()
    np.testing.assert_allclose(values, image.dataobj.get_unscaled() * acquisition.slope, rtol=1e-6)
    brain = values > 0
    assert set(values[~brain]) == {0.0}
    assert ndimage.label(brain)[1] == 1
    for axis in range(3):  # nothing of the brain is cut off
        assert not brain.take([0, -1], axis=axis).any()


def test_equal_draws_give_equal_bytes(reference: ReferenceAnatomy, nobody: PersonShape) -> None:
    def once() -> bytes:
        acquisition = draw_acquisition(np.random.default_rng(9), reference, nobody, 4.0)
        return nifti_bytes(scan(reference, nobody, SEVERE, acquisition).image, compressed=True)

    first = once()
    assert first == once()
    assert first[4:8] == b"\0\0\0\0"  # no time stamp


def test_people_differ_in_shape_and_folds_nowhere(reference: ReferenceAnatomy) -> None:
    first, second = (draw_shape(np.random.default_rng(seed), "M", reference) for seed in (1, 2))
    assert np.abs(first.inverse_warp - second.inverse_warp).max() > 2
    assert 0.8 < np.prod(first.scale) ** (1 / 3) < 1.05
    gradients = np.stack([np.stack(np.gradient(one, 3.0)) for one in first.inverse_warp])
    jacobian = np.linalg.det(np.moveaxis(gradients + np.eye(3)[:, :, None, None, None], (0, 1), (-2, -1)))
    assert jacobian.min() > 0.3


def test_unscaled_images_keep_their_values() -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    image = nib.Nifti1Image.from_bytes(nifti_bytes(nifti_image(values, np.eye(4), "test", "mni"), False))
    assert np.array_equal(image.get_fdata(), values)
    assert image.header["sform_code"] == 4


SEED, PEOPLE, RESOLUTION = 7, 6, 4.0


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo_cohort(tmp_path_factory.mktemp("demo") / "cohort", SEED, PEOPLE, RESOLUTION)


@pytest.fixture
def copy(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "copy"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_tree_is_that_of_an_adni_download(written: Path) -> None:
    assert sorted(path.name for path in written.iterdir()) == ["ADNI", "ADNIMERGE_11Nov2025.csv", "README.txt", "truth"]
    images = [path.relative_to(written).as_posix() for path in written.rglob("*.nii*") if "truth" not in path.parts]
    pattern = re.compile(
        r"ADNI/(\d{3}_S_\d{4})/[\w-]+/\d{4}-\d\d-\d\d_\d\d_\d\d_\d\d\.0/(I\d+)/ADNI_\1_MR_[\w-]+_S\d+_\2\.nii(\.gz)?"
    )
    assert [name for name in images if not pattern.fullmatch(name)] == []
    assert {Path(name).suffix for name in images} == {".nii", ".gz"}
    assert "SYNTHETIC" in (written / "README.txt").read_text()


def test_the_reader_finds_everyone_and_drops_the_dirt(written: Path) -> None:
    table = read_cohort(written, CohortConfig(), SEED).table.frame()
    truth = SEVERITY_TABLE.read(written / SEVERITY_TABLE.file)
    both = table.merge(truth, on="scan_id", suffixes=("", "_true"), validate="one_to_one")
    assert len(both) == len(table) == len(truth) == 7 + 2
    kept = both[both["kept"]]
    assert kept["label"].value_counts().to_dict() == {"AD": 3, "CN": 4}
    assert set(kept.loc[kept["label"].isna(), "progression"]) <= {"pMCI", "sMCI"}
    assert kept.loc[kept["label"].isna(), "diagnosis"].tolist() == ["MCI"]
    assert (kept["diagnosis"] == kept["diagnosis_true"]).all()
    assert (kept["participant_id"] == kept["participant_id_true"]).all()
    assert (kept["session_id"] == kept["session_id_true"]).all()
    dropped = both[~both["kept"]]
    assert len(dropped) == 1
    assert dropped["reason"].notna().all()


def test_the_table_measures_what_was_planted(written: Path) -> None:
    table = read_cohort(written, CohortConfig(), SEED).table.frame()
    truth = read_table(written / "truth" / "severity.tsv")
    both = table[table["hippocampus_mm3"].notna()].merge(truth, on="scan_id")
    assert len(both) >= 7
    error = both["hippocampus_mm3"] / both["true_hippocampus_mm3"] - 1
    assert 0.005 < error.abs().max() < 0.2
    assert (both["tiv_mm3"] - both["true_intracranial_mm3"]).abs().max() <= 0.56
    assert both["hippocampus_source"].str.contains("SYNTHETIC").all()
    for _, visits in truth.groupby("participant_id"):
        first, *later = (row for _, row in visits.sort_values("session_id").iterrows())
        for row in later:  # disease goes on, the skull stays
            assert row["severity_hippocampus"] > first["severity_hippocampus"]
            assert row["true_intracranial_mm3"] == pytest.approx(first["true_intracranial_mm3"], rel=0.005)


def test_the_severity_map_lies_in_the_planted_groups(written: Path) -> None:
    image = nib.load(written / "truth" / "severity_map.nii.gz")
    grid = template_grid(2.0)
    assert image.shape == grid.shape
    np.testing.assert_allclose(image.affine, grid.affine)
    severity = image.get_fdata()
    planted = json.loads((written / "truth" / "planted.json").read_text())
    assert planted == {"synthetic": True, "planted": list(PLANTED_GROUPS)}
    effects = json.loads((written / "truth" / "effects.json").read_text())
    assert [one["effect"] for one in effects["effects"]] == [effect.effect for effect in EFFECTS]
    atlas = load_atlas("neuromorphometrics-cat12", grid)
    means = {name: severity[np.isin(atlas.labels, numbers)].mean() for name, numbers in atlas.regions.groups.items()}
    ranked = sorted(means, key=lambda name: -means[name])
    assert set(ranked[:5]) == set(PLANTED_GROUPS)
    # Hippocampus: a third of -log(.73) as contraction, the rest as loss.
    assert means["Hippocampus"] == pytest.approx(-np.log(0.73), rel=0.15)
    assert means["Cuneus"] < 0.01
    assert severity[np.asarray(atlas.labels) == 0].min() >= 0


@pytest.mark.ci
def test_equal_seeds_give_equal_bytes_in_any_number_of_workers(written: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as executor:
        again = write_demo_cohort(tmp_path / "again", SEED, PEOPLE, RESOLUTION, executor)
    assert contents(again) == contents(written)


def test_a_whole_cohort_is_left_alone(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (copy / ".DS_Store").write_text("left by a file browser")
    monkeypatch.setattr(demo_cohort, "make_person", None)  # would fail if called
    assert write_demo_cohort(copy, SEED, PEOPLE, RESOLUTION) == copy


@pytest.mark.ci
def test_an_interrupted_cohort_is_made_whole(copy: Path, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    next(path for path in copy.rglob("*.nii") if "truth" not in path.parts).unlink()
    made = []

    def stop_after_one(*arguments: object) -> None:
        made.append(arguments)
        if len(made) > 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(demo_cohort, "make_person", stop_after_one)
        with pytest.raises(KeyboardInterrupt):
            write_demo_cohort(copy, SEED, PEOPLE, RESOLUTION)
    assert contents(write_demo_cohort(copy, SEED, PEOPLE, RESOLUTION)) == contents(written)


@pytest.mark.parametrize("settings", [(8, PEOPLE, RESOLUTION), (SEED, 8, RESOLUTION), (SEED, PEOPLE, 3.0)])
def test_a_cohort_of_other_settings_is_not_overwritten(copy: Path, settings: tuple[int, int, float]) -> None:
    before = contents(copy)
    with pytest.raises(UsageError, match="other settings"):
        write_demo_cohort(copy, *settings)
    assert contents(copy) == before


def test_a_folder_of_someone_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="not empty"):
        write_demo_cohort(tmp_path, SEED, PEOPLE, RESOLUTION)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(UsageError, match="not empty"):
        write_demo_cohort(tmp_path / "thesis.txt", SEED, PEOPLE, RESOLUTION)
    (tmp_path / "broken" / "truth").mkdir(parents=True)
    (tmp_path / "broken" / "truth" / "cohort.json").write_text("{")
    with pytest.raises(UsageError, match="not a readable JSON object"):
        write_demo_cohort(tmp_path / "broken", SEED, PEOPLE, RESOLUTION)


@pytest.mark.parametrize(("participants", "resolution"), [(3, 2.0), (10, 0.5), (10, 8.0)])
def test_senseless_settings_are_refused_before_work(tmp_path: Path, participants: int, resolution: float) -> None:
    with pytest.raises(UsageError, match="demo cohort"):
        write_demo_cohort(tmp_path / "new", SEED, participants, resolution)
    assert not (tmp_path / "new").exists()


def test_a_full_disk_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(demo_cohort, "make_person", no_space)
    with pytest.raises(ResumableError, match="no space left"):
        write_demo_cohort(tmp_path / "new", SEED, PEOPLE, RESOLUTION)


def test_missing_values_are_empty_fields(written: Path) -> None:
    frame = pd.read_csv(written / "ADNIMERGE_11Nov2025.csv", dtype=str, keep_default_na=False)
    assert not frame.isin(["nan", "<NA>", "None", "NaN"]).any().any()
    assert (frame["Hippocampus"] == "").any()
    assert (frame["APOE4"] == "").any()
