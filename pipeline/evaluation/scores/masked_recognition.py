"""Recognition of a scan seen through its own map: AD, AG, AI and ADCC.

``p`` is the probability of the class on the scan and ``o`` on the scan masked by `mask_of` its map. AD and AG
are one pair: at most one of them is not 0 for a scan. AI counts only. A map of ones hides nothing and gets 0, 0, 0; a
map that is empty but for a few voxels can do badly by AD and still be right.

ADCC's third term, coherency, is a correlation and may be negative; it is rescaled to (1 + r) / 2 here, so that the
harmonic mean is defined.

Sources: Chattopadhay et al. 2018 (AD, AI); Zhang et al. 2024 (AG); Poppi et al. 2021 (ADCC).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from heatlas.pipeline.evaluation.scores.overlap import Floats, positive

ROUNDINGS = 64
"""A map whose range is at most this many rounding units is even."""
SMALLEST = 1e-6
"""Smallest denominator of AD and AG."""


def mask_of(values: NDArray[np.floating]) -> Floats:
    """The positive part of a map, from its least value to its largest scaled to [0, 1], as CAM methods are.

    Of a map without negative values, which CAM mixtures, RISE and ViT-CX make, the least value hides all. One that is
    even hides nothing, one without positive values everything.

    Examples
    --------
    >>> mask_of(np.array([2.0, 3.0, 6.0])).tolist(), mask_of(np.array([-2.0, 1.0, 4.0])).tolist()
    ([0.0, 0.25, 1.0], [0.0, 0.25, 1.0])
    >>> mask_of(np.array([7.0, 7.0])).tolist(), mask_of(np.array([-7.0, 0.0])).tolist()
    ([1.0, 1.0], [0.0, 0.0])
    """
    part = positive(values)
    low, high = part.min(), part.max()
    if high - low <= ROUNDINGS * np.finfo(np.asarray(values).dtype).eps * high:  # even, but for rounding
        return np.full_like(part, float(high > 0))
    mask: Floats = (part - low) / (high - low)
    return mask


def average_drop(p: float, o: float) -> float:
    """``100 max(p - o, 0) / p``: per cent of the probability that is lost; smaller is better.

    Examples
    --------
    >>> average_drop(0.8, 0.6), average_drop(0.8, 0.9)
    (25.0, 0.0)
    """
    return round(100 * max(p - o, 0.0) / max(p, SMALLEST), 12)


def average_gain(p: float, o: float) -> float:
    """``100 max(o - p, 0) / (1 - p)``: per cent of what could be gained; larger is better.

    Examples
    --------
    >>> average_gain(0.5, 0.75), average_gain(0.5, 0.25)
    (50.0, 0.0)
    """
    return min(100.0, round(100 * max(o - p, 0.0) / max(1 - p, SMALLEST), 12))


def average_increase(p: float, o: float) -> float:
    """100 where the masked scan is recognised better, else 0; the mean is the percentage of scans."""
    return 100.0 if o > p else 0.0


def coherency(values: NDArray[np.floating], of_masked: NDArray[np.floating]) -> float:
    """Pearson correlation of a map with the map of the scan masked by it; NaN where either is even everywhere."""
    a, b = (np.asarray(one, dtype=np.float64).ravel() for one in (values, of_masked))
    a, b = a - a.mean(), b - b.mean()
    size = math.sqrt(float(a @ a) * float(b @ b))
    return float(np.clip(a @ b / size, -1, 1)) if size > 0 else math.nan


def adcc(correlation: float, complexity: float, drop: float) -> float:
    """Harmonic mean of coherency, 1 - complexity and 1 - average drop; in [0, 1], 0 if any is; larger is better.

    Parameters
    ----------
    correlation : float
        As of `coherency`; rescaled to [0, 1] here.
    complexity : float
        Mean of the scaled map, in [0, 1].
    drop : float
        Average drop as a fraction.

    Examples
    --------
    >>> adcc(1.0, 0.0, 0.0), adcc(1.0, 1.0, 0.0), adcc(0.0, 0.5, 0.5)
    (1.0, 0.0, 0.5)
    """
    terms = ((1 + correlation) / 2, 1 - complexity, 1 - drop)
    if any(math.isnan(term) for term in terms):
        return math.nan
    if min(terms) <= 0:
        return 0.0
    return 3 / sum(1 / term for term in terms)
