"""Choice among trainings by several measures, of which none is worth more than the others."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LARGEST_DROP = 0.05
"""Of accuracy that a choice may cost, as in the source."""


def pareto_front(values: Floats) -> NDArray[np.bool_]:
    """Which candidates no other one dominates: is at least as good in every measure, and better in one.

    Source: Rao et al. 2023, sec. 5, who choose by F1, EPG and IoU.

    Parameters
    ----------
    values : array, shape (candidates, measures)
        Higher is better.

    Returns
    -------
    array of bool, shape (candidates,)
        Of equal candidates, all or none. It holds the best of each measure.

    Examples
    --------
    >>> pareto_front(np.array([[0.9, 0.1], [0.8, 0.6], [0.7, 0.5], [0.6, 0.7]])).tolist()
    [True, True, False, True]
    """
    no_worse = (values[:, None] >= values[None]).all(2)
    dominates = no_worse & (values[:, None] > values[None]).any(2)
    return np.asarray(~dominates.any(0))


def chosen(accuracy: Floats, epg: Floats, iou: Floats, control: int, drop: float = LARGEST_DROP) -> int:
    """The member of the Pareto set with the highest EPG among those whose accuracy is at most `drop` below the control.

    All values are those of a validation part that is distributed as the training part: a choice by the shift that a
    test looks for would leak it. The control itself may be chosen. EPG alone must never choose: a network that finds
    one class only can have the highest.

    Parameters
    ----------
    accuracy, epg, iou : array, shape (candidates,)
    control : int
        Place of the control, trained as long without maps.

    Examples
    --------
    >>> chosen(np.array([0.9, 0.87, 0.5]), np.array([0.1, 0.6, 0.9]), np.array([0.1, 0.1, 0.1]), control=0)
    1
    """
    allowed = pareto_front(np.stack([accuracy, epg, iou], 1)) & (accuracy >= accuracy[control] - drop)
    allowed[control] |= not allowed.any()
    return int(np.where(allowed, epg, -np.inf).argmax())
