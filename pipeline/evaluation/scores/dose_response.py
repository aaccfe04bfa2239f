"""Whether evidence in a region rises with the severity of what was planted there.

The participant is the unit. Where every participant was planted at several severities, each has a rank correlation of
their own and their mean is the answer; where each has one severity, the correlation runs over participants (their scans
averaged). The interval draws participants.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from pipeline.run.errors import BadInputError

Floats = NDArray[np.float64]
COLUMNS = ("participant_id", "severity", "evidence")
FEWEST = 3
"""Participants below which there is no interval."""


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
    low, high = _interval((counted,), np.mean, draws, seed, confidence)
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
    low, high = _interval((dose, counted), spearman, draws, seed, confidence)
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


def _interval(
    samples: tuple[Floats, ...], statistic: object, draws: int, seed: int, confidence: float
) -> tuple[float, float]:
    """Interval of a statistic over participants, by `scipy.stats.bootstrap`; one row per participant is what it is for.

    Draws in which the statistic does not exist (one severity only) are given as 0.
    """
    if len(samples[0]) < FEWEST:
        return float("nan"), float("nan")

    def defined(*drawn: Floats) -> float:
        value = float(statistic(*drawn))  # type: ignore[operator]
        return 0.0 if np.isnan(value) else value

    for method in ("BCa", "percentile"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # degenerate draws: the interval is NaN and is told by that
            interval = stats.bootstrap(
                samples, defined, n_resamples=draws, paired=len(samples) > 1, vectorized=False,
                confidence_level=confidence, method=method, random_state=np.random.default_rng(seed),
            ).confidence_interval  # fmt: skip
        if np.isfinite(interval).all() and interval.low < interval.high:
            return float(interval.low), float(interval.high)
    return float("nan"), float("nan")


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
