"""Numbers that say how well a scan lies on the template."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RegistrationQuality:
    """Quality of one registration; see `QUALITY_COLUMNS`."""

    correlation: float
    dice: float
    min_jacobian: float
    nonpositive_jacobian_share: float
    rotation_degrees: float
    scale: float


QUALITY_COLUMNS = {
    "correlation": "Pearson correlation of the registered brain with the template brain inside the template's mask",
    "dice": "Dice coefficient of the registered brain mask with the template's mask",
    "min_jacobian": "Smallest Jacobian determinant of the nonlinear warp inside the template's mask; <= 0 = folding",
    "nonpositive_jacobian_share": "Share of the template's mask where that determinant is <= 0",
    "rotation_degrees": "Angle of the rotation between template and scan",
    "scale": "Cube root of the determinant of the affine map template -> scan; > 1 = the head is larger",
}


def assess(
    brain: np.ndarray,
    mask: np.ndarray,
    template_brain: np.ndarray,
    template_mask: np.ndarray,
    determinant: np.ndarray,
    linear: np.ndarray,
) -> RegistrationQuality:
    """All quality numbers of one registered scan.

    Parameters
    ----------
    brain, template_brain : numpy.ndarray
        (X, Y, Z), intensities on one grid, background 0.
    mask, template_mask : numpy.ndarray
        (X, Y, Z), bool.
    determinant : numpy.ndarray
        (X, Y, Z), Jacobian determinant of the warp.
    linear : numpy.ndarray
        3x3, linear part of the affine map template -> scan.
    """
    inside = determinant[template_mask]
    return RegistrationQuality(
        correlation=correlation(brain[template_mask], template_brain[template_mask]),
        dice=dice(mask, template_mask),
        min_jacobian=float(inside.min()),
        nonpositive_jacobian_share=float(np.mean(inside <= 0)),
        rotation_degrees=rotation_angle(linear),
        scale=float(np.cbrt(abs(np.linalg.det(linear)))),
    )


def correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Pearson correlation of two sets of values; 0 if one of them is constant.

    Examples
    --------
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


def rotation_angle(linear: np.ndarray) -> float:
    """Angle in degrees of the rotation in a linear map, from its polar decomposition.

    Parameters
    ----------
    linear : numpy.ndarray
        3x3; a reflection is taken out first, so that the result is a proper rotation.
    """
    left, _, right = np.linalg.svd(np.asarray(linear, dtype=np.float64))
    rotation = left @ np.diag([1, 1, np.linalg.det(left @ right)]) @ right
    return float(np.degrees(np.arccos(np.clip((np.trace(rotation) - 1) / 2, -1, 1))))
