"""One value per atlas region against the regions in which disease was planted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from heatlas.pipeline.evaluation.scores.hits import auprc, auroc, hits_in_first, is_undefined, require_two_kinds
from heatlas.pipeline.run.errors import BadInputError

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
