"""Spearman's rank correlation, as every part of the bench computes it; also of evidence with planted severity."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from heatlas.pipeline.evaluation.scores.intervals import Floats, participant_interval

FEWEST = 3
"""Fewest values whose order can be compared."""


def rank_correlation(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    """Spearman's rho; NaN for fewer than `FEWEST` values, and where either is constant or not finite.

    Examples
    --------
    >>> rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([1.0, 4.0, 9.0]))
    1.0
    >>> rank_correlation(np.array([1.0, 2.0]), np.array([1.0, 4.0]))
    nan
    """
    if len(a) < FEWEST or np.ptp(a) == 0 or np.ptp(b) == 0 or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return float("nan")
    return float(np.corrcoef(stats.rankdata(a), stats.rankdata(b))[0, 1].clip(-1, 1))


DRAWS_OF_RANKS = 500


@dataclass(frozen=True)
class DoseResponse:
    """Rank correlation of severity and evidence, with its 95 % bootstrap interval.

    Parameters
    ----------
    rho : float
        Spearman; NaN without an answer.
    low, high : float
        NaN for fewer than three participants, where all draws are the same, and where no interval was asked for.
    """

    rho: float
    low: float = float("nan")
    high: float = float("nan")


def dose_response(severity: Floats, evidence: Floats, draws: int = DRAWS_OF_RANKS, seed: int = 0) -> DoseResponse:
    """Rank correlation of severity with evidence over participants.

    Parameters
    ----------
    severity, evidence : array, shape (participants,)
        One scan of each.
    draws : int
        Bootstrap draws for the interval; 0 for none.
    seed : int

    Examples
    --------
    >>> dose_response(np.array([0.0, 0.5, 1.0]), np.array([1.0, 4.0, 2.0]), draws=0).rho
    0.5
    """
    rho = rank_correlation(severity, evidence)
    if not draws or np.isnan(rho):
        return DoseResponse(rho)
    return DoseResponse(rho, *participant_interval((severity, evidence), rank_correlation, draws, seed))
