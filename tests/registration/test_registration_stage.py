"""The stage as the workflow runs it: worker processes, receipts, failures, tables, and real scans in doubt."""

from __future__ import annotations

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
from carried_labels import dice_per_label, warp_labels
from registration_phantom import TEMPLATE_TO_SCAN

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.spaces import template_grid
from heatlas.atlases.templates import load_template
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.registration.stage import REGISTRATION_TABLE, register_scans
from heatlas.pipeline.run.config.settings import RegistrationConfig
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.executors import open_executor
from tests.registration.work_of_scans import work_of_scans

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
