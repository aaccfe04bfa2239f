"""The choice among trainings whose maps and whose accuracy both count.

Source: Rao et al. 2023, sec. 5, who keep what no other training dominates in F1, EPG and IoU on the validation part,
and show the highest EPG that costs at most five points of F1. (Their code rounds values to .005 first; here none is
rounded.)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LARGEST_DROP = 0.05
"""Of accuracy that a choice may cost, as in the source."""
EQUAL = 1e-9
"""Difference of two accuracies that is rounding."""


def pareto_front(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which candidates no other one dominates: is at least as good in every measure, and better in one.

    Parameters
    ----------
    values : array, shape (candidates, measures)
        Higher is better; NaN, a measure that is not defined, is worse than any number.

    Returns
    -------
    array of bool, shape (candidates,)
        Of equal candidates, all or none. It holds the best of each measure.

    Examples
    --------
    >>> pareto_front(np.array([[0.9, 0.1], [0.8, 0.6], [0.7, 0.5], [0.6, 0.7]])).tolist()
    [True, True, False, True]
    """
    known = np.where(np.isnan(values), -np.inf, values)
    no_worse = (known[:, None] >= known[None]).all(2)
    dominates = no_worse & (known[:, None] > known[None]).any(2)
    return np.asarray(~dominates.any(0))


def chosen(accuracy: NDArray[np.float64], maps: NDArray[np.float64], control: int, drop: float = LARGEST_DROP) -> int:
    """The member of the Pareto set with the best maps among those whose accuracy is at most `drop` below the control.

    All values are those of a validation part that is distributed as the training part: a choice by the shift that a
    test looks for would leak it. The control itself may be chosen. Maps alone must never choose: a network that finds
    one class only can have the best.

    Parameters
    ----------
    accuracy : array, shape (candidates,)
    maps : array, shape (candidates, measures)
        Measures of maps, such as EPG and IoU; the first decides, and among equal ones the first candidate.
    control : int
        Place of the control, trained as long without maps.

    Examples
    --------
    >>> chosen(np.array([0.9, 0.87, 0.5]), np.array([[0.1, 0.1], [0.6, 0.1], [0.9, 0.1]]), control=0)
    1
    """
    allowed = pareto_front(np.column_stack([accuracy, maps])) & (accuracy >= accuracy[control] - drop - EQUAL)
    allowed[control] |= not allowed.any()
    deciding = np.nan_to_num(maps[:, 0], nan=np.finfo(float).min)
    return int(np.where(allowed, deciding, -np.inf).argmax())
