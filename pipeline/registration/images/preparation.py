"""Prepare an image for registration: axis order, margin, resolution and bias field."""

from __future__ import annotations

import math

import nibabel as nib
import numpy as np
import scipy.ndimage

from heatlas.atlases.spaces import Grid
from heatlas.pipeline.registration.ants_transform import Volume, require_one_thread, to_ants

FIELD_VOXEL_MM = 4.0
"""The field is estimated on voxels of at least this size; it varies over centimetres."""


def closest_ras(volume: Volume) -> Volume:
    """Flip and swap the axes of an array so that they run as closely as possible to right, front and up.

    No value is interpolated. ITK's results depend slightly on the order of axes (correlation 0.98 between registrations
    of the same head stored in two orders, at 4 mm), so all scans get the same order.
    """
    order = nib.io_orientation(volume.affine)  # type: ignore[no-untyped-call]
    data = nib.apply_orientation(volume.data, order)  # type: ignore[no-untyped-call]
    inverse = nib.orientations.inv_ornt_aff(order, volume.data.shape)  # type: ignore[no-untyped-call]
    return Volume(np.ascontiguousarray(data), volume.affine @ inverse)


def around_brain(volume: Volume, mask: np.ndarray, margin_mm: float) -> Volume:
    """Crop or pad with 0 to the box of a mask plus a margin, so that the original margin does not matter.

    ITK ignores points outside the moving image; a tightly cropped brain would let the template extend
    beyond its edge at no cost.
    """
    inside = np.nonzero(mask)
    margin = np.ceil(margin_mm / volume.voxel_sizes).astype(int)
    start = np.array([axis.min() for axis in inside]) - margin
    stop = np.array([axis.max() + 1 for axis in inside]) + margin
    box = np.zeros(stop - start, dtype=volume.data.dtype)
    low, high = np.maximum(start, 0), np.minimum(stop, volume.data.shape)
    source = tuple(slice(a, b) for a, b in zip(low, high, strict=True))
    target = tuple(slice(a, b) for a, b in zip(low - start, high - start, strict=True))
    box[target] = volume.data[source]
    affine = volume.affine.copy()
    affine[:3, 3] = (volume.affine @ np.append(start, 1))[:3]
    return Volume(box, affine)


def coarsen(volume: Volume, voxel_mm: float) -> Volume:
    r"""Resample to `voxel_mm` along every axis that is finer; other axes do not change.

    Before sampling, a Gaussian takes the resolution from voxel size s to t: its full width at half maximum is
    :math:`\sqrt{t^2 - s^2}` (Cardoso et al. 2015, doi:10.1007/978-3-319-24571-3_81). The field of view keeps its
    centre.
    """
    sizes = volume.voxel_sizes
    wanted = np.where(sizes < voxel_mm * (1 - 1e-3), voxel_mm, sizes)
    factor = wanted / sizes
    if np.allclose(factor, 1):
        return volume
    full_width = np.sqrt(wanted**2 - sizes**2) / sizes
    smooth = scipy.ndimage.gaussian_filter(volume.data, full_width / np.sqrt(8 * np.log(2)), mode="nearest", truncate=3)
    old = np.array(volume.data.shape)
    new = np.maximum(np.ceil(old / factor), 1).astype(int)
    offset = ((old - 1) - (new - 1) * factor) / 2
    data = scipy.ndimage.affine_transform(smooth, np.diag(factor), offset, tuple(new), order=1, mode="nearest")
    scaling = np.diag(np.append(factor, 1.0))
    scaling[:3, 3] = offset
    return Volume(data, volume.affine @ scaling)


def on_grid(volume: Volume, grid: Grid) -> np.ndarray:
    """Linear interpolation on a grid of the same space, after smoothing to its voxel size; 0 outside the image."""
    smooth = coarsen(volume, min(grid.voxel_sizes_mm))
    to_source = np.linalg.inv(smooth.affine) @ grid.affine
    values = scipy.ndimage.affine_transform(
        smooth.data, to_source[:3, :3], to_source[:3, 3], grid.shape, order=1, mode="grid-constant"
    )
    return np.asarray(values, dtype=np.float32)


def correct_bias_field(volume: Volume, mask: np.ndarray) -> np.ndarray:
    """Divide an image by its bias field, estimated inside a mask.

    N4 (Tustison et al. 2010, doi:10.1109/TMI.2010.2046908) with the default parameters of ANTs; voxels outside the mask
    are divided by the same smooth field.
    """
    require_one_thread()
    import ants

    shrink = math.ceil(FIELD_VOXEL_MM / float(volume.voxel_sizes.min()) - 1e-3)
    field = ants.n4_bias_field_correction(
        to_ants(volume), mask=to_ants(Volume(mask, volume.affine)), shrink_factor=shrink, return_bias_field=True
    ).numpy()
    return np.asarray(volume.data / np.maximum(field, np.float32(1e-3)), dtype=np.float32)
