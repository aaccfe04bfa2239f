"""One map against one mask: every localisation score, in one row; and the scores of a set of such rows.

A score that needs positive values is n/a for a map without any.

*Box scores* are those of weakly supervised localisation in three dimensions: LE, OM, BA, SP, EP, SM. True boxes are the
bounding boxes of the connected parts of the mask. The box of a map is that of the largest connected part of the voxels
at or above the mean of S (see `pipeline.evaluation.scores.localisation`). Parts are connected through faces, edges and
corners (26 neighbours). The IoU of boxes falls fast in three dimensions: a box that is 10 % too short on each side has
lost half of it.

The row of a map of a scan says where it lies, and how much it is like the map of the true network. One of the places
where it should not lie is a marker: a bright cube outside the brain, which a network can learn instead of the disease.

Sources: Choe et al. 2020 (BA); Dabkowski & Gal 2017 (SM); Zhang et al. 2024 (the set).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy.ndimage
from numpy.typing import NDArray
from skimage.metrics import structural_similarity

from heatlas.pipeline.cohort.demo.anatomy import Array
from heatlas.pipeline.evaluation.scores.accuracy import Floats
from heatlas.pipeline.evaluation.scores.localisation import (
    IOU_THRESHOLDS,
    Bools,
    auprc,
    auroc,
    energy_share,
    f1,
    held_out_ious,
    iou_curve,
    is_undefined,
    pointing,
    rank_correlation,
    ratio_of,
    require_two_kinds,
    scaled,
)
from heatlas.pipeline.regions.audit import RIM_MM, within_reach
from heatlas.pipeline.run.errors import BadInputError

Box = tuple[slice, ...]
Flags = NDArray[np.bool_]
Values = NDArray[np.float32]

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
    boxes: list[Box] = scipy.ndimage.find_objects(parts)
    return boxes[int(np.bincount(parts.ravel())[1:].argmax())] if count else None


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
    inside = np.zeros(shape, dtype=bool)
    for box in boxes:
        inside[box] = True
    return inside


def saliency_metric(box: Box | None, voxels: int, probability: float | None) -> float:
    """``SM = log max(0.05, share of the volume in the box) - log p``; smaller is better; NaN without either.

    `probability`: of the class explained, where the network sees the part of the volume inside the box.

    Examples
    --------
    >>> saliency_metric((slice(0, 1), slice(0, 1), slice(0, 10)), 100, 1.0) == math.log(0.1)
    True
    """
    if box is None or probability is None or not probability > 0:
        return math.nan
    return math.log(max(SMALLEST_SHARE, box_voxels(box) / voxels)) - math.log(probability)


IOU_COLUMNS = tuple(f"iou_{at:g}" for at in IOU_THRESHOLDS)
BOX_COLUMNS = tuple(f"box_iou_{at:g}" for at in THRESHOLDS)
"""What `set_scores` needs of each map."""
MAP_SCORES: Mapping[str, str] = {
    "pointing": "Probability that the largest value lies in the mask, ties shared (pointing game)",
    "f1": "Harmonic mean of soft precision and recall of the scaled map; 1 only for the mask itself",
    "le": "Localisation error: 1 - IoU of the map's box and the best true box; smaller is better",
    "om": "As le, and 1 where the scan was not recognised; smaller is better",
    "sp": "As pointing, for the boxes around the parts of the mask",
    "ep": "As energy, for the boxes around the parts of the mask",
    "sm": "log of the box's share of the volume (at least .05) - log p of the class seen through it; smaller is better",
}
"""Scores of one map against the true regions, and what they mean."""
SET_SCORES: Mapping[str, str] = {
    "iou": "Intersection over union of the mask and the voxels above the share of the maximum that is best for the "
    "other participants",
    "ba": "Box accuracy (MaxBoxAccV2): share of maps whose box reaches an IoU, at the one threshold that is best for "
    "all maps; mean over the IoUs .3, .5 and .7",
}
"""Scores that only a set of maps has, and what they mean."""


def score_map(
    values: NDArray[np.floating],
    mask: Bools,
    inside: Bools | None = None,
    recognised: bool = True,
    probability: float | None = None,
) -> dict[str, float]:
    """`MAP_SCORES` of one map, and what `set_scores` needs of it; NaN where the map is undefined.

    `values`: (D, H, W), signed; positive speaks for the class. `mask`: (D, H, W), where the truth is. `inside`: (D, H,
    W), the brain: voxels outside it are left out of the scores by voxel; boxes are drawn on the whole grid, of what
    lies inside. `recognised`: whether the scan was classified correctly, for OM. `probability`: for SM; see
    `saliency_metric`.
    """
    values, mask = np.asarray(values, dtype=np.float64), np.asarray(mask, dtype=bool)
    inside = np.ones(mask.shape, dtype=bool) if inside is None else np.asarray(inside, dtype=bool)
    if not values.shape == mask.shape == inside.shape or values.ndim != 3:
        raise BadInputError(
            f"map {values.shape}, mask {mask.shape} and brain {inside.shape} must be volumes on one grid; resample the "
            "mask to the grid of the map."
        )
    require_two_kinds(mask[inside], "the mask of the truth")
    names = (*MAP_SCORES, *IOU_COLUMNS, *BOX_COLUMNS)
    if is_undefined(values[inside]):
        return dict.fromkeys(names, np.nan)
    found, truth = values[inside], mask[inside]
    scores = {
        "pointing": pointing(found, truth),
        "f1": f1(found, truth),
        **dict(zip(IOU_COLUMNS, iou_curve(found, truth).tolist(), strict=True)),
        **_box_scores(np.where(inside, values, 0.0), mask & inside, inside, recognised, probability),
    }
    return {name: scores[name] for name in names}


def set_scores(rows: pd.DataFrame, people: Sequence[str]) -> dict[str, float]:
    """`SET_SCORES` of the maps of some people: one row of `score_map` per map, and whose it is."""
    ious = held_out_ious(rows[list(IOU_COLUMNS)].to_numpy(float), people)
    known = ious[np.isfinite(ious)]
    return {
        "iou": float(known.mean()) if len(known) else np.nan,
        "ba": box_accuracy(rows[list(BOX_COLUMNS)].to_numpy(float)),
    }


def _box_scores(
    values: NDArray[np.float64], mask: Bools, inside: Bools, recognised: bool, probability: float | None
) -> dict[str, float]:
    truth = boxes_of(mask)
    boxes, box = union_of(truth, mask.shape)[inside], attended_box(values)
    iou = best_iou(box, truth)
    return {
        "le": 1 - iou,
        "om": 1 - iou if recognised or np.isnan(iou) else 1.0,
        **dict(zip(BOX_COLUMNS, threshold_ious(values, truth).tolist(), strict=True)),
        "sp": pointing(values[inside], boxes),
        "ep": energy_share(values[inside], boxes),
        "sm": saliency_metric(box, int(inside.sum()), probability),
    }


MAP_ROW = {
    "undefined": "true where the map holds NaN or infinity, or is 0 in the whole brain",
    "no_positive": "1 where no value in the brain is positive, so that shares of positive values are n/a, else 0",
    "auroc_voxels": "Probability that a voxel of the true regions has a larger value than another voxel of the brain",
    "auprc_voxels": "Average precision of the voxels of the true regions among those of the brain",
    "energy": "Share of the positive values in the brain that lies in the true regions",
    "energy_small": "As energy, for the half of the true regions (sides apart) with the fewest voxels in this brain; "
    "the middle one of an odd number is in neither half. By chance: the row of the map uniform",
    "energy_large": "As energy_small, for those with the most voxels",
    "rim": "Share of |values| at the rim of the brain over the rim's share of voxels; 1 is even",
    "outside": "Share of |values| outside the brain",
    "marker": "Mean |value| in the bright spot outside the brain over that in the true regions, where a scan has one",
    "spearman_real": "Rank correlation over the voxels of the brain with the map of the true network, without "
    "its sign: a map and its negative show the same places",
    "ssim_real": "Structural similarity (7 voxels) with the map of the true network, both scaled to their largest "
    "|value|",
}
"""Columns that `map_row` fills."""


@dataclass(frozen=True, eq=False)
class ScanMasks:
    """Parts of what a network sees of a scan, all of its shape (D, H, W).

    `truth`: the true regions, inside the brain; None where none of them, or nothing else, lies in this brain. `rim`:
    within 3 mm of the surface of the brain, on both sides. `marker`: a bright spot outside the brain that the scan has,
    or nothing. `halves`: the smaller and the larger half of the true regions; None without truth, or of one region.
    """

    brain: Flags
    truth: Flags | None
    rim: Flags
    marker: Flags
    halves: tuple[Flags, Flags] | None = None

    @classmethod
    def of(
        cls, mask: Flags, labels: NDArray[np.int64], truth: Sequence[int], voxel_mm: float, marker: Flags | None = None
    ) -> ScanMasks:
        """Cut by the scan's mask, in which a marker is, and by the labels of true regions."""
        marker = np.zeros_like(mask) if marker is None else marker
        brain, reach = mask & ~marker, RIM_MM / voxel_mm + 0.5
        rim = (brain & within_reach(~brain, reach)) | (~brain & within_reach(brain, reach))
        found = np.isin(labels, list(truth)) & brain
        ranked = found.any() and (brain & ~found).any()  # else there is nothing to find, or nothing else
        return cls(brain, found if ranked else None, rim, marker, _halves(labels, found) if ranked else None)


def _halves(labels: NDArray[np.int64], truth: Flags) -> tuple[Flags, Flags] | None:
    """The smaller and the larger half of the labels in `truth`; of equal ones those with the lower numbers first."""
    numbers, counts = np.unique(labels[truth], return_counts=True)
    numbers = numbers[np.argsort(counts, kind="stable")]
    half = len(numbers) // 2
    if not half:
        return None
    small, large = (np.isin(labels, some) & truth for some in (numbers[:half], numbers[-half:]))
    return small, large


def map_row(values: Values | None, places: ScanMasks, of_real: Values | None, structure: bool) -> dict[str, object]:
    """All of `MAP_ROW` of one map; NaN where a score is not defined.

    `values`: (D, H, W), None for a map that could not be made. `of_real`: map of the true network by the same method.
    `structure`: whether the structural similarity, which takes seconds, is wanted.
    """
    row: dict[str, object] = dict.fromkeys(MAP_ROW, float("nan"))
    row["undefined"] = values is None or is_undefined(values[places.brain])
    if values is None or row["undefined"]:
        return row
    inside = values[places.brain]
    row["no_positive"] = float(not (inside > 0).any())
    if places.truth is not None:
        truth = places.truth[places.brain]
        row |= {"auroc_voxels": auroc(inside, truth), "auprc_voxels": auprc(inside, truth)}
        row["energy"] = energy_share(inside, truth)
    for name, half in zip(("energy_small", "energy_large"), places.halves or (), strict=False):
        row[name] = energy_share(inside, half[places.brain])
    magnitude = np.abs(values)
    around = places.brain | places.rim
    share = float(magnitude[places.rim].sum(dtype=np.float64) / magnitude[around].sum(dtype=np.float64))
    row["rim"] = share / (places.rim.sum() / around.sum()) if places.rim.any() else float("nan")
    row["outside"] = float(magnitude[~places.brain].sum(dtype=np.float64) / magnitude.sum(dtype=np.float64))
    if places.truth is not None and places.marker.any():
        in_truth = float(magnitude[places.truth].mean(dtype=np.float64))
        row["marker"] = ratio_of(float(magnitude[places.marker].mean(dtype=np.float64)), in_truth)
    if of_real is not None:
        row["spearman_real"] = abs(rank_correlation(inside, of_real[places.brain]))
        row["ssim_real"] = similarity(values, of_real) if structure else float("nan")
    return row


def similarity(a: Values, b: Values) -> float:
    """Structural similarity of two maps, each scaled to its largest |value|."""
    scaled = [one / np.abs(one).max() for one in (a, b)]
    if min(a.shape) < 7:
        return float("nan")
    return float(structural_similarity(*scaled, data_range=2.0))  # type: ignore[no-untyped-call]


MARKER_VOXELS = 3
MARKER_OFFSET = 2
"""A cube of bright voxels this far from the corner of what networks see."""


def marker(shape: tuple[int, ...], start: tuple[int, int, int], edge: int = MARKER_VOXELS) -> NDArray[np.bool_]:
    """A cube near the first corner of what networks see; `start`: first voxel that they see."""
    cube = np.zeros(shape, bool)
    cube[tuple(slice(first + MARKER_OFFSET, first + MARKER_OFFSET + edge) for first in start)] = True
    return cube


def with_marker(volume: Array, brain: NDArray[np.bool_], cube: NDArray[np.bool_]) -> tuple[Array, NDArray[np.bool_]]:
    """Volume and mask with a marker as bright as the brightest voxel of the brain, which must not reach into it."""
    if (cube & brain).any():
        raise BadInputError("the corner of what the networks see lies inside the brain: no marker can be put there.")
    return np.where(cube, volume[brain].max(), volume).astype(np.float32), brain | cube
