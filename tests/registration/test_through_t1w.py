"""Images of other kinds and of others: through the T1w image of the session, or straight in."""

from __future__ import annotations

import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import scipy.ndimage
from registration_phantom import BALL_MM
from scipy.spatial.transform import Rotation

from heatlas.atlases.spaces import Grid, template_grid
from heatlas.atlases.templates import Template, load_template
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.registration import scan
from heatlas.pipeline.registration.ants_transform import Transforms, Volume, read_affine
from heatlas.pipeline.registration.entry_points import place_in_template, placed_brain, stated_brain
from heatlas.pipeline.registration.images.t1w import load_t1w
from heatlas.pipeline.registration.scan import register_image
from heatlas.pipeline.registration.scan_jobs import SessionImage, place_one, registration_job
from heatlas.pipeline.registration.stage import REGISTRATION_TABLE, register_scans
from heatlas.pipeline.run.config.images import KINDS
from heatlas.pipeline.run.config.settings import RegistrationConfig
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.executors import open_executor
from tests.registration.work_of_scans import work_of_scans

WITH_A_WARP = RegistrationConfig(resolution_mm=4.0, bias_correction=False)


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
        register_image(path, template, WITH_A_WARP, 1, tmp_path / "ants_", entry="brain")


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
    with open_executor(1) as executor:
        (good, bad), _ = register_scans(work_of_scans(layout, tmp_path / "in", WITH_A_WARP, executor), scans)
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
    with open_executor(1) as executor:
        outcomes, _ = register_scans(work_of_scans(layout, tmp_path / "input", WITH_A_WARP, executor), scans)
        again, _ = register_scans(work_of_scans(layout, tmp_path / "input", WITH_A_WARP, executor), scans)
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


CONFIG = RegistrationConfig(resolution_mm=4.0, brain_extraction="none", bias_correction=False, transform="affine")
MOVE = np.eye(4)
MOVE[:3, :3] = Rotation.from_euler("xyz", [6, -4, 9], degrees=True).as_matrix()
MOVE[:3, 3] = 5, -8, 6
"""From the T1-weighted image to the FLAIR, both in mm."""


def run_of(
    folder: Path, suffix: str, root: Path, scans: list[Scan], further: str = "[]"
) -> tuple[RunLayout, list[Any]]:
    layout = RunLayout(folder)
    layout.root.mkdir(parents=True)
    layout.config.write_text(f'[cohort]\nsuffix = "{suffix}"\nfurther_suffixes = {further}\n')
    with open_executor(1) as executor:
        outcomes, _ = register_scans(work_of_scans(layout, root, CONFIG, executor), scans)
    return layout, outcomes


def other_contrast(phantom: Any, move: np.ndarray, shape: tuple[int, int, int], affine: np.ndarray) -> Any:
    """The phantom moved, its contrast inverted, on a grid of its own."""
    data = np.asarray(phantom.dataobj, dtype=np.float32)
    inverted = np.where(data > 0, 180 - data, 0)
    to_source = np.linalg.inv(phantom.affine) @ np.linalg.inv(move) @ affine
    moved = scipy.ndimage.affine_transform(inverted, to_source[:3, :3], to_source[:3, 3], shape, order=1)
    noise = np.random.default_rng(2).normal(0, 2, shape)
    return nib.Nifti1Image(np.where(moved > 5, moved + noise, 0).astype(np.float32), affine)


def test_a_flair_goes_with_the_t1w_of_its_session(write: Any, phantom: Any, tmp_path: Path) -> None:
    """Moved, inverted, on voxels of unequal sides in another order: it lies on the T1w within a tenth of a voxel."""
    affine = np.diag([2.5, 2.0, 3.5, 1.0])
    affine[:3, 3] = -105, -130, -95
    write(phantom, "LAS", "in/sub-1_T1w.nii.gz")
    write(other_contrast(phantom, MOVE, (88, 122, 58), affine), "PSR", "in/sub-1_FLAIR.nii.gz")
    scan = Scan("sub-1", None, "1", "sub-1_FLAIR.nii.gz", t1w="sub-1_T1w.nii.gz")
    layout, (good,) = run_of(tmp_path / "out", "FLAIR", tmp_path / "in", [scan])

    assert good.ok, good.message
    files = layout.scan("sub-1", None, 4.0)
    assert files.image.name == "sub-1_space-MNI152NLin2009cAsym_res-4_desc-preproc_FLAIR.nii.gz"
    assert files.rigid_transform.name == "sub-1_from-FLAIR_to-T1w_mode-image_desc-rigid_xfm.mat"
    brain = np.argwhere(np.asarray(phantom.dataobj) > 0)[::200] @ phantom.affine[:3, :3].T + phantom.affine[:3, 3]
    points = np.c_[brain, np.ones(len(brain))]
    apart = np.linalg.norm((points @ read_affine(files.rigid_transform).T - points @ MOVE.T)[:, :3], axis=1)
    assert apart.max() < 0.5, apart.max()
    image, t1w = (np.asarray(nib.load(path).dataobj) for path in (files.image, files.t1w))
    inside = np.asarray(nib.load(files.brain_mask).dataobj) > 0
    assert (image[~inside] == 0).all()
    core = scipy.ndimage.binary_erosion(inside, iterations=3)
    assert np.corrcoef(image[core], t1w[core])[0, 1] < -0.95
    grid = template_grid(4.0)
    dark = grid.to_world(np.argwhere(core & (image < 70) & (t1w > 110))).mean(axis=0)
    assert np.linalg.norm(dark - BALL_MM) < 4  # bright in the T1w: left stays left
    sidecar = json.loads(Path(str(files.image).replace(".nii.gz", ".json")).read_text())
    assert sidecar["Sources"] == ["bids:raw:sub-1_FLAIR.nii.gz", "bids:raw:sub-1_T1w.nii.gz"]
    assert sidecar["Registration"].startswith("rigid map to the T1-weighted image of the session")
    row = REGISTRATION_TABLE.read(layout).iloc[0]
    assert row["t1w_rotation_degrees"] == pytest.approx(11.65, abs=0.3)
    assert row["correlation"] > 0.8  # of the T1w image, which the warp is of


def test_an_image_of_half_the_brain_is_refused(
    write: Any, phantom: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rigid map is not searched here: it is the planted one."""
    affine = np.diag([2.5, 2.0, 3.5, 1.0])
    affine[:3, 3] = -105, -130, -95
    path = write(other_contrast(phantom, MOVE, (88, 122, 30), affine), "LSP", "half.nii.gz")
    monkeypatch.setattr(scan, "_rigid_map", lambda *_: (tmp_path / "rigid.mat", 1.0))
    monkeypatch.setattr(scan, "read_affine", lambda _: MOVE)
    head = Volume(np.asarray(phantom.dataobj, np.float32), phantom.affine)
    brain = Volume((head.data > 0).astype(np.float32), head.affine)
    grid, nothing = template_grid(4.0), Transforms(tmp_path, tmp_path, tmp_path)
    with pytest.raises(BadInputError, match=r"half\.nii\.gz: misses [3-6][0-9]% of the brain") as refused:
        scan.carry(path, KINDS["FLAIR"], head, brain, nothing, grid, False, 1, tmp_path / "r_")
    assert "of the same person" in str(refused.value)


def gm_like(template: Template) -> Any:
    """A map of grey matter: 0 to 1, with soft edges, nothing in white matter and fluid."""
    values = np.exp(-(((template.t1w - 60) / 12) ** 2)) * template.brain_mask
    return nib.Nifti1Image(scipy.ndimage.gaussian_filter(values.astype(np.float32), 1.0), template.grid.affine)


@pytest.mark.parametrize(("suffix", "source"), [("probseg", "template"), ("FLAIR", "stripped"), ("pet", "template")])
def test_in_template_space_any_kind_goes_straight_in(write: Any, template: Template, suffix: str, source: str) -> None:
    if suffix == "probseg":
        image = gm_like(template)
    elif suffix == "FLAIR":
        image = nib.Nifti1Image(np.where(template.brain_mask, 120 - template.t1w, 0), template.grid.affine)
    else:  # PET is smooth and not stripped: counts everywhere, some below 0
        counts = scipy.ndimage.gaussian_filter(template.t1w, 2.0) + np.random.default_rng(1).normal(
            0, 1, template.grid.shape
        )
        image = nib.Nifti1Image(counts.astype(np.float32), template.grid.affine)
    read = load_t1w(write(image, "LAS"))
    config = RegistrationConfig(resolution_mm=4.0)
    brain = placed_brain(read, KINDS[suffix], template, config)
    placed = place_in_template(read, brain, template, kind=KINDS[suffix])
    assert brain.source == source
    assert placed.correlation is None  # with a template of another contrast it says nothing
    values = np.asarray(image.dataobj)
    inside = placed.brain_mask & template.brain_mask
    assert inside.sum() > 0.97 * template.brain_mask.sum()
    np.testing.assert_allclose(placed.t1w[inside], values[inside], atol=1e-3)


def test_the_mask_of_the_template_fits_another_grid(write: Any, template: Template) -> None:
    fine = load_template(3.0)
    read = load_t1w(write(gm_like(fine), "PSR"))
    brain = placed_brain(read, KINDS["probseg"], template, RegistrationConfig(resolution_mm=4.0))
    i, j, k = read.data.shape
    world = Grid((i, j, k), read.affine).to_world(np.argwhere(brain.mask))
    expected = fine.grid.to_world(np.argwhere(fine.brain_mask))
    np.testing.assert_allclose(world.mean(axis=0), expected.mean(axis=0), atol=0.5)
    np.testing.assert_allclose(len(world), len(expected), rtol=0.03)


def test_an_anonymised_run_does_not_name_the_t1w_image(write: Any, phantom: Any, tmp_path: Path) -> None:
    for name in ("FLAIR", "T1w"):
        write(phantom, "RAS", f"in/jane_{name}.nii.gz")
    shown = Scan("sub-P1", None, "I1", "I1.nii.gz", location="jane_FLAIR.nii.gz", t1w="jane_T1w.nii.gz")
    layout = RunLayout(tmp_path / "out")
    layout.root.mkdir()
    layout.config.write_text('[cohort]\nsuffix = "FLAIR"\n')
    work = work_of_scans(layout, tmp_path / "in", CONFIG, ThreadPoolExecutor(1))
    job = registration_job(work, shown, "template")
    own, through = job.arguments[0]
    assert (own.source, through.path, through.source) == ("I1.nii.gz", tmp_path / "in/jane_T1w.nii.gz", "")
    assert through.shown == "the T1w image of the session"
    assert {"T1w", "T1w_sidecar", "FLAIR", "FLAIR_rigid"} <= set(job.outputs)
    plain = dataclasses.replace(shown, location=None, image="jane_FLAIR.nii.gz")
    job = registration_job(work, plain, "template")
    assert [one.source for one in job.arguments[0]] == ["jane_FLAIR.nii.gz", "jane_T1w.nii.gz"]


def test_the_names_of_a_run_follow_its_settings(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    assert layout.scan("sub-1", None, 2.0).image == layout.scan("sub-1", None, 2.0).t1w
    layout.config.write_text('[cohort]\nsuffix = "pet"\n')
    assert layout.scan("sub-1", None, 2.0).image == tmp_path / (
        "sub-1/pet/sub-1_space-MNI152NLin2009cAsym_res-2_desc-preproc_pet.nii.gz"
    )
    layout.config.write_text('[cohort]\nsuffix = "probseg"\nlabel = "GM"\n')
    files = layout.scan("sub-1", "ses-a", 2.0)
    assert files.image.name == "sub-1_ses-a_space-MNI152NLin2009cAsym_res-2_label-GM_desc-preproc_probseg.nii.gz"
    assert files.overview.name.endswith("_desc-registration_probseg.png")
    assert dataclasses.replace(files, suffix="T1w", label="").image == files.t1w


@pytest.mark.ci
def test_further_kinds_are_written_as_if_they_were_alone(write: Any, phantom: Any, tmp_path: Path) -> None:
    """A T1w image with a FLAIR and a T2w: each as it is where it is the only other one, the T1w as by itself."""
    affine = np.diag([2.5, 2.0, 3.5, 1.0])
    affine[:3, 3] = -105, -130, -95
    write(phantom, "LAS", "in/sub-1_T1w.nii.gz")
    write(other_contrast(phantom, MOVE, (88, 122, 58), affine), "PSR", "in/sub-1_FLAIR.nii.gz")
    write(other_contrast(phantom, np.eye(4), (90, 120, 60), affine), "RAS", "in/sub-1_T2w.nii.gz")
    further = ("sub-1_FLAIR.nii.gz", "sub-1_T2w.nii.gz")
    one = Scan("sub-1", None, "1", "sub-1_T1w.nii.gz", further=further)
    layout, (good,) = run_of(tmp_path / "all", "T1w", tmp_path / "in", [one], '["FLAIR", "T2w"]')
    assert good.ok, good.message
    files = layout.scan("sub-1", None, 4.0)
    assert [path.name.rsplit("_", 1)[1] for path in files.images] == ["T1w.nii.gz", "FLAIR.nii.gz", "T2w.nii.gz"]
    assert files.seen == (*files.images, files.brain_mask)
    row = REGISTRATION_TABLE.read(layout).iloc[0]
    alone = Scan("sub-1", None, "1", "sub-1_FLAIR.nii.gz", t1w="sub-1_T1w.nii.gz")
    layout, _ = run_of(tmp_path / "alone", "FLAIR", tmp_path / "in", [alone])
    single, worst = layout.scan("sub-1", None, 4.0), REGISTRATION_TABLE.read(layout).iloc[0]
    for got, wanted in ((files.image, single.t1w), (files.images[1], single.image)):
        np.testing.assert_array_equal(*(np.asarray(nib.load(path).dataobj) for path in (got, wanted)))
    assert row["t1w_rotation_degrees"] == pytest.approx(worst["t1w_rotation_degrees"])  # the T2w is not moved
    sidecar = json.loads(Path(str(files.images[2]).replace(".nii.gz", ".json")).read_text())
    assert sidecar["Sources"] == ["bids:raw:sub-1_T2w.nii.gz", "bids:raw:sub-1_T1w.nii.gz"]
    assert files.rigid_transform_of("T2w").is_file()


@pytest.mark.parametrize("method", ["none", "given-mask"])
def test_where_a_stripped_further_image_is_0_is_no_brain(
    write: Any, template: Template, tmp_path: Path, method: Any
) -> None:
    """A FLAIR whose extraction is tighter by a voxel: no channel has its dark rim; one that lacks half is refused."""
    rim = template.brain_mask & ~scipy.ndimage.binary_erosion(template.brain_mask)
    brain = np.where(template.brain_mask, template.t1w + 10, 0).astype(np.float32)
    affine = template.grid.affine
    write(nib.Nifti1Image(brain, affine), "LAS", "in/t1w.nii.gz")
    write(nib.Nifti1Image(template.brain_mask.astype(np.float32), affine), "LAS", "in/t1w_desc-brain_mask.nii.gz")
    write(nib.Nifti1Image(np.where(rim, 0, 200 - brain) * (brain > 0), affine), "LAS", "in/flair.nii.gz")
    config = dataclasses.replace(CONFIG, brain_extraction=method)
    files = [tmp_path / "in" / f"{name}.nii.gz" for name in ("t1w", "flair")]
    pair = [SessionImage(path, path.name, KINDS[kind]) for path, kind in zip(files, ("T1w", "FLAIR"), strict=True)]
    names = ("T1w", "T1w_sidecar", "FLAIR", "FLAIR_sidecar", "brain_mask", "quality")
    outputs = {
        name: tmp_path / f"{name}{'.json' if 'sidecar' in name or name == 'quality' else '.nii.gz'}" for name in names
    }
    numbers = place_one(outputs, pair, config, tmp_path / "in/t1w_desc-brain_mask.nii.gz")
    mask, t1w, flair = (np.asarray(nib.load(outputs[name]).dataobj) for name in ("brain_mask", "T1w", "FLAIR"))
    assert not mask[rim].any()
    assert (mask > 0).sum() == template.brain_mask.sum() - rim.sum()
    assert (flair[mask > 0] > 0).all()
    np.testing.assert_allclose(t1w[mask > 0] + flair[mask > 0], 200, atol=1e-3)
    assert numbers["t1w_mutual_information"] > 1.5  # one is a function of the other
    half = np.where(np.arange(brain.shape[2]) < brain.shape[2] // 2, 0, brain)
    write(nib.Nifti1Image(half, affine), "LAS", "in/flair.nii.gz")
    with pytest.raises(BadInputError, match=r"flair\.nii\.gz: is 0 in \d\d% of the brain of the first image"):
        place_one(outputs, pair, config, tmp_path / "in/t1w_desc-brain_mask.nii.gz")


def test_in_template_space_all_kinds_have_the_mask_of_the_first(write: Any, template: Template, tmp_path: Path) -> None:
    """The first brain has a hole: the grey matter beside it has it too."""
    brain = np.where(template.brain_mask, template.t1w + 1, 0).astype(np.float32)
    hole = tuple(slice(side // 2 - 3, side // 2 + 3) for side in brain.shape)
    brain[hole[0], hole[1], : hole[2].stop] = 0
    grey = gm_like(template)
    write(nib.Nifti1Image(brain, template.grid.affine), "LAS", "in/t1w.nii.gz")
    write(grey, "LAS", "in/gm.nii.gz")
    scan = Scan("sub-1", None, "1", "t1w.nii.gz", entry="template", further=("gm.nii.gz",))
    layout, (good,) = run_of(tmp_path / "out", "T1w", tmp_path / "in", [scan], '["probseg"]\nlabel = "GM"')
    assert good.ok, good.message
    files = layout.scan("sub-1", None, 4.0)
    mask, values = (np.asarray(nib.load(path).dataobj) for path in (files.brain_mask, files.images[1]))
    assert files.images[1].name.endswith("_label-GM_desc-preproc_probseg.nii.gz")
    assert not (values[mask == 0]).any()
    assert not mask[hole[0], hole[1], hole[2].start - 2].any()
    inside = mask > 0
    np.testing.assert_allclose(values[inside], np.asarray(grey.dataobj)[inside], atol=1e-3)
