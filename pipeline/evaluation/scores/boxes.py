"""Box scores of weakly supervised localisation in three dimensions: LE, OM, BA, SP, EP, SM.

True boxes are the bounding boxes of the connected parts of the mask. The box of a map is that of the largest connected
part of the voxels at or above the mean of S (see `pipeline.evaluation.scores.overlap`). Parts are connected through
faces, edges and corners (26 neighbours). The IoU of boxes falls fast in three dimensions: a box that is 10 % too short
on each side has lost half of it.

Sources: Choe et al. 2020 (BA); Dabkowski & Gal 2017 (SM); Zhang et al. 2024 (the set).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import scipy.ndimage
from numpy.typing import NDArray

from heatlas.pipeline.evaluation.scores.overlap import Bools, Floats, scaled

Box = tuple[slice, ...]

THRESHOLDS = tuple(round(0.1 * step, 1) for step in range(10))
"""Thresholds of S at which BA draws a box."""
DELTAS = (0.3, 0.5, 0.7)
"""IoU from which on BA counts a box as right (MaxBoxAccV2)."""
SMALLEST_SHARE = 0.05
"""Share of the volume below which SM does not reward a smaller box."""
ROUNDING = 1e-12
"""A map that is even everywhere must reach its own mean, whatever the rounding of the sum."""
NEIGHBOURS = np.ones((3, 3, 3))


def boxes_of(mask: Bools) -> list[Box]:
    """Bounding boxes of the connected parts of a mask (D, H, W)."""
    parts, _ = scipy.ndimage.label(mask, NEIGHBOURS)
    return list(scipy.ndimage.find_objects(parts))


def largest_box(mask: Bools) -> Box | None:
    """Bounding box of the connected part with most voxels; None for an empty mask."""
    parts, count = scipy.ndimage.label(mask, NEIGHBOURS)
    if not count:
        return None
    largest = int(np.bincount(parts.ravel())[1:].argmax())
    box: Box = scipy.ndimage.find_objects(parts)[largest]
    return box


def attended_box(values: NDArray[np.floating]) -> Box | None:
    """Box of a map: around the largest connected part of the voxels at or above the mean of S."""
    share = scaled(values)
    return largest_box((share > 0) & (share >= share.mean() * (1 - ROUNDING)))


def box_iou(a: Box, b: Box) -> float:
    """Intersection over union of two boxes.

    Examples
    --------
    >>> box_iou((slice(0, 2), slice(0, 2), slice(0, 2)), (slice(1, 3), slice(0, 2), slice(0, 2)))
    0.3333333333333333
    """
    shared = math.prod(max(0, min(p.stop, q.stop) - max(p.start, q.start)) for p, q in zip(a, b, strict=True))
    return float(shared / (box_voxels(a) + box_voxels(b) - shared))


def box_voxels(box: Box) -> int:
    """Voxels in a box."""
    return math.prod(side.stop - side.start for side in box)


def best_iou(box: Box | None, truth: Sequence[Box]) -> float:
    """IoU with the true box that fits best; NaN without a box, which a map without positive values has not."""
    return max((box_iou(box, one) for one in truth), default=0.0) if box is not None else math.nan


def threshold_ious(
    values: NDArray[np.floating], truth: Sequence[Box], thresholds: Sequence[float] = THRESHOLDS
) -> Floats:
    """Best IoU of the box around the largest part of ``S > threshold``, for each threshold; for `box_accuracy`."""
    share = scaled(values)
    return np.array([best_iou(largest_box(share > threshold), truth) for threshold in thresholds])


def box_accuracy(ious: Floats, deltas: Sequence[float] = DELTAS) -> float:
    """BA of a set of maps: share of boxes that are right, at the best threshold for all maps, averaged over deltas.

    For each delta one threshold serves all maps (Choe et al. 2020), so that a single map has no BA of its own. NaN
    without a map that has boxes.

    Parameters
    ----------
    ious : array, shape (maps, thresholds)
        One row of `threshold_ious` per map; NaN for a map without boxes, which is left out.
    deltas : sequence of float

    Examples
    --------
    >>> box_accuracy(np.array([[0.6, 0.0], [0.0, 0.4]]), deltas=(0.3, 0.5))
    0.5
    """
    found = np.asarray(ious, dtype=np.float64)
    found = found[np.isfinite(found).all(axis=1)]
    return float(np.mean([(found >= delta).mean(axis=0).max() for delta in deltas])) if len(found) else math.nan


def union_of(boxes: Sequence[Box], shape: tuple[int, ...]) -> Bools:
    """Voxels that lie in any of the boxes."""
    inside = np.zeros(shape, dtype=bool)
    for box in boxes:
        inside[box] = True
    return inside


def saliency_metric(box: Box | None, voxels: int, probability: float | None) -> float:
    """``SM = log max(0.05, share of the volume in the box) - log p``; smaller is better; NaN without either.

    Parameters
    ----------
    box : tuple of slice or None
        Box of the map.
    voxels : int
        Voxels of the volume.
    probability : float or None
        Probability of the class explained, where the network sees the part of the volume inside the box.

    Examples
    --------
    >>> saliency_metric((slice(0, 1), slice(0, 1), slice(0, 10)), 100, 1.0) == math.log(0.1)
    True
    """
    if box is None or probability is None or not probability > 0:
        return math.nan
    return math.log(max(SMALLEST_SHARE, box_voxels(box) / voxels)) - math.log(probability)
