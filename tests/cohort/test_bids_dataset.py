from __future__ import annotations

import gzip

import pytest
from input_trees import BidsTree, image_bytes

from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.errors import BadInputError

SEX = {"contrast_column": "sex", "negative": "F", "positive": "M"}


def two_people(bids: BidsTree) -> None:
    bids.image("sub-01/anat/sub-01_T1w.nii.gz", gzip.compress(image_bytes()))
    bids.image("sub-02/anat/sub-02_T1w.nii")
    bids.table("participants.tsv", "participant_id age sex", "sub-01 70 F", "02 71.5 male")


def test_a_dataset_without_sessions(bids: BidsTree) -> None:
    two_people(bids)
    cohort = bids.read(**SEX)
    assert cohort.layout == "bids"
    assert [scan.name for scan in cohort.table] == ["sub-01", "sub-02"]
    first = cohort.table.scans[0]
    assert first == Scan("sub-01", None, "sub-01_T1w", "sub-01/anat/sub-01_T1w.nii.gz", label="F", age=70.0, sex="F")
    assert cohort.table.scans[1].label == "M"
    assert cohort.notes == ()


def test_ids_in_another_letter_case(bids: BidsTree) -> None:
    """The prefix may be written in any case; labels are people's names, and a difference of case alone is named."""
    two_people(bids)
    bids.image("sub-Ab/anat/sub-Ab_T1w.nii")
    bids.table("participants.tsv", "participant_id age sex", "SUB-01 70 F", "Sub-02 71.5 male", "sub-AB 60 F")
    cohort = bids.read(**SEX)
    assert [(scan.name, scan.age) for scan in cohort.table.kept] == [("sub-01", 70.0), ("sub-02", 71.5)]
    said = "ids in participants.tsv in another case than those of the images, correct them: sub-AB for sub-Ab"
    assert said in cohort.notes
    assert "1 participant in participants.tsv without a T1w image: sub-AB" in cohort.notes


def test_what_changes_between_visits_comes_from_the_sessions_table(bids: BidsTree) -> None:
    for session in ("M000", "M024"):
        bids.image(f"sub-01/ses-{session}/anat/sub-01_ses-{session}_T1w.nii")
    bids.image("sub-02/ses-M012/anat/sub-02_ses-M012_T1w.nii")
    bids.table(
        "participants.tsv", "participant_id age_bl sex diagnosis apoe4", "sub-01 70.2 F CN 1", "sub-02 80 M AD n/a"
    )
    bids.table(
        "sub-01/sub-01_sessions.tsv",
        "session_id diagnosis MMS cdr_global hippocampus_mm3",
        "ses-M000 CN 29 0 7000",
        "M024 Dementia 21 1 n/a",
        "ses-M036 AD 20 1 6000",
    )
    cohort = bids.read()
    rows = {scan.name: scan for scan in cohort.table}
    first, second, other = (rows[name] for name in ("sub-01_ses-M000", "sub-01_ses-M024", "sub-02_ses-M012"))
    assert (first.label, first.mmse, first.cdr, first.age, first.apoe4) == ("CN", 29.0, 0.0, 70.2, 1)
    assert (first.hippocampus_mm3, first.hippocampus_source) == (7000.0, "sessions table: hippocampus_mm3")
    assert (second.label, second.mmse, second.age, second.hippocampus_mm3) == ("AD", 21.0, 72.2, None)
    assert (other.label, other.age, other.apoe4, other.hippocampus_source) == ("AD", 81.0, None, None)
    assert "1 session in sessions tables without a T1w image: sub-01 ses-M036" in cohort.notes
    assert "1 session with images but no row in their sessions table: sub-02 ses-M012" in cohort.notes


@pytest.mark.parametrize(
    ("columns", "cells", "expected"),
    [
        ("hippocampus_mm3", "7000", (7000.0, "participants.tsv: hippocampus_mm3")),
        (
            "hippocampus_left_mm3 hippocampus_right_mm3",
            "3400 3500.5",
            (6900.5, "participants.tsv: hippocampus_left_mm3 + hippocampus_right_mm3"),
        ),
        ("hippocampus_left_mm3 hippocampus_right_mm3", "3400 n/a", (None, None)),
        ("other", "7000", (None, None)),
    ],
)
def test_hippocampal_volume(
    bids: BidsTree, columns: str, cells: str, expected: tuple[float | None, str | None]
) -> None:
    two_people(bids)
    bids.table(
        "participants.tsv",
        f"participant_id sex {columns}",
        f"sub-01 F {cells}",
        "sub-02 M" + " n/a" * len(cells.split()),
    )
    scan = bids.read(**SEX).table.scans[0]
    assert (scan.hippocampus_mm3, scan.hippocampus_source) == expected


@pytest.mark.parametrize(
    ("columns", "cells", "expected"),
    [
        ("ICV brain_volume_mm3", "1500000 1200000", 1_500_000.0),
        ("tiv_mm3 ICV", "1400000 1500000", 1_400_000.0),
        ("brain_volume_mm3", "1200000", 1_200_000.0),
        ("tiv_mm3", "n/a", None),
    ],
)
def test_intracranial_volume(bids: BidsTree, columns: str, cells: str, expected: float | None) -> None:
    two_people(bids)
    bids.table(
        "participants.tsv",
        f"participant_id sex {columns}",
        f"sub-01 F {cells}",
        "sub-02 M" + " n/a" * len(cells.split()),
    )
    cohort = bids.read(**SEX)
    assert cohort.table.scans[0].tiv_mm3 == expected
    stands_in = columns == "brain_volume_mm3"
    assert ("brain_volume_mm3 replaces the missing intracranial volume of 1 scan" in cohort.notes) == stands_in


def test_of_several_runs_the_first_is_used(bids: BidsTree) -> None:
    two_people(bids)
    (bids.root / "sub-02/anat/sub-02_T1w.nii").unlink()
    for entities in ("run-10", "run-2", "acq-a_run-3"):
        bids.image(f"sub-02/anat/sub-02_{entities}_T1w.nii")
    scans = bids.read(**SEX).table.scans[1:]
    assert [scan.scan_id for scan in scans if scan.kept] == ["sub-02_run-2_T1w"]
    assert {scan.reason for scan in scans if not scan.kept} == {
        "another scan of this session is preferred: sub-02_run-2_T1w"
    }


def test_other_images_are_counted_and_derivatives_left_alone(bids: BidsTree) -> None:
    two_people(bids)
    for path in (
        "sub-01/anat/sub-01_T2w.nii",
        "sub-01/anat/sub-01_acq-x_FLAIR.nii",
        "sub-01/func/sub-01_task-rest_bold.nii",
        "sub-01/other/sub-01_T1w.nii",
        "derivatives/x/sub-01/anat/sub-01_T1w.nii",
        "sourcedata/sub-09/anat/sub-09_T1w.nii",
    ):
        bids.image(path)
    bids.image("sub-01/anat/sub-01_space-MNI_desc-preproc_T1w.nii")
    cohort = bids.read(**SEX)
    reasons = {scan.image: scan.reason for scan in cohort.table if not scan.kept}
    assert reasons == {
        "sub-01/anat/sub-01_space-MNI_desc-preproc_T1w.nii": "in another space than MNI152NLin2009cAsym: space-MNI; "
        "give the image in the space of the scan",
        "sub-01/other/sub-01_T1w.nii": "not a BIDS path: should be sub-01/anat/sub-01_T1w.nii.gz",
    }
    assert "2 images of other kinds in anat/ ignored: FLAIR 1, T2w 1" in cohort.notes


def test_a_contrast_by_a_column_of_both_tables_goes_by_the_session(bids: BidsTree) -> None:
    for session in ("1", "2"):
        bids.image(f"sub-01/ses-{session}/anat/sub-01_ses-{session}_T1w.nii")
    bids.table("participants.tsv", "participant_id stage", "sub-01 early")
    bids.table("sub-01/sub-01_sessions.tsv", "session_id stage", "ses-1 n/a", "ses-2 late")
    cohort = bids.read(contrast_column="stage", negative="early", positive="late")
    assert [scan.label for scan in cohort.table] == ["early", "late"]


def test_a_scan_without_a_row_and_a_row_without_a_scan(bids: BidsTree) -> None:
    two_people(bids)
    bids.image("sub-03/anat/sub-03_T1w.nii")
    bids.table("participants.tsv", "participant_id sex", "sub-01 F", "sub-02 M", "sub-04 M", "04 F")
    cohort = bids.read(**SEX)
    assert cohort.table.scans[2].reason == "no row in participants.tsv"
    assert "1 participant in participants.tsv without a T1w image: sub-04" in cohort.notes
    assert "1 row repeated, used only to fill gaps: participants.tsv, sub-04" in cohort.notes
    assert "repeated rows disagree, the first is used: participants.tsv, sub-04 sex (M, not F)" in cohort.notes


def test_a_missing_or_wrong_participants_table(bids: BidsTree) -> None:
    two_people(bids)
    bids.table("participants.tsv", "id sex", "sub-01 F")
    with pytest.raises(BadInputError, match=r"participants\.tsv: column participant_id is missing; found: id, sex\."):
        bids.read(**SEX)
    (bids.root / "participants.tsv").unlink()
    with pytest.raises(BadInputError, match=r"participants\.tsv: missing, and no sessions table"):
        bids.read(**SEX)


def test_an_unusable_sessions_table_costs_one_person_their_scans(bids: BidsTree) -> None:
    two_people(bids)
    bids.image("sub-03/anat/sub-03_T1w.nii")
    bids.table("participants.tsv", "participant_id sex", "sub-01 F", "sub-02 M", "sub-03 F")
    bids.table("sub-01/sub-01_sessions.tsv", "session mmse", "ses-1 20")
    scans = bids.read(**SEX).table.scans
    assert [scan.kept for scan in scans] == [False, True, True]
    assert scans[0].reason == (
        "unreadable table: sub-01/sub-01_sessions.tsv: column session_id is missing; found: session, mmse. Columns "
        "must be separated by tabs."
    )
