"""Rankings against a truth: whether a map puts true places before the others.

Every score is the mean over all orders of tied values, so that a map that is even everywhere gets what chance gives.
Larger values come first. A place without a value (NaN) comes last.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.metrics import average_precision_score, roc_auc_score

from heatlas.pipeline.evaluation.scores.intervals import Floats
from heatlas.pipeline.run.errors import BadInputError

Bools = NDArray[np.bool_]


def is_undefined(values: ArrayLike) -> bool:
    """Whether a map says nothing: it holds NaN or infinity, or nothing but zeros.

    Examples
    --------
    >>> is_undefined([0.0, 0.0]), is_undefined([1.0, np.nan]), is_undefined([-1.0, 0.0])
    (True, True, False)
    """
    array = np.asarray(values)
    return not (bool(np.isfinite(array).all()) and bool(array.any()))


def require_two_kinds(truth: Bools, what: str) -> None:
    """Refuse a truth that nothing can be ranked against: no true place, or no other.

    Raises
    ------
    BadInputError
        Naming what is empty or full.
    """
    if not truth.any():
        raise BadInputError(f"{what} is empty: there is nothing to find. Check the grid and the labels it was made of.")
    if truth.all():
        raise BadInputError(f"{what} covers everything: no map can do better or worse there. Give a smaller one.")


def ranked(values: ArrayLike) -> Floats:
    """Values as they are ranked: NaN (a place without a value) after all others."""
    array = np.asarray(values, dtype=np.float64)
    return np.where(np.isnan(array), -np.inf, array)


def auroc(values: ArrayLike, truth: Bools) -> float:
    """Probability that a true place has a larger value than another one; ties count half. Chance is 0.5.

    Examples
    --------
    >>> auroc([3.0, 1.0, 2.0, 0.0], np.array([True, False, True, False]))
    1.0
    """
    return float(roc_auc_score(truth.ravel(), _finite(values)))


def auprc(values: ArrayLike, truth: Bools) -> float:
    """Average precision: area under precision against recall. Chance is the share of true places.

    Examples
    --------
    >>> auprc([1.0, 1.0, 1.0, 1.0], np.array([True, False, False, False]))
    0.25
    """
    return float(average_precision_score(truth.ravel(), _finite(values)))


def hits_in_first(values: ArrayLike, truth: Bools, k: int) -> float:
    """Expected number of true places among the `k` largest values, over all orders of ties.

    Examples
    --------
    >>> truth = np.array([True, True, False, False])
    >>> hits_in_first([9.0, 1.0, 1.0, 0.0], truth, 2), hits_in_first([1.0, 1.0, 1.0, 1.0], truth, 2)
    (1.5, 1.0)
    """
    array, found = ranked(values).ravel(), truth.ravel()
    k = min(k, array.size)
    if k < 1:
        return 0.0
    last = np.partition(array, array.size - k)[array.size - k]
    above, tied = array > last, array == last
    return float(found[above].sum() + (k - above.sum()) * found[tied].mean())


def pointing(values: ArrayLike, truth: Bools) -> float:
    """Probability that the largest value lies in a true place; 1 or 0 where it is one place only.

    Usual implementations count a hit if *any* of the tied maxima is inside, by which a map of ones is perfect.
    """
    return hits_in_first(values, truth, 1)


def _finite(values: ArrayLike) -> Floats:
    """Ranked values for scikit-learn, which refuses infinity: NaN goes just below the smallest."""
    array = ranked(values).ravel()
    finite = array[np.isfinite(array)]
    return np.where(np.isfinite(array), array, finite.min() - 1 if finite.size else 0.0)


FIRST = 10
"""Length of the list that is looked at."""


def region_scores(values: ArrayLike, planted: Sequence[bool], first: int = FIRST) -> dict[str, float]:
    """``auroc``, ``auprc`` and ``hits`` of one ranking: `pipeline.evaluation.scores.hits`.

    All are NaN where no region has a value other than 0, or one is infinite.

    Parameters
    ----------
    values : array, shape (regions,)
        NaN for a region without a value, which comes last.
    planted : sequence of bool
        Which regions are the true ones.
    first : int

    Raises
    ------
    BadInputError
        If lengths differ, or no or every region is planted.

    Examples
    --------
    >>> scores = region_scores([5.0, 1.0, 3.0, 2.0], [True, False, True, False], first=2)
    >>> scores["auroc"], scores["hits"]
    (1.0, 2.0)
    """
    array, truth = np.asarray(values, dtype=np.float64), np.asarray(planted, dtype=bool)
    if array.shape != truth.shape or array.ndim != 1:
        raise BadInputError(f"{array.shape} values for {truth.shape} regions: give one value per region.")
    require_two_kinds(truth, "the list of planted regions")
    there = array[~np.isnan(array)]
    if is_undefined(there):
        return dict.fromkeys(("auroc", "auprc", "hits"), np.nan)
    return {
        "auroc": auroc(array, truth), "auprc": auprc(array, truth), "hits": hits_in_first(array, truth, first),
    }  # fmt: skip
