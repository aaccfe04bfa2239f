"""Exact intervals of proportions of 0 or 1, for which the bootstrap interval has no width.

If all participants are classified correctly, so is every bootstrap sample. The exact binomial interval (Clopper &
Pearson 1934, Biometrika 26:404-413) still has a width: 48 to 100 % for five out of five. The participant is the unit:
someone with several correct scans counts once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from scipy.stats import binomtest

from pipeline.statistics.resampling.bootstrap import Intervals

EXACT = "Clopper-Pearson"
INTERVAL_OF_SHARES = (
    "BCa or percentile bootstrap interval; Clopper-Pearson, over participants, for a share of 0 or 1, where the "
    "bootstrap has no width; none where there is none"
)
"""What a column ``interval`` of a table with shares holds."""


def with_exact_shares(found: Intervals, shares: Mapping[int, tuple[float, int]], confidence: float) -> Intervals:
    """The intervals, those of shares of 0 or 1 replaced by exact ones.

    Parameters
    ----------
    found : Intervals
    shares : mapping of int to (float, int)
        Of numbers in `found` that are shares: estimate, and participants that it rests on. Others stay as they are.
    confidence : float

    Examples
    --------
    >>> exact = with_exact_shares(Intervals.absent(1), {0: (1.0, 5)}, 0.95)
    >>> float(exact.low[0].round(3)), float(exact.high[0]), str(exact.method[0])
    (0.478, 1.0, 'Clopper-Pearson')
    """
    low, high, method = found.low.copy(), found.high.copy(), found.method.astype("<U16")
    for place, (share, participants) in shares.items():
        if participants and share in (0.0, 1.0):
            bounds = binomtest(round(share * participants), participants).proportion_ci(confidence, method="exact")
            low[place], high[place], method[place] = bounds.low, bounds.high, EXACT
    return dataclasses.replace(found, low=low, high=high, method=method)
