"""Harrell's concordance: of pairs whose order of events is known, the share in which the predictor has it right.

A pair is comparable if the earlier of its two times is an event; with equal times, if one is an event and the other is
censored. Ties of the predictor count one half. The area under a ROC curve is the same number over other pairs (each
positive with each negative), so both come from one formula over a matrix of pairs.

Own code: neither scipy nor statsmodels has it, and lifelines and scikit-survival give no bootstrap over weights.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.statistics.arrays import Floats

Pairs = Floats

CHANCE = 0.5


def comparable_pairs(time: Floats, event: NDArray[np.bool_]) -> Pairs:
    """1 where the event of row i is known to come before that of column j, else 0; shape (n, n).

    Examples
    --------
    >>> comparable_pairs(np.array([1.0, 2.0, 2.0]), np.array([True, False, True])).tolist()
    [[0.0, 1.0, 1.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    earlier = time[:, None] < time
    tied = (time[:, None] == time) & ~event
    pairs: Pairs = (event[:, None] & (earlier | tied)).astype(float)
    return pairs


def class_pairs(positive: NDArray[np.bool_]) -> Pairs:
    """1 for each positive (row) with each negative (column): the pairs of the area under the ROC curve."""
    pairs: Pairs = (positive[:, None] & ~positive).astype(float)
    return pairs


def orders(predictor: Floats) -> Floats:
    """1 where the predictor of row i is above that of column j, one half where equal, else 0."""
    result: Floats = (predictor[:, None] > predictor) + 0.5 * (predictor[:, None] == predictor)
    return result


def concordance(predictor: Floats, pairs: Pairs, weights: Floats | None = None) -> Floats:
    """Share of pairs in which the higher predictor has the earlier event.

    Parameters
    ----------
    predictor : array, shape (n,)
        Higher means sooner.
    pairs : array, shape (n, n)
        From `comparable_pairs` or `class_pairs`.
    weights : array, shape (draws, n), optional
        How often each participant counts; once by default.

    Returns
    -------
    array, shape (draws,)
        NaN without a comparable pair.
    """
    counted = np.ones((1, len(predictor))) if weights is None else weights
    right = ((counted @ (pairs * orders(predictor))) * counted).sum(axis=1)
    total = ((counted @ pairs) * counted).sum(axis=1)
    share: Floats = np.divide(right, total, out=np.full(len(counted), np.nan), where=total > 0)
    return share


def permuted_concordance(predictor: Floats, pairs: Pairs, rows: NDArray[np.integer]) -> Floats:
    """Concordance of every rearrangement of the predictor.

    Parameters
    ----------
    rows : array of int, shape (m, n)
    """
    order, first, second = orders(predictor), *np.nonzero(pairs)
    result = np.full(len(rows), np.nan)
    if len(first):
        for place, permuted in enumerate(rows):
            result[place] = order[permuted[first], permuted[second]].mean()
    return result
