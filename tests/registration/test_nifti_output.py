from __future__ import annotations

import time
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from atlases.spaces import template_grid
from pipeline.registration.nifti_output import write_template_image

AFFINE = np.diag([-2.0, 2.0, 3.0, 1.0])


@pytest.mark.parametrize(("kind", "stored"), [(np.float64, np.float32), (bool, np.uint8)])
def test_values_place_and_codes(tmp_path: Path, kind: type, stored: type) -> None:
    values = (np.arange(7 * 9 * 11).reshape(7, 9, 11) % 5).astype(kind)
    write_template_image(tmp_path / "x.nii.gz", values, AFFINE)
    image = nib.load(tmp_path / "x.nii.gz")
    np.testing.assert_array_equal(image.get_fdata(), values.astype(float))
    assert image.get_data_dtype() == stored
    np.testing.assert_allclose(image.affine, AFFINE)
    np.testing.assert_allclose(image.get_qform(), AFFINE)
    assert (int(image.header["sform_code"]), int(image.header["qform_code"])) == (4, 4)
    assert nib.aff2axcodes(image.affine) == ("L", "A", "S")


def test_equal_values_give_equal_bytes_at_any_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = template_grid(4.0)
    values = np.random.default_rng(2).normal(size=grid.shape)
    write_template_image(tmp_path / "a.nii.gz", values, grid.affine)
    monkeypatch.setattr(time, "time", lambda: 2e9)
    write_template_image(tmp_path / "b.nii.gz", values, grid.affine)
    assert (tmp_path / "a.nii.gz").read_bytes() == (tmp_path / "b.nii.gz").read_bytes()
