"""A folder of FreeSurfer or FastSurfer subjects as input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from heatlas.pipeline.cohort.reading import InputCohort, read_cohort
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.errors import BadInputError

STATS = """# Measure EstimatedTotalIntraCranialVol, eTIV, Estimated Total Intracranial Volume, {tiv}, mm^3
# ColHeaders Index SegId NVoxels Volume_mm3 StructName
 1 17 4000 {left} Left-Hippocampus
 2 53 4000 3900.0 Right-Hippocampus
"""


class Subjects:
    """A SUBJECTS_DIR in the making."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(self, name: str, *images: str, left: float = 0.0) -> None:
        folder = self.root / name / "mri"
        (folder / "orig").mkdir(parents=True)
        for image in images:
            nib.save(nib.MGHImage(np.ones((7, 9, 11), np.uint8), np.eye(4)), folder / image)
        if left:
            (self.root / name / "stats").mkdir()
            (self.root / name / "stats" / "aseg.stats").write_text(STATS.format(tiv=1.5e6 + left, left=left))

    def table(self, name: str, *lines: str) -> None:
        (self.root / name).write_text("\n".join(lines) + "\n")

    def read(self, **settings: Any) -> InputCohort:
        return read_cohort(self.root, CohortConfig(**settings), 43)


@pytest.fixture
def subjects(tmp_path: Path) -> Subjects:
    made = Subjects(tmp_path / "freesurfer")
    made.add("sub-01", "brain.mgz", "T1.mgz", "orig.mgz", left=3500.0)
    made.add("sub-02", "orig.mgz", "orig_nu.mgz")
    made.add("fsaverage", "brain.mgz")
    made.table("participants.tsv", "participant_id\tage\tdiagnosis", "sub-01\t70\tCN", "sub-02\t80\tAD")
    return made


def rows(cohort: InputCohort) -> list[tuple[Any, ...]]:
    return [(s.participant_id, s.session_id, s.scan_id, s.image, s.entry, s.age, s.label) for s in cohort.table.kept]


def test_brains_enter_as_brains_and_heads_as_scans(subjects) -> None:
    cohort = subjects.read()
    assert cohort.layout == "freesurfer"
    assert rows(cohort) == [
        ("sub-01", None, "sub-01", "sub-01/mri/brain.mgz", "brain", 70.0, "CN"),
        ("sub-02", None, "sub-02", "sub-02/mri/orig_nu.mgz", "scan", 80.0, "AD"),
    ]
    assert len(cohort.table) == 2  # fsaverage is nobody
    one, other = cohort.table
    assert (one.hippocampus_mm3, one.tiv_mm3, one.hippocampus_source) == (
        7400.0, 1503500.0, "aseg.stats (FreeSurfer, version unknown)"
    )  # fmt: skip
    assert (other.hippocampus_mm3, one.diagnosis_source) == (None, "participants.tsv: diagnosis")
    assert not any("unsupported format" in note for note in cohort.notes)


def test_whole_heads_on_demand(subjects) -> None:
    kept = subjects.read(start_at="scan").table.kept
    assert [(scan.image, scan.entry) for scan in kept] == [
        ("sub-01/mri/T1.mgz", "scan"),
        ("sub-02/mri/orig_nu.mgz", "scan"),
    ]


def test_subjects_of_any_name_with_a_table(subjects) -> None:
    for number, name in enumerate(("I118671", "bert", "subj_3")):
        subjects.add(name, "brain.mgz", left=3000.0 + number)
    subjects.table("people.csv", "scan code,PTID,visit,age,dx", "I118671,002_S_0295,m12,74,CN", "bert,007,,61,AD",
                   "subj_3,8,bl,66,AD")  # fmt: skip
    cohort = subjects.read(table="people.csv")
    assert rows(cohort) == [
        ("sub-007", None, "bert", "bert/mri/brain.mgz", "brain", 61.0, "AD"),
        ("sub-8", "ses-M000", "subj_3", "subj_3/mri/brain.mgz", "brain", 66.0, "AD"),
        ("sub-ADNI002S0295", "ses-M012", "I118671", "I118671/mri/brain.mgz", "brain", 74.0, "CN"),
    ]
    assert [scan.hippocampus_left_mm3 for scan in cohort.table.kept] == [3001.0, 3002.0, 3000.0]
    assert [scan.reason for scan in cohort.table if not scan.kept] == ["no row in people.csv"] * 2
    assert any("scan code for the subject, PTID for the participant, visit for the session" in n for n in cohort.notes)


def test_a_table_of_people_whose_folders_are_named_after_them(subjects) -> None:
    subjects.table("people.csv", "id,dx", "01,CN", "02,AD")
    assert [scan.label for scan in subjects.read(table="people.csv").table.kept] == ["CN", "AD"]


def test_longitudinal_results_stand_in_for_absent_visits_only(subjects) -> None:
    for name in ("sub-03_ses-M000", "sub-03_ses-M000.long.sub-03", "sub-03_ses-M012.long.sub-03", "sub-03"):
        subjects.add(name, "brain.mgz")
    (subjects.root / "sub-03" / "base-tps").write_text("sub-03_ses-M000\n")
    with (subjects.root / "participants.tsv").open("a") as table:
        table.write("sub-03\t66\tAD\n")
    cohort = subjects.read()
    assert [(scan.session_id, scan.scan_id) for scan in cohort.table.kept if scan.participant_id == "sub-03"] == [
        ("ses-M000", "sub-03_ses-M000"),
        ("ses-M012", "sub-03_ses-M012.long.sub-03"),
    ]
    (dropped,) = (scan for scan in cohort.table if not scan.kept)
    assert dropped.reason == "another scan of this session is preferred: sub-03_ses-M000 (cross-sectional)"
    assert "1 base template of the longitudinal stream ignored: sub-03" in cohort.notes


def test_tables_of_the_dataset_above(subjects, tmp_path) -> None:
    dataset = tmp_path / "bids"
    inside = dataset / "derivatives" / "fmriprep" / "sourcedata" / "freesurfer"
    inside.parent.mkdir(parents=True)
    subjects.root.rename(inside)
    (inside / "participants.tsv").rename(dataset / "participants.tsv")
    (dataset / "sessions.tsv").write_text("participant_id\tsession_id\tdiagnosis\nsub-09\tses-1\tAD\n")
    subjects.root = inside
    subjects.add("sub-09_ses-1", "brain.mgz")
    for table in ("", str(dataset / "participants.tsv")):
        cohort = subjects.read(table=table)
        assert [scan.label for scan in cohort.table.kept] == ["CN", "AD", "AD"]
    assert "tables come from bids" in cohort.notes


def test_what_cannot_be_used(subjects) -> None:
    subjects.add("sub-04", "aseg.mgz")
    assert [scan.reason for scan in subjects.read().table if not scan.kept] == [
        "no brain.mgz or T1.mgz or orig_nu.mgz or orig.mgz in its folder mri"
    ]
    subjects.table("people.csv", "id,visit,dx", "sub-01,1,CN", "sub-01,2,CN", "sub-02,1,AD")
    with pytest.raises(BadInputError, match=r"sub-01 is in lines 2 and 3 \(of sub-01\)"):
        subjects.read(table="people.csv")
    (subjects.root / "participants.tsv").unlink()
    with pytest.raises(BadInputError, match=r"no table of its people\. Give one with --table"):
        subjects.read()


def test_a_column_that_holds_numbers_of_folders_by_chance_names_nobody(tmp_path) -> None:
    made = Subjects(tmp_path / "numbered")
    for number in (1, 2, 4, 5, 6, 7, 8):
        made.add(str(number), "brain.mgz")
    lines = [f"sub-{number},{'AD' if number % 2 else 'CN'},{7 if number == 3 else 12},{number % 3},{9 - number}"
             for number in range(1, 9)]  # fmt: skip
    made.table("people.csv", "participant_id,diagnosis,education,apoe4,rank", *lines)
    cohort = made.read(table="people.csv")
    kept = {scan.participant_id: scan.image for scan in cohort.table.kept}
    assert kept == {f"sub-{number}": f"{number}/mri/brain.mgz" for number in (1, 2, 4, 5, 6, 7, 8)}
    assert any("sub-3" in note for note in cohort.notes)


def test_a_folder_that_no_row_names_is_not_taken_for_a_person_of_the_table(tmp_path) -> None:
    made = Subjects(tmp_path / "named")
    for name in ("b1", "b2", "b3", "1"):
        made.add(name, "brain.mgz")
    made.table("people.csv", "folder,participant,dx", "b1,1,CN", "b2,2,AD", "b3,3,CN")
    cohort = made.read(table="people.csv")
    assert {scan.participant_id: scan.image for scan in cohort.table.kept} == {
        "sub-1": "b1/mri/brain.mgz", "sub-2": "b2/mri/brain.mgz", "sub-3": "b3/mri/brain.mgz"
    }  # fmt: skip
    (dropped,) = (scan for scan in cohort.table if not scan.kept)
    assert (dropped.scan_id, dropped.reason) == ("1", "no row in people.csv")


def test_a_table_of_images_is_one_of_images_beside_a_subject_too(subjects) -> None:
    subjects.table("paths.csv", "path,id,dx", "sub-01/mri/T1.mgz,7,CN", "sub-02/mri/orig.mgz,8,AD")
    cohort = subjects.read(table="paths.csv")
    assert cohort.layout == "table"
    assert [(scan.participant_id, scan.image) for scan in cohort.table.kept] == [
        ("sub-7", "sub-01/mri/T1.mgz"),
        ("sub-8", "sub-02/mri/orig.mgz"),
    ]
