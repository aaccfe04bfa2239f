"""Local volume change of a displacement field."""

from __future__ import annotations

import numpy as np

SMALLEST_DETERMINANT = 1e-3
"""Lower bound before the logarithm; the share of voxels below 0 is a quality number."""


def jacobian_determinant(displacement: np.ndarray, affine: np.ndarray) -> np.ndarray:
    r"""Jacobian determinant of the map :math:`x \mapsto x + u(x)`.

    With voxel indices v, :math:`x = A v + o` and :math:`G = \partial u / \partial v`,

    .. math:: \det(I + \partial u / \partial x) = \det(I + G A^{-1}) = \det(A + G) / \det A .

    G is taken by central differences (one-sided at the faces).

    `displacement`: (X, Y, Z, 3), mm, world RAS+ components. `affine`: 4x4, voxel indices to world RAS+ in mm. Returns
    (X, Y, Z), float32; 1 = no change, > 1 = the map expands, <= 0 = it folds.
    """
    matrix = np.asarray(affine, dtype=np.float64)[:3, :3]
    # entry[i][k] = A_ik + du_i/dv_k, the matrix whose determinant is wanted, at every voxel
    entry = [[np.gradient(displacement[..., i], axis=k) + np.float32(matrix[i, k]) for k in range(3)] for i in range(3)]
    determinant = (
        entry[0][0] * (entry[1][1] * entry[2][2] - entry[1][2] * entry[2][1])
        - entry[0][1] * (entry[1][0] * entry[2][2] - entry[1][2] * entry[2][0])
        + entry[0][2] * (entry[1][0] * entry[2][1] - entry[1][1] * entry[2][0])
    )
    return np.asarray(determinant / np.linalg.det(matrix), dtype=np.float32)


def log_jacobian(determinant: np.ndarray, linear: np.ndarray) -> np.ndarray:
    r"""Natural logarithm of the volume change of the whole map template -> scan, affine part included.

    The map is :math:`x \mapsto L (x + u(x)) + t`, so its determinant is :math:`\det L \cdot \det(I + \nabla u)`.
    Values > 0 mean that the scan is larger than the template there, and the sum of the exponential over a region
    times the voxel volume is the region's volume in the scan. Subtract ``log(det L)``, three times the logarithm of the
    quality number ``scale``, for the change beyond head size.

    `determinant`: from `jacobian_determinant`; values below `SMALLEST_DETERMINANT` are raised to it. `linear`: 3x3
    matrix L of the affine map template -> scan. Returns float32, shape of `determinant`.
    """
    warp = np.log(np.maximum(determinant, np.float32(SMALLEST_DETERMINANT)))
    return np.asarray(warp + np.float32(np.log(abs(np.linalg.det(linear)))), dtype=np.float32)
