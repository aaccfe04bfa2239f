"""Harrell's concordance: the share of comparable pairs that the predictor orders correctly.

A pair is comparable if the earlier of its two times is an event; with equal times, if one is an event and the other is
censored. Ties of the predictor count one half. The area under the ROC curve is the same quantity over other pairs (each
positive with each negative), so one formula over a matrix of pairs gives both. Why not a library: neither scipy nor
statsmodels has it, and lifelines and scikit-survival do not take bootstrap weights.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heatlas.pipeline.statistics.arrays import Floats

Pairs = Floats

CHANCE = 0.5


def comparable_pairs(time: Floats, event: NDArray[np.bool_]) -> Pairs:
    """1 where the event of row i is known to precede that of column j, else 0; shape (n, n).

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
    """Share of pairs in which the higher predictor has the earlier event, (draws,); NaN without a pair.

    `predictor` (n,): higher means sooner; `pairs` (n, n) from `comparable_pairs` or `class_pairs`; `weights` (draws,
    n): count of each participant, 1 by default.
    """
    counted = np.ones((1, len(predictor))) if weights is None else weights
    right = ((counted @ (pairs * orders(predictor))) * counted).sum(axis=1)
    total = ((counted @ pairs) * counted).sum(axis=1)
    share: Floats = np.divide(right, total, out=np.full(len(counted), np.nan), where=total > 0)
    return share


def permuted_concordance(predictor: Floats, pairs: Pairs, rows: NDArray[np.integer]) -> Floats:
    """Concordance of the predictor permuted by each of `rows` (m, n)."""
    order, first, second = orders(predictor), *np.nonzero(pairs)
    result = np.full(len(rows), np.nan)
    if len(first):
        for place, permuted in enumerate(rows):
            result[place] = order[permuted[first], permuted[second]].mean()
    return result
