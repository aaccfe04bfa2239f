"""Deviation of a participant from controls of the same age, sex and head size: w-scores, and z for small samples.

The w-score (Jack et al. 1997; La Joie et al. 2012) is the residual of a regression fitted on controls over the residual
standard deviation. With few controls it is too large, since the regression and its residual variance are estimated too.
For a new person from the controls' population ``w / sqrt(1 + h)``, h the leverage of the person's covariates, has a t
distribution (Crawford & Garthwaite 2006); ``z`` is the normal deviate with the same probability, so that it has the
same meaning whatever the number of controls.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import norm as normal
from scipy.stats import t as student

from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.statistics.arrays import Floats

NO_SPREAD = 1e-12
"""Residual variance, relative to the mean square, below which controls count as constant."""


@dataclass(frozen=True, eq=False)
class Norm:
    """Regression of features on covariates among controls; NaN, with a problem, for features that cannot be normed.

    Shapes: coefficients (1 + covariates, features), intercept first; inverse (features, 1 + covariates, 1 +
    covariates), (X'X)^-1 of the controls with a value; deviation (features,), the residual standard deviation;
    controls, freedom (features,), controls with a value and residual degrees of freedom.
    """

    coefficients: Floats
    inverse: Floats
    deviation: Floats
    controls: Floats
    freedom: Floats
    problems: tuple[str | None, ...]

    def scores(self, values: Floats, covariates: Floats) -> tuple[Floats, Floats]:
        """Scores w and z (rows, features) of values (rows, features) with covariates (rows, covariates).

        NaN where value, covariate or norm is missing.
        """
        design = np.column_stack([np.ones(len(values)), covariates])
        w = (values - design @ self.coefficients) / self.deviation
        leverage = np.einsum("rp,fpq,rq->rf", design, self.inverse, design)
        t = w / np.sqrt(1 + leverage)
        return w, np.copysign(normal.isf(student.sf(np.abs(t), self.freedom)), t)


def fit_norm(values: Floats, covariates: Floats, min_freedom: int) -> Norm:
    """Fit on controls, one row each: values (controls, features), covariates (controls, covariates).

    Controls with NaN are left out for that feature. Covariates have no NaN and full rank together with an intercept.
    Features with fewer than `min_freedom` residual degrees of freedom have no norm.
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
            problems[feature] = (
                f"{counted(n, 'control')} for {counted(p, 'coefficient')}; {p + min_freedom} or more are needed"
            )
            continue
        x, y = design[rows], values[rows, feature]
        solution, _, rank, _ = np.linalg.lstsq(x, y, rcond=None)
        if rank < p:
            problems[feature] = "covariates are collinear among the controls with a value"
            continue
        variance = float(((y - x @ solution) ** 2).sum()) / df
        if variance <= NO_SPREAD * float((y**2).mean()):
            problems[feature] = "the controls are constant"
            continue
        coefficients[:, feature], freedom[feature] = solution, df
        deviation[feature] = np.sqrt(variance)
        inverse[feature] = np.linalg.inv(x.T @ x)
    return Norm(coefficients, inverse, deviation, controls, freedom, tuple(problems))
