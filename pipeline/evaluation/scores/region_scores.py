"""One value per atlas region against the regions in which disease was planted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from heatlas.pipeline.evaluation.scores.hits import auprc, auroc, hits_in_first, is_undefined, ranked, require_two_kinds
from heatlas.pipeline.run.errors import BadInputError

FIRST = 10
"""Length of the list that is looked at."""

REGION_SCORES: Mapping[str, str] = {
    "undefined": "1 where no region has a value other than 0, or one is infinite: there are no scores",
    "region_auroc": "Probability that a planted region has a larger value than another; chance 0.5",
    "region_auprc": "Average precision of the planted regions; chance is their share of all regions",
    "region_hits": "Planted regions among the first, ties shared",
    "region_hits_expected": "What a random order puts there",
    "region_rank": "Mean rank of the planted regions; 1 is the first, ties share their mean",
}
"""Columns of one row of region scores, and what they mean."""


def region_scores(values: ArrayLike, planted: Sequence[bool], first: int = FIRST) -> dict[str, float]:
    """All scores of `REGION_SCORES` of one ranking.

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
    >>> scores["region_auroc"], scores["region_hits"], scores["region_hits_expected"], scores["region_rank"]
    (1.0, 2.0, 1.0, 1.5)
    """
    from scipy.stats import rankdata

    array, truth = np.asarray(values, dtype=np.float64), np.asarray(planted, dtype=bool)
    if array.shape != truth.shape or array.ndim != 1:
        raise BadInputError(f"{array.shape} values for {truth.shape} regions: give one value per region.")
    require_two_kinds(truth, "the list of planted regions")
    there = array[~np.isnan(array)]
    if is_undefined(there):
        return {name: 1.0 if name == "undefined" else np.nan for name in REGION_SCORES}
    return {
        "undefined": 0.0,
        "region_auroc": auroc(array, truth),
        "region_auprc": auprc(array, truth),
        "region_hits": hits_in_first(array, truth, first),
        "region_hits_expected": min(first, len(array)) * float(truth.mean()),
        "region_rank": float(rankdata(-ranked(array))[truth].mean()),
    }
