"""Grids that catch swapped axes: unequal sides, every orientation, oblique; and how large labels are on them."""

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from heatlas.atlases.spaces import Grid


def oriented(grid: Grid, axes: str) -> Grid:
    """The same voxels stored in another order, e.g. ``"PSR"``."""
    image = nib.Nifti1Image(np.zeros(grid.shape, np.uint8), grid.affine)
    turn = nib.orientations.ornt_transform(nib.io_orientation(grid.affine), nib.orientations.axcodes2ornt(axes))
    return Grid.of(image.as_reoriented(turn))


def rotation(x: float, y: float, z: float) -> np.ndarray:
    """Rotation about the three axes, radians, as 3x3."""
    cx, cy, cz = np.cos([x, y, z])
    sx, sy, sz = np.sin([x, y, z])
    about_x = np.array([[1, 0, 0], [0, cx, -sx], [0, sx, cx]])
    about_y = np.array([[cy, 0, sy], [0, 1, 0], [-sy, 0, cy]])
    about_z = np.array([[cz, -sz, 0], [sz, cz, 0], [0, 0, 1]])
    return about_z @ about_y @ about_x


def oblique(grid: Grid, angles: tuple[float, float, float]) -> Grid:
    """A grid turned about its centre, of the same shape and voxel size."""
    affine = grid.affine.copy()
    affine[:3, :3] = rotation(*angles) @ affine[:3, :3]
    centre = (np.array(grid.shape) - 1) / 2
    affine[:3, 3] = grid.to_world(centre) - affine[:3, :3] @ centre
    return Grid(grid.shape, affine)


def small_grid() -> Grid:
    """7x9x11 voxels of 2, 3 and 1.5 mm around the origin, RAS."""
    affine = np.diag([2.0, 3.0, 1.5, 1.0])
    affine[:3, 3] = [-6.0, -12.0, -7.5]
    return Grid((7, 9, 11), affine)


def label_volumes_mm3(labels: NDArray[np.integer], grid: Grid) -> dict[int, float]:
    """Volume of each label that has a voxel, by number."""
    numbers, counts = np.unique(labels[labels > 0], return_counts=True)
    return {int(n): int(c) * grid.voxel_volume_mm3 for n, c in zip(numbers, counts, strict=True)}
