"""Whether evidence in a region rises with the severity of what was planted there.

The participant is the unit. Where every participant was planted at several severities, each has a rank correlation of
their own and their mean is the answer; where each has one severity, the correlation runs over participants (their scans
averaged). The interval draws participants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from pipeline.evaluation.scores.intervals import Floats, participant_interval
from pipeline.run.errors import BadInputError

COLUMNS = ("participant_id", "severity", "evidence")


@dataclass(frozen=True)
class DoseResponse:
    """Rank correlation of severity and evidence.

    Parameters
    ----------
    rho : float
        Spearman; NaN without an answer.
    ci_low, ci_high : float
        Bootstrap interval (BCa; percentile where BCa is not defined); NaN for fewer than three participants or where
        all draws are the same.
    within : bool
        Whether it is the mean of one correlation per participant.
    n_participants : int
    n_undefined : int
        Participants whose evidence is missing or the same at every severity; their correlation counts as 0 (`within`).
        Over participants: those without evidence, who have the lowest rank.
    per_participant : mapping of str to float
        Their correlations (`within`); else their evidence.
    """

    rho: float
    ci_low: float
    ci_high: float
    within: bool
    n_participants: int
    n_undefined: int
    per_participant: Mapping[str, float]


def dose_response(table: pd.DataFrame, draws: int = 2000, seed: int = 0, confidence: float = 0.95) -> DoseResponse:
    """Rank correlation of severity with evidence, with a bootstrap interval over participants.

    Parameters
    ----------
    table : pandas.DataFrame
        Columns ``participant_id``, ``severity``, ``evidence`` (NaN where the map is undefined); one row per scan and
        severity.
    draws, seed : int
    confidence : float

    Raises
    ------
    BadInputError
        For a missing column, a severity that is no number, no row, or one severity only.

    Examples
    --------
    >>> rows = [(who, dose, dose * gain) for who, gain in (("a", 1), ("b", 2), ("c", -1)) for dose in (0.0, 0.5, 1.0)]
    >>> answer = dose_response(pd.DataFrame(rows, columns=COLUMNS))
    >>> round(answer.rho, 3), answer.within, answer.n_participants, answer.n_undefined
    (0.333, True, 3, 0)
    """
    _require(table)
    severities = table.groupby("participant_id")["severity"].nunique()
    if (severities > 1).all():
        return _within(table, draws, seed, confidence)
    return _across(table, draws, seed, confidence)


def _within(table: pd.DataFrame, draws: int, seed: int, confidence: float) -> DoseResponse:
    found = {}
    for who, rows in table.groupby("participant_id"):
        found[str(who)] = spearman(rows["severity"].to_numpy(float), rows["evidence"].to_numpy(float))
    each = np.array(list(found.values()))
    undefined = int(np.isnan(each).sum())
    counted = np.nan_to_num(each)
    low, high = participant_interval((counted,), np.mean, draws, seed, confidence)
    return DoseResponse(float(counted.mean()), low, high, True, len(each), undefined, found)


def _across(table: pd.DataFrame, draws: int, seed: int, confidence: float) -> DoseResponse:
    means = table.groupby("participant_id")[["severity", "evidence"]].mean()
    unknown = table["evidence"].isna().groupby(table["participant_id"]).any()
    means["evidence"] = means["evidence"].mask(unknown)
    dose, evidence = means["severity"].to_numpy(float), means["evidence"].to_numpy(float)
    missing = np.isnan(evidence)
    present = evidence[~missing]
    lowest = present.min() - 1 if present.size else 0.0
    counted = np.where(missing, lowest, evidence)
    low, high = participant_interval((dose, counted), spearman, draws, seed, confidence)
    per = dict(zip(map(str, means.index), map(float, evidence), strict=True))
    return DoseResponse(spearman(dose, counted), low, high, False, len(dose), int(missing.sum()), per)


def spearman(a: Floats, b: Floats) -> float:
    """Spearman's rank correlation; NaN where either is the same everywhere or not finite.

    Examples
    --------
    >>> spearman(np.array([1.0, 2.0, 3.0]), np.array([1.0, 4.0, 9.0]))
    1.0
    """
    if not (np.isfinite(a).all() and np.isfinite(b).all()) or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.clip(stats.spearmanr(a, b).statistic, -1, 1))


def _require(table: pd.DataFrame) -> None:
    missing = [name for name in COLUMNS if name not in table.columns]
    if missing:
        raise BadInputError(f"dose-response: the table has no column {missing[0]}; it needs {', '.join(COLUMNS)}.")
    if not len(table):
        raise BadInputError("dose-response: the table has no row.")
    severity = pd.to_numeric(table["severity"], errors="coerce")
    if severity.isna().any():
        row = int(np.flatnonzero(severity.isna())[0])
        raise BadInputError(f"dose-response: row {row}, severity {table['severity'].iloc[row]!r}: must be a number.")
    if severity.nunique() < 2:
        raise BadInputError("dose-response: all rows have the same severity; plant at two or more.")
