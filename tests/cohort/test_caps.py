"""A CAPS dataset of Clinica as input."""

from __future__ import annotations

import gzip

import pytest
from input_trees import BidsTree, image_bytes

from heatlas.pipeline.cohort.reading import read_cohort
from heatlas.pipeline.run.config.settings import CohortConfig
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
