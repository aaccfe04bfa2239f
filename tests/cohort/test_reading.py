"""Folders that are read: what is found, what is no file, and images of other kinds."""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from dicom_series import write_series
from input_trees import AdniTree, BidsTree, image_bytes
from other_user import nobody

from heatlas.atlases.spaces import template_grid
from heatlas.pipeline.cohort.candidates import walk_input
from heatlas.pipeline.cohort.people.splits import make_split
from heatlas.pipeline.cohort.reading import InputCohort, ScanSelection, read_cohort, read_filter
from heatlas.pipeline.cohort.records import ScanTable
from heatlas.pipeline.cohort.segmented.subjects import read_aseg
from heatlas.pipeline.cohort.sharing import Manifest, open_disguise
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.images import KINDS as IMAGES_KINDS
from heatlas.pipeline.run.config.settings import CohortConfig, PrivacyConfig
from heatlas.pipeline.run.documents import read_regular
from heatlas.pipeline.run.errors import BadInputError, HeatlasError, UsageError

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


# Which files are found, whatever lies in a folder.


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


# What is named like an input and is no file: named and passed over or refused, never waited for.

P = "002_S_0295"
SEX = {"contrast_column": "sex", "negative": "F", "positive": "M"}


def pipe(path: Path) -> None:
    os.mkfifo(path)


def link_to_a_pipe(path: Path) -> None:
    os.mkfifo(path.with_name("hidden"))
    path.symlink_to("hidden")


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_socket(path: Path) -> None:
    with inside(path.parent), socket.socket(socket.AF_UNIX) as end:  # its path may have 100 characters only
        end.bind(path.name)


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


KINDS = pytest.mark.parametrize("make", [pipe, link_to_a_pipe, device, a_socket])
Make = Callable[[Path], None]


def in_place(make: Make, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    make(path)


def two_people(bids: BidsTree) -> None:
    for person in "12":
        bids.image(f"sub-{person}/anat/sub-{person}_T1w.nii")
    bids.table("participants.tsv", "participant_id sex", "sub-1 F", "sub-2 M")


def text_of(cohort: InputCohort) -> str:
    return " ".join([*cohort.notes, *(scan.reason or "" for scan in cohort.table)])


@KINDS
@pytest.mark.parametrize(
    "name", ["ADNIMERGE_02Jan2025.csv", "DXSUM.csv", "CDR.csv", "list.csv", "a.xml", "UCSFFSX51.csv"]
)
def test_tables_and_xml_of_adni(adni: AdniTree, make: Make, name: str) -> None:
    adni.image(P)
    adni.row(P)
    adni.both_classes()
    adni.table()
    in_place(make, adni.root / name)
    cohort = adni.read()
    assert len(cohort.table.kept) == 3
    assert f"1 table or XML file is not read (a named pipe, a socket or a device): {name}" in text_of(cohort)


@KINDS
@pytest.mark.parametrize("name", ["slice.dcm", "IM0001", "1.2.3"])
def test_slices_of_adni(adni: AdniTree, make: Make, name: str) -> None:
    adni.image(P)
    adni.row(P)
    in_place(make, adni.root / "ADNI" / P / "MPRAGE" / "2006-04-18_08_20_30.0" / "I7" / name)
    scans = adni.read().table
    assert [scan.scan_id for scan in scans.kept] == ["I1001", "I9998", "I9999"]


@KINDS
@pytest.mark.parametrize(
    ("name", "kept", "said"),
    [
        ("sub-1/sub-1_sessions.tsv", 1, "sub-1_sessions.tsv: cannot be read (a "),
        ("sub-1/sub-1_scans.tsv", 2, "sub-1_scans.tsv: cannot be read (a "),
        ("sub-1/anat/sub-1_T1w.json", 1, "sidecar sub-1_T1w.json is not readable as JSON: a "),
        ("sub-1/anat/sub-1_T1w.nii", 1, "not a file: a "),
    ],
)
def test_files_of_one_person_of_a_bids_dataset(bids: BidsTree, make: Make, name: str, kept: int, said: str) -> None:
    two_people(bids)
    bids.image("sub-3/anat/sub-3_T1w.nii")
    bids.table("participants.tsv", "participant_id sex", "sub-1 F", "sub-2 M", "sub-3 F")
    in_place(make, bids.root / name)
    cohort = bids.read(**SEX)
    assert len(cohort.table.kept) == kept + 1
    assert said in text_of(cohort) or make is device  # a link out of the input is refused before


@KINDS
@pytest.mark.parametrize("name", ["participants.tsv", "sessions.tsv", ".bidsignore", "T1w.json"])
def test_files_of_a_whole_bids_dataset(bids: BidsTree, make: Make, name: str) -> None:
    two_people(bids)
    in_place(make, bids.root / name)
    with pytest.raises(BadInputError, match=rf"{name}: .*not a file"):
        bids.read(**SEX)


@KINDS
def test_files_beside_the_input(tmp_path: Path, make: Make) -> None:
    path = tmp_path / "stats" / "aseg.stats"
    in_place(make, path)
    with pytest.raises(BadInputError, match=r"aseg\.stats: cannot be read \(.*not a file"):
        read_aseg(path)
    with pytest.raises(BadInputError, match=r"aseg\.stats: not a file"):
        Manifest.read(path)
    with pytest.raises(HeatlasError, match=r"cannot read or make the key .*not a file"):
        open_disguise(path, PrivacyConfig(shift_dates=True), [])


@pytest.mark.parametrize("what", ["a folder", "a file", "a link"])
def test_a_folder_is_refused_and_a_link_to_a_file_is_read(tmp_path: Path, what: str) -> None:
    (tmp_path / "a folder").mkdir()
    (tmp_path / "a file").write_bytes(b"x")
    (tmp_path / "a link").symlink_to("a file")
    if what == "a folder":
        with pytest.raises(OSError, match="a folder, not a file"):
            read_regular(tmp_path / what)
    else:
        assert read_regular(tmp_path / what) == b"x"


# Cohorts of other images than T1-weighted ones: which are found, and which have what they need.

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
    assert read_filter(tmp_path / "f.json", IMAGES_KINDS["FLAIR"]) == {"acq": ("3D",)}
    (tmp_path / "f.json").write_text('{"pet": {"tracer": "FDG", "datatype": "anat"}}')
    with pytest.raises(BadInputError, match=r'pet\.datatype must be "pet"'):
        read_filter(tmp_path / "f.json", IMAGES_KINDS["pet"])


def test_a_download_of_t1w_images_has_no_other_kind(tmp_path: Path) -> None:
    from heatlas.pipeline.cohort.reading import read_cohort
    from heatlas.pipeline.run.config.settings import CohortConfig

    (tmp_path / "ADNIMERGE_01Jan2025.csv").write_text("PTID\n")
    with pytest.raises(BadInputError, match=r'cohort\.suffix = "pet" are read of a BIDS dataset'):
        read_cohort(tmp_path, CohortConfig(suffix="pet"), 1)
