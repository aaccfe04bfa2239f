"""Registration of a run, directly and through the T1w image."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
import scipy.ndimage
from carried_labels import dice_per_label, warp_labels
from registration_phantom import BALL_MM, TEMPLATE_TO_SCAN
from scipy.spatial.transform import Rotation

from heatlas.atlases.labels import load_atlas
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
from heatlas.pipeline.run.work import progress
from heatlas.pipeline.run.work.executors import open_executor
from tests.registration.work_of_scans import work_of_scans

# The stage as the workflow runs it: worker processes, receipts, failures, tables, and real scans in doubt.

QUICK = "antsRegistrationSyNQuick[s]"
CONFIG = RegistrationConfig(resolution_mm=4.0, brain_extraction="none", bias_correction=False, transform=QUICK)


@pytest.fixture
def cohort(write: Any, phantom: Any, tmp_path: Path) -> tuple[Path, list[Scan]]:
    """Two good scans in two orientations, a truncated one, an absent one, and one that was dropped."""
    write(phantom, "LAS", "input/sub-01/sub-01_T1w.nii.gz")
    write(phantom, "PSR", "input/sub-02/sub-02_T1w.nii.gz")
    bad = write(phantom, "RAS", "input/sub-03/sub-03_T1w.nii.gz")
    bad.write_bytes(bad.read_bytes()[:20000])
    scans = [
        Scan(f"sub-0{i}", "ses-M000", f"sub-0{i}_T1w", f"sub-0{i}/sub-0{i}_T1w.nii.gz", kept=i < 5) for i in range(1, 6)
    ]
    return tmp_path / "input", scans


def run(out: Path, root: Path, scans: list[Scan], config: RegistrationConfig = CONFIG) -> tuple[RunLayout, list[str]]:
    layout = RunLayout(out)
    with open_executor(2) as executor:
        outcomes, _ = register_scans(work_of_scans(layout, root, config, executor), scans)
    return layout, [outcome.status for outcome in outcomes]


def files_under(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.ci
def test_a_cohort_with_bad_scans(
    cohort: tuple[Path, list[Scan]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, scans = cohort
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    input_before = files_under(root)

    layout, statuses = run(tmp_path / "out", root, scans)

    assert statuses == ["done", "done", "failed", "failed"]
    assert files_under(root) == input_before
    assert not list(temporary.iterdir())  # ANTsPy would leave its transforms there (ANTsX/ANTsPy#728)
    assert not list(layout.scratch.iterdir())

    table = read_table(layout.group / "registration.tsv", list(REGISTRATION_TABLE.meanings))
    assert table["participant_id"].tolist() == ["sub-01", "sub-02", "sub-03", "sub-04"]
    assert table["status"].tolist() == ["registered", "registered", "failed", "failed"]
    assert table.loc[2:, "brain_extraction":].isna().all(axis=None)
    assert (table.loc[:1, "correlation"] > 0.85).all()
    failures = read_table(layout.failures)
    assert failures["unit"].tolist() == ["sub-03_ses-M000", "sub-04_ses-M000"]
    assert "sub-03_T1w.nii.gz: truncated or damaged" in failures["message"][0]
    assert "sub-04_T1w.nii.gz: no such image" in failures["message"][1]

    check_outputs(layout)
    check_labels(layout, phantom_labels(root / "sub-02/sub-02_T1w.nii.gz", tmp_path / "labels.nii.gz"))
    check_repeat(cohort, layout, tmp_path)


def check_outputs(layout: RunLayout) -> None:
    """Grid, codes and values of the files of one scan, and the golden list of them."""
    files = layout.scan("sub-01", "ses-M000", 4.0)
    template = load_template(4.0)
    stem = "sub-01_ses-M000"
    space = f"{stem}_space-MNI152NLin2009cAsym_res-4"
    assert sorted(path.name for path in files.t1w.parent.iterdir()) == sorted(
        [
            f"{space}_desc-preproc_T1w.nii.gz",
            f"{space}_desc-preproc_T1w.json",
            f"{space}_desc-brain_mask.nii.gz",
            f"{space}_desc-logjacobian_T1w.nii.gz",
            f"{space}_desc-logjacobian_T1w.json",
            f"{space}_desc-registration_quality.json",
            f"{space}_desc-regions_quality.tsv",
            f"{space}_desc-regions_quality.json",
            f"{space}_desc-sides_quality.npy",
            f"{stem}_from-T1w_to-MNI152NLin2009cAsym_mode-image_desc-affine_xfm.mat",
            f"{stem}_from-T1w_to-MNI152NLin2009cAsym_mode-image_desc-syn_xfm.nii.gz",
            f"{stem}_from-MNI152NLin2009cAsym_to-T1w_mode-image_desc-syn_xfm.nii.gz",
        ]
    )
    t1w, mask = nib.load(files.t1w), nib.load(files.brain_mask).get_fdata() > 0
    assert t1w.get_data_dtype() == np.float32
    assert t1w.shape == template.grid.shape
    np.testing.assert_allclose(t1w.affine, template.grid.affine)
    assert int(t1w.header["sform_code"]) == int(t1w.header["qform_code"]) == 4
    assert (t1w.get_fdata()[~mask] == 0).all()
    assert (t1w.get_fdata()[mask] != 0).mean() > 0.99
    change = nib.load(files.log_jacobian).get_fdata()
    volume = np.exp(change[template.brain_mask]).sum() * 64
    planted = template.brain_mask.sum() * 64 * np.linalg.det(TEMPLATE_TO_SCAN[:3, :3])
    assert volume == pytest.approx(planted, rel=0.04)
    sidecar = json.loads(files.t1w.with_name(f"{space}_desc-preproc_T1w.json").read_text())
    assert sidecar["Sources"] == ["bids:raw:sub-01/sub-01_T1w.nii.gz"]
    assert sidecar["SkullStripped"] is True
    assert json.loads(files.quality.read_text())["brain_extraction"] == "stripped"


def phantom_labels(scan: Path, path: Path) -> Path:
    """Label 17 in the left half of the brain and 200 in the right, drawn in the space and order of the scan."""
    image = nib.load(scan)
    indices = np.stack(np.meshgrid(*[np.arange(n) for n in image.shape], indexing="ij"), -1)
    x = indices @ (np.linalg.inv(TEMPLATE_TO_SCAN) @ image.affine)[0, :3]
    x += (np.linalg.inv(TEMPLATE_TO_SCAN) @ image.affine)[0, 3]
    labels = np.where(np.asarray(image.dataobj) > 0, np.where(x < 0, 17, 200), 0).astype(np.int16)
    nib.Nifti1Image(labels, image.affine).to_filename(path)
    return path


def check_labels(layout: RunLayout, labels: Path) -> None:
    template = load_template(4.0)
    warped = warp_labels(labels, layout.scan("sub-02", "ses-M000", 4.0), template.grid)
    assert warped.dtype == np.int32
    assert set(np.unique(warped)) == {0, 17, 200}
    x = np.arange(template.grid.shape[0]) * 4.0 - 96
    expected = np.where(template.brain_mask, np.where(x < 0, 17, 200)[:, None, None], 0)
    overlap = dice_per_label(warped, expected, [17, 200])
    assert min(overlap.values()) > 0.9


def check_repeat(cohort: tuple[Path, list[Scan]], layout: RunLayout, tmp_path: Path) -> None:
    """Again in place: nothing is done. In another folder: the same bytes. Another setting: done again."""
    root, scans = cohort
    scans = [scan for scan in scans if scan.participant_id != "sub-01"]
    before = files_under(layout.root / "sub-02")
    stamps = {path: path.stat().st_mtime_ns for path in (layout.root / "sub-02").rglob("*")}
    assert run(layout.root, root, scans)[1] == ["unchanged", "failed", "failed"]
    assert {path: path.stat().st_mtime_ns for path in (layout.root / "sub-02").rglob("*")} == stamps
    elsewhere, statuses = run(tmp_path / "elsewhere", root, scans)
    assert statuses == ["done", "failed", "failed"]
    assert files_under(elsewhere.root / "sub-02") == before
    pd.testing.assert_frame_equal(
        read_table(elsewhere.group / "registration.tsv"), read_table(layout.group / "registration.tsv")
    )
    changed = replace(CONFIG, brain_extraction="template-mask")
    assert run(tmp_path / "elsewhere", root, scans[:1], changed)[1] == ["done"]


def test_stripped_scans_need_no_deepbet(
    write: Any, phantom: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = metadata.version

    def without_deepbet(name: str) -> str:
        if name == "deepbet":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", without_deepbet)
    monkeypatch.setattr(progress, "version_of", progress.version_of.__wrapped__)  # which keeps no answer
    monkeypatch.setenv("ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS", "1")  # as in a worker; a worker would not see the patch
    image = write(phantom, "RAS", "sub-01_T1w.nii.gz")
    layout = RunLayout(tmp_path / "out")
    scan = Scan("sub-01", None, "sub-01_T1w", image.name)
    with ThreadPoolExecutor(1) as executor:
        outcomes, _ = register_scans(work_of_scans(layout, image.parent, CONFIG, executor), [scan])
    assert [(outcome.status, outcome.message) for outcome in outcomes] == [("done", "")]
    sidecar = json.loads(layout.scan("sub-01", None, 4.0).t1w.with_suffix("").with_suffix(".json").read_text())
    assert sidecar["PackageVersions"]["deepbet"] == "absent"
    assert sidecar["PackageVersions"]["antspyx"] == version("antspyx")


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Registers scans without worker processes, which take seconds to start."""
    monkeypatch.setenv("ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS", "1")

    def register(layout: RunLayout, root: Path, scans: list[Scan], config: RegistrationConfig) -> list[str]:
        with ThreadPoolExecutor(1) as executor:
            outcomes, _ = register_scans(work_of_scans(layout, root, config, executor), scans)
        return [outcome.status for outcome in outcomes]

    return register


@pytest.mark.ci
def test_a_tiny_head_is_in_doubt_whatever_is_done_with_it(
    write: Any, phantom: Any, tmp_path: Path, in_this_process: Any
) -> None:
    """A head scaled by 0.6 registers well and still is no adult's; its size, not its likeness, says so.

    What happens to it is decided without registering again.
    """
    small = nib.Nifti1Image(np.asarray(phantom.dataobj), np.diag([0.6, 0.6, 0.6, 1.0]) @ phantom.affine)
    path = write(small, "LAS", "sub-01_T1w.nii.gz")
    scans = [Scan("sub-01", None, "sub-01_T1w", path.name, age=11.0)]
    layout = RunLayout(tmp_path / "out")
    tables = {}
    for policy, status in (("keep", "done"), ("drop", "unchanged"), ("ask", "unchanged")):
        config = replace(CONFIG, flagged=policy)
        assert in_this_process(layout, tmp_path, scans, config) == [status]
        tables[policy] = read_table(layout.group / "registration.tsv")
    row = tables["keep"].iloc[0]
    assert row["scale"] == pytest.approx(0.6 * 0.95, abs=0.03)
    for reason in ("size of the head", "brain volume", "aged 11"):
        assert reason in row["flags"]
    assert "correlation" not in row["flags"]
    assert [table["decision"][0] for table in tables.values()][:2] == ["keep", "drop"]
    assert tables["ask"]["decision"].isna().all()
    assert read_table(layout.root / "flagged.tsv")["flags"][0] == row["flags"]


@pytest.mark.ci
def test_a_given_mask_decides_what_is_brain_and_a_new_one_does_the_scan_again(
    write: Any, phantom: Any, tmp_path: Path, in_this_process: Any
) -> None:
    """In noise, nothing but the mask says where the brain is; half a mask gives half a brain, which is flagged."""
    data = np.asarray(phantom.dataobj).astype(np.float32)
    noisy = data + np.random.default_rng(1).uniform(1, 6, data.shape).astype(np.float32)
    scan = write(nib.Nifti1Image(noisy, phantom.affine), "RAS", "sub-01/sub-01_T1w.nii.gz")
    write(nib.Nifti1Image((data > 8).astype(np.uint8), phantom.affine), "PSR", "masks/sub-01.nii.gz")
    config = replace(CONFIG, brain_extraction="given-mask", mask_pattern="masks/{name}.nii.gz")
    layout = RunLayout(tmp_path / "out")
    scans = [Scan("sub-01", None, "sub-01_T1w", scan.relative_to(tmp_path).as_posix())]
    assert in_this_process(layout, tmp_path, scans, config) == ["done"]
    first = read_table(layout.group / "registration.tsv").iloc[0]
    assert first["brain_extraction"] == "given"
    assert first["brain_mm3"] == pytest.approx((data > 8).sum() * 27)
    assert first["dice"] > 0.96
    upper = (data > 8) & (np.arange(data.shape[2]) > data.shape[2] // 2)
    write(nib.Nifti1Image(upper.astype(np.uint8), phantom.affine), "RAS", "masks/sub-01.nii.gz")
    assert in_this_process(layout, tmp_path, scans, config) == ["done"]
    assert read_table(layout.group / "registration.tsv")["flags"].notna().all()
    assert in_this_process(layout, tmp_path, scans, config) == ["unchanged"]
    (tmp_path / "masks/sub-01.nii.gz").unlink()
    assert in_this_process(layout, tmp_path, scans, config) == ["failed"]
    assert "no mask is given at" in read_table(layout.failures)["message"][0]


@pytest.mark.slow
def test_manual_hippocampi_of_a_real_brain_land_on_the_atlas(real_data: Path, tmp_path: Path) -> None:
    """Left on left: the numbers of the sides are exchanged where an image is mirrored, and Dice falls to 0."""
    root = real_data / "oasis20"
    scan = Scan("sub-1107", None, "sub-1107_T1w", "sub-1107/anat/sub-1107_T1w.nii.gz")
    config = RegistrationConfig(resolution_mm=2.0)
    layout, statuses = run(tmp_path / "out", root, [scan], config)
    assert statuses == ["done"]
    grid = template_grid(2.0)
    manual = root / "derivatives/manual/sub-1107/anat/sub-1107_atlas-Neuromorphometrics_dseg.nii.gz"
    warped = warp_labels(manual, layout.scan("sub-1107", None, 2.0), grid)
    atlas = load_atlas("neuromorphometrics-cat12", grid)
    overlap = dice_per_label(warped, atlas.labels, [47, 48])
    assert min(overlap.values()) > 0.65
    assert read_table(layout.group / "registration.tsv")["brain_extraction"].tolist() == ["stripped"]


HEADS = ("chris_t1.nii.gz", "IXI012-HH-1211_T1.nii.gz", "pycortex-S1_raw.nii.gz")


def register(out: Path, images: list[Path], resolution_mm: float) -> RunLayout:
    layout = RunLayout(out)
    root = out.parent / "input"
    scans = []
    for number, image in enumerate(images):
        copy = root / f"sub-{number}_T1w.nii.gz"
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(image, copy)
        scans.append(Scan(f"sub-{number}", None, f"sub-{number}_T1w", copy.name))
    config = RegistrationConfig(resolution_mm)
    with open_executor(1) as executor:
        register_scans(work_of_scans(layout, root, config, executor), scans)
    return layout


@pytest.mark.slow
def test_whole_heads_register_without_doubt(real_data: Path, tmp_path: Path) -> None:
    layout = register(tmp_path / "out", [real_data / "heads" / name for name in HEADS], 2.0)
    table = read_table(layout.group / "registration.tsv")
    assert table["status"].tolist() == ["registered"] * 3
    assert table["flags"].isna().all()
    assert table["brain_extraction"].tolist() == ["deepbet"] * 3
    assert (table["dice"] > 0.96).all()
    assert table["brain_mm3"].between(1.2e6, 1.9e6).all()


@pytest.mark.slow
def test_a_fruit_is_no_head(real_data: Path, tmp_path: Path) -> None:
    """A T1-weighted DICOM series of a fruit: it fails or is flagged, with a reason that a person understands."""
    converter = Path(sys.executable).with_name("dcm2niix")
    if not converter.is_file():
        pytest.skip("dcm2niix is not installed beside this Python")
    series = real_data / "dicom" / "fruit-ir-spgr"
    command = [str(converter), "-b", "n", "-z", "y", "-f", "fruit", "-o", str(tmp_path), str(series)]
    subprocess.run(command, check=True, capture_output=True)
    layout = register(tmp_path / "out", [tmp_path / "fruit.nii.gz"], 4.0)
    table = read_table(layout.group / "registration.tsv")
    failures = read_table(layout.failures)
    if table["status"][0] == "failed":
        assert "deepbet finds" in failures["message"][0]
    else:
        assert "below" in table["flags"][0] or "above" in table["flags"][0]


def brain(real_data: Path) -> nib.Nifti1Image:
    return nib.load(real_data / "oasis20/sub-1003/anat/sub-1003_T1w.nii.gz")


@pytest.mark.slow
def test_a_head_scaled_to_three_quarters_and_one_with_a_hole_are_flagged(real_data: Path, tmp_path: Path) -> None:
    whole = brain(real_data)
    data = np.asarray(whole.dataobj).astype(np.float32)
    small = nib.Nifti1Image(data.astype(np.int16), whole.affine @ np.diag([0.75, 0.75, 0.75, 1]))
    inside = np.argwhere(data > 0)
    centre = inside.mean(0) + 0.22 * (np.ptp(inside, axis=0) * [1, 0, 0.5])
    away = np.linalg.norm(np.moveaxis(np.indices(data.shape), 0, -1) - centre, axis=-1)
    hole = np.where((away < 15) & (data > 0), 0.25 * np.median(data[data > 0]), data)  # 14 ml, dark as fluid
    images = []
    for name, image in (("small", small), ("hole", nib.Nifti1Image(hole.astype(np.int16), whole.affine))):
        image.set_sform(image.affine, 1)
        image.set_qform(image.affine, 1)
        image.to_filename(tmp_path / f"{name}.nii.gz")
        images.append(tmp_path / f"{name}.nii.gz")
    images.append(Path(whole.get_filename()))
    flags = read_table(register(tmp_path / "out", images, 2.0).group / "registration.tsv")["flags"]
    assert "size of the head against the template" in flags[0]
    assert "brain volume" in flags[0]
    assert "part dark as a lesion" in flags[1]
    assert flags.isna()[2]


# Images of other kinds and of others: through the T1w image of the session, or straight in.

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


THROUGH_CONFIG = RegistrationConfig(
    resolution_mm=4.0, brain_extraction="none", bias_correction=False, transform="affine"
)
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
        outcomes, _ = register_scans(work_of_scans(layout, root, THROUGH_CONFIG, executor), scans)
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
    monkeypatch.setattr(scan.transform, "read_affine", lambda _: MOVE)
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
    work = work_of_scans(layout, tmp_path / "in", THROUGH_CONFIG, ThreadPoolExecutor(1))
    job = registration_job(work, shown, "template")
    own, through = job.arguments[0]
    assert (own.source, through.path, through.source) == ("I1.nii.gz", tmp_path / "in/jane_T1w.nii.gz", "")
    assert through.shown == "the T1w image of the session"
    assert {"T1w", "T1w_sidecar", "FLAIR", "FLAIR_rigid"} <= set(job.outputs)
    plain = dataclasses.replace(shown, location=None, image="jane_FLAIR.nii.gz")
    job = registration_job(work, plain, "template")
    assert [one.source for one in job.arguments[0]] == ["jane_FLAIR.nii.gz", "jane_T1w.nii.gz"]


@pytest.mark.parametrize(("entry", "same"), [("template", True), ("brain", False)])
def test_what_lies_in_template_space_is_not_placed_again_with_or_without_ants(
    write: Any, phantom: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str, same: bool
) -> None:
    write(phantom, "RAS", "in/a_T1w.nii.gz")
    scan = Scan("sub-a", None, "I1", "a_T1w.nii.gz", entry=entry)
    layout = RunLayout(tmp_path / "out")
    layout.root.mkdir()
    work = work_of_scans(layout, tmp_path / "in", THROUGH_CONFIG, ThreadPoolExecutor(1))
    with_ants = registration_job(work, scan, "template").key
    monkeypatch.setitem(sys.modules, "ants", None)
    assert (registration_job(work, scan, "template").key == with_ants) is same


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
    config = dataclasses.replace(THROUGH_CONFIG, brain_extraction=method)
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
