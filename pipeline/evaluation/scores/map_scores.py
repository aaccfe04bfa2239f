"""One map against one mask: every localisation score, in one row; and the scores of a set of such rows.

A score that needs positive values is n/a for a map without any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heatlas.pipeline.evaluation.scores.boxes import (
    THRESHOLDS,
    attended_box,
    best_iou,
    box_accuracy,
    boxes_of,
    saliency_metric,
    threshold_ious,
    union_of,
)
from heatlas.pipeline.evaluation.scores.hits import is_undefined, pointing, require_two_kinds
from heatlas.pipeline.evaluation.scores.overlap import IOU_THRESHOLDS, Bools, energy_share, f1, held_out_ious, iou_curve
from heatlas.pipeline.run.errors import BadInputError

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
    """`MAP_SCORES` of one map, and what `set_scores` needs of it.

    Parameters
    ----------
    values : array, shape (D, H, W)
        Signed; positive speaks for the class.
    mask : array of bool, shape (D, H, W)
        Where the truth is.
    inside : array of bool, shape (D, H, W), optional
        The brain. Voxels outside it are left out of the scores by voxel; boxes are drawn on the whole grid, of what
        lies inside.
    recognised : bool
        Whether the scan was classified correctly, for OM.
    probability : float, optional
        For SM; see `pipeline.evaluation.scores.boxes.saliency_metric`.

    Returns
    -------
    dict
        Values of `MAP_SCORES`, `IOU_COLUMNS` and `BOX_COLUMNS`; NaN where the map is undefined.

    Raises
    ------
    BadInputError
        For shapes that differ, or a mask without voxels or without others.
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
    """`SET_SCORES` of the maps of some people.

    Parameters
    ----------
    rows : pandas.DataFrame
        One row of `score_map` per map.
    people : sequence of str
        Whose map each is.
    """
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
