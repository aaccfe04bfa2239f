"""Intensity inhomogeneity of the receive coil."""

from __future__ import annotations

import math

import numpy as np

from pipeline.registration.ants_transform import Volume, require_one_thread, to_ants

FIELD_VOXEL_MM = 4.0
"""The field is estimated on voxels of at least this size; it varies over centimetres."""


def correct_bias_field(volume: Volume, mask: np.ndarray) -> np.ndarray:
    """Divide an image by its bias field, estimated inside a mask.

    N4 (Tustison et al. 2010, doi:10.1109/TMI.2010.2046908) with the default parameters of ANTs; voxels outside the mask
    are divided by the same smooth field.
    """
    require_one_thread()
    import ants

    shrink = math.ceil(FIELD_VOXEL_MM / float(volume.voxel_sizes.min()) - 1e-3)
    field = ants.n4_bias_field_correction(
        to_ants(volume),
        mask=to_ants(Volume(mask, volume.affine)),
        shrink_factor=shrink,
        return_bias_field=True,
    ).numpy()
    return np.asarray(volume.data / np.maximum(field, np.float32(1e-3)), dtype=np.float32)
