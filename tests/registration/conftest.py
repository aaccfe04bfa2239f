"""Fixtures of this room."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import scipy.ndimage
from registration_phantom import BALL_MM, BALL_RADIUS_MM, TEMPLATE_TO_SCAN

from heatlas.atlases.spaces import template_grid
from heatlas.atlases.templates import Template, load_template
from heatlas.pipeline.registration.ants_transform import THREADS_VARIABLE


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(THREADS_VARIABLE, "1")


@pytest.fixture(scope="session")
def template() -> Template:
    return load_template(4.0)


@pytest.fixture(scope="session")
def phantom() -> Any:
    """The template brain moved by `TEMPLATE_TO_SCAN`, with a bright ball on its left; RAS, 3 mm, 65 x 77 x 63."""
    source = load_template(3.0)
    grid = template_grid(3.0)
    to_world = np.stack(np.meshgrid(*[np.arange(n) for n in grid.shape], indexing="ij"), -1)
    distance = np.linalg.norm(to_world @ grid.affine[:3, :3].T + grid.affine[:3, 3] - BALL_MM, axis=-1)
    values = np.where((distance < BALL_RADIUS_MM) & source.brain_mask, np.float32(140), source.t1w)
    shape = (65, 77, 63)
    affine = np.diag([3.0, 3.0, 3.0, 1.0])
    affine[:3, 3] = (-97.0, -125.0, -82.0)
    to_source = np.linalg.inv(grid.affine) @ np.linalg.inv(TEMPLATE_TO_SCAN) @ affine
    moved = scipy.ndimage.affine_transform(values, to_source[:3, :3], to_source[:3, 3], shape, order=1)
    moved[moved < 8] = 0
    return nib.Nifti1Image(np.round(moved).astype(np.int16), affine)


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Writes an image in an orientation and gives its path."""

    def save(image: Any, axes: str = "RAS", name: str = "scan.nii.gz") -> Path:
        to_ras = nib.io_orientation(image.affine)
        wanted = nib.orientations.axcodes2ornt(axes)
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        reoriented = image.as_reoriented(nib.orientations.ornt_transform(to_ras, wanted))
        reoriented.set_sform(reoriented.affine, 1)
        reoriented.set_qform(reoriented.affine, 1)
        reoriented.to_filename(path)
        return path

    return save
