from __future__ import annotations

import hashlib
import time
from pathlib import Path

import pytest
from input_trees import AdniTree, BidsTree, image_bytes

from heatlas.pipeline.cohort.people.splits import make_split
from heatlas.pipeline.cohort.reading import read_cohort
from heatlas.pipeline.cohort.records import ScanTable
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.errors import BadInputError

OLD_YOUNG = CohortConfig(contrast_column="age_group", negative="young", positive="old")


def test_every_image_is_one_row_and_the_table_survives_writing(adni: AdniTree, tmp_path: Path) -> None:
    for number in range(6):
        adni.image("002_S_0295", number=f"I{number}", sequence=["MPRAGE", "FLAIR"][number % 2])
    adni.image("002_S_0296", number="I77", content=image_bytes((7, 9, 11, 2)))
    adni.image("002_S_0297", number="I78")
    adni.row("002_S_0295")
    adni.row("002_S_0296")
    cohort = adni.read()
    assert len(cohort.table) == 10
    assert len(list(adni.root.rglob("*.nii"))) == 10
    assert all(scan.kept == (scan.reason is None) for scan in cohort.table)
    cohort.table.write(tmp_path / "scans.tsv")
    assert ScanTable.read(tmp_path / "scans.tsv") == cohort.table


def test_the_input_is_not_changed(adni: AdniTree) -> None:
    adni.image("002_S_0295")
    adni.row("002_S_0295")
    adni.both_classes()
    adni.table()

    def state() -> dict[str, str]:
        return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in adni.root.rglob("*") if p.is_file()}

    before = state()
    adni.read()
    assert state() == before


def test_a_folder_that_is_neither_says_what_each_looks_like(tmp_path: Path) -> None:
    (tmp_path / "series").mkdir()
    (tmp_path / "series" / "0001.dcm").touch()
    message = r"neither an ADNI download .* nor a BIDS dataset .*; 0 NIfTI and 1 DICOM files seen"
    with pytest.raises(BadInputError, match=message):
        read_cohort(tmp_path, CohortConfig(), 43)
    with pytest.raises(BadInputError, match="no such folder"):
        read_cohort(tmp_path / "absent", CohortConfig(), 43)


def test_a_layout_without_any_image_is_refused(bids: BidsTree) -> None:
    bids.table("participants.tsv", "participant_id sex", "sub-01 F")
    with pytest.raises(BadInputError, match="no image of a participant found"):
        bids.read()


def test_an_input_of_which_nothing_is_usable_still_gives_its_reasons(adni: AdniTree) -> None:
    adni.image("002_S_0295", sequence="FLAIR")
    adni.row("002_S_0295")
    cohort = adni.read(as_is=True)
    assert [scan.reason for scan in cohort.table] == ["not named as a T1-weighted sequence (MPRAGE, SPGR): FLAIR"]


@pytest.mark.parametrize("name", ["002_S_0295", "sub-ADNI002S0295", "ADNI002S0295"])
def test_chosen_participants(adni: AdniTree, name: str) -> None:
    adni.image("002_S_0295")
    adni.row("002_S_0295")
    adni.both_classes()
    adni.table()
    cohort = read_cohort(adni.root, CohortConfig(), 43, [name])
    assert [scan.scan_id for scan in cohort.table.kept] == ["I1001"]
    assert {scan.reason for scan in cohort.table if not scan.kept} == {"participant not chosen by --participant-label"}
    with pytest.raises(BadInputError, match="--participant-label 007: no such participant among the 3"):
        read_cohort(adni.root, CohortConfig(), 43, [name, "007"])


def test_linked_folders_are_noted_and_not_followed(adni: AdniTree, tmp_path: Path) -> None:
    image = adni.image("002_S_0295")
    adni.row("002_S_0295")
    (tmp_path / "elsewhere" / "MPRAGE").mkdir(parents=True)
    (tmp_path / "elsewhere" / "MPRAGE" / "a.nii").write_bytes(image_bytes())
    (adni.root / "ADNI" / "002_S_0777").symlink_to(tmp_path / "elsewhere")
    (adni.root / "ADNI" / "loop").symlink_to("..")
    (image.parent / "outside.nii").symlink_to(tmp_path / "elsewhere" / "MPRAGE" / "a.nii")
    cohort = adni.read()
    assert len(cohort.table) == 4
    outside = next(scan for scan in cohort.table if (scan.image or "").endswith("outside.nii"))
    assert (outside.reason or "").startswith("a link to a file outside the input folder")
    note = "2 links to folders not followed; give the real folder, or --follow-links: ADNI/002_S_0777, ADNI/loop"
    assert note in cohort.notes


def test_hidden_files_are_no_images(bids: BidsTree) -> None:
    for person in ("01", "02"):
        bids.image(f"sub-{person}/anat/sub-{person}_T1w.nii")
        bids.image(f"sub-{person}/anat/._sub-{person}_T1w.nii", b"AppleDouble")
    bids.table("participants.tsv", "participant_id sex", "sub-01 F", "sub-02 M")
    assert len(bids.read(contrast_column="sex", negative="F", positive="M").table) == 2


@pytest.mark.ci
def test_two_thousand_scans_read_in_seconds(adni: AdniTree) -> None:
    content = image_bytes()
    for person in range(500):
        ptid = f"{person % 50:03d}_S_{person:04d}"
        for visit, (code, day) in enumerate({"bl": "2006-04-10", "m12": "2007-04-10"}.items()):
            adni.row(ptid, code, day, ["CN", "Dementia", "MCI"][person % 3], **{f"c{n}": "1" for n in range(90)})
            for repeat, sequence in enumerate(("MPRAGE", "MPR-R")):
                adni.image(ptid, day, f"I{person * 4 + visit * 2 + repeat}", sequence, content)
    adni.table()
    started = time.process_time()
    cohort = adni.read(as_is=True)
    seconds = time.process_time() - started
    print(f"2,000 scans in {seconds:.1f} s")
    assert (len(cohort.table), len(cohort.table.kept)) == (2000, 1000)
    assert seconds < 20


def test_the_real_brains_by_age(real_data: Path) -> None:
    cohort = read_cohort(real_data / "oasis20", OLD_YOUNG, 43)
    assert (len(cohort.table), len(cohort.table.kept), len(cohort.table.labelled)) == (20, 20, 18)
    assert sum(scan.label == "old" for scan in cohort.table) == 5
    oldest = cohort.table.scans[-1]
    assert (oldest.participant_id, oldest.age, oldest.hippocampus_mm3) == ("sub-1128", 89.0, 6212.0)  # 90 years
    assert cohort.notes == (
        "brain_volume_mm3 replaces the missing intracranial volume of 20 scans",
        "images enter 20 brain-extracted",
        "ages above 89 of 1 scan are written as 89",
    )
    split = make_split(cohort.table, OLD_YOUNG, 43)
    labels = {scan.participant_id: scan.label for scan in cohort.table}
    for fold in split.folds:
        assert [labels[person] for person in fold.test].count("old") == 1
        assert {labels[person] for person in fold.validation} == {"old", "young"}
