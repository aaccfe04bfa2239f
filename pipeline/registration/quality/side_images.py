"""The asymmetry of each registered scan as a file, and what the scans of a run say of each other's sides."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import scipy.ndimage

from heatlas.atlases.brain_box import brain_box
from heatlas.atlases.spaces import Grid, template_grid
from heatlas.atlases.templates import load_template, span_of, template_on
from heatlas.pipeline.registration.ants_transform import Volume, read_displacement
from heatlas.pipeline.registration.images.preparation import on_grid
from heatlas.pipeline.registration.quality.sides import VOXEL_MM, Halves, Sides, asymmetry, compare_sides, halves_of
from heatlas.pipeline.run.config.images import DEFAULT_TEMPLATE


def write_asymmetry(
    path: Path, t1w: Path, resolution_mm: float, inverse_warp: Path | None = None, template: str = DEFAULT_TEMPLATE
) -> None:
    """Write the `asymmetry` of a registered scan (``.npy``), with the warp taken back if there is one."""
    image: Any = nib.load(t1w)
    grid = _symmetric(template)
    values = on_grid(Volume(np.asarray(image.dataobj, dtype=np.float32), image.affine), grid)
    if inverse_warp is not None:
        values = without_warp(values, grid, read_displacement(inverse_warp), _box_affine(resolution_mm, template))
    np.save(path, asymmetry(values, _halves(template)), allow_pickle=False)


def without_warp(values: np.ndarray, grid: Grid, inverse: np.ndarray, affine: np.ndarray) -> np.ndarray:
    """The image W of a scan after affine map and warp as it was after the affine map alone: W(y + w(y)).

    `values` are (X, Y, Z) on `grid`; `inverse` holds the displacements w of the inverse warp, (X', Y', Z', 3), in mm,
    on a grid of `affine`. Outside that grid nothing is displaced.
    """
    points = _moved(grid.affine, np.moveaxis(np.indices(grid.shape), 0, -1))
    places = np.moveaxis(_moved(np.linalg.inv(affine), points), -1, 0)
    moved = [
        points[..., axis] + scipy.ndimage.map_coordinates(inverse[..., axis], places, order=1) for axis in range(3)
    ]
    voxels = np.moveaxis(_moved(np.linalg.inv(grid.affine), np.stack(moved, -1)), -1, 0)
    return np.asarray(scipy.ndimage.map_coordinates(values, voxels, order=1), dtype=np.float32)


def _moved(affine: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Points (..., 3) under an affine map."""
    return np.asarray(points @ affine[:3, :3].T + affine[:3, 3])


class _StoredArrays(Sequence[np.ndarray]):
    """Arrays that are read when they are asked for."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, place: Any) -> Any:
        return np.load(self._paths[place], allow_pickle=False)


def sides_of(paths: Sequence[Path]) -> Sides:
    """What can be said about the sides of scans, from their files of `write_asymmetry`."""
    return compare_sides(_StoredArrays(paths))


def _symmetric(template: str) -> Grid:
    """Coarse grid of a template, symmetric about x = 0."""
    first, last = span_of(template)
    reach = VOXEL_MM * (max(-first[0], last[0]) // VOXEL_MM)
    return template_grid(VOXEL_MM, ((-reach, *first[1:]), (reach, *last[1:])))


@functools.cache
def _halves(template: str) -> Halves:
    brain = template_on(_symmetric(template), template)
    return halves_of(np.asarray(brain.brain_mask), brain.grid.affine)


@functools.cache
def _box_affine(resolution_mm: float, template: str) -> np.ndarray:
    brain = load_template(resolution_mm, template)
    return brain_box(brain).grid(brain.grid).affine
