"""Which files are found, whatever lies in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from dicom_series import write_series
from input_trees import AdniTree, BidsTree, image_bytes
from other_user import nobody

from heatlas.pipeline.cohort.candidates import walk_input
from heatlas.pipeline.cohort.reading import ScanSelection, read_cohort
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.errors import BadInputError


def test_each_kind_of_file_is_told_by_its_name_or_its_first_bytes(tmp_path: Path) -> None:
    write_series(tmp_path / "ünder score", suffix="")
    write_series(tmp_path / "with ending", suffix=".IMA")
    for name in ("a.nii", "B.NII.GZ", "t.csv", "T.CSV", "m.xml", "README", "notes.txt", ".hidden.nii", "._a.nii"):
        (tmp_path / name).write_bytes(b"x" * 200)
    files = walk_input(tmp_path)
    assert files.images == ("B.NII.GZ", "a.nii")
    assert files.tables == ("T.CSV", "t.csv")
    assert files.metadata == ("m.xml",)
    assert {folder: len(names) for folder, names in files.dicom.items()} == {"with ending": 18, "ünder score": 18}
    assert files.dicom_count == 36


def test_loops_of_links_end(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "one").symlink_to("two")
    (tmp_path / "a" / "two").symlink_to("one")
    (tmp_path / "a" / "b" / "x.nii").write_bytes(image_bytes())
    files = walk_input(tmp_path)
    assert files.images == ("a/b/x.nii",)
    assert files.linked_folders == ("a/b/up",)


def test_archives_and_images_of_other_formats_are_noted(bids: BidsTree, tmp_path: Path) -> None:
    for name in ("sub-1/anat/sub-1_T1w.mgz", "sub-2/anat/head.HDR", "sub-2/anat/head.img", "sub-2/more.tar.gz"):
        bids.image(name, b"x" * 200)
    for person in "12":
        bids.image(f"sub-{person}/anat/sub-{person}_T1w.nii")
    bids.table("participants.tsv", "participant_id sex", "sub-1 F", "sub-2 M")
    assert (
        "3 archives or images of unsupported format ignored; unpack or convert them: "
        "sub-1/anat/sub-1_T1w.mgz, sub-2/anat/head.HDR, sub-2/more.tar.gz"
    ) in bids.read(contrast_column="sex", negative="F", positive="M").notes
    (tmp_path / "download").mkdir()
    (tmp_path / "download" / "ADNI_1.zip").write_bytes(b"PK")
    with pytest.raises(BadInputError, match=r"1 archive or image .*unpack or convert them: ADNI_1\.zip\."):
        read_cohort(tmp_path / "download", CohortConfig(), 43)


def test_slices_without_an_ending_that_may_not_be_read_are_no_less_a_series(tmp_path: Path) -> None:
    for path in write_series(tmp_path / "series", suffix=""):
        path.chmod(0)
    with nobody(tmp_path):
        files = walk_input(tmp_path)
    assert {folder: len(names) for folder, names in files.dicom.items()} == {"series": 18}


def test_a_folder_that_may_not_be_listed_is_noted_and_the_rest_read(adni: AdniTree, tmp_path: Path) -> None:
    adni.image("002_S_0295")
    locked = adni.image("002_S_0296", number="I1002").parents[2]
    adni.row("002_S_0295")
    adni.both_classes()
    adni.table()
    assert "I1002" in {scan.scan_id for scan in adni.read(as_is=True).table}  # also loads what is imported late
    locked.chmod(0)
    try:
        with nobody(tmp_path):
            cohort = adni.read(as_is=True)
    finally:
        locked.chmod(0o755)
    assert "1 folder could not be listed (permissions?): ADNI/002_S_0296/MPRAGE" in cohort.notes
    assert "I1001" in {scan.scan_id for scan in cohort.table.kept}


@pytest.fixture
def linked(bids: BidsTree, tmp_path_factory: pytest.TempPathFactory) -> BidsTree:
    """One person here; one whose folder, and one whose image, lie elsewhere; two circles; links to nowhere."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    store = BidsTree(elsewhere / "store")
    store.image("two/anat/sub-2_T1w.nii")
    store.image("three.nii", image_bytes((8, 9, 11)))
    (store.root / "two" / "back").symlink_to(bids.root)
    bids.image("sub-1/anat/sub-1_T1w.nii", image_bytes((9, 9, 11)))
    (bids.root / "sub-1" / "up").symlink_to("..")
    (bids.root / "sub-2").symlink_to(store.root / "two")
    (bids.root / "sub-3" / "anat").mkdir(parents=True)
    (bids.root / "sub-3/anat/sub-3_T1w.nii").symlink_to(store.root / "three.nii")
    (bids.root / "sub-3/anat/sub-3_run-2_T1w.nii").symlink_to("../../.git/annex/objects/aa/x.nii")
    (bids.root / "sub-4").symlink_to(elsewhere / "removed")
    bids.table("participants.tsv", "participant_id sex", "sub-1 F", "sub-2 M", "sub-3 M", "sub-4 F")
    return bids


@pytest.mark.parametrize(
    ("follow", "used", "linked_file", "folders"),
    [
        (
            False,
            {"sub-1_T1w"},
            "a link to a file outside the input folder: copy the file into it, or give --follow-links",
            "2 links to folders not followed; give the real folder, or --follow-links: sub-1/up, sub-2",
        ),
        (
            True,
            {"sub-1_T1w", "sub-2_T1w", "sub-3_T1w"},
            None,
            "2 links to folders in a circle, not followed: sub-1/up, sub-2/back",
        ),
    ],
    ids=["as usual", "--follow-links"],
)
def test_links_out_of_the_input(
    linked: BidsTree, follow: bool, used: set[str], linked_file: str | None, folders: str
) -> None:
    config = CohortConfig(contrast_column="sex", negative="F", positive="M")
    cohort = read_cohort(linked.root, config, 43, ScanSelection(follow_links=follow))
    reasons = {scan.scan_id: scan.reason for scan in cohort.table}
    assert {scan.scan_id for scan in cohort.table.kept} == used
    assert reasons["sub-3_T1w"] == linked_file
    assert reasons["sub-3_run-2_T1w"] == (
        "a link that leads nowhere: its content has not been fetched; run `datalad get` in the dataset"
    )
    assert folders in cohort.notes
    assert "sub-4: a link that leads nowhere" in cohort.notes
