"""Formulas of time to an event: the hazard ratio of one predictor, and Harrell's concordance.

*Cox proportional hazards* by statsmodels' PHReg (Efron's ties), p by permutation: with 20 conversions and four
variables PHReg's likelihood ratio test rejects a true null hypothesis in 7.2 % at 5 %. The statistic is the score of
the predictor, the sum of its values times the martingale residuals of a model with the covariates only; the predictor's
residuals given the covariates are permuted. The Wald p of the hazard ratio belongs to its interval.

*Harrell's concordance* is the share of comparable pairs that the predictor orders correctly (ties one half). A pair is
comparable if the earlier of its two times is an event; with equal times, if one is an event and the other censored. The
area under the ROC curve is the same over pairs of a positive and a negative. Neither scipy nor statsmodels has it, and
lifelines and scikit-survival do not take bootstrap weights.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, norm
from statsmodels.duration.hazard_regression import PHReg
from statsmodels.tools.sm_exceptions import ConvergenceWarning, HessianInversionWarning, ModelWarning

from heatlas.pipeline.statistics.arrays import Flags, Floats

LARGEST = 7.0
"""Log hazard ratio per SD (a thousandfold), or its standard error, beyond which the likelihood has no maximum: the
predictor tells events from the others without error, or nobody of the few who differ in it has an event."""
LARGEST_GRADIENT = 1e-3
COLLINEAR = "predictor and covariates are collinear"
SINGULAR = "the model could not be fitted: flat likelihood"
SEPARATES = "the predictor orders the events almost perfectly: no finite hazard ratio"
ONE_MOMENT = "proportional hazards are not checked: all conversions have the same time"
CONSTANT = "the predictor is constant"
FLAT = 1e-9
"""Residual norm of a predictor given the covariates, relative to its norm, below which it counts as fully explained."""


@dataclass(frozen=True)
class Hazard:
    """Hazard ratio per standard deviation with its Wald interval and p, or why there is none."""

    ratio: float
    low: float
    high: float
    p_wald: float = np.nan
    p_proportional: float = np.nan
    note: str | None = None

    @classmethod
    def none(cls, note: str) -> Hazard:
        return cls(np.nan, np.nan, np.nan, note=note)


def standardised(columns: Floats) -> Floats:
    """Scale each column to mean 0 and standard deviation 1 (n - 1); constant columns become 0."""
    centred = columns - columns.mean(axis=0)
    spread = columns.std(axis=0, ddof=1)
    flat = spread <= 1e-12 * np.abs(columns).max(axis=0)
    scaled: Floats = np.where(flat, 0.0, centred / np.where(flat, 1.0, spread))
    return scaled


def hazard_per_sd(time: Floats, event: Flags, predictor: Floats, covariates: Floats, confidence: float) -> Hazard:
    """Hazard ratio of a predictor (n,), adjusted for covariates (n, q), q >= 0; times (n,) are positive."""
    x = standardised(predictor[:, None])
    if not x.any():
        return Hazard.none(CONSTANT)
    columns = np.column_stack([x, standardised(covariates)])
    if np.linalg.matrix_rank(columns) < columns.shape[1]:
        return Hazard.none(COLLINEAR)
    try:
        fit = _fit(time, event, columns)
        gradient = float(np.abs(fit.model.score(fit.params)).max())
    except (np.linalg.LinAlgError, ValueError):
        return Hazard.none(SINGULAR)
    log_ratio, error = float(fit.params[0]), float(fit.bse[0])
    if not max(abs(log_ratio), error) <= LARGEST or gradient > LARGEST_GRADIENT:  # neither infinite nor NaN
        return Hazard.none(SEPARATES)
    reach = float(norm.isf((1 - confidence) / 2)) * error
    low, ratio, high = np.exp([log_ratio - reach, log_ratio, log_ratio + reach])
    p_proportional = proportionality(time, event, columns, np.asarray(fit.params, float))[1][0]
    p_wald = 2 * float(norm.sf(abs(log_ratio) / error))
    note = ONE_MOMENT if np.isnan(p_proportional) else None
    return Hazard(float(ratio), float(low), float(high), p_wald, float(p_proportional), note)


def schoenfeld(time: Floats, event: Flags, columns: Floats, beta: Floats) -> tuple[Floats, Floats, Floats]:
    """Schoenfeld residuals of columns (n, q), summed over the events of each moment (Efron's ties).

    Returns moments (m,), times with an event, rising; residuals (m, q), values of those with an event minus their
    expectation among those at risk; variances (m, q, q), their covariances, whose sum is the information of the
    likelihood.
    """
    moments = np.unique(time[event])
    residuals = np.zeros((len(moments), columns.shape[1]))
    variances = np.zeros((len(moments), columns.shape[1], columns.shape[1]))
    risk = np.exp(columns @ beta)
    for k, moment in enumerate(moments):
        dying = event & (time == moment)
        count = int(dying.sum())
        for i in range(count):
            weights = risk * ((time >= moment) - i / count * dying)
            weights = weights / weights.sum()
            mean = weights @ columns
            residuals[k] -= mean
            variances[k] += (columns.T * weights) @ columns - np.outer(mean, mean)
        residuals[k] += columns[dying].sum(axis=0)
    return moments, residuals, variances


def proportionality(time: Floats, event: Flags, columns: Floats, beta: Floats) -> tuple[Floats, Floats]:
    """Test of proportional hazards, one for each column (q,): chi-squared with 1 df, and p.

    The score test of the interaction of a column with a function of time, here 1 - the Kaplan-Meier estimate just
    before each event, as in R's ``cox.zph`` (Grambsch & Therneau 1994, Biometrika 81:515). `beta` (q,) are the log
    hazard ratios that maximise the partial likelihood of Efron. NaN where the function of time is constant.
    """
    moments, residuals, variances = schoenfeld(time, event, columns, beta)
    deaths = (event & (time == moments[:, None])).sum(axis=1)
    surviving = np.cumprod(1 - deaths / (time >= moments[:, None]).sum(axis=1))
    of_time = 1 - np.concatenate([[1.0], surviving[:-1]])
    total = variances.sum(axis=0)
    score = of_time @ residuals
    crossed = np.tensordot(of_time, variances, 1)
    squared = np.einsum("k,kqq->q", of_time**2, variances)
    variance = squared - np.einsum("jq,jq->q", crossed, np.linalg.solve(total, crossed))
    varies = variance > FLAT * squared
    statistic = np.where(varies, score**2 / np.where(varies, variance, 1.0), np.nan)
    return statistic, np.asarray(chi2.sf(statistic, 1), float)


def martingale_residuals(time: Floats, event: Flags, covariates: Floats) -> Floats:
    """Observed minus expected events (n,) given only the covariates (n, q) (Breslow's cumulative hazard).

    Without covariates the expectation is the Nelson-Aalen estimate. LinAlgError if covariates are collinear or separate
    the events.
    """
    risk = np.ones(len(time))
    if covariates.shape[1]:
        columns = standardised(covariates)
        if np.linalg.matrix_rank(columns) < columns.shape[1]:
            raise np.linalg.LinAlgError(COLLINEAR)
        risk = np.exp(columns @ np.asarray(_fit(time, event, columns).params, float))
        if not np.isfinite(risk).all():
            raise np.linalg.LinAlgError(SINGULAR)
    moments, deaths = np.unique(time[event], return_counts=True)
    at_risk = (risk * (time >= moments[:, None])).sum(axis=1)
    expected = risk * ((time[:, None] >= moments) @ (deaths / at_risk))
    residuals: Floats = event - expected
    return residuals


def score_statistics(
    residuals: Floats, predictors: Floats, covariates: Floats, rows: NDArray[np.integer]
) -> tuple[Floats, Floats]:
    """Scores of predictors (n, k): observed (k,), and under permutations `rows` (m, n) of participants, (m, k).

    They are studentised correlations of `martingale_residuals` (n,) with the residuals of a predictor given the
    covariates (n, q); NaN where the covariates explain all of it.
    """
    design = np.column_stack([np.ones(len(residuals)), standardised(covariates)])
    basis, _ = np.linalg.qr(design)
    centred = predictors - predictors.mean(axis=0)
    left = centred - basis @ (basis.T @ centred)
    length = np.linalg.norm(left, axis=0)
    gone = length <= FLAT * np.maximum(np.linalg.norm(predictors, axis=0), np.finfo(float).tiny)
    left = np.where(gone, np.nan, left / np.where(gone, 1.0, length))
    scaled = residuals - residuals.mean()
    scaled = scaled / np.linalg.norm(scaled)
    # Permuting the residuals permutes the predictors inversely; inverse permutations have the same distribution.
    return _studentise(scaled[None], left, basis)[0], _studentise(scaled[rows], left, basis)


def _studentise(residuals: Floats, left: Floats, basis: Floats) -> Floats:
    """T as in `pipeline.statistics.linear.studentised`, up to a factor: (m, k) for residuals (m, n), predictors (n, k).

    Where people with a high predictor are followed for a shorter time, their martingale residuals are smaller: plain
    correlations then reject 0 to 3 % at 5 %, and have a quarter of the power. Covariates are removed from the permuted
    residuals too, since permutation correlates them (6.7 % family-wise otherwise).
    """
    outside = 1.0 - ((residuals @ basis) ** 2).sum(axis=1)
    scores = residuals @ left
    kappa = len(left) * (residuals**2 @ left**2)
    spread = kappa * np.maximum(outside[:, None] - scores**2, FLAT)
    result: Floats = np.divide(scores, np.sqrt(spread), out=np.where(np.isnan(scores), np.nan, 0.0), where=spread > 0)
    return result


def _fit(time: Floats, event: Flags, columns: Floats) -> Any:
    with warnings.catch_warnings():
        for category in (ConvergenceWarning, HessianInversionWarning, ModelWarning, RuntimeWarning):
            warnings.simplefilter("ignore", category)  # convergence is checked by the gradient
        return PHReg(time, columns, status=event.astype(int), ties="efron").fit(disp=0)


Pairs = Floats

CHANCE = 0.5


def comparable_pairs(time: Floats, event: Flags) -> Pairs:
    """1 where the event of row i is known to precede that of column j, else 0; shape (n, n).

    >>> comparable_pairs(np.array([1.0, 2.0, 2.0]), np.array([True, False, True])).tolist()
    [[0.0, 1.0, 1.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    earlier = time[:, None] < time
    tied = (time[:, None] == time) & ~event
    pairs: Pairs = (event[:, None] & (earlier | tied)).astype(float)
    return pairs


def class_pairs(positive: Flags) -> Pairs:
    """1 for each positive (row) with each negative (column): the pairs of the area under the ROC curve."""
    pairs: Pairs = (positive[:, None] & ~positive).astype(float)
    return pairs


def orders(predictor: Floats) -> Floats:
    """1 where the predictor of row i is above that of column j, one half where equal, else 0."""
    result: Floats = (predictor[:, None] > predictor) + 0.5 * (predictor[:, None] == predictor)
    return result


def concordance(predictor: Floats, pairs: Pairs, weights: Floats | None = None) -> Floats:
    """Share of pairs in which the higher predictor has the earlier event, (draws,); NaN without a pair.

    `pairs` (n, n) are those of `comparable_pairs` or `class_pairs`; `weights` (draws, n) are 1 by default.
    """
    counted = np.ones((1, len(predictor))) if weights is None else weights
    right = ((counted @ (pairs * orders(predictor))) * counted).sum(axis=1)
    total = ((counted @ pairs) * counted).sum(axis=1)
    share: Floats = np.divide(right, total, out=np.full(len(counted), np.nan), where=total > 0)
    return share


def permuted_concordance(predictor: Floats, pairs: Pairs, rows: NDArray[np.integer]) -> Floats:
    """Concordance of the predictor permuted by each of `rows` (m, n)."""
    order, first, second = orders(predictor), *np.nonzero(pairs)
    result = np.full(len(rows), np.nan)
    if len(first):
        for place, permuted in enumerate(rows):
            result[place] = order[permuted[first], permuted[second]].mean()
    return result
