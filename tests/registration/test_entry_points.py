"""Images of others: brains as they are, and brains in template space on any grid."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from registration_phantom import BALL_MM

from heatlas.atlases.spaces import template_grid
from heatlas.atlases.templates import Template, load_template
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.registration.entry_points import place_in_template, stated_brain
from heatlas.pipeline.registration.images.t1w import load_t1w
from heatlas.pipeline.registration.scan import register_image
from heatlas.pipeline.registration.stage import register_scans
from heatlas.pipeline.run.config.settings import RegistrationConfig
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.executors import open_executor

CONFIG = RegistrationConfig(resolution_mm=4.0, bias_correction=False)


def in_template_space(resolution: float) -> Any:
    """A brain like the template with other grey values and a bright ball on its left."""
    source = load_template(resolution)
    ijk = np.argwhere(source.brain_mask)
    near = np.linalg.norm(source.grid.to_world(ijk) - BALL_MM, axis=1) < 12
    values = np.round(source.t1w * 10).astype(np.int16)
    values[tuple(ijk[near].T)] = 1500
    return nib.Nifti1Image(values, source.grid.affine)


def test_an_image_on_the_template_grid_keeps_its_values(write: Any, template: Template) -> None:
    image = load_t1w(write(in_template_space(4.0)))
    placed = place_in_template(image, stated_brain(image), template)
    assert not placed.resampled
    assert placed.grid == template.grid
    assert np.array_equal(placed.t1w, np.where(placed.brain_mask, image.data, 0))
    assert placed.dice > 0.97
    assert 0.5 < placed.correlation < 1


@pytest.mark.parametrize("axes", ["RAS", "LAS", "PSR"])
def test_another_grid_of_the_space_is_resampled_through_its_affine(write: Any, template: Template, axes: str) -> None:
    image = load_t1w(write(in_template_space(2.0), axes))
    placed = place_in_template(image, stated_brain(image), template)
    assert placed.resampled
    assert placed.dice > 0.95
    brightest = template.grid.to_world(np.argwhere(placed.t1w > 1200)).mean(axis=0)
    assert np.linalg.norm(brightest - BALL_MM) < 2  # left stays left
    alike = np.corrcoef(placed.t1w[template.brain_mask], template.t1w[template.brain_mask])[0, 1]
    assert placed.correlation == pytest.approx(alike, abs=1e-6)


def test_an_image_that_only_claims_to_lie_in_template_space_is_refused(write: Any, template: Template) -> None:
    image = in_template_space(4.0)
    shifted = nib.Nifti1Image(np.roll(np.asarray(image.dataobj), 6, axis=1), image.affine)
    read = load_t1w(write(shifted))
    with pytest.raises(BadInputError, match=r"overlaps the template's by a Dice coefficient of only 0\.\d\d"):
        place_in_template(read, stated_brain(read), template)
    away = image.affine.copy()
    away[2, 3] += 90
    read = load_t1w(write(nib.Nifti1Image(np.asarray(image.dataobj), away), name="away.nii.gz"))
    with pytest.raises(BadInputError, match="its grid misses"):
        place_in_template(read, stated_brain(read), template)


def test_a_head_called_a_brain_is_refused(write: Any, template: Template, one_thread: None, tmp_path: Path) -> None:
    head = np.random.default_rng(2).integers(1, 900, template.grid.shape).astype(np.int16)
    path = write(nib.Nifti1Image(head, template.grid.affine))
    with pytest.raises(BadInputError, match=r"is declared brain-extracted .* litres of it are not 0"):
        register_image(path, template, CONFIG, 1, tmp_path / "ants_", entry="brain")


def test_a_head_in_template_space_is_stripped_by_the_mask_beside_it(
    write: Any, template: Template, tmp_path: Path
) -> None:
    """As fMRIPrep leaves it; failures name the image as the input does, without the way to it."""
    name = "sub-a_space-MNI152NLin2009cAsym_res-4_desc"
    noise = np.random.default_rng(3).integers(1, 90, template.grid.shape)
    head = np.where(template.brain_mask, template.t1w * 10, noise).astype(np.int16)
    write(nib.Nifti1Image(head, template.grid.affine), "LAS", f"in/{name}-preproc_T1w.nii.gz")
    write(
        nib.Nifti1Image(template.brain_mask.astype(np.uint8), template.grid.affine), name=f"in/{name}-brain_mask.nii.gz"
    )
    brain = np.round(template.t1w * 10).astype(np.int16)
    write(nib.Nifti1Image(brain, np.diag([4.0, 4, 4, 1])), name="in/b.nii.gz")
    images = {"sub-a": f"{name}-preproc_T1w.nii.gz", "sub-b": "shown.nii.gz"}
    scans = [Scan(person, None, person, image, entry="template") for person, image in images.items()]
    scans[1] = dataclasses.replace(scans[1], location="b.nii.gz")
    layout = RunLayout(tmp_path / "run")
    digests = DigestCache(layout.digests)
    with open_executor(1) as executor:
        (good, bad), _ = register_scans(layout, tmp_path / "in", scans, CONFIG, 43, executor, digests)
    assert good.ok, good.message
    assert good.result["brain_extraction"] == "given"
    placed = np.asarray(nib.load(layout.scan("sub-a", None, 4.0).t1w).dataobj)
    assert np.array_equal(placed != 0, template.brain_mask & (head != 0))
    assert "shown.nii.gz: not in the space of MNI152NLin2009cAsym" in bad.message
    assert str(tmp_path) not in bad.message + bad.traceback.replace(str(Path(nib.__file__).parents[1]), "")


def test_a_cohort_of_registered_images_needs_no_registration(write: Any, tmp_path: Path) -> None:
    write(in_template_space(4.0), "RAS", "input/a.nii.gz")
    write(in_template_space(3.0), "LAS", "input/b.nii.gz")
    scans = [Scan(f"sub-{name}", None, name, f"{name}.nii.gz", entry="template") for name in "ab"]
    layout = RunLayout(tmp_path / "run")
    digests = DigestCache(layout.digests)
    with open_executor(1) as executor:
        outcomes, _ = register_scans(layout, tmp_path / "input", scans, CONFIG, 43, executor, digests)
        again, _ = register_scans(layout, tmp_path / "input", scans, CONFIG, 43, executor, digests)
    assert [outcome.status for outcome in outcomes] == ["done", "done"], [outcome.message for outcome in outcomes]
    assert [outcome.status for outcome in again] == ["unchanged", "unchanged"]
    rows = read_table(layout.group / "registration.tsv", text_columns=["flags", "decision"])
    assert list(rows["entry"]) == ["template", "template"]
    assert list(rows["status"]) == ["registered", "registered"]
    assert rows["min_jacobian"].isna().all()
    files = layout.scan("sub-b", None, 4.0)
    assert nib.load(files.t1w).shape == template_grid(4.0).shape
    assert not files.warp.exists()
    sidecar = json.loads(Path(str(files.t1w).replace(".nii.gz", ".json")).read_text())
    assert sidecar["Registration"].startswith("none here: the image was given in the space of MNI152NLin2009cAsym")
    assert sidecar["Interpolation"].startswith("linear, from ")
