r"""Volumes of atlas regions in a scan, from the volume change of its registration.

The registration maps template to scan; its Jacobian determinant J says how many mm³ of the scan one mm³ of the
template becomes. Over a region R of the atlas, with voxels of volume v,

.. math:: V = v \sum_{x \in R} J(x),

the volume in the scan of what the registration maps to R ("modulated" volume; Ashburner & Friston 2000,
doi:10.1006/nimg.2000.0582, tensor-based morphometry). It needs no segmentation, but is only as accurate as the
registration.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def region_volumes(
    log_jacobian: np.ndarray, labels: np.ndarray, numbers: Iterable[int], voxel_mm3: float
) -> dict[int, float]:
    """Volume of each region in the scan.

    Parameters
    ----------
    log_jacobian : numpy.ndarray
        (X, Y, Z), natural logarithm of the Jacobian determinant of the whole map template -> scan, affine part
        included (`pipeline.registration.volumes.jacobian.log_jacobian`).
    labels : numpy.ndarray
        Whole numbers >= 0 on the same grid of template space.
    numbers : iterable of int
        Regions; the result keeps their order.
    voxel_mm3 : float
        Volume of a voxel of that grid in mm³.

    Returns
    -------
    dict of int to float
        mm³ in the scan; NaN for a region without a voxel on this grid.

    Raises
    ------
    ValueError
        If the two images differ in shape.

    Examples
    --------
    A scan twice as long as the template along every axis holds eight times the volume:

    >>> labels = np.array([[[1, 1, 2]]])
    >>> region_volumes(np.full(labels.shape, 3 * np.log(2)), labels, [1, 2, 7], 1.0)
    {1: 16.0, 2: 8.0, 7: nan}
    """
    if log_jacobian.shape != labels.shape:
        raise ValueError(f"images of different shape: {log_jacobian.shape} and {labels.shape}")
    wanted = [int(number) for number in numbers]
    inside = labels > 0
    present = labels[inside]
    size = max([0, *wanted, int(present.max(initial=0))]) + 1
    sums = np.bincount(present, weights=np.exp(log_jacobian[inside].astype(np.float64)), minlength=size)
    counts = np.bincount(present, minlength=size)
    # Further digits depend on the order of summation.
    return {n: round(float(sums[n]) * voxel_mm3, 3) if counts[n] else float("nan") for n in wanted}
