"""Cohorts of other images than T1-weighted ones: which are found, and which have what they need."""

from __future__ import annotations

from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from input_trees import BidsTree, image_bytes

from heatlas.atlases.spaces import template_grid
from heatlas.pipeline.cohort.reading import InputCohort, read_filter
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.images import KINDS
from heatlas.pipeline.run.errors import BadInputError, UsageError

SEX = {"contrast_column": "sex", "negative": "F", "positive": "M"}
SPACE = "space-MNI152NLin2009cAsym_res-4"


def in_template() -> bytes:
    grid = template_grid(4.0)
    image = nib.Nifti1Image(np.ones(grid.shape, np.int16), grid.affine)
    image.set_sform(grid.affine, 4)
    return image.to_bytes()


@pytest.fixture
def dataset(bids: BidsTree) -> BidsTree:
    """One person with both images, one with a FLAIR alone, one with the T1w of another session, one registered."""
    bids.table("participants.tsv", "participant_id sex", "sub-1 F", *[f"sub-{n} M" for n in range(2, 6)])
    bids.image("sub-1/ses-a/anat/sub-1_ses-a_FLAIR.nii")
    bids.image("sub-1/ses-a/anat/sub-1_ses-a_acq-fast_T1w.nii")
    bids.image("sub-1/ses-a/anat/sub-1_ses-a_T1w.nii")
    bids.image("sub-2/ses-a/anat/sub-2_ses-a_FLAIR.nii")
    bids.image("sub-3/ses-a/anat/sub-3_ses-a_FLAIR.nii")
    bids.image("sub-3/ses-b/anat/sub-3_ses-b_T1w.nii")
    bids.image(f"sub-4/ses-a/anat/sub-4_ses-a_{SPACE}_FLAIR.nii", in_template())
    bids.image("sub-5/ses-a/anat/sub-5_ses-a_FLAIR.nii")
    bids.image("sub-5/ses-a/anat/sub-5_ses-a_T1w.nii", b"not an image")
    return bids


def reasons(cohort: InputCohort) -> dict[str, str]:
    return {scan.participant_id: (scan.reason or "kept").partition(":")[0] for scan in cohort.table}


def test_an_image_of_another_kind_needs_the_t1w_image_of_its_session(dataset: BidsTree) -> None:
    cohort = dataset.read(**SEX, suffix="FLAIR")
    assert reasons(cohort) == {
        "sub-1": "kept",
        "sub-2": "no T1w image of the session",
        "sub-3": "no T1w image of the session",
        "sub-4": "kept",
        "sub-5": "T1w image of the session",
    }
    first, registered = (next(s for s in cohort.table if s.participant_id == p) for p in ("sub-1", "sub-4"))
    assert (first.scan_id, first.t1w) == ("sub-1_ses-a_FLAIR", "sub-1/ses-a/anat/sub-1_ses-a_T1w.nii")
    assert (registered.entry, registered.t1w) == ("template", None)
    assert "t1w" not in cohort.table.frame().columns
    assert "2 images of other kinds in anat/ ignored: T1w 2" in cohort.notes  # those of ses-b, and the fast one


def test_the_t1w_images_are_the_cohort_unless_a_setting_says_otherwise(dataset: BidsTree) -> None:
    cohort = dataset.read(**SEX)
    assert {scan.name for scan in cohort.table.kept} == {"sub-1_ses-a", "sub-3_ses-b"}
    assert all(scan.t1w is None for scan in cohort.table)
    assert "5 images of other kinds in anat/ ignored: FLAIR 5" in cohort.notes


def test_further_kinds_enter_as_the_first_does(bids: BidsTree) -> None:
    """The T1w is in template space and a FLAIR in that of the scanner: none is taken for what its name does not say."""
    bids.table("participants.tsv", "participant_id sex", "sub-1 F", *[f"sub-{n} M" for n in range(2, 6)])
    for n in range(1, 5):
        bids.image(f"sub-{n}/anat/sub-{n}_{SPACE}_T1w.nii", in_template())
    bids.image(f"sub-1/anat/sub-1_{SPACE}_FLAIR.nii", in_template())
    bids.image(f"sub-1/anat/sub-1_{SPACE}_run-2_FLAIR.nii", in_template())
    bids.image("sub-2/anat/sub-2_FLAIR.nii")
    bids.image(f"sub-3/anat/sub-3_{SPACE}_FLAIR.nii", b"not an image")
    bids.image(f"sub-3/anat/sub-3_{SPACE}_run-2_FLAIR.nii", in_template())
    bids.image("sub-4/anat/sub-4_space-Other_FLAIR.nii", in_template())
    bids.image("sub-5/anat/sub-5_T1w.nii")
    bids.image("sub-5/anat/sub-5_FLAIR.nii")
    for start in ("auto", "template"):
        cohort = bids.read(**SEX, further_suffixes=("FLAIR",), start_at=start)
        found = {scan.participant_id: scan for scan in cohort.table}
        assert found["sub-1"].further == (f"sub-1/anat/sub-1_{SPACE}_FLAIR.nii",)
        assert found["sub-2"].reason.startswith("no FLAIR image of the session in the space of MNI152NLin2009cAsym")
        assert found["sub-3"].further == (f"sub-3/anat/sub-3_{SPACE}_run-2_FLAIR.nii",)  # the first cannot be read
        assert found["sub-4"].reason.startswith("FLAIR image of the session: ")
        assert found["sub-5"].kept == (start == "auto")
    assert any("FLAIR 3" in note for note in cohort.notes), cohort.notes


def test_where_nothing_is_named_as_placed_all_kinds_are_taken_as_such(bids: BidsTree) -> None:
    bids.table("participants.tsv", "participant_id sex", "sub-1 F", "sub-2 M")
    for n in (1, 2):
        bids.image(f"sub-{n}/anat/sub-{n}_T1w.nii", in_template())
        bids.image(f"sub-{n}/anat/sub-{n}_FLAIR.nii", in_template())
    cohort = bids.read(**SEX, further_suffixes=("FLAIR",), start_at="template")
    assert {(scan.entry, scan.further) for scan in cohort.table.kept} == {
        ("template", (f"sub-{n}/anat/sub-{n}_FLAIR.nii",)) for n in (1, 2)
    }


def test_one_image_as_two_kinds_of_a_session_is_named(bids: BidsTree) -> None:
    bids.table("participants.tsv", "participant_id sex", "sub-1 F", "sub-2 M")
    for n in (1, 2):
        bids.image(f"sub-{n}/anat/sub-{n}_T1w.nii", in_template())
        bids.image(f"sub-{n}/anat/sub-{n}_FLAIR.nii", in_template()[:-1] + bytes([n]))
    bids.image("sub-2/anat/sub-2_FLAIR.nii", in_template())
    said = [note for note in bids.read(**SEX, further_suffixes=("FLAIR",)).notes if "one image as two kinds" in note]
    assert len(said) == 1
    assert said[0].startswith("1 session has one image as two kinds, byte for byte")
    assert said[0].endswith(": sub-2")


def test_pet_lies_in_its_own_folder_and_frames_are_to_be_averaged(bids: BidsTree) -> None:
    bids.table("participants.tsv", "participant_id sex", "sub-1 F", "sub-2 M", "sub-3 M")
    for person, shape in (("1", (7, 9, 11)), ("2", (7, 9, 11, 5)), ("3", (7, 9, 11, 1))):
        bids.image(f"sub-{person}/pet/sub-{person}_trc-FDG_pet.nii", image_bytes(shape))
        bids.image(f"sub-{person}/anat/sub-{person}_T1w.nii")
    bids.image("sub-1/anat/sub-1_pet.nii")  # no PET lies here
    cohort = bids.read(**SEX, suffix="pet")
    found = {scan.participant_id: scan for scan in cohort.table}
    assert [found[f"sub-{n}"].kept for n in (1, 2, 3)] == [True, False, True]
    assert found["sub-2"].reason == (
        "4D image where one 3D volume is needed: 7x9x11x5; average its frames or repeats first"
    )
    assert found["sub-1"].t1w == "sub-1/anat/sub-1_T1w.nii"
    assert "1 image of other kinds in anat/ and pet/ ignored: pet 1" in cohort.notes


def test_maps_of_tissue_are_chosen_by_their_label_and_need_no_t1w(bids: BidsTree) -> None:
    bids.table("participants.tsv", "participant_id sex", "sub-1 F", "sub-2 M", "sub-3 M")
    bids.image(f"sub-3/anat/sub-3_{SPACE}_label-GM_desc-modulated_probseg.nii", in_template())
    for label in ("CSF", "GM"):
        bids.image(f"sub-1/anat/sub-1_{SPACE}_label-{label}_probseg.nii", in_template())
    bids.image("sub-2/anat/sub-2_label-GM_probseg.nii")
    bids.image("sub-2/anat/sub-2_T1w.nii")
    cohort = bids.read(**SEX, suffix="probseg", label="GM")
    assert [scan.scan_id for scan in cohort.table.kept] == [
        f"sub-1_{SPACE}_label-GM_probseg",
        f"sub-3_{SPACE}_label-GM_desc-modulated_probseg",
    ]
    dropped = {scan.scan_id: scan.reason or "" for scan in cohort.table if not scan.kept}
    assert dropped[f"sub-1_{SPACE}_label-CSF_probseg"] == "another map than cohort.label: label-CSF"
    assert dropped["sub-2_label-GM_probseg"].startswith("not in template space: a tissue map is used in the space of")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('suffix = ["T1w", "FLAIR"]', "must be one of 'T1w', .*, not a list"),
        ('suffix = "flair"', "must be one of"),
        ('suffix = "probseg"', "go together"),
        ('label = "GM"', "go together"),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "my.toml").write_text(f"[cohort]\n{text}\n")
    with pytest.raises(UsageError, match=words):
        load_config("default", tmp_path / "my.toml", {})


def test_a_filter_names_the_kind(tmp_path: Path) -> None:
    (tmp_path / "f.json").write_text('{"t1w": {"run": 1}, "flair": {"acquisition": "3D", "suffix": "FLAIR"}}')
    assert read_filter(tmp_path / "f.json", KINDS["FLAIR"]) == {"acq": ("3D",)}
    (tmp_path / "f.json").write_text('{"pet": {"tracer": "FDG", "datatype": "anat"}}')
    with pytest.raises(BadInputError, match=r'pet\.datatype must be "pet"'):
        read_filter(tmp_path / "f.json", KINDS["pet"])


def test_a_download_of_t1w_images_has_no_other_kind(tmp_path: Path) -> None:
    from heatlas.pipeline.cohort.reading import read_cohort
    from heatlas.pipeline.run.config.settings import CohortConfig

    (tmp_path / "ADNIMERGE_01Jan2025.csv").write_text("PTID\n")
    with pytest.raises(BadInputError, match=r'cohort\.suffix = "pet" are read of a BIDS dataset'):
        read_cohort(tmp_path, CohortConfig(suffix="pet"), 1)
