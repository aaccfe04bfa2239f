"""Linear change over years by group: statsmodels' MixedLM with random intercept and slope per participant.

REML, and Wald intervals by t on participants less groups degrees of freedom, not the normal distribution that
statsmodels prints: few people need that. In a balanced design t and F are those of the slopes of participants (of
differences, with two visits), exactly. Their p would reject too often where groups differ unequally in change; the
tests are those of `permuted_change`.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as t_distribution
from statsmodels.regression.mixed_linear_model import MixedLM
from statsmodels.tools.sm_exceptions import ConvergenceWarning, HessianInversionWarning

from pipeline.statistics.arrays import Floats

BOTH, INTERCEPT, NEITHER = "intercept and slope", "intercept", "none"
FAILED = "not converged"
BOUNDARY = "no variance"
"""The likelihood is largest where the random effects have none."""
OPTIMISERS = ("lbfgs", "bfgs", "powell")
"""In turn until one converges. Near the boundary the first two often stop short; Powell's needs no gradient."""
NO_VARIANCE = 1e-4
"""Smallest eigenvalue of the random effects' covariance, relative to the residual variance, that counts as more than
none."""


@dataclass(frozen=True, eq=False)
class Slopes:
    """Slopes of groups over time.

    Parameters
    ----------
    estimate : array, shape (groups,)
        Per year.
    covariance : array, shape (groups, groups)
        Of the estimates.
    df : int
        Participants with repeated scans, less groups.
    random : {"intercept and slope", "intercept", "none", "not converged"}
        Where the fit did not converge, estimate and covariance are NaN: a simpler model would understate the error.
    note : str or None
        Why there is no random slope, none at all, or no estimate.
    """

    estimate: Floats
    covariance: Floats
    df: int
    random: str
    note: str | None

    def contrast(self, weights: Floats, confidence: float) -> tuple[float, float, float, float]:
        """Estimate, lower and upper bound, and t of a weighted sum of slopes."""
        value = float(weights @ self.estimate)
        error = float(np.sqrt(weights @ self.covariance @ weights))
        reach = float(t_distribution.isf((1 - confidence) / 2, self.df)) * error
        return value, value - reach, value + reach, value / error

    def equal_slopes(self) -> float:
        """F of the hypothesis that all groups change alike: group x time."""
        k = len(self.estimate) - 1
        contrasts = np.column_stack([-np.ones(k), np.eye(k)])
        difference = contrasts @ self.estimate
        return float(difference @ np.linalg.solve(contrasts @ self.covariance @ contrasts.T, difference)) / k


def slopes_by_group(
    values: Floats,
    years: Floats,
    group: NDArray[np.intp],
    participant: NDArray[np.intp],
    levels: Floats,
    random_slope: bool,
) -> Slopes | str:
    """Fit ``values ~ group + group:years + levels + (1 + years | participant)``.

    Parameters
    ----------
    values, years : array, shape (scans,)
    group : array of int, shape (scans,)
        0..G-1, the same for all scans of a participant; each has participants with repeated scans.
    participant : array of int, shape (scans,)
    levels : array, shape (scans, q)
        Further fixed effects on the level, of full rank beside the groups.
    random_slope : bool
        Whether to try one; it is given up where it has no variance.

    Returns
    -------
    Slopes or str
        Or why there is no fit.
    """
    own = np.eye(int(group.max()) + 1)[group]
    fixed = np.column_stack([own, own * years[:, None], levels])
    if np.linalg.matrix_rank(fixed) < fixed.shape[1]:
        return "time does not vary within each group"
    place = slice(own.shape[1], 2 * own.shape[1])
    repeated = int((np.bincount(participant) > 1).sum())
    df = repeated - own.shape[1]
    if df < 1:
        return f"{repeated} participants with repeated scans are too few for {own.shape[1]} groups"
    intercept = np.ones((len(years), 1))
    note = None
    if random_slope:
        fit = _fit(values, fixed, participant, np.column_stack([intercept, years]))
        if fit == FAILED:
            return _unknown(own.shape[1], df)
        if not isinstance(fit, str):
            return Slopes(fit[0][place], fit[1][place, place], df, BOTH, None)
        note = "no random slope: it has no variance beyond that of the scans"
    fit = _fit(values, fixed, participant, intercept)
    if fit == FAILED:
        return _unknown(own.shape[1], df)
    if not isinstance(fit, str):
        return Slopes(fit[0][place], fit[1][place, place], df, INTERCEPT, note)
    coefficients, covariance = _ordinary(values, fixed)
    note = "no random effects: participants differ no more than scans do"
    return Slopes(coefficients[place], covariance[place, place], df, NEITHER, note)


def _unknown(groups: int, df: int) -> Slopes:
    nothing = np.full((groups, groups), np.nan)
    return Slopes(nothing[0], nothing, df, FAILED, "the mixed model did not converge: no estimate and no p from it")


def _fit(values: Floats, fixed: Floats, participant: NDArray[np.intp], random: Floats) -> tuple[Floats, Floats] | str:
    """Fixed effects and their covariance; or `BOUNDARY` or `FAILED`."""
    k = fixed.shape[1]
    for method in OPTIMISERS:
        with warnings.catch_warnings():
            for category in (ConvergenceWarning, HessianInversionWarning, RuntimeWarning, UserWarning):
                warnings.simplefilter("ignore", category)  # judged below
            try:
                fit = MixedLM(values, fixed, groups=participant, exog_re=random).fit(reml=True, method=[method])
                covariance = np.asarray(fit.cov_params())[:k, :k]
            except (np.linalg.LinAlgError, ValueError):  # a singular covariance of the random effects, mostly
                if random.shape[1] == 1 and not _rises_from_zero(values, fixed, participant):
                    return BOUNDARY
                continue
        # The observed information need not be positive definite where the optimiser stopped beside a maximum.
        if not fit.converged or not np.isfinite(covariance).all() or np.linalg.eigvalsh(covariance).min() <= 0:
            continue
        if np.linalg.eigvalsh(np.asarray(fit.cov_re)).min() < NO_VARIANCE * fit.scale:
            return BOUNDARY
        return np.asarray(fit.fe_params, float), covariance
    return FAILED


def _rises_from_zero(values: Floats, fixed: Floats, participant: NDArray[np.intp]) -> bool:
    """Whether the restricted likelihood rises as the variance of a random intercept leaves 0 (its score there)."""
    basis = np.linalg.qr(fixed)[0]
    residual = values - basis @ (basis.T @ values)
    members = np.eye(int(participant.max()) + 1)[participant]
    variance = float(residual @ residual) / (len(values) - fixed.shape[1])
    expected = len(values) - float(((basis.T @ members) ** 2).sum())  # tr((I - H) Z Z')
    return bool(((members.T @ residual) ** 2).sum() > variance * expected)


def _ordinary(values: Floats, fixed: Floats) -> tuple[Floats, Floats]:
    """Least squares: what the mixed model is where participants do not differ."""
    inverse = np.linalg.inv(fixed.T @ fixed)
    coefficients = inverse @ fixed.T @ values
    residual = values - fixed @ coefficients
    return coefficients, inverse * float(residual @ residual) / (len(values) - fixed.shape[1])
