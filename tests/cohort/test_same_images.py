"""One image that enters under several names: copied, linked, of other people or of another visit."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from input_trees import AdniTree, BidsTree, image_bytes

from heatlas.pipeline.cohort.candidates import same_images
from heatlas.pipeline.cohort.reading import ScanSelection, read_cohort
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.sharing import Disguise
from heatlas.pipeline.run.config.settings import CohortConfig

SEX = {"contrast_column": "sex", "negative": "F", "positive": "M"}


def head(name: str) -> bytes:
    """An image of one size for everyone, of other content for every name."""
    content = bytearray(image_bytes((40, 50, 60)))
    content[352:] = np.random.default_rng(sum(name.encode())).bytes(len(content) - 352)
    return bytes(content)


def four_people(bids: BidsTree) -> None:
    for name in "abcd":
        bids.image(f"sub-{name}/anat/sub-{name}_T1w.nii", head(name))
    bids.table(
        "participants.tsv", "participant_id sex", *(f"sub-{name} {'FM'[i % 2]}" for i, name in enumerate("abcd"))
    )


def linked(path: Path, other: Path) -> None:
    path.unlink()
    path.symlink_to(other)


WAYS = {
    "copied": lambda path, other: path.write_bytes(other.read_bytes()),
    "linked": linked,
    "one byte differs": lambda path, other: path.write_bytes(other.read_bytes()[:-1] + b"\x99"),
    "the first bytes differ": lambda path, other: path.write_bytes(
        other.read_bytes()[:400] + b"\x99\x98\x97" + other.read_bytes()[403:]
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_one_image_of_two_people(bids: BidsTree, way: str) -> None:
    four_people(bids)
    WAYS[way](bids.root / "sub-b/anat/sub-b_T1w.nii", bids.root / "sub-d/anat/sub-d_T1w.nii")
    cohort = bids.read(**SEX)
    said = (
        "1 image is used as several scans, byte for byte; find out whom each shows and remove the copies: sub-b = sub-d"
    )
    same = way in ("copied", "linked")
    assert cohort.same_images == (said if same else "")
    assert (said in cohort.notes) == same
    assert len(cohort.table.kept) == 4


def test_images_of_two_visits_and_of_several_groups(bids: BidsTree) -> None:
    scans = [("a", "1", "x"), ("a", "2", "x"), ("b", "1", "y"), ("b", "2", "z"), ("c", "1", "y"), ("d", "1", "y")]
    for person, visit, content in scans:
        bids.image(f"sub-{person}/ses-{visit}/anat/sub-{person}_ses-{visit}_T1w.nii", head(content))
    bids.table("participants.tsv", "participant_id sex", "sub-a F", "sub-b M", "sub-c F", "sub-d M")
    said = bids.read(**SEX).same_images
    assert said.startswith("2 images are used as several scans")
    assert said.endswith(": sub-a_ses-1 = sub-a_ses-2, sub-b_ses-1 = sub-c_ses-1 = sub-d_ses-1")


def test_an_adni_download(adni: AdniTree) -> None:
    for n, ptid in enumerate(("002_S_0295", "002_S_0300", "002_S_0301"), 1):
        adni.image(ptid, "2006-04-18", f"I{n}", content=head("xyx"[n - 1]))
        adni.row(ptid, dx="CN")
    adni.both_classes()
    adni.image("999_S_9999", number="I9999", content=head("q"))
    assert adni.read().same_images.endswith(": sub-ADNI002S0295_ses-M000 = sub-ADNI002S0301_ses-M000")


def test_pseudonyms_are_kept(bids: BidsTree) -> None:
    four_people(bids)
    WAYS["copied"](bids.root / "sub-b/anat/sub-b_T1w.nii", bids.root / "sub-d/anat/sub-d_T1w.nii")
    disguise = Disguise("0123456789abcdef0123456789abcdef", ("ids", "sites"))
    cohort = read_cohort(bids.root, CohortConfig(**SEX), 43, ScanSelection(disguise=disguise))
    names = cohort.same_images.rpartition(": ")[2].split(" = ")
    assert len(names) == 2
    assert set(names) < {scan.participant_id for scan in cohort.table}
    assert not {"sub-b", "sub-d"} & set(names)


def test_whole_files_are_read_only_where_size_and_middle_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = {"a": b"1" * 99, "b": b"1" * 98, "c": b"2" * 200_000, "d": b"3" + b"2" * 199_999, "e": b"3" * 200_000}
    scans = [Scan(f"sub-{name}", None, name, name) for name in contents]
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    read: list[str] = []
    from heatlas.pipeline.cohort import candidates as module

    monkeypatch.setattr(module, "file_digest", lambda path: read.append(path.name))
    module.same_images(tmp_path, scans)
    assert read == ["c", "d"]
    assert same_images(tmp_path, [dataclasses.replace(scans[0], image="gone")]) == []
