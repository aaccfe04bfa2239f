"""How much of a map lies in a mask, and how well its extent fits the mask.

Only positive attribution counts here, ``A+ = max(A, 0)``. ``S = A+ / max A+`` lies in [0, 1]. In three dimensions the
truth is a mask, so EPG, IoU and F1 use the mask itself.

Source: EPG (Wang et al. 2020); F1 of saliency (Achanta et al. 2009; Zhang et al. 2024, Opti-CAM).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


def positive(values: NDArray[np.floating]) -> Floats:
    """``max(A, 0)`` in float64."""
    return np.maximum(np.asarray(values, dtype=np.float64), 0)


def scaled(values: NDArray[np.floating]) -> Floats:
    """``A+ / max A+``; all zero where nothing is positive.

    Examples
    --------
    >>> scaled(np.array([-1.0, 1.0, 4.0])).tolist()
    [0.0, 0.25, 1.0]
    """
    part = positive(values)
    top = part.max()
    return part / top if top > 0 else part


def energy(values: NDArray[np.floating]) -> Floats:
    """``A+ / sum A+``, whose sum over a mask is the EPG; all zero where nothing is positive.

    Examples
    --------
    >>> energy(np.array([3.0, 1.0, -9.0])).tolist()
    [0.75, 0.25, 0.0]
    """
    part = positive(values)
    total = part.sum()
    return part / total if total > 0 else part


def energy_share(values: NDArray[np.floating], mask: Bools) -> float:
    """EPG: share of positive attribution in the mask; 0 where nothing is positive.

    A map that is even everywhere gets the share of voxels that the mask takes up.

    Examples
    --------
    >>> energy_share(np.array([3.0, 1.0, -9.0]), np.array([True, False, False]))
    0.75
    """
    part = positive(values)
    total = part.sum()
    return float(part[mask].sum() / total) if total > 0 else 0.0


def intersection_over_union(values: NDArray[np.floating], mask: Bools, threshold: float = 0.5) -> float:
    """IoU of the mask with the voxels where ``S >= threshold``; 0 where nothing is positive.

    Examples
    --------
    >>> intersection_over_union(np.array([4.0, 2.0, 1.0, 0.0]), np.array([True, False, True, False]))
    0.3333333333333333
    """
    share = scaled(values)
    chosen = (share >= threshold) & (share > 0)
    return float((chosen & mask).sum() / (chosen | mask).sum())


def f1(values: NDArray[np.floating], mask: Bools) -> float:
    """``2 P R / (P + R)`` with ``P = sum over mask of S / sum of S`` and ``R = sum over mask of S / voxels of mask``.

    1 if and only if S is the mask.

    Examples
    --------
    >>> f1(np.array([1.0, 1.0, 0.0]), np.array([True, False, False]))
    0.6666666666666666
    """
    share = scaled(values)
    inside = share[mask].sum()
    if inside == 0:
        return 0.0
    precision, recall = inside / share.sum(), inside / mask.sum()
    return float(2 * precision * recall / (precision + recall))


def ratio_of(wrong: float, right: float) -> float:
    """``wrong / right``; infinite where only `right` is 0, NaN where both are."""
    if right > 0:
        return wrong / right
    return float("inf") if wrong > 0 else float("nan")
