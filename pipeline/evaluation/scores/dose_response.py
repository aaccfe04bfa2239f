"""Whether evidence in a region rises with the severity of what was planted there; the participant is the unit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heatlas.pipeline.evaluation.scores.intervals import Floats, participant_interval
from heatlas.pipeline.evaluation.scores.rank_correlation import rank_correlation

DRAWS = 500


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


def dose_response(severity: Floats, evidence: Floats, draws: int = DRAWS, seed: int = 0) -> DoseResponse:
    """Rank correlation of severity with evidence over participants.

    Parameters
    ----------
    severity, evidence : array, shape (participants,)
        One scan of each.
    draws : int
        Of the interval; 0 for none.
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
