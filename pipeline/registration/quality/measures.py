"""Global measures of registration quality.

One is the largest part of a registered brain that is dark where the template is not: a lesion, a hole, a misplacement.
Old lesions, resections and image defects are dark in T1-weighted images. Bright parts are not searched: tissue where
the template has fluid is normal in the young, whose ventricles are narrow.
"""

from __future__ import annotations

import numpy as np
import scipy.ndimage

BINS = 32
SMOOTHING_MM = 3.0
"""Standard deviation of the smoothing: borders a few millimetres out of place average away, a lesion does not."""
RIM_MM = 6.0
"""Excluded along the edge of the mask, where differences come from brain extraction."""
THRESHOLD = 1.3
"""In standard deviations of the template brain."""


def assess(
    brain: np.ndarray,
    mask: np.ndarray,
    template_brain: np.ndarray,
    template_mask: np.ndarray,
    determinant: np.ndarray,
    displacement: np.ndarray,
    linear: np.ndarray,
    voxel_mm: float,
) -> dict[str, float]:
    """Columns of ``registration.tsv`` of one registered scan, on one template grid of voxels of `voxel_mm`.

    `determinant` (X, Y, Z) is the Jacobian determinant of the warp, `displacement` (X, Y, Z, 3) its displacement in mm,
    and `linear` the 3x3 linear part of the affine map template -> scan.
    """
    inside = determinant[template_mask]
    seen, expected = brain[template_mask], template_brain[template_mask]
    lengths = np.linalg.norm(linear, axis=0)
    return {
        "correlation": correlation(seen, expected),
        "normalised_mutual_information": mutual_information(seen, expected),
        "dice": dice(mask, template_mask),
        "min_jacobian": float(inside.min()),
        "nonpositive_jacobian_share": float(np.mean(inside <= 0)),
        "affine_residual_mm": float(np.sqrt(np.mean(np.sum(displacement[template_mask].astype(np.float64) ** 2, -1)))),
        "rotation_degrees": rotation_angle(linear),
        "scale": float(np.cbrt(abs(np.linalg.det(linear)))),
        "scale_x": float(lengths[0]),
        "scale_y": float(lengths[1]),
        "scale_z": float(lengths[2]),
        "dark_ml": dark_volume(brain, template_brain, template_mask, voxel_mm),
        "outside_share": outside_share(mask, template_mask),
    }


def mutual_information(first: np.ndarray, second: np.ndarray) -> float:
    """Normalised mutual information (H(A) + H(B)) / H(A, B), from a histogram of 32 x 32 bins of equal counts.

    Bins of equal counts (ranks) make it insensitive to bright outliers and to monotone changes of contrast.
    scikit-image's ``normalized_mutual_information`` has bins of equal width, nearly all of which are empty if one
    vessel is bright.

    >>> values = np.arange(3200.0)
    >>> round(mutual_information(values, values**3), 6)
    2.0
    >>> mutual_information(values, np.ones(3200))
    1.0
    """
    joint = np.histogram2d(_bins(first), _bins(second), bins=BINS, range=[[0, BINS], [0, BINS]])[0] / first.size
    whole = _entropy(joint)
    return (_entropy(joint.sum(0)) + _entropy(joint.sum(1))) / whole if whole > 0 else 1.0


def _bins(values: np.ndarray) -> np.ndarray:
    """Number of each value's bin; equal values share one."""
    edges = np.quantile(values, np.arange(1, BINS) / BINS)
    return np.searchsorted(edges, values, side="right") + 0.5


def _entropy(shares: np.ndarray) -> float:
    filled = shares[shares > 0]
    return float(-(filled * np.log(filled)).sum())


def correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Pearson correlation of two sets of values; 0 if one of them is constant.

    >>> round(correlation(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0])), 6)
    1.0
    """
    a = first.astype(np.float64).ravel()
    b = second.astype(np.float64).ravel()
    a, b = a - a.mean(), b - b.mean()
    scale = np.sqrt(a @ a) * np.sqrt(b @ b)
    return float(np.clip(a @ b / scale, -1, 1)) if scale > 0 else 0.0


def dice(first: np.ndarray, second: np.ndarray) -> float:
    """Dice coefficient of two masks; 0 if both are empty."""
    total = int(first.sum()) + int(second.sum())
    return float(2 * int((first & second).sum()) / total) if total else 0.0


def outside_share(mask: np.ndarray, template_mask: np.ndarray) -> float:
    """Share of a mask that lies outside the template's; 0 for an empty one.

    >>> outside_share(np.array([True, True, True, True]), np.array([True, True, True, False]))
    0.25
    """
    return float((mask & ~template_mask).sum() / max(int(mask.sum()), 1))


def rotation_angle(linear: np.ndarray) -> float:
    """Angle in degrees of the rotation in a 3x3 map, by polar decomposition, after any reflection is taken out."""
    left, _, right = np.linalg.svd(np.asarray(linear, dtype=np.float64))
    rotation = left @ np.diag([1, 1, np.linalg.det(left @ right)]) @ right
    return float(np.degrees(np.arccos(np.clip((np.trace(rotation) - 1) / 2, -1, 1))))


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
    parts, count = scipy.ndimage.label(inner & (smooth < -THRESHOLD))
    largest = int(np.bincount(parts.ravel())[1:].max()) if count else 0
    return largest * voxel_mm**3 * 1e-3


def _matched(values: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """`values` replaced, rank by rank, by those of `reference`; tied values get the mean."""
    ordered = np.sort(reference).astype(np.float64)
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    means = (sums[ends] - sums[ends - counts]) / counts
    return np.asarray(means[place], dtype=np.float32)
