"""Images of FreeSurfer (``.mgz``) against the same voxels as NIfTI."""

from __future__ import annotations

import gzip
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from heatlas.pipeline.cohort.applied import read_scan
from heatlas.pipeline.cohort.bids.derivatives import over_template
from heatlas.pipeline.cohort.candidates import Candidate
from heatlas.pipeline.cohort.images.headers import check_header
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.sharing import image_digest
from heatlas.pipeline.registration.images.t1w import load_labels, load_t1w
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.errors import BadInputError

VALUES = np.random.default_rng(5).normal(100, 20, size=(50, 61, 47)).astype(np.float32)
LIA = np.array([[-2.5, 0, 0, 61], [0, 0, 2.25, -50], [0, -2.0, 0, 70], [0, 0, 0, 1.0]])
"""Left, inferior, anterior, as FreeSurfer's conformed images; voxels of three sizes."""


def oblique() -> np.ndarray:
    turn = np.deg2rad(12)
    rotation = np.array([[np.cos(turn), -np.sin(turn), 0], [np.sin(turn), np.cos(turn), 0], [0, 0, 1]])
    affine = LIA.copy()
    affine[:3, :3] = rotation @ LIA[:3, :3]
    return affine


def mgz(path: Path, affine: np.ndarray = LIA, values: np.ndarray = VALUES) -> Path:
    nib.save(nib.MGHImage(values, affine), path)
    return path


@pytest.mark.parametrize("affine", [LIA, oblique()], ids=["LIA", "oblique"])
def test_voxels_and_world_are_those_of_the_same_image_as_nifti(tmp_path, affine) -> None:
    nib.save(nib.Nifti1Image(VALUES, affine), tmp_path / "T1.nii.gz")
    nifti, freesurfer = load_t1w(tmp_path / "T1.nii.gz"), load_t1w(mgz(tmp_path / "T1.mgz", affine))
    np.testing.assert_array_equal(freesurfer.data, nifti.data)
    np.testing.assert_allclose(freesurfer.affine, affine, atol=1e-4)
    np.testing.assert_allclose(freesurfer.affine, nifti.affine, atol=1e-4)
    assert freesurfer.orientation == "MGZ"
    assert check_header(tmp_path, "T1.mgz", 5).problem is None
    assert check_header(tmp_path, "T1.mgz", 2.4).problem == (
        "slices too thick: voxels of 2.5 x 2 x 2.25 mm, cohort.max_voxel_mm is 2.4"
    )


def test_labels_are_read(tmp_path) -> None:
    labels = (VALUES > 100).astype(np.int32) * 2035
    read, affine = load_labels(mgz(tmp_path / "aparc+aseg.mgz", values=labels))
    np.testing.assert_array_equal(read, labels)
    np.testing.assert_allclose(affine, LIA, atol=1e-4)


def changed(path: Path, start: int, content: bytes) -> None:
    """Replace bytes of the header."""
    stored = bytearray(gzip.decompress(path.read_bytes()))
    stored[start : start + len(content)] = content
    path.write_bytes(gzip.compress(bytes(stored)))


@pytest.mark.parametrize(
    ("start", "content", "said"),
    [
        (28, b"\x00\x00", "no orientation in the header"),  # goodRASFlag; nibabel would take LIA
        (0, b"\x00\x00\x00\x07", "does not begin like an MGZ header"),
        (30, np.array([0, 1, 1], ">f4").tobytes(), "impossible voxel size: 0 x 1 x 1 mm"),
        (30, np.array([0.001, 1, 1], ">f4").tobytes(), "units other than mm"),
        (42, np.array([1, 0, 0, 1, 0, 0], ">f4").tobytes(), "no usable orientation in the header: singular"),
        (4, np.array([0], ">i4").tobytes(), "image without voxels"),
        (16, np.array([3], ">i4").tobytes(), "4D image"),
    ],
)
def test_headers_that_cannot_be_used(tmp_path, start, content, said) -> None:
    changed(mgz(tmp_path / "T1.mgz"), start, content)
    assert said in (check_header(tmp_path, "T1.mgz", 5).problem or "")


def test_damaged_files(tmp_path) -> None:
    whole = mgz(tmp_path / "T1.mgz").read_bytes()
    (tmp_path / "T1.mgz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadInputError, match=r"T1\.mgz: not a readable MGZ image \(Compressed file ended"):
        load_t1w(tmp_path / "T1.mgz")
    (tmp_path / "T1.mgz").write_bytes(b"no image")
    assert "not a readable MGZ file" in (check_header(tmp_path, "T1.mgz", 5).problem or "")
    with pytest.raises(BadInputError, match=r"T1\.mgz: not a readable MGZ image"):
        load_t1w(tmp_path / "T1.mgz")


def test_one_image_is_a_cohort(tmp_path) -> None:
    (scan,) = read_scan(mgz(tmp_path / "sub-07_T1w.mgz"), CohortConfig()).table.kept
    assert (scan.participant_id, scan.scan_id, scan.image) == ("sub-07", "sub-07_T1w", "sub-07_T1w.mgz")


def test_digest_is_of_the_voxels(tmp_path) -> None:
    one = image_digest(mgz(tmp_path / "a.mgz"))
    assert image_digest(mgz(tmp_path / "b.mgz")) == one
    assert image_digest(mgz(tmp_path / "c.mgz", values=VALUES + 1)) != one


def test_an_image_that_does_not_lie_over_the_template_is_told_by_its_header(tmp_path) -> None:
    far = LIA.copy()
    far[0, 3] += 300
    mgz(tmp_path / "T1.mgz", far)
    (found,) = over_template(tmp_path, [Candidate(Scan("sub-1", None, "T1", "T1.mgz", entry="template"))])
    assert "its grid misses 100% of the template's brain" in (found.scan.reason or "")
