from __future__ import annotations

import dataclasses

import nibabel as nib
import numpy as np
import pytest
from scipy import ndimage

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.templates import load_template
from heatlas.pipeline.cohort.demo.anatomy import (
    ATLAS,
    SPACING_MM,
    PersonShape,
    ReferenceAnatomy,
    draw_shape,
    exponential,
    jacobian_determinant,
    reference_anatomy,
    sample,
)
from heatlas.pipeline.cohort.demo.people import CHANGES, COIL_SITE, SITES, coil_log_gain_per_mm
from heatlas.pipeline.cohort.demo.scanner import ORIENTATIONS, draw_acquisition, nifti_bytes, nifti_image, scan

HEALTHY = (0.0,) * len(CHANGES)
SEVERE = (1.0,) * len(CHANGES)


@pytest.fixture(scope="module")
def reference() -> ReferenceAnatomy:
    return reference_anatomy()


@pytest.fixture(scope="module")
def nobody(reference: ReferenceAnatomy) -> PersonShape:
    """The reference brain itself, a little smaller, of unequal sides."""
    return PersonShape(np.zeros(reference.velocities.shape[1:], np.float32), np.array([0.95, 0.9, 1.0]))


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
