"""Where images of others enter."""

from __future__ import annotations

import json

import nibabel as nib
import numpy as np
import pytest
from input_trees import BidsTree

from heatlas.atlases.spaces import Grid, template_grid
from heatlas.pipeline.cohort.bids.derivatives import template_space_problem
from heatlas.pipeline.cohort.reading import InputCohort

SEX = {"contrast_column": "sex", "negative": "F", "positive": "M"}
SPACE = "space-MNI152NLin2009cAsym_res-4_desc-preproc"


def on_grid(affine: np.ndarray, shape: tuple[int, ...]) -> bytes:
    image = nib.Nifti1Image(np.ones(shape, np.int16), affine)
    image.set_sform(affine, 4)
    return image.to_bytes()


TEMPLATE = on_grid(template_grid(4.0).affine, template_grid(4.0).shape)


@pytest.fixture
def dataset(bids: BidsTree) -> BidsTree:
    """One person with a raw scan, one with a brain, one registered, one with all three."""
    bids.table("participants.tsv", "participant_id sex", "sub-1 M", "sub-2 F", "sub-3 F", "sub-4 M")
    bids.image("sub-1/anat/sub-1_T1w.nii")
    bids.image("sub-2/anat/sub-2_desc-brain_T1w.nii")
    bids.image(f"sub-3/anat/sub-3_{SPACE}_T1w.nii", TEMPLATE)
    bids.image("sub-4/anat/sub-4_T1w.nii")
    bids.image("sub-4/anat/sub-4_desc-brain_T1w.nii")
    bids.image(f"sub-4/anat/sub-4_{SPACE}_T1w.nii", TEMPLATE)
    return bids


def entries(cohort: InputCohort) -> dict[str, str]:
    return {scan.participant_id: scan.entry for scan in cohort.table.kept}


def test_images_enter_where_their_names_say_and_a_note_says_so(dataset: BidsTree) -> None:
    cohort = dataset.read(**SEX)
    assert entries(cohort) == {"sub-1": "scan", "sub-2": "brain", "sub-3": "template", "sub-4": "scan"}
    note = next(note for note in cohort.notes if note.startswith("images enter"))
    assert note.startswith("images enter 2 as scans, 1 brain-extracted, 1 registered to MNI152NLin2009cAsym; networks")
    assert len([scan for scan in cohort.table if not scan.kept]) == 2


@pytest.mark.parametrize(("start", "people"), [("brain", ["sub-2", "sub-4"]), ("template", ["sub-3", "sub-4"])])
def test_start_at_uses_only_what_is_recognised_as_such(dataset: BidsTree, start: str, people: list[str]) -> None:
    cohort = dataset.read(**SEX, start_at=start)
    assert entries(cohort) == dict.fromkeys(people, start)
    assert next(s.reason for s in cohort.table if s.scan_id == "sub-1_T1w") == (
        f"enters as scan, and --start-at is {start}"
    )


def test_start_at_takes_all_images_at_their_word_where_none_is_recognised(bids: BidsTree) -> None:
    bids.table("participants.tsv", "participant_id sex", "sub-1 F", "sub-2 M")
    bids.image("sub-1/anat/sub-1_T1w.nii")
    bids.image("sub-2/anat/sub-2_T1w.nii", TEMPLATE)
    assert entries(bids.read(**SEX, start_at="brain")) == {"sub-1": "brain", "sub-2": "brain"}
    cohort = bids.read(**SEX, start_at="template")
    assert entries(cohort) == {"sub-2": "template"}
    assert (cohort.table.scans[0].reason or "").startswith("not in the space of MNI152NLin2009cAsym: its grid misses ")


@pytest.mark.parametrize(("stated", "entry"), [(True, "brain"), (False, "scan"), (None, "scan")])
def test_the_sidecar_says_whether_a_skull_is_there(bids: BidsTree, stated: bool | None, entry: str) -> None:
    bids.table("participants.tsv", "participant_id sex", "sub-1 F", "sub-2 M")
    for person in "12":
        bids.image(f"sub-{person}/anat/sub-{person}_T1w.nii")
    if stated is not None:
        (bids.root / "T1w.json").write_text(json.dumps({"SkullStripped": stated}))  # for all images of the dataset
    (bids.root / "sub-2/anat/sub-2_T1w.json").write_text(json.dumps({"SkullStripped": False}))
    assert entries(bids.read(**SEX)) == {"sub-1": entry, "sub-2": "scan"}


def test_derivatives_that_are_no_scans_are_dropped_with_the_reason(bids: BidsTree) -> None:
    bids.table("participants.tsv", "participant_id sex", "sub-1 F", "sub-2 M")
    for person in "12":
        bids.image(f"sub-{person}/anat/sub-{person}_T1w.nii")
    bids.image("sub-1/anat/sub-1_space-MNI152NLin2009cAsym_res-1_desc-logjacobian_T1w.nii")
    bids.image("sub-1/anat/sub-1_space-MNI152NLin6Asym_T1w.nii")
    dropped = {scan.scan_id: scan.reason or "" for scan in bids.read(**SEX).table if not scan.kept}
    assert dropped["sub-1_space-MNI152NLin2009cAsym_res-1_desc-logjacobian_T1w"].startswith(
        "not known as a T1-weighted"
    )
    assert dropped["sub-1_space-MNI152NLin6Asym_T1w"].startswith("in another space than MNI152NLin2009cAsym: space-MNI")


def test_a_grid_in_template_space_reaches_over_the_brain_in_any_orientation() -> None:
    grid = template_grid(2.0)
    assert template_space_problem(grid) is None
    flipped = grid.affine.copy()
    flipped[0, 0], flipped[0, 3] = -2.0, grid.to_world([grid.shape[0] - 1, 0, 0])[0]
    assert template_space_problem(Grid(grid.shape, flipped)) is None
    moved = grid.affine.copy()
    moved[1, 3] += 60
    assert "misses" in (template_space_problem(Grid(grid.shape, moved)) or "")
    assert "misses" in (template_space_problem(Grid(grid.shape, np.diag([2.0, 2, 2, 1]))) or "")


def test_fmriprep_writes_each_scan_in_two_spaces_and_nothing_is_mixed(bids: BidsTree) -> None:
    bids.table("participants.tsv", "participant_id sex", "sub-1 M", "sub-2 F")
    for name in ("sub-1", "sub-2"):
        bids.image(f"{name}/anat/{name}_desc-preproc_T1w.nii")
        bids.image(f"{name}/anat/{name}_{SPACE}_T1w.nii", TEMPLATE)
    cohort = bids.read(**SEX)
    assert entries(cohort) == {"sub-1": "scan", "sub-2": "scan"}
    assert not any(note.startswith("images enter") for note in cohort.notes)
    placed = bids.read(start_at="template", **SEX)
    assert entries(placed) == {"sub-1": "template", "sub-2": "template"}
