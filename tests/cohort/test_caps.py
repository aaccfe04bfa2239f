"""A CAPS dataset of Clinica as input."""

from __future__ import annotations

import gzip

import nibabel as nib
import numpy as np
import pytest
from input_trees import BidsTree, image_bytes

from heatlas.atlases.spaces import Grid
from heatlas.atlases.templates import load_template
from heatlas.pipeline.cohort.bids.derivatives import template_space_problem
from heatlas.pipeline.cohort.reading import read_cohort
from heatlas.pipeline.registration.entry_points import place_in_template, placed_brain
from heatlas.pipeline.registration.images.t1w import load_t1w
from heatlas.pipeline.run.config.images import KINDS
from heatlas.pipeline.run.config.settings import CohortConfig, RegistrationConfig
from heatlas.pipeline.run.errors import BadInputError

CROPPED = "space-MNI152NLin2009cSym_desc-Crop_res-1x1x1_T1w.nii.gz"
WHOLE = "space-MNI152NLin2009cSym_res-1x1x1_T1w.nii.gz"


def linear(person: str, session: str, ending: str, before: str = "") -> str:
    return f"subjects/{person}/{session}/t1_linear/{person}_{session}_{before}{ending}"


@pytest.fixture
def caps(tmp_path) -> BidsTree:
    """Two people of a BIDS dataset, one of them seen twice, as versions of Clinica name their images."""
    made = BidsTree(tmp_path / "caps")
    content = gzip.compress(image_bytes())
    for path in (
        linear("sub-01", "ses-M000", CROPPED, "T1w_"),
        linear("sub-01", "ses-M012", CROPPED),
        linear("sub-01", "ses-M012", WHOLE),
        linear("sub-02", "ses-M000", CROPPED, "acq-MPRAGE_run-2_"),
        linear("sub-02", "ses-M000", CROPPED, "acq-MPRAGE_run-1_"),
        "subjects/sub-02/ses-M000/t1/spm/segmentation/normalized_space/sub-02_ses-M000_T1w.nii.gz",
        "subjects/sub-02/ses-M000/pet_linear/sub-02_ses-M000_pet.nii.gz",
    ):
        made.image(path, content)
    return made


def images(caps: BidsTree, **settings: str) -> list[tuple[str, str | None]]:
    cohort = read_cohort(caps.root, CohortConfig(**settings), 43)
    assert cohort.layout == "caps"
    assert {scan.entry for scan in cohort.table} == {"scan"}
    return [(scan.file, scan.label) for scan in cohort.table.kept]


EXPECTED = [
    (linear("sub-01", "ses-M000", CROPPED, "T1w_"), "CN"),
    (linear("sub-01", "ses-M012", WHOLE), "AD"),
    (linear("sub-02", "ses-M000", CROPPED, "acq-MPRAGE_run-1_"), "AD"),
]


def test_one_image_per_session_with_a_table(caps) -> None:
    caps.table(
        "people.tsv", "participant_id session_id diagnosis", "sub-01 ses-M000 CN", "sub-01 ses-M012 AD", "02 bl AD"
    )
    assert images(caps, table="people.tsv") == EXPECTED


def test_the_tables_of_the_bids_dataset(caps, tmp_path) -> None:
    bids = BidsTree(tmp_path / "bids")
    bids.table("participants.tsv", "participant_id sex diagnosis_sc", "sub-01 F CN", "sub-02 M AD")
    bids.table("sub-01/sub-01_sessions.tsv", "session_id diagnosis", "ses-M000 CN", "ses-M012 AD")
    assert images(caps, table=str(bids.root / "participants.tsv")) == EXPECTED


def test_without_a_table_or_without_images_it_is_refused(caps) -> None:
    with pytest.raises(BadInputError, match=r"no table of its people\. Give one with --table"):
        images(caps)
    empty = BidsTree(caps.root.parent / "other")
    empty.image("subjects/sub-01/ses-M000/t1/sub-01_ses-M000_T1w.nii")
    with pytest.raises(BadInputError, match=r"no image of a participant found\. `clinica run t1-linear` makes"):
        images(empty)


SPM_AFFINE = np.array([[-1.5, 0, 0, 90], [0, 1.5, 0, -126], [0, 0, 1.5, -72], [0, 0, 0, 1]])
"""Grid of SPM's normalised maps, 121 x 145 x 121."""


def tissue(person: str, session: str, ending: str, place: str = "dartel/group-AD", segm: str = "graymatter") -> str:
    name = f"{person}_{session}_T1w_segm-{segm}_space-Ixi549Space_{ending}_probability.nii.gz"
    return f"subjects/{person}/{session}/t1/spm/{place}/{name}"


@pytest.fixture
def volumes(tmp_path) -> BidsTree:
    """Maps as t1-volume leaves them; sub-03 stopped before DARTEL."""
    made = BidsTree(tmp_path / "volumes")
    image = nib.Nifti1Image(np.zeros((121, 145, 121), np.uint8), SPM_AFFINE)
    content = gzip.compress(image.to_bytes(), 1)
    for person, session in (("sub-01", "ses-M000"), ("sub-01", "ses-M012"), ("sub-02", "ses-M000")):
        for segm in ("graymatter", "whitematter"):
            for ending in ("modulated-on", "modulated-off", "modulated-on_fwhm-8mm"):
                made.image(tissue(person, session, ending, segm=segm), content)
    segmented = "segmentation/normalized_space"
    made.image(tissue("sub-03", "ses-M000", "modulated-on", segmented), content)
    made.image(linear("sub-01", "ses-M000", WHOLE), content)
    made.table("people.tsv", "participant_id diagnosis", "sub-01 CN", "sub-02 AD", "sub-03 AD")
    return made


def read_maps(tree: BidsTree, label: str = "GM"):
    return read_cohort(tree.root, CohortConfig(table="people.tsv", suffix="probseg", label=label), 43)


@pytest.mark.parametrize(("label", "segm"), [("GM", "graymatter"), ("WM", "whitematter")])
def test_everybody_has_one_version_of_the_map(volumes, label, segm) -> None:
    cohort = read_maps(volumes, label)
    assert [(scan.file, scan.entry) for scan in cohort.table.kept] == [
        (tissue(person, session, "modulated-on", segm=segm), "template")
        for person, session in (("sub-01", "ses-M000"), ("sub-01", "ses-M012"), ("sub-02", "ses-M000"))
    ]
    notes = " | ".join(cohort.notes)
    assert "maps of dartel/group-AD, modulated, not smoothed, are in the space of SPM (Ixi549Space)" in notes
    assert f"{6 + (label == 'GM')} maps of {label} of other versions ignored" in notes
    assert "without a probseg image: sub-03" in notes


def test_without_maps_of_dartel_those_of_the_segmentation(volumes) -> None:
    for path in volumes.root.rglob("group-AD/*"):
        path.unlink()
    kept = read_maps(volumes).table.kept
    assert [scan.file for scan in kept] == [
        tissue("sub-03", "ses-M000", "modulated-on", "segmentation/normalized_space")
    ]


def test_maps_of_two_groups_another_label_and_no_maps_are_refused(volumes, caps) -> None:
    with pytest.raises(BadInputError, match=r'cohort\.label = "bone" is no tissue .* one of GM, WM, CSF'):
        read_maps(volumes, "bone")
    volumes.image(tissue("sub-02", "ses-M000", "modulated-on", "dartel/group-old"), gzip.compress(image_bytes()))
    with pytest.raises(BadInputError, match=r"several groups of DARTEL \(group-AD, group-old\)"):
        read_maps(volumes)
    caps.table("people.tsv", "participant_id diagnosis", "sub-01 CN", "sub-02 AD")
    with pytest.raises(BadInputError, match="`clinica run t1-volume` makes the maps"):
        read_maps(caps)
    with pytest.raises(BadInputError, match=r'cohort\.suffix = "pet" are read of a BIDS dataset'):
        read_cohort(caps.root, CohortConfig(table="people.tsv", suffix="pet"), 43)


def test_the_grid_of_spm_covers_the_brain_of_the_template() -> None:
    assert template_space_problem(Grid((121, 145, 121), SPM_AFFINE)) is None
    assert template_space_problem(Grid((121, 145, 60), SPM_AFFINE)) is not None


def test_a_map_on_the_grid_of_spm_is_placed_by_its_affine(tmp_path) -> None:
    """The map rises by 1 per mm to the right, 1000 per mm to the front; so do its values on the template's grid."""
    source = Grid((121, 145, 121), SPM_AFFINE)
    x, y, _ = np.moveaxis(source.to_world(np.argwhere(np.ones(source.shape, bool))), -1, 0)
    values = (200 + x + 1000 * (200 + y)).reshape(source.shape).astype(np.float32)
    nib.save(nib.Nifti1Image(values, SPM_AFFINE), path := tmp_path / "map.nii.gz")
    template, image, kind = load_template(4.0), load_t1w(path), KINDS["probseg"]
    placed = place_in_template(image, placed_brain(image, kind, template, RegistrationConfig()), template, True, kind)
    inside = np.argwhere(template.brain_mask)
    x, y, z = template.grid.to_world(inside).T
    deep = z > -60
    found = placed.t1w[tuple(inside.T)]
    np.testing.assert_allclose(found[deep], (200 + x + 1000 * (200 + y))[deep], atol=0.5)
