from __future__ import annotations

import time
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from heatlas.atlases.spaces import Grid, template_grid, write_template_image

LAS = Grid((7, 9, 11), np.array([[-2, 0, 0, 12], [0, 2.5, 0, -20], [0, 0, 3, -7], [0, 0, 0, 1]]))


@pytest.mark.parametrize(("kind", "stored"), [(np.float64, np.float32), (bool, np.uint8)])
def test_values_place_and_codes(tmp_path: Path, kind: type, stored: type) -> None:
    values = (np.arange(7 * 9 * 11).reshape(7, 9, 11) % 5).astype(kind)
    write_template_image(tmp_path / "x.nii.gz", values, LAS)
    image = nib.load(tmp_path / "x.nii.gz")
    np.testing.assert_array_equal(image.get_fdata(), values.astype(float))
    assert image.get_data_dtype() == stored
    np.testing.assert_allclose(image.affine, LAS.affine)
    np.testing.assert_allclose(image.get_qform(), LAS.affine, atol=1e-5)
    assert image.header.get_xyzt_units()[0] == "mm"
    assert (int(image.header["sform_code"]), int(image.header["qform_code"])) == (4, 4)
    assert nib.aff2axcodes(image.affine) == ("L", "A", "S")


def test_equal_values_give_equal_bytes_at_any_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = template_grid(4.0)
    values = np.random.default_rng(2).normal(size=grid.shape)
    write_template_image(tmp_path / "a.nii.gz", values, grid)
    monkeypatch.setattr(time, "time", lambda: 2e9)
    write_template_image(tmp_path / "b.nii.gz", values, grid)
    first, second = ((tmp_path / name).read_bytes() for name in ("a.nii.gz", "b.nii.gz"))
    assert first == second
    assert first[4:8] == bytes(4), "no time stamp in the gzip header"
    assert first[3] & 8 == 0, "no file name in the gzip header"


@pytest.mark.parametrize(
    ("title", "stored"),
    [
        ("LRP beta=0.25, target AD", "LRP beta=0.25, target AD"),
        ("Démence", "D?mence"),
        ("≥65", "?65"),
        ("x" * 200, "x" * 79),
    ],
)
def test_any_title_fits_the_header(tmp_path: Path, title: str, stored: str) -> None:
    write_template_image(tmp_path / "x.nii.gz", np.zeros(LAS.shape), LAS, title)
    header = nib.load(tmp_path / "x.nii.gz").header
    assert bytes(header["descrip"]).decode("ascii").rstrip("\0") == stored


def test_values_off_the_grid_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\(9, 7, 11\).*\(7, 9, 11\)"):
        write_template_image(tmp_path / "x.nii.gz", np.zeros((9, 7, 11)), LAS)
    assert not list(tmp_path.iterdir())
