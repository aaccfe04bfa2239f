"""Volume of a grey-matter region without the fluid that registration includes in it.

A warp only partly follows a shrunken hippocampus, so the label extends into the ventricle beside it. Voxels darker than
halfway between fluid and the region are excluded, which brings the volume closer to manual ones
(docs/benchmarks/registration.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.registration.volumes.region_volumes import region_volumes

FLUID_PERCENTILE = 20.0
"""Of intensities in the ventricles of the atlas; their brighter part is tissue if the warp is too small."""


def tissue_volumes(
    log_jacobian: np.ndarray,
    t1w: np.ndarray,
    labels: np.ndarray,
    regions: Sequence[int],
    ventricles: Sequence[int],
    voxel_mm3: float,
) -> dict[int, float]:
    """Volume of each region in the scan, dark voxels left out.

    Parameters
    ----------
    log_jacobian, labels, voxel_mm3
        As `region_volumes`.
    t1w : numpy.ndarray
        (X, Y, Z), the scan on the same grid; 0 outside the brain.
    regions : sequence of int
        Parts of one structure; they share one threshold.
    ventricles : sequence of int
        Regions of fluid.

    Returns
    -------
    dict of int to float
        mm³; NaN for a region without a voxel, and for all if there is no fluid or it is not darker than the regions.

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
