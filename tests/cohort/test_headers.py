from __future__ import annotations

import gzip
import io
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from input_trees import image_bytes
from other_user import nobody

from heatlas.pipeline.cohort.images.headers import check_header

MAX_VOXEL_MM = 5.0


def header_problem(root: Path, image: str) -> str | None:
    return check_header(root, image, MAX_VOXEL_MM).problem


GOOD = image_bytes()


def with_header(**values: object) -> bytes:
    image = nib.Nifti1Image(np.ones((7, 9, 11), np.int16), np.eye(4))
    content = bytearray(image.to_bytes())
    header = nib.Nifti1Header.from_fileobj(io.BytesIO(bytes(content)), check=False)
    for name, value in values.items():
        header[name] = value
    return header.binaryblock + bytes(content[348:])


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
@pytest.mark.parametrize("shape", [(7, 9, 11), (7, 9, 11, 1)])
def test_a_good_image_has_no_problem(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    content = image_bytes(shape)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert header_problem(tmp_path, name) is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty file"),
        (b"hello", "not a readable NIfTI file"),
        (GOOD[:200], "not a readable NIfTI file"),
        (GOOD[:400], "truncated file: 400 bytes of 1738"),
        (b"\0" * 2000, "not a readable NIfTI file"),
        (image_bytes((7, 9, 11, 3)), "4D image where one 3D volume is needed: 7x9x11x3"),
        (image_bytes((7, 9)), "2D image where one 3D volume is needed: 7x9"),
        (image_bytes((7, 9, 11), np.complex64), "voxels are not plain numbers: data type complex64"),
        (with_header(pixdim=[1, 1, 0, 1, 0, 0, 0, 0]), "impossible voxel size: 1 x 0 x 1 mm"),
        (with_header(pixdim=[1, 900, 1, 1, 0, 0, 0, 0]), "impossible voxel size: 900 x 1 x 1 mm"),
        (with_header(sform_code=0), "no usable orientation in the header: sform absent, qform absent"),
        (with_header(srow_z=[0, 1, 0, 0]), "no usable orientation in the header: sform singular, qform absent"),
        (with_header(pixdim=[1, 1, 1, 6, 0, 0, 0, 0], srow_z=[0, 0, 6, 0]), "slices too thick: voxels of 1 x 1 x 6 mm"),
        (with_header(dim=[3, 32767, 32767, 32767, 1, 1, 1, 1]), "more voxels than a scan of a head can have"),
        (with_header(pixdim=[1, np.nan, 1, 1, 0, 0, 0, 0]), "impossible voxel size: nan x 1 x 1 mm"),
        (with_header(magic=b"xxx"), "not a readable NIfTI file"),
        (with_header(datatype=9999), "not a readable NIfTI file"),
    ],
)
def test_unusable_images(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "a.nii").write_bytes(content)
    problem = header_problem(tmp_path, "a.nii")
    assert problem is not None
    assert problem.startswith(reason)


@pytest.mark.parametrize(
    "content",
    [gzip.compress(GOOD)[:30], GOOD, b"\x1f\x8b\x08garbage", gzip.compress(b"hello")],
    ids=["cut short", "not gzip", "garbage", "no image"],  # gzip writes the time: ids made of it differ between workers
)
def test_unreadable_gzip(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.nii.gz").write_bytes(content)
    assert (header_problem(tmp_path, "a.nii.gz") or "").startswith("not a readable NIfTI file")


NOISE = nib.Nifti1Image(np.random.default_rng(0).integers(0, 999, (30, 30, 30), np.int16), np.eye(4)).to_bytes()
"""More than the 8 KB that gzip reads for a header."""


@pytest.mark.parametrize("share", [0.5, 0.9, 0.999])
def test_a_gzip_file_cut_short_after_its_header_is_truncated(tmp_path: Path, share: float) -> None:
    whole = gzip.compress(NOISE)
    (tmp_path / "a.nii.gz").write_bytes(whole[: int(share * len(whole))])
    assert (header_problem(tmp_path, "a.nii.gz") or "").startswith("truncated file: its compressed content has no end")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (gzip.compress(NOISE[:-7]), f"truncated file: {len(NOISE) - 7} bytes of {len(NOISE)} after decompression"),
        (gzip.compress(NOISE[:20000]) + gzip.compress(NOISE[20000:]), None),
        (gzip.compress(NOISE) + gzip.compress(b""), None),
        (gzip.compress(NOISE) + bytes(512), None),
    ],
    ids=["content cut before compression", "two streams", "with the empty last block of bgzip", "padded with zeros"],
)
def test_the_size_of_compressed_content(tmp_path: Path, content: bytes, problem: str | None) -> None:
    (tmp_path / "a.nii.gz").write_bytes(content)
    assert header_problem(tmp_path, "a.nii.gz") == problem


def test_links(tmp_path: Path) -> None:
    root = tmp_path / "in"
    root.mkdir()
    (root / "good.nii").write_bytes(GOOD)
    (tmp_path / "secret.nii").write_bytes(GOOD)
    (root / "inside.nii").symlink_to("good.nii")
    (root / "outside.nii").symlink_to("../secret.nii")
    (root / "dangling.nii").symlink_to("nowhere.nii")
    (root / "loop.nii").symlink_to("loop.nii")
    assert header_problem(root, "inside.nii") is None
    assert (header_problem(root, "outside.nii") or "").startswith("a link to a file outside the input folder: ")
    assert header_problem(root, "dangling.nii") == "a link that leads nowhere"
    assert header_problem(root, "loop.nii") is not None


def test_what_a_header_says_twice_and_differently_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.nii").write_bytes(with_header(qform_code=1, qoffset_x=25.0))
    finding = check_header(tmp_path, "a.nii", MAX_VOXEL_MM)
    assert finding.problem is None
    assert finding.repairs == ("qform differs by up to 25.0 mm",)


@pytest.mark.parametrize("image", ["../secret.nii", "/etc/secret.nii", "a/../../secret.nii"])
def test_paths_outside_the_input(tmp_path: Path, image: str) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    (tmp_path / "secret.nii").write_bytes(GOOD)
    assert header_problem(tmp_path / "in", image) == "a path outside the input folder: give one relative to it"


def test_no_permission(tmp_path: Path) -> None:
    (tmp_path / "a.nii").write_bytes(GOOD)
    (tmp_path / "a.nii").chmod(0)
    with nobody(tmp_path):
        problem = header_problem(tmp_path, "a.nii")
    assert problem == "no permission to read it"
