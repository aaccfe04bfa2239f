"""Maps on disk: values, space, and bytes that depend on nothing but the map."""

from __future__ import annotations

from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from atlases.spaces import Grid
from pipeline.attribution.maps import sidecar, write_map

LAS = Grid((7, 9, 11), np.array([[-2, 0, 0, 12], [0, 2.5, 0, -20], [0, 0, 3, -7], [0, 0, 0, 1]]))


def test_reads_back_with_values_and_space(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=LAS.shape).astype(np.float32)
    path = tmp_path / "map.nii.gz"
    write_map(path, values, LAS, "LRP beta=0.25, target AD")
    image = nib.load(path)
    np.testing.assert_array_equal(np.asanyarray(image.dataobj), values)
    assert image.get_data_dtype() == np.float32
    np.testing.assert_array_equal(image.affine, LAS.affine)
    assert (int(image.header["sform_code"]), int(image.header["qform_code"])) == (4, 4)
    np.testing.assert_allclose(image.get_qform(), LAS.affine, atol=1e-5)
    assert image.header.get_xyzt_units()[0] == "mm"
    assert bytes(image.header["descrip"]).decode().rstrip("\0") == "LRP beta=0.25, target AD"


@pytest.mark.parametrize(("label", "stored"), [("Démence", "D?mence"), ("≥65", "?65")])
def test_a_label_that_is_not_ascii_fits_the_header(tmp_path: Path, label: str, stored: str) -> None:
    write_map(tmp_path / "map.nii.gz", np.zeros(LAS.shape), LAS, label)
    header = nib.load(tmp_path / "map.nii.gz").header
    assert bytes(header["descrip"]).decode("ascii").rstrip("\0") == stored


def test_equal_maps_give_equal_bytes(tmp_path: Path) -> None:
    values = np.zeros(LAS.shape, np.float64)
    values[3, 4, 5] = 1
    (tmp_path / "other").mkdir()
    paths = [tmp_path / "a.nii.gz", tmp_path / "other" / "b.nii.gz"]
    for path in paths:
        write_map(path, values, LAS, "x" * 200)
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    assert first[4:8] == bytes(4), "no time stamp in the gzip header"
    assert first[3] & 8 == 0, "no file name in the gzip header"


def test_map_off_the_grid_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\(9, 7, 11\).*\(7, 9, 11\)"):
        write_map(tmp_path / "map.nii.gz", np.zeros((9, 7, 11)), LAS, "")
    assert not list(tmp_path.iterdir())


def test_sidecar_lies_beside(tmp_path: Path) -> None:
    assert sidecar(tmp_path / "sub-1_desc-lrpB000_relevance.nii.gz") == tmp_path / "sub-1_desc-lrpB000_relevance.json"
