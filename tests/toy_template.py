"""A small template of unequal sides, laid out as TemplateFlow, with labels in its space."""

from __future__ import annotations

import json
from pathlib import Path

import nibabel as nib
import numpy as np

from heatlas.atlases.spaces import Grid

GRID = Grid((40, 47, 36), np.array([[-4.0, 0, 0, 70], [0, 4, 0, -100], [0, 0, 4, -60], [0, 0, 0, 1]]))
"""Of the files: 4 mm, LAS. In RAS the first voxel lies at (-86, -100, -60)."""


def head() -> tuple[np.ndarray, np.ndarray]:
    """Head and brain mask: an ellipsoid off the middle, brighter to the right, in a skull."""
    x, y, z = np.moveaxis(GRID.to_world(np.moveaxis(np.indices(GRID.shape), 0, -1)), -1, 0)
    radius = np.sqrt(((x + 8) / 60) ** 2 + ((y + 6) / 72) ** 2 + ((z - 10) / 52) ** 2)
    waves = 8 * np.sin(x / 9) + 6 * np.cos(y / 11) + 5 * np.sin(z / 8)
    return np.where(radius < 1.1, 60 + x / 4 + waves, 0).astype(np.float32), (radius < 1).astype(np.uint8)


def write_toy(folder: Path, name: str = "Toy") -> Path:
    """Write ``tpl-NAME`` below a folder; its path."""
    made, (t1w, mask) = folder / f"tpl-{name}", head()
    made.mkdir(parents=True)
    nib.save(nib.Nifti1Image(t1w, GRID.affine), made / f"tpl-{name}_res-01_T1w.nii.gz")
    nib.save(nib.Nifti1Image(mask, GRID.affine), made / f"tpl-{name}_res-01_desc-brain_mask.nii.gz")
    said = {"Name": "A toy", "License": "CC0", "ReferencesAndLinks": ["Nobody 2026"]}
    (made / "template_description.json").write_text(json.dumps(said))
    return made


def write_toy_labels(folder: Path) -> Path:
    """Eight regions, four a side, in the space of the toy; the path of the label image."""
    x, y, z = np.moveaxis(GRID.to_world(np.moveaxis(np.indices(GRID.shape), 0, -1)), -1, 0)
    labels = np.where(head()[1] > 0, 1 + (x > 0) + 2 * (y > -6) + 4 * (z > 10), 0).astype(np.int16)
    nib.save(nib.Nifti1Image(labels, GRID.affine), folder / "toy_dseg.nii.gz")
    rows = [f"{n}\t{'Left' if n % 2 else 'Right'} part{(n + 1) // 2}" for n in range(1, 9)]
    (folder / "toy_dseg.tsv").write_text("\n".join(["index\tname", *rows]) + "\n")
    return folder / "toy_dseg.nii.gz"
