"""Bootstrap interval of a number that has one value per participant.

`scipy.stats.bootstrap` draws rows, and here a row is a participant. (Statistics of weighted scans have their own
bootstrap in `pipeline.statistics`, which this room does not import.)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]
DRAWS = 1000
"""Usual number of bootstrap draws."""
FEWEST = 3
"""Participants below which there is no interval."""


def participant_interval(
    samples: tuple[Floats, ...], statistic: Callable[..., float], draws: int, seed: int, confidence: float = 0.95
) -> tuple[float, float]:
    """BCa interval of a statistic; percentile where BCa is not defined, or the statistic does not exist in some draws.

    `samples`: (participants,), several are drawn together. `statistic`: statistic of the drawn samples. Draws in which
    it does not exist (NaN) are left out. Returns NaN for fewer than three participants, where all draws are the same
    (an interval without width would claim certainty), and where the statistic does not exist in half of the draws or
    more.

    Examples
    --------
    >>> participant_interval((np.array([1.0, 1.0, 1.0]),), np.mean, 100, 0)
    (nan, nan)
    """
    if len(samples[0]) < FEWEST:
        return float("nan"), float("nan")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # degenerate draws: the interval is NaN and is told by that
        found = stats.bootstrap(
            samples, statistic, n_resamples=draws, paired=len(samples) > 1, vectorized=False,
            confidence_level=confidence, method="BCa", random_state=np.random.default_rng(seed),
        )  # fmt: skip
    low, high = found.confidence_interval
    values = np.asarray(found.bootstrap_distribution, dtype=np.float64)
    known = values[np.isfinite(values)]
    if len(known) > len(values) / 2 and not (len(known) == len(values) and np.isfinite([low, high]).all()):
        low, high = np.quantile(known, [(1 - confidence) / 2, (1 + confidence) / 2])
    return (float(low), float(high)) if low < high else (float("nan"), float("nan"))
