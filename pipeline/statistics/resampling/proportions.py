"""Intervals of shares that the bootstrap is blind to: nobody, or everybody.

Where all participants are right, every draw of them is, and the bootstrap's interval has no width however few they are.
The exact interval of a binomial share (Clopper & Pearson 1934, Biometrika 26:404-413) has: of five out of five, 48 to
100 %. The participant is the unit: someone with several scans, all right, counts once.
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
