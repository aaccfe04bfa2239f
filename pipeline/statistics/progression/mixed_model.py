"""Linear change over years by group: statsmodels' MixedLM with random intercept and slope per participant.

REML, with Wald intervals from t with participants minus groups degrees of freedom, since the normal distribution that
statsmodels uses is too narrow for small samples. In a balanced design t and F equal those of participants' slopes (of
differences, with two visits). Their p would reject too often if groups differ in the variance of change; tests are
those of `permuted_change`.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as t_distribution
from statsmodels.regression.mixed_linear_model import MixedLM
from statsmodels.tools.sm_exceptions import ConvergenceWarning, HessianInversionWarning

from pipeline.run.plain_text import counted
from pipeline.statistics.arrays import Floats

BOTH, INTERCEPT, NEITHER = "intercept and slope", "intercept", "none"
FAILED = "not converged"
BOUNDARY = "no variance"
"""The likelihood is maximal at zero variance of the random effects."""
OPTIMISERS = ("lbfgs", "bfgs", "powell")
"""Optimisers, tried until one converges. Near the boundary the first two often fail; Powell's needs no gradient."""
NO_VARIANCE = 1e-4
"""Smallest eigenvalue of the random effects' covariance, relative to the residual variance, that counts as positive."""


@dataclass(frozen=True, eq=False)
class Slopes:
    """Slopes of groups per year (groups,), and their covariance (groups, groups).

    `df` is participants with repeated scans minus groups. If the fit did not converge (`random`), both are NaN, since a
    simpler model would underestimate the error. `note`: why there is no random slope, no random effect, or no estimate.
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
        """F of the hypothesis that all slopes are equal: group x time."""
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
    """Fit ``values ~ group + group:years + levels + (1 + years | participant)``, or return why not.

    All arrays have a row per scan; group 0..G-1 is the same for all scans of a participant, and each has participants
    with repeated scans. `levels` (scans, q) are further fixed effects, of full rank together with the groups. A random
    slope without variance is dropped.
    """
    indicators = np.eye(int(group.max()) + 1)[group]
    fixed = np.column_stack([indicators, indicators * years[:, None], levels])
    if np.linalg.matrix_rank(fixed) < fixed.shape[1]:
        return "time does not vary within each group"
    place = slice(indicators.shape[1], 2 * indicators.shape[1])
    repeated = int((np.bincount(participant) > 1).sum())
    df = repeated - indicators.shape[1]
    if df < 1:
        return (
            f"{counted(repeated, 'participant')} with repeated scans {'is' if repeated == 1 else 'are'} too few for "
            f"{counted(indicators.shape[1], 'group')}"
        )
    intercept = np.ones((len(years), 1))
    note = None
    if random_slope:
        fit = _fit(values, fixed, participant, np.column_stack([intercept, years]))
        if fit == FAILED:
            return _unknown(indicators.shape[1], df)
        if not isinstance(fit, str):
            return Slopes(fit[0][place], fit[1][place, place], df, BOTH, None)
        note = "no random slope: its estimated variance is 0"
    fit = _fit(values, fixed, participant, intercept)
    if fit == FAILED:
        return _unknown(indicators.shape[1], df)
    if not isinstance(fit, str):
        return Slopes(fit[0][place], fit[1][place, place], df, INTERCEPT, note)
    coefficients, covariance = _ordinary(values, fixed)
    note = "no random effects: their estimated variance is 0"
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
                warnings.simplefilter("ignore", category)  # convergence is checked below
            try:
                fit = MixedLM(values, fixed, groups=participant, exog_re=random).fit(reml=True, method=[method])
                covariance = np.asarray(fit.cov_params())[:k, :k]
            except (np.linalg.LinAlgError, ValueError):  # usually a singular covariance of the random effects
                if random.shape[1] == 1 and not _rises_from_zero(values, fixed, participant):
                    return BOUNDARY
                continue
        # The observed information may not be positive definite if the optimiser stopped short of the maximum.
        if not fit.converged or not np.isfinite(covariance).all() or np.linalg.eigvalsh(covariance).min() <= 0:
            continue
        if np.linalg.eigvalsh(np.asarray(fit.cov_re)).min() < NO_VARIANCE * fit.scale:
            return BOUNDARY
        return np.asarray(fit.fe_params, float), covariance
    return FAILED


def _rises_from_zero(values: Floats, fixed: Floats, participant: NDArray[np.intp]) -> bool:
    """Whether the restricted likelihood increases with the variance of a random intercept at 0 (its score there)."""
    basis = np.linalg.qr(fixed)[0]
    residual = values - basis @ (basis.T @ values)
    members = np.eye(int(participant.max()) + 1)[participant]
    variance = float(residual @ residual) / (len(values) - fixed.shape[1])
    expected = len(values) - float(((basis.T @ members) ** 2).sum())  # tr((I - H) Z Z')
    return bool(((members.T @ residual) ** 2).sum() > variance * expected)


def _ordinary(values: Floats, fixed: Floats) -> tuple[Floats, Floats]:
    """Least squares: the mixed model if participants do not differ."""
    inverse = np.linalg.inv(fixed.T @ fixed)
    coefficients = inverse @ fixed.T @ values
    residual = values - fixed @ coefficients
    return coefficients, inverse * float(residual @ residual) / (len(values) - fixed.shape[1])
