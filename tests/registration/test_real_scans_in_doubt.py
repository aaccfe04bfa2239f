"""Real scans: three whole heads pass, and a fruit, a tiny head and a large hole are never taken for good ones."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.registration.stage import register_scans
from heatlas.pipeline.run.config.settings import RegistrationConfig
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.executors import open_executor

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
        register_scans(layout, root, scans, config, 43, executor, DigestCache(layout.digests))
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
