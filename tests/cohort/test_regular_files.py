"""What is named like an input and is no file: named and passed over or refused, never waited for."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from input_trees import AdniTree, BidsTree

from heatlas.pipeline.cohort.reading import InputCohort
from heatlas.pipeline.cohort.segmented.subjects import read_aseg
from heatlas.pipeline.cohort.sharing import Manifest, open_disguise
from heatlas.pipeline.run.config.settings import PrivacyConfig
from heatlas.pipeline.run.documents import read_regular
from heatlas.pipeline.run.errors import BadInputError, HeatlasError

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
