"""When values are so skewed, and so few, that a test or an interval of means needs a caveat."""

from __future__ import annotations

import numpy as np

from pipeline.statistics.arrays import Flags, Floats, Indices

VERY_SKEWED, FEW = 1.0, 30
"""Skewness of fewer than `FEW` values above which p is too small: a caveat is due."""
UNEQUAL = 2.0
"""Ratio of two groups' standard deviations or sizes above which their skewness does not cancel in the difference."""
SKEWED_GROUPS = (
    f"values are skewed (above {VERY_SKEWED:g}) within groups that differ in {{what}} (above {UNEQUAL:g}:1), the "
    f"smallest of fewer than {FEW}"
)
SKEWED_SPREADS = SKEWED_GROUPS.format(what="SD") + ": p may be too small"
"""Caveat of tests that permute."""


def skewed_and_few(skewness: Floats, n: int) -> Flags:
    """Columns whose n values are skewed and few; False where skewness is NaN."""
    return np.asarray((np.abs(skewness) > VERY_SKEWED) & (n < FEW), dtype=bool)


def skewed_groups(values: Floats, groups: Indices, fold: Indices, permuted: bool) -> Flags:
    """Columns of values (participants, columns) that are skewed, in groups that are small and unequal.

    Permutation is exact for groups alike in distribution, whatever their sizes; a t interval is not. So unequal are
    standard deviations and, unless `permuted`, sizes. False where the skewness of a group is unknown.
    """
    skewness, deviations = skewness_within(values, groups, fold)
    sizes = np.unique(groups, return_counts=True)[1]
    unequal = deviations.max(axis=0) > UNEQUAL * deviations.min(axis=0)
    if not permuted:
        unequal |= sizes.max() > UNEQUAL * sizes.min()
    flagged: Flags = skewed_and_few(skewness, int(sizes.min())) & unequal
    return flagged


def skewness_within(values: Floats, groups: Indices, fold: Indices) -> tuple[Floats, Floats]:
    """Skewness of values (participants, columns) within groups, shape (columns,), and SDs (groups, columns).

    From unbiased third and second cumulants about each group's own mean in each fold (in one fold Fisher's G1), each
    group scaled by its own SD and weighted by its size.
    """
    skewness, deviations, weights = [], [], []
    with np.errstate(divide="ignore", invalid="ignore"):
        for group in np.unique(groups):
            cells = [values[(groups == group) & (fold == one)] for one in np.unique(fold[groups == group])]
            left = np.concatenate([cell - cell.mean(axis=0) for cell in cells])
            n = np.array([len(cell) for cell in cells])
            weights.append(((n - 1) * (n - 2) / n).sum())
            deviations.append(np.sqrt((left**2).sum(axis=0) / (n - 1).sum()))
            skewness.append((left**3).sum(axis=0) / weights[-1] / deviations[-1] ** 3)
        pooled = np.average(skewness, axis=0, weights=weights) if sum(weights) else np.full(values.shape[1], np.nan)
    return pooled, np.array(deviations)
