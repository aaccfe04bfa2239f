"""Exact intervals of proportions of 0 or 1, for which the bootstrap interval has zero width.

If all participants are classified correctly, so is every bootstrap sample. The exact binomial interval (Clopper &
Pearson 1934, Biometrika 26:404-413) has a positive width: 48 to 100 % for five out of five. The participant is the
unit: one with several correct scans counts once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from scipy.stats import binomtest

from heatlas.pipeline.statistics.resampling.bootstrap import Intervals
from heatlas.pipeline.statistics.resampling.scaled import INTERVAL_OF_SCALED

EXACT = "Clopper-Pearson"
_OF_ENDS = "; Clopper-Pearson (exact, over participants) for a share of 0 or 1; none"
INTERVAL_OF_SHARES = "Kind of interval: BCa or percentile bootstrap" + _OF_ENDS
"""Meaning of a column ``interval`` in a table of conversion."""
INTERVAL_OF_PERFORMANCE = INTERVAL_OF_SCALED + _OF_ENDS
"""The same in a table of performance."""


def with_exact_shares(found: Intervals, shares: Mapping[int, tuple[float, int]], confidence: float) -> Intervals:
    """Replace the intervals of shares of 0 or 1 by exact ones.

    Parameters
    ----------
    shares : mapping of int to (float, int)
        By position in `found`: estimate of a share, and number of participants it is based on.

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
