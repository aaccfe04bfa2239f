"""The largest part of a registered brain that is dark where the template is not: a lesion, a hole, a misplacement.

Old lesions, resections and image defects are dark in T1-weighted images. Bright parts are not searched: tissue where
the template has fluid is normal in the young, whose ventricles are narrow.
"""

from __future__ import annotations

import numpy as np
import scipy.ndimage

SMOOTHING_MM = 3.0
"""Standard deviation of the smoothing: borders a few millimetres out of place average away, a lesion does not."""
RIM_MM = 6.0
"""Excluded along the edge of the mask, where differences come from brain extraction."""
THRESHOLD = 1.3
"""In standard deviations of the template brain."""


def dark_volume(brain: np.ndarray, template_brain: np.ndarray, mask: np.ndarray, voxel_mm: float) -> float:
    """Volume in ml of template space of the largest connected part that is much darker than the template.

    The intensities of the brain are first matched to those of the template by rank, so that contrast and scanner do not
    matter.
    """
    expected = template_brain[mask]
    spread = float(expected.std())
    if spread == 0:
        return 0.0
    difference = np.zeros(mask.shape, dtype=np.float32)
    difference[mask] = (_matched(brain[mask], expected) - expected) / spread
    sigma = SMOOTHING_MM / voxel_mm
    share = scipy.ndimage.gaussian_filter(mask.astype(np.float32), sigma, mode="constant")
    smooth = scipy.ndimage.gaussian_filter(difference, sigma, mode="constant") / np.maximum(share, np.float32(1e-3))
    inner = scipy.ndimage.binary_erosion(mask, iterations=max(round(RIM_MM / voxel_mm), 1))
    return _largest_body(inner & (smooth < -THRESHOLD)) * voxel_mm**3 * 1e-3


def _matched(values: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """`values` replaced, rank by rank, by those of `reference`; tied values get the mean."""
    ordered = np.sort(reference).astype(np.float64)
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    means = (sums[ends] - sums[ends - counts]) / counts
    return np.asarray(means[place], dtype=np.float32)


def _largest_body(voxels: np.ndarray) -> int:
    parts, count = scipy.ndimage.label(voxels)
    return int(np.bincount(parts.ravel())[1:].max()) if count else 0
