"""Cox proportional hazards per standard deviation of one predictor, by statsmodels' PHReg (Efron's ties)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, norm
from statsmodels.duration.hazard_regression import PHReg
from statsmodels.tools.sm_exceptions import ConvergenceWarning, HessianInversionWarning, ModelWarning

Floats = NDArray[np.float64]

LARGEST = 7.0
"""Log hazard ratio per SD (a thousandfold) beyond which the likelihood has no maximum: the predictor tells events
from the others without error."""
SMALLEST_GRADIENT = 1e-3


@dataclass(frozen=True)
class Hazard:
    """What one predictor says of the hazard.

    Parameters
    ----------
    ratio, low, high : float
        Hazard ratio per standard deviation, with its Wald interval.
    p : float
        Likelihood ratio test against the model with the covariates alone.
    note : str or None
        Why a number is missing.
    """

    ratio: float
    low: float
    high: float
    p: float
    note: str | None = None


NO_HAZARD = Hazard(np.nan, np.nan, np.nan, np.nan)


def standardised(columns: Floats) -> Floats:
    """Mean 0 and standard deviation 1 (n - 1) of each column; constant ones become 0."""
    centred = columns - columns.mean(axis=0)
    spread = columns.std(axis=0, ddof=1)
    flat = spread <= 1e-12 * np.abs(columns).max(axis=0)
    scaled: Floats = np.where(flat, 0.0, centred / np.where(flat, 1.0, spread))
    return scaled


def null_likelihood(time: Floats, event: NDArray[np.bool_], covariates: Floats) -> float:
    """Log partial likelihood of the covariates alone, shape (n, q); q may be 0."""
    if covariates.shape[1] == 0:
        return float(PHReg(time, np.zeros((len(time), 1)), status=event.astype(int), ties="efron").loglike(np.zeros(1)))
    return float(_fit(time, event, standardised(covariates)).llf)


def hazard_per_sd(
    time: Floats,
    event: NDArray[np.bool_],
    predictor: Floats,
    covariates: Floats,
    confidence: float,
    null: float | None = None,
) -> Hazard:
    """Hazard ratio of a predictor, adjusted.

    Parameters
    ----------
    time : array, shape (n,)
        Above 0.
    event : array of bool, shape (n,)
    predictor : array, shape (n,)
    covariates : array, shape (n, q)
        Of full rank; q may be 0.
    confidence : float
    null : float, optional
        `null_likelihood` of the same rows, where it is known already.
    """
    x = standardised(predictor[:, None])
    if not x.any():
        return Hazard(np.nan, np.nan, np.nan, np.nan, "the predictor is constant")
    try:
        without = null_likelihood(time, event, covariates) if null is None else null
        fit = _fit(time, event, np.column_stack([x, standardised(covariates)]))
        log_ratio, error = float(fit.params[0]), float(fit.bse[0])
        gradient = float(np.abs(fit.model.score(fit.params)).max())
    except (np.linalg.LinAlgError, ValueError):
        return Hazard(np.nan, np.nan, np.nan, np.nan, "the model could not be fitted: covariates are collinear")
    p = float(chi2.sf(max(2 * (float(fit.llf) - without), 0.0), 1))
    if not np.isfinite([log_ratio, error]).all() or abs(log_ratio) > LARGEST or gradient > SMALLEST_GRADIENT:
        return Hazard(
            np.nan, np.nan, np.nan, p, "the predictor orders the events almost without error: no finite ratio"
        )
    reach = float(norm.isf((1 - confidence) / 2)) * error
    low, ratio, high = np.exp([log_ratio - reach, log_ratio, log_ratio + reach])
    return Hazard(float(ratio), float(low), float(high), p)


def _fit(time: Floats, event: NDArray[np.bool_], columns: Floats):  # type: ignore[no-untyped-def]
    with warnings.catch_warnings():
        for category in (ConvergenceWarning, HessianInversionWarning, ModelWarning, RuntimeWarning):
            warnings.simplefilter("ignore", category)  # judged by the gradient
        return PHReg(time, columns, status=event.astype(int), ties="efron").fit(disp=0)
