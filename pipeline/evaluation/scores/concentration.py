"""How concentrated a map is: Gini index (sparseness) and Shannon entropy of its positive part.

Neither asks whether the map is right. Bounds over n voxels: an even map has Gini 0 and entropy log2 n; a single voxel
has (n - 1) / n and 0. Sources: Chalasani et al. 2020 (Gini), Bhatt et al. 2020 (entropy).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from heatlas.pipeline.evaluation.scores.overlap import positive


def gini(values: NDArray[np.floating]) -> float:
    """``sum_i (2 i - n - 1) a_(i) / (n sum a)`` of the positive part, ascending; NaN where nothing is positive.

    Examples
    --------
    >>> gini(np.array([1.0, 1.0, 1.0])), gini(np.array([0.0, 0.0, 0.0, 2.0]))
    (0.0, 0.75)
    """
    part = np.sort(positive(values), axis=None)
    n, total = part.size, part.sum()
    if not total > 0:
        return math.nan
    return float(max(0.0, (2 * np.arange(1, n + 1) - n - 1) @ (part / total) / n))


def entropy(values: NDArray[np.floating]) -> float:
    """``- sum p log2 p`` of the positive part scaled to sum 1, in bits; NaN where nothing is positive.

    Examples
    --------
    >>> entropy(np.ones(8)), entropy(np.array([0.0, 5.0]))
    (3.0, 0.0)
    """
    part = positive(values)
    total = part.sum()
    if not total > 0:
        return math.nan
    share = part[part > 0] / total
    return float(max(0.0, -(share * np.log2(share)).sum()))
