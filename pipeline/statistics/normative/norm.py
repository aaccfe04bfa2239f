"""How far a person is from controls of the same age, sex and head: w-scores and their small-sample form.

The w-score (Jack et al. 1997; La Joie et al. 2012) is the residual of a regression fitted on controls, over the
residual standard deviation. With few controls that is too far out: the regression was estimated too, and so was its
spread. For a new person from the controls' population ``w / sqrt(1 + h)``, h the leverage of the person's covariates,
has a t distribution (Crawford & Garthwaite 2006); ``z`` is the normal deviate at the same probability, so that it means
the same whatever the number of controls.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import norm as normal
from scipy.stats import t as student

from pipeline.statistics.arrays import Floats

NO_SPREAD = 1e-12
"""Residual variance, relative to the mean square, below which controls do not differ."""


@dataclass(frozen=True, eq=False)
class Norm:
    """Regression of features on covariates among controls.

    Parameters
    ----------
    coefficients : array, shape (1 + covariates, features)
        The intercept first; NaN where there is no norm.
    inverse : array, shape (features, 1 + covariates, 1 + covariates)
        (X'X)^-1 of the controls with a value.
    deviation : array, shape (features,)
        Residual standard deviation, over `freedom`.
    controls, freedom : array, shape (features,)
        Controls with a value, and residual degrees of freedom.
    problems : tuple of (str or None)
        Why a feature has no norm.
    """

    coefficients: Floats
    inverse: Floats
    deviation: Floats
    controls: Floats
    freedom: Floats
    problems: tuple[str | None, ...]

    def scores(self, values: Floats, covariates: Floats) -> tuple[Floats, Floats]:
        """Both scores of any rows, w and z; NaN where value, covariate or norm is missing.

        Parameters
        ----------
        values : array, shape (rows, features)
        covariates : array, shape (rows, covariates)

        Returns
        -------
        tuple of array, shape (rows, features)
        """
        design = np.column_stack([np.ones(len(values)), covariates])
        w = (values - design @ self.coefficients) / self.deviation
        leverage = np.einsum("rp,fpq,rq->rf", design, self.inverse, design)
        t = w / np.sqrt(1 + leverage)
        return w, np.copysign(normal.isf(student.sf(np.abs(t), self.freedom)), t)


def fit_norm(values: Floats, covariates: Floats, min_freedom: int) -> Norm:
    """Fit on controls, one row each.

    Parameters
    ----------
    values : array, shape (controls, features)
        NaN where there is none; those controls do not count for the feature.
    covariates : array, shape (controls, covariates)
        Without NaN, of full rank beside an intercept.
    min_freedom : int
        Residual degrees of freedom below which there is no norm.
    """
    n_features = values.shape[1]
    design = np.column_stack([np.ones(len(values)), covariates])
    p = design.shape[1]
    coefficients, inverse = np.full((p, n_features), np.nan), np.full((n_features, p, p), np.nan)
    deviation, freedom = np.full(n_features, np.nan), np.full(n_features, np.nan)
    known = ~np.isnan(values)
    controls = known.sum(axis=0).astype(float)
    problems: list[str | None] = [None] * n_features
    for feature in range(n_features):
        rows = known[:, feature]
        df = int(rows.sum()) - p
        if df < min_freedom:
            n = int(rows.sum())
            problems[feature] = f"{n} controls for {p} coefficients; {p + min_freedom} or more are needed"
            continue
        own, y = design[rows], values[rows, feature]
        solution, _, rank, _ = np.linalg.lstsq(own, y, rcond=None)
        if rank < p:
            problems[feature] = "covariates follow from each other among the controls with a value"
            continue
        variance = float(((y - own @ solution) ** 2).sum()) / df
        if variance <= NO_SPREAD * float((y**2).mean()):
            problems[feature] = "controls do not differ"
            continue
        coefficients[:, feature], freedom[feature] = solution, df
        deviation[feature] = np.sqrt(variance)
        inverse[feature] = np.linalg.inv(own.T @ own)
    return Norm(coefficients, inverse, deviation, controls, freedom, tuple(problems))
