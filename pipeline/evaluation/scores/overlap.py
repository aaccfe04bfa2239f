"""How much of a map lies in a mask, how well its extent fits the mask, and how concentrated it is.

Only positive attribution counts here, ``A+ = max(A, 0)``. ``S = A+ / max A+`` lies in [0, 1]. In three dimensions the
truth is a mask, so EPG, IoU and F1 use the mask itself. A map without positive values has no score (NaN).

Concentration (Gini index, Shannon entropy) does not ask whether the map is right. Bounds over n voxels: an even map has
Gini 0 and entropy log2 n; a single voxel has (n - 1) / n and 0.

Sources: EPG (Wang et al. 2020); IoU, with the threshold of other people's maps (Rao et al. 2023); F1 of saliency
(Achanta et al. 2009; Zhang et al. 2024, Opti-CAM); Gini (Chalasani et al. 2020); entropy (Bhatt et al. 2020).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
IOU_THRESHOLDS = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Thresholds of S that an IoU chooses from: finer near 0, since one voxel may be far above all others."""
HALF = 0.5


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
    """EPG: share of positive attribution in the mask; NaN where nothing is positive.

    A map that is even everywhere gets the share of voxels that the mask takes up.

    Examples
    --------
    >>> energy_share(np.array([3.0, 1.0, -9.0]), np.array([True, False, False]))
    0.75
    """
    part = positive(values)
    total = part.sum()
    return float(part[mask].sum() / total) if total > 0 else float("nan")


def intersection_over_union(values: NDArray[np.floating], mask: Bools, threshold: float = HALF) -> float:
    """IoU of the mask with the voxels where ``S >= threshold`` and S > 0; NaN where nothing is positive, or for NaN.

    Examples
    --------
    >>> intersection_over_union(np.array([4.0, 2.0, 1.0, 0.0]), np.array([True, False, True, False]))
    0.3333333333333333
    """
    return float(iou_curve(values, mask, (threshold,))[0])


def iou_curve(values: NDArray[np.floating], mask: Bools, thresholds: Sequence[float] = IOU_THRESHOLDS) -> Floats:
    """`intersection_over_union` at each threshold."""
    share = scaled(values)
    if not share.any() or np.isnan(thresholds).any():
        return np.full(len(thresholds), np.nan)
    chosen = [(share >= threshold) & (share > 0) for threshold in thresholds]
    return np.array([(one & mask).sum() / (one | mask).sum() for one in chosen])


def best_threshold(maps: Iterable[NDArray[np.floating]], masks: Iterable[Bools]) -> float:
    """The one of `IOU_THRESHOLDS` with the largest mean IoU over maps of people who are not scored; NaN without any.

    Examples
    --------
    >>> best_threshold([np.array([4.0, 0.9, 0.3, 0.0])], [np.array([True, True, False, False])])
    0.1
    """
    place = best_place([iou_curve(values, mask) for values, mask in zip(maps, masks, strict=True)])
    return float("nan") if place is None else IOU_THRESHOLDS[place]


def best_place(curves: ArrayLike) -> int | None:
    """Place of the largest mean of curves (maps, thresholds), the first of equal ones; None if no curve is known."""
    found = np.asarray(curves, dtype=np.float64).reshape(-1, len(IOU_THRESHOLDS))
    found = found[np.isfinite(found).all(axis=1)]
    return int(found.mean(axis=0).argmax()) if len(found) else None


def held_out_ious(curves: Floats, people: Sequence[str]) -> Floats:
    """IoU of each map at the threshold that is best for the maps of all other people; NaN if there are none.

    `curves`: (maps, thresholds), one `iou_curve` per map. `people`: whose maps they are.
    """
    owner = np.asarray(people)
    places = {one: best_place(curves[owner != one]) for one in set(people)}
    return np.array(
        [np.nan if (place := places[one]) is None else curve[place] for one, curve in zip(people, curves, strict=True)]
    )


def f1(values: NDArray[np.floating], mask: Bools) -> float:
    """``2 P R / (P + R)`` with ``P = sum over mask of S / sum of S`` and ``R = sum over mask of S / voxels of mask``.

    1 if and only if S is the mask; NaN where nothing is positive.

    Examples
    --------
    >>> f1(np.array([1.0, 1.0, 0.0]), np.array([True, False, False]))
    0.6666666666666666
    """
    share = scaled(values)
    inside = share[mask].sum()
    if inside == 0:
        return 0.0 if share.any() else float("nan")
    precision, recall = inside / share.sum(), inside / mask.sum()
    return float(2 * precision * recall / (precision + recall))


def ratio_of(wrong: float, right: float) -> float:
    """``wrong / right``; infinite where only `right` is 0, NaN where both are."""
    if right > 0:
        return wrong / right
    return float("inf") if wrong > 0 else float("nan")


def gini(values: NDArray[np.floating]) -> float:
    """``sum_i (2 i - n - 1) a_(i) / (n sum a)`` of the positive part, ascending; NaN where nothing is positive.

    Examples
    --------
    >>> gini(np.array([1.0, 1.0, 1.0])), gini(np.array([0.0, 0.0, 0.0, 2.0]))
    (0.0, 0.75)
    """
    part = np.sort(positive(values), axis=None)
    n, total = part.size, part.sum()
    if not total > 0:
        return math.nan
    return float(max(0.0, (2 * np.arange(1, n + 1) - n - 1) @ (part / total) / n))


def entropy(values: NDArray[np.floating]) -> float:
    """``- sum p log2 p`` of the positive part scaled to sum 1, in bits; NaN where nothing is positive.

    Examples
    --------
    >>> entropy(np.ones(8)), entropy(np.array([0.0, 5.0]))
    (3.0, 0.0)
    """
    part = positive(values)
    total = part.sum()
    if not total > 0:
        return math.nan
    share = part[part > 0] / total
    return float(max(0.0, -(share * np.log2(share)).sum()))
