from __future__ import annotations

import gzip
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from input_trees import BidsTree, image_bytes

from heatlas.pipeline.cohort.reading import InputCohort, ScanSelection, read_cohort
from heatlas.pipeline.cohort.sharing import Manifest, image_digest, make_manifest
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.errors import BadInputError

SEX = CohortConfig(contrast_column="sex", negative="F", positive="M")


def image(value: int = 1, shape: tuple[int, int, int] = (7, 9, 11), note: bytes = b"") -> bytes:
    made = nib.Nifti1Image(np.full(shape, value, np.int16), np.diag([-1.0, 1, 1, 1]))
    made.header["descrip"] = note
    return made.to_bytes()


@pytest.fixture
def here(tmp_path: Path) -> BidsTree:
    tree = BidsTree(tmp_path / "here")
    for i, person in enumerate("1234"):
        tree.image(f"sub-{person}/anat/sub-{person}_T1w.nii", image(i + 1))
    tree.table("participants.tsv", "participant_id sex age", "sub-1 F 71", "sub-2 M 72", "sub-3 F 73", "sub-4 M 74")
    return tree


def read(tree: BidsTree, manifest: Manifest | None = None) -> InputCohort:
    return read_cohort(tree.root, SEX, 43, ScanSelection(manifest=manifest))


def statuses(cohort: InputCohort) -> dict[str, str]:
    return {match.scan_id: match.status for match in cohort.matches}


def test_a_manifest_holds_ids_and_digests_and_nothing_else(here: BidsTree, tmp_path: Path) -> None:
    manifest = make_manifest(here.root, read(here).table.kept)
    manifest.write(tmp_path / "m.tsv")
    lines = (tmp_path / "m.tsv").read_text().splitlines()
    assert lines[0] == "scan_id\tsha256"
    assert [line.split("\t")[0] for line in lines[1:]] == [f"sub-{i}_T1w" for i in "1234"]
    assert all(len(line.split("\t")) == 2 and len(line.split("\t")[1]) == 64 for line in lines[1:])
    assert Manifest.read(tmp_path / "m.tsv") == manifest
    shuffled = Manifest(dict(reversed(list(manifest.digests.items()))))
    assert shuffled.digest == manifest.digest


def test_the_same_cohort_is_rebuilt_elsewhere_and_every_difference_is_named(here: BidsTree, tmp_path: Path) -> None:
    manifest = make_manifest(here.root, read(here).table.kept)
    there = BidsTree(tmp_path / "there")
    there.image("sub-1/anat/sub-1_T1w.nii.gz", gzip.compress(image(1, note=b"converted on another day")))
    there.image("sub-2/anat/sub-2_T1w.nii", image(9))
    there.image("sub-3/anat/sub-3_T1w.nii", b"no image")
    there.image("sub-1/anat/sub-1_run-0_T1w.nii", image(5))
    there.image("sub-5/anat/sub-5_T1w.nii", image(5))
    there.table("participants.tsv", "participant_id sex", "sub-1 F", "sub-2 M", "sub-3 F", "sub-5 M")
    cohort = read(there, manifest)
    assert statuses(cohort) == {
        "sub-1_T1w": "same", "sub-2_T1w": "different", "sub-3_T1w": "dropped", "sub-4_T1w": "missing",
        "sub-1_run-0_T1w": "extra", "sub-5_T1w": "extra",
    }  # fmt: skip
    assert [scan.scan_id for scan in cohort.table.kept] == ["sub-1_T1w"]
    reasons = {scan.scan_id: scan.reason or "" for scan in cohort.table if not scan.kept}
    assert reasons["sub-5_T1w"] == "not in the manifest"
    assert reasons["sub-2_T1w"].startswith("different, compared with the manifest: sha256 ")


def test_without_digests_ids_alone_are_compared(here: BidsTree, tmp_path: Path) -> None:
    manifest = make_manifest(here.root, read(here).table.kept, ids_only=True)
    manifest.write(tmp_path / "m.tsv")
    here.image("sub-2/anat/sub-2_T1w.nii", image(9))
    cohort = read(here, Manifest.read(tmp_path / "m.tsv"))
    assert set(statuses(cohort).values()) == {"unchecked"}
    assert len(cohort.table.kept) == 4


def test_the_digest_is_of_the_image_and_not_of_the_file(tmp_path: Path) -> None:
    def digest(content: bytes, name: str = "a.nii") -> str:
        (tmp_path / name).write_bytes(content)
        return image_digest(tmp_path / name)

    same = digest(image())
    assert digest(gzip.compress(image()), "b.nii.gz") == digest(image(note=b"x"), "c.nii") == same
    moved = nib.Nifti1Image(np.ones((7, 9, 11), np.int16), np.diag([1.0, 1, 1, 1])).to_bytes()
    others = [image(2), image(shape=(9, 7, 11)), moved, image_bytes(dtype=np.uint16)]
    assert len({same, *(digest(content, f"{i}.nii") for i, content in enumerate(others))}) == 5


def test_an_image_that_breaks_off_is_named_on_export(here: BidsTree) -> None:
    noise = np.random.default_rng(4).integers(0, 30_000, (17, 19, 23), dtype=np.int16)
    whole = nib.Nifti1Image(noise, np.diag([-1.0, 1, 1, 1])).to_bytes()
    here.image("sub-2/anat/sub-2_T1w.nii.gz", gzip.compress(whole))
    (here.root / "sub-2/anat/sub-2_T1w.nii").unlink()
    kept = read(here).table.kept
    assert len(kept) == 4
    here.image("sub-2/anat/sub-2_T1w.nii.gz", gzip.compress(whole)[:9000])  # cut after it was read
    with pytest.raises(BadInputError, match=r"^sub-2/anat/sub-2_T1w\.nii\.gz: cannot be read"):
        make_manifest(here.root, kept)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("scan_id\tdigest\nI1\tx\n", "column sha256 is missing"),
        ("scan_id\tsha256\nI1\tx\nI1\ty\n", "scan_id I1 appears twice"),
        ("scan_id\tsha256\nn/a\tx\n", "a scan_id is missing"),
    ],
)
def test_a_table_that_is_no_manifest_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "m.tsv").write_text(text)
    with pytest.raises(BadInputError, match=words):
        Manifest.read(tmp_path / "m.tsv")
