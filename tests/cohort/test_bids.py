"""BIDS datasets, as the standard has them and as they come."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from input_trees import BidsTree, image_bytes
from other_user import nobody

from heatlas.pipeline.cohort.reading import read_cohort
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.config.settings import CohortConfig
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


# BIDS as Clinica writes it, as people organise it, and as it goes wrong.


def people(bids: BidsTree, *names: str) -> None:
    for name in names:
        bids.image(f"sub-{name}/anat/sub-{name}_T1w.nii")
    rows = [f"sub-{name} {'FM'[i % 2]}" for i, name in enumerate(names)]
    bids.table("participants.tsv", "participant_id sex", *rows)


def reasons(scans: tuple[Scan, ...]) -> dict[str, str | None]:
    return {scan.scan_id: scan.reason for scan in scans if not scan.kept}


def test_a_dataset_of_clinica(bids: BidsTree) -> None:
    for session in ("M000", "M024"):
        bids.image(f"sub-ADNI002S0295/ses-{session}/anat/sub-ADNI002S0295_ses-{session}_T1w.nii")
    bids.image("sub-ADNI011S0002/ses-M000/anat/sub-ADNI011S0002_ses-M000_T1w.nii")
    bids.table(
        "participants.tsv",
        "participant_id alternative_id_1 sex age_bl site apoe_gen1 apoe_gen2 diagnosis_sc mmse_bl",
        "sub-ADNI002S0295 002_S_0295 M 84.8 2 3 4 LMCI 25",
        "sub-ADNI011S0002 011_S_0002 F 74.3 11 n/a 4 AD 20",
    )
    bids.table(
        "sub-ADNI002S0295/sub-ADNI002S0295_sessions.tsv",
        "session_id diagnosis MMS cdr_global adni_hippocampus_vol adni_icv",
        "ses-M000 CN 28 0.5 7000 1500000",
        "ses-M024 Dementia -1 n/a -4 1500001",
    )
    bids.table(
        "sub-ADNI002S0295/ses-M024/sub-ADNI002S0295_ses-M024_scans.tsv",
        "filename mri_field",
        "anat/sub-ADNI002S0295_ses-M024_T1w.nii 3.0",
    )
    sidecar = bids.root / "sub-ADNI011S0002/ses-M000/anat/sub-ADNI011S0002_ses-M000_T1w.json"
    sidecar.write_text(json.dumps({"MagneticFieldStrength": 1.494}))
    first, second, other = bids.read().table.scans
    assert (first.diagnosis, first.diagnosis_source, first.mmse, first.cdr) == (
        "CN", "sessions table: diagnosis", 28.0, 0.5,
    )  # fmt: skip
    assert (first.hippocampus_mm3, first.hippocampus_source) == (7000.0, "sessions table: adni_hippocampus_vol")
    assert (first.tiv_mm3, first.tiv_source, first.apoe4, first.site) == (
        1_500_000.0, "sessions table: adni_icv", 1, "2",
    )  # fmt: skip
    assert (second.diagnosis, second.age, second.mmse, second.hippocampus_mm3) == ("AD", 86.8, None, None)
    assert (first.field_strength, second.field_strength, other.field_strength) == (None, 3.0, 1.5)
    assert (other.diagnosis, other.diagnosis_source) == ("AD", "participants.tsv: diagnosis_sc")
    assert (other.mmse, other.apoe4, other.age) == (20.0, None, 74.3)


def test_values_at_screening_stand_in_at_baseline_only(bids: BidsTree) -> None:
    for session in ("M000", "M012"):
        bids.image(f"sub-1/ses-{session}/anat/sub-1_ses-{session}_T1w.nii")
    bids.image("sub-2/ses-M000/anat/sub-2_ses-M000_T1w.nii")
    bids.table("participants.tsv", "participant_id diagnosis_sc", "sub-1 CN", "sub-2 AD")
    assert [scan.diagnosis for scan in bids.read().table] == ["CN", None, "AD"]


def test_of_several_images_the_plain_one_then_the_lowest_run_is_used(bids: BidsTree) -> None:
    people(bids, "1", "2")
    (bids.root / "sub-1/anat/sub-1_T1w.nii").unlink()
    for entities in ("acq-a_run-1", "run-3", "run-2", "rec-norm_run-1", "ce-gado_run-1", "run-1_part-phase"):
        bids.image(f"sub-1/anat/sub-1_{entities}_T1w.nii")
    scans = bids.read(**SEX).table.scans
    assert [scan.scan_id for scan in scans if scan.kept] == ["sub-1_run-2_T1w", "sub-2_T1w"]
    dropped = reasons(scans)
    assert dropped.pop("sub-1_run-1_part-phase_T1w") == "not the magnitude image: part-phase"
    assert len(dropped) == 4
    assert all((reason or "").endswith("sub-1_run-2_T1w") for reason in dropped.values())
    (bids.root / "sub-1/anat/sub-1_run-2_T1w.nii").unlink()
    (bids.root / "sub-1/anat/sub-1_run-3_T1w.nii").unlink()
    assert [scan.scan_id for scan in bids.read(**SEX).table.kept] == ["sub-1_acq-a_run-1_T1w", "sub-2_T1w"]


def test_bidsignore_is_obeyed_as_git_would(bids: BidsTree) -> None:
    people(bids, "1", "2", "3")
    bids.image("sub-1/anat/sub-1_acq-bad_T1w.nii")
    (bids.root / ".bidsignore").write_text("# spoilt\n*acq-bad*\nsub-3/\n!sub-2/\n")
    cohort = bids.read(**SEX)
    assert [scan.scan_id for scan in cohort.table] == ["sub-1_T1w", "sub-2_T1w"]
    assert (
        "2 images excluded by .bidsignore: sub-1/anat/sub-1_acq-bad_T1w.nii, sub-3/anat/sub-3_T1w.nii" in cohort.notes
    )
    (bids.root / ".bidsignore").write_text("!\n")
    with pytest.raises(BadInputError, match=r"\.bidsignore: a pattern is malformed"):
        bids.read(**SEX)


def test_sessions_alone_are_enough(bids: BidsTree) -> None:
    for person in "12":
        bids.image(f"sub-{person}/ses-1/anat/sub-{person}_ses-1_T1w.nii")
    bids.table("sessions.tsv", "participant_id session_id sex", "1 1 F", "sub-2 ses-1 M")
    assert [scan.sex for scan in bids.read(**SEX).table] == ["F", "M"]


def test_a_derivative_is_read_with_the_tables_above_it(tmp_path: Path) -> None:
    above, inside = BidsTree(tmp_path), BidsTree(tmp_path / "derivatives" / "prep")
    people(above, "1", "2")
    for person in "12":
        inside.image(f"sub-{person}/anat/sub-{person}_desc-preproc_T1w.nii")
    cohort = inside.read(**SEX)
    assert [scan.sex for scan in cohort.table.kept] == ["F", "M"]
    assert [scan.scan_id for scan in above.read(**SEX).table] == ["sub-1_T1w", "sub-2_T1w"]
    assert f"tables come from the dataset above, {tmp_path.name}" in cohort.notes


def test_one_age_for_several_visits_and_unusable_cells_are_said(bids: BidsTree) -> None:
    for session in ("M000", "M012"):
        bids.image(f"sub-1/ses-{session}/anat/sub-1_ses-{session}_T1w.nii")
    bids.image("sub-2/ses-M000/anat/sub-2_ses-M000_T1w.nii")
    bids.table("participants.tsv", "participant_id sex age MMSE", "sub-1 F 70 many", "sub-2 M old n/a")
    cohort = bids.read(**SEX)
    assert [scan.age for scan in cohort.table] == [70.0, 70.0, None]
    assert any(note.startswith("1 scan after month 0 with the age of participants.tsv") for note in cohort.notes)
    cells = "participants.tsv line 2, MMSE 'many' (not a number), participants.tsv line 3, age 'old' (not a number)"
    assert f"impossible values, treated as missing (2): {cells}" in cohort.notes


def test_a_sidecar_that_is_no_json_costs_its_scan_only(bids: BidsTree) -> None:
    people(bids, "1", "2", "3")
    (bids.root / "sub-3/anat/sub-3_T1w.json").write_text("{")
    scans = bids.read(**SEX).table.scans
    assert len(scans) == 3
    assert (reasons(scans)["sub-3_T1w"] or "").startswith("unreadable sidecar: sidecar sub-3_T1w.json is not readable")


def test_a_participants_table_that_cannot_be_read_is_named(bids: BidsTree) -> None:
    people(bids, "1", "2")
    table = bids.root / "participants.tsv"
    table.unlink()
    table.mkdir()
    with pytest.raises(BadInputError, match=r"participants\.tsv: cannot be read \(a folder, not a file\)"):
        bids.read(**SEX)
    table.rmdir()
    table.write_bytes(b"\x00\xff\xfe\x13" * 40)
    with pytest.raises(BadInputError, match=r"participants\.tsv"):
        bids.read(**SEX)


def test_a_participants_table_without_permission_is_named(bids: BidsTree) -> None:
    people(bids, "1", "2")
    bids.read(**SEX)  # also loads what is imported late
    (bids.root / "participants.tsv").chmod(0)
    with (
        nobody(bids.root),
        pytest.raises(BadInputError, match=r"participants\.tsv: cannot be read \(Permission denied\)"),
    ):
        bids.read(**SEX)


def test_an_image_without_entities_and_one_in_the_wrong_place_are_rows(bids: BidsTree) -> None:
    people(bids, "1", "2")
    bids.image("sub-1/ses-9/anat/T1w.nii.gz")
    bids.image("sub-1/anat/sub-2_T1w.nii")
    scans = bids.read(**SEX).table.scans
    assert reasons(scans) == {
        "T1w": "not a BIDS path: should be sub-1/ses-9/anat/sub-1_ses-9_T1w.nii.gz",
        "sub-2_T1w": "not a BIDS path: should be sub-1/anat/sub-1_T1w.nii.gz",
    }
    assert len(scans) == 4


def test_images_that_may_be_scans_under_another_name_are_noted(bids: BidsTree) -> None:
    people(bids, "1", "2")
    for name in ("sub-1/anat/mprage.nii", "sub-1/ses-1/anat/sub-1_ses-1_T1w.NII", "sub-2/brain.nii.gz"):
        bids.image(name)
    bids.image("sub-2/func/bold.nii")
    cohort = bids.read(**SEX)
    assert len(cohort.table) == 2
    assert (
        "3 images without a BIDS name ignored; T1-weighted ones should end in _T1w.nii.gz: "
        "sub-1/anat/mprage.nii, sub-1/ses-1/anat/sub-1_ses-1_T1w.NII, sub-2/brain.nii.gz"
    ) in cohort.notes


def test_rows_about_nobody_and_diagnoses_out_of_time_are_noted(bids: BidsTree) -> None:
    for session in ("M000", "late"):
        bids.image(f"sub-1/ses-{session}/anat/sub-1_ses-{session}_T1w.nii")
    people(bids, "2", "3")
    rows = ["sub-1 F", "sub-2 F", "n/a M", "n/a n/a", "sub-3 M"]
    bids.table("participants.tsv", "participant_id sex", *rows)
    bids.table("sub-1/sub-1_sessions.tsv", "session_id diagnosis", "ses-M000 MCI", "ses-late AD", "n/a CN")
    bids.table("sub-1/ses-M000/sub-1_ses-M000_scans.tsv", "filename age", "n/a 70")
    cohort = bids.read(**SEX)
    assert [note for note in cohort.notes if "left out" in note] == [
        "1 row without participant_id left out: participants.tsv",
        "1 row without session_id left out: sub-1_sessions.tsv",
        "1 row without filename left out: sub-1_ses-M000_scans.tsv",
    ]
    assert (
        "1 session with a diagnosis but not named by months (ses-M012), unusable for conversion: sub-1 ses-late"
    ) in cohort.notes
    assert {scan.session_id: scan.progression for scan in cohort.table if scan.participant_id == "sub-1"} == {
        "ses-M000": "uMCI",
        "ses-late": None,
    }


@pytest.mark.parametrize(
    ("text", "age"), [(">89", 89.0), ("89+", 89.0), (">= 80", 80.0), ("≥ 75", 75.0), ("<89", None)]
)
def test_ages_of_an_open_class(bids: BidsTree, text: str, age: float | None) -> None:
    people(bids, "1", "2")
    (bids.root / "participants.tsv").write_text(f"participant_id\tsex\tage\nsub-1\tF\t{text}\nsub-2\tM\t70\n")
    cohort = bids.read(**SEX)
    assert cohort.table.kept[0].age == age
    assert any("impossible values" in note for note in cohort.notes) == (age is None)


def test_names_of_identifying_columns_in_another_case(bids: BidsTree) -> None:
    people(bids, "1", "2")
    bids.table("participants.tsv", "Participant_ID Sex", "sub-1 F", "sub-2 M")
    assert [scan.sex for scan in bids.read(**SEX).table.kept] == ["F", "M"]


def test_an_image_whose_affines_mirror_each_other_is_dropped(bids: BidsTree) -> None:
    """A qform that is only turned or moved is noted; one of the other hand leaves left and right uncertain."""
    for person, qform in (("sub-1", [-1, 1, 1, 1]), ("sub-2", [1, 1, 1, 1]), ("sub-3", [1, -1, 1, 1])):
        image = nib.Nifti1Image(np.ones((7, 9, 11), np.int16), None)
        image.header.set_sform(np.diag([-1.0, 1, 1, 1]), 2)
        image.header.set_qform(np.diag(np.array(qform, float)), 1)
        bids.image(f"{person}/anat/{person}_T1w.nii", image.to_bytes())
    bids.table("participants.tsv", "participant_id diagnosis", "sub-1 CN", "sub-2 AD", "sub-3 AD")
    cohort = bids.read()
    assert [scan.reason for scan in cohort.table] == [
        None,
        "left and right are uncertain: its sform (code 2) mirrors its qform (code 1); set the code of the wrong one to "
        "0",
        None,
    ]
    assert "headers of 1 image are corrected in memory (qform differs): sub-3_T1w" in cohort.notes


def test_spaces_accents_and_links_in_a_circle(tmp_path: Path) -> None:
    bids = BidsTree(tmp_path / "Étude n° 1 – 阿尔茨海默")
    people(bids, "1", "2")
    (bids.root / "sub-1" / "again").symlink_to(bids.root)
    (bids.root / "sub-2" / "anat" / "sub-2_run-2_T1w.nii").symlink_to("sub-2_run-2_T1w.nii")
    cohort = bids.read(**SEX)
    assert [scan.scan_id for scan in cohort.table.kept] == ["sub-1_T1w", "sub-2_T1w"]
    assert reasons(cohort.table.scans) == {"sub-2_run-2_T1w": "a link in a circle"}
    assert "1 link to folders not followed; give the real folder, or --follow-links: sub-1/again" in cohort.notes


@pytest.mark.parametrize("stated", ['"abc"', "-3", "[3]", "true", "0"])
def test_a_field_strength_that_is_not_a_positive_number_is_missing_and_named(bids: BidsTree, stated: str) -> None:
    people(bids, "1", "2")
    sidecar = bids.root / "sub-1/anat/sub-1_T1w.json"
    sidecar.write_text(f'{{"MagneticFieldStrength": {stated}}}')
    cohort = bids.read(**SEX)
    assert [scan.field_strength for scan in cohort.table] == [None, None]
    assert any("sub-1_T1w.nii, MagneticFieldStrength" in note for note in cohort.notes)


def test_a_sidecar_nested_too_deeply_costs_its_scan_only(bids: BidsTree) -> None:
    people(bids, "1", "2", "3", "4")
    (bids.root / "sub-1/anat/sub-1_T1w.json").write_text("[" * 100_000 + "]" * 100_000)
    first, *others = bids.read(**SEX).table.scans
    assert all(scan.kept for scan in others)
    assert (first.reason or "").startswith("unreadable sidecar: sidecar sub-1_T1w.json is not readable as JSON")


@pytest.mark.parametrize("middle", [b"\xff\xfe", b"x\nfake", b"\x1b[2J"])
def test_a_name_that_no_table_can_hold_is_left_out_and_named(bids: BidsTree, middle: bytes) -> None:
    people(bids, "1", "2")
    (Path(os.fsdecode(os.fsencode(bids.root / "sub-1/anat") + b"/sub-9_desc-" + middle + b"_T1w.nii"))).write_bytes(b"")
    cohort = bids.read(**SEX)
    assert len(cohort.table) == 2
    (note,) = [note for note in cohort.notes if "rename them" in note]
    assert "\n" not in note
    note.encode("utf-8")


def test_a_pattern_that_would_take_for_ever_is_refused(bids: BidsTree) -> None:
    people(bids, "1", "2")
    (bids.root / ".bidsignore").write_text("*a" * 40 + "b\n")
    with pytest.raises(BadInputError, match=r"\.bidsignore: the pattern .* asterisks"):
        bids.read(**SEX)


TABLES = ["participants.tsv", "sessions.tsv", "sub-1/sub-1_sessions.tsv", "sub-1/ses-1/sub-1_ses-1_scans.tsv"]
IDENTIFYING = {"participants.tsv": "participant_id", "sessions.tsv": "participant_id session_id"}
FIRST_CELLS = {"participants.tsv": "sub-1", "sessions.tsv": "sub-1 ses-1", TABLES[2]: "ses-1"}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("same", [True, False])
def test_columns_that_differ_by_case_alone(bids: BidsTree, table: str, same: bool) -> None:
    """They must agree: which one is meant nobody can tell."""
    bids.image("sub-1/ses-1/anat/sub-1_ses-1_T1w.nii")
    bids.image("sub-2/ses-1/anat/sub-2_ses-1_T1w.nii")
    bids.table("participants.tsv", "participant_id sex", "sub-1 F", "sub-2 M")
    who = IDENTIFYING.get(table, "session_id" if "sessions" in table else "filename")
    cells = FIRST_CELLS.get(table, "anat/sub-1_ses-1_T1w.nii")
    bids.table(table, f"{who} sex Age age", f"{cells} F 70 {70 if same else 80}",
               *(["sub-2 M 60 60"] if table == "participants.tsv" else []))  # fmt: skip
    said = f"{Path(table).name}: two columns are named Age and age and hold different values. Rename or remove one."
    if not same and table in ("participants.tsv", "sessions.tsv"):
        with pytest.raises(BadInputError) as caught:
            bids.read(**SEX)
        assert said in str(caught.value)
        return
    cohort = read_cohort(bids.root, CohortConfig(**SEX), 43)
    scan = next(scan for scan in cohort.table if scan.participant_id == "sub-1")
    told = " ".join([*cohort.notes, scan.reason or ""])
    assert (said in told) == (not same)
    assert scan.age == (70.0 if same else None)


@pytest.mark.parametrize(("used", "other", "cells"), [("diagnosis", "dx", "CN AD"), ("sex", "gender", "F M")])
def test_columns_that_contradict_each_other_for_everyone_are_refused(bids: BidsTree, used, other, cells) -> None:
    people(bids, "01", "02")
    bids.table("participants.tsv", f"participant_id {used} {other}", f"sub-01 {cells}", f"sub-02 {cells}")
    with pytest.raises(BadInputError, match=f"columns {used} and {other} contradict each other for all 2 scans"):
        bids.read()


def test_columns_that_contradict_each_other_for_some_are_named(bids: BidsTree) -> None:
    people(bids, "01", "02", "03")
    rows = ["sub-01 CN Control", "sub-02 AD CN", "sub-03 AD AD"]
    bids.table("participants.tsv", "participant_id diagnosis dx", *rows)
    cohort = bids.read()
    assert "columns diagnosis and dx contradict each other for 1 of 3 scans; diagnosis is used" in cohort.notes
    assert [scan.diagnosis for scan in cohort.table] == ["CN", "AD", "AD"]


def test_a_fraction_of_a_point_of_the_mmse_is_impossible(bids: BidsTree) -> None:
    people(bids, "01", "02")
    bids.table("participants.tsv", "participant_id mmse sex", "sub-01 27.5 F", "sub-02 28.0 M")
    cohort = bids.read(**SEX)
    assert [scan.mmse for scan in cohort.table] == [None, 28.0]
    assert "mmse '27.5' (must be a whole number from 0 to 30)" in " ".join(cohort.notes)


def test_ages_divided_by_ten_are_noted(bids: BidsTree) -> None:
    people(bids, "01", "02")
    bids.table("participants.tsv", "participant_id age sex", "sub-01 7.1 F", "sub-02 6.6 M")
    cohort = bids.read(**SEX)
    assert "all ages are below 18 (6.6 to 7.1): are they in years?" in cohort.notes
    assert [scan.age for scan in cohort.table] == [7.1, 6.6]
