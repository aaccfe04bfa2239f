r"""Volumes of atlas regions in a scan, from the volume change of its registration.

The registration maps template to scan; its Jacobian determinant J says how many mm³ of the scan one mm³ of the
template becomes. Over a region R of the atlas, with voxels of volume v,

.. math:: V = v \sum_{x \in R} J(x),

the volume in the scan of what the registration maps to R ("modulated" volume; Ashburner & Friston 2000,
doi:10.1006/nimg.2000.0582, tensor-based morphometry). It needs no segmentation, but is only as accurate as the
registration.

A warp only partly follows a shrunken hippocampus, so the label extends into the ventricle beside it. Voxels darker than
halfway between fluid and the region are excluded from the volume of its tissue, which brings it closer to manual ones
(docs/benchmarks/registration.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

FLUID_PERCENTILE = 20.0
"""Percentile of the intensities in the atlas's ventricles; the brighter part is tissue if the warp is too small."""


def region_volumes(
    log_jacobian: np.ndarray, labels: np.ndarray, numbers: Iterable[int], voxel_mm3: float
) -> dict[int, float]:
    """Volume of each region in the scan.

    `log_jacobian`: (X, Y, Z), natural logarithm of the Jacobian determinant of the whole map template -> scan, affine
    part included (`pipeline.registration.volumes.jacobian.log_jacobian`). `labels`: whole numbers >= 0 on the same grid
    of template space. `numbers`: regions; the result keeps their order. `voxel_mm3`: volume of a voxel of that grid in
    mm³. Returns mm³ in the scan; NaN for a region without a voxel on this grid. Raises ValueError if the two images
    differ in shape.

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


def tissue_volumes(
    log_jacobian: np.ndarray,
    t1w: np.ndarray,
    labels: np.ndarray,
    regions: Sequence[int],
    ventricles: Sequence[int],
    voxel_mm3: float,
) -> dict[int, float]:
    """Volume of each region in the scan, dark voxels left out.

    `log_jacobian`, `labels`, `voxel_mm3`: as `region_volumes`. `t1w`: (X, Y, Z), the scan on the same grid; 0 outside
    the brain. `regions`: parts of one structure; they share one threshold. `ventricles`: regions of fluid. Returns mm³;
    NaN for a region without a voxel, and for all if there is no fluid or it is not darker than the regions.

    Examples
    --------
    Fluid has 10, tissue 50: the voxel with 20 is fluid, the one with 40 tissue.

    >>> labels, t1w = np.array([[[1, 1, 1, 1, 9, 9]]]), np.array([[[50.0, 50.0, 40.0, 20.0, 10.0, 10.0]]])
    >>> tissue_volumes(np.zeros(labels.shape), t1w, labels, [1], [9], 1.0)
    {1: 3.0}
    """
    tissue, fluid = t1w[np.isin(labels, regions)], t1w[np.isin(labels, ventricles) & (t1w > 0)]
    if not tissue.size or not fluid.size or np.percentile(fluid, FLUID_PERCENTILE) >= np.median(tissue):
        return dict.fromkeys(regions, float("nan"))
    threshold = (np.percentile(fluid, FLUID_PERCENTILE) + np.median(tissue)) / 2
    return region_volumes(log_jacobian, np.where(t1w > threshold, labels, 0), regions, voxel_mm3)
