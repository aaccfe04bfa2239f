"""When a test or an interval of means needs a caveat, since values may be skewed.

Skewness of a sample of few is no guide to that of the population, and of all rows those whose sample looks least skewed
are the most often wrong. So groups have the caveat by design, where one is small, and by kind of value, where most
values are the same (no relevance at all); see docs/benchmarks/statistics.md for the rates with and without it.
"""

from __future__ import annotations

import numpy as np

from heatlas.pipeline.statistics.arrays import Flags, Floats, Indices

VERY_SKEWED, FEW = 1.0, 30
"""Skewness of fewer than `FEW` values above which p of a mean is too small: a caveat is due."""
FEW_OF_GROUP = 80
"""People in the smallest group below which p and intervals of a difference are too small where values are skewed and
groups differ in spread: with 30 and 90 lognormal values of SD 2:1 p of 5 % came up in 8 %."""
SMALL_GROUPS = "a group has fewer than {} participants: if values are skewed and groups differ in spread, {}"
MOSTLY_ALIKE = "most values of a group are the same: {}"
OF_P = "p may be too small, and so may family-wise, FDR and adjusted p"
OF_RANKS = "by ranks p may be too small if groups differ in spread alone"
OF_FAMILY, OF_INTERVAL = "family-wise p may be too small", "the interval may be too narrow"


def skewed_and_few(skewness: Floats, n: int) -> Flags:
    """Columns whose n values are skewed and few; False where skewness is NaN."""
    return np.asarray((np.abs(skewness) > VERY_SKEWED) & (n < FEW), dtype=bool)


def caveat_of_size(groups: Indices, what: str) -> str | None:
    """Caveat of a difference of groups (participants,) where one is small; `what` may be wrong then."""
    few = np.unique(groups, return_counts=True)[1].min() < FEW_OF_GROUP
    return SMALL_GROUPS.format(FEW_OF_GROUP, what) if few else None


def caveats_of_groups(values: Floats, groups: Indices, what: str = OF_P) -> list[str | None]:
    """Caveat of a difference of groups in each column of values (participants, columns), or None.

    Examples
    --------
    >>> two = np.arange(320.0).reshape(160, 2)
    >>> caveats_of_groups(two, np.repeat([0, 1], [79, 81]))[0][:38]
    'a group has fewer than 80 participants'
    >>> caveats_of_groups(two, np.repeat([0, 1], 80))
    [None, None]
    """
    members = [values[groups == group] for group in np.unique(groups)]
    small, said = caveat_of_size(groups, what), []
    for column in range(values.shape[1]):
        most = [np.unique(own[:, column], return_counts=True)[1].max() / len(own) for own in members]
        said.append(MOSTLY_ALIKE.format(what) if max(most) > 0.5 else small)
    return said
