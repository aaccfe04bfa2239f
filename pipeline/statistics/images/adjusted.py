"""Two groups in units of analysis, adjusted for covariates: effect size, and its ranks in draws and permutations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import gammaln
from scipy.stats import rankdata

from heatlas.pipeline.statistics.arrays import Floats
from heatlas.pipeline.statistics.data.members import MIN_FREEDOM_OF_G
from heatlas.pipeline.statistics.linear.exchangeability import Exchangeability, Permutations
from heatlas.pipeline.statistics.linear.fold_effect import FoldModel
from heatlas.pipeline.statistics.linear.freedman_lane import NO_SPREAD, LinearModel
from heatlas.pipeline.statistics.linear.studentised import HomoscedasticModel


@dataclass(frozen=True, eq=False)
class Adjusted:
    """Values of people (people, columns) under a model of one tested column, `exchange` for their rows."""

    values: Floats
    model: LinearModel
    exchange: Exchangeability

    @classmethod
    def of(cls, values: Floats, fold_model: FoldModel, variance_groups: Sequence[Any] | None = None) -> Adjusted:
        """Values of scans (scans, columns) brought to people as `freedman_lane` does, which has such groups too."""
        design = fold_model.design
        exchange = fold_model.exchange.of_rows(design.rows)
        people = exchange.even(exchange.reduce(values[design.rows]))
        groups = None if variance_groups is None else [variance_groups[row] for row in design.rows]
        return cls(people, LinearModel.of(design, exchange, groups), exchange)

    @property
    def residuals(self) -> Floats:
        """Residuals of the values on the covariates, with norm 1; 0 where nothing is left."""
        left = self.values - self.model.nuisance @ (self.model.nuisance.T @ self.values)
        norms = np.linalg.norm(left, axis=0)
        spread = norms**2 > NO_SPREAD * (self.values**2).sum(axis=0)
        scaled: Floats = np.divide(left, norms, out=np.zeros_like(left), where=spread)
        return scaled

    @property
    def hedges_g(self) -> Floats:
        """Adjusted difference in residual standard deviations, corrected for small samples, shape (columns,).

        Without covariates `pipeline.regions.effect_size.hedges_g`. NaN with fewer than `MIN_FREEDOM_OF_G` degrees of
        freedom, or where nothing varies.
        """
        df, e = self.model.df, self.residuals
        if df < MIN_FREEDOM_OF_G:
            return np.full(e.shape[1], np.nan)
        r = self.model.tested[:, 0] @ e
        correction = np.exp(gammaln(df / 2) - gammaln((df - 1) / 2)) / np.sqrt(df / 2)
        scale = correction * self.model.to_coefficients[0, 0] * np.sqrt(df)
        left = 1 - r**2
        known = (left > NO_SPREAD) & (r != 0)
        g: Floats = np.divide(scale * r, np.sqrt(left), out=np.full(len(r), np.nan), where=known)
        return g

    def sizes(self, permutations: Permutations) -> Floats:
        """Partial R^2 of permuted values (permutations, columns): it ranks columns as |t| and |g| do."""
        model = HomoscedasticModel(self.model.tested, self.model.moving_nuisance, self.model.df)
        return model.size(permutations.rows, self.residuals)

    def drawn_sizes(self, weights: Floats) -> Floats:
        """The same of weighted people, weights (draws, people): (draws, columns)."""
        basis = np.column_stack([self.model.tested, self.model.nuisance])
        found = np.empty((len(weights), self.values.shape[1]))
        centred = self.values - self.values.mean(axis=0)
        for place, w in enumerate(weights):
            weighted = basis * w[:, None]
            inverse = np.linalg.pinv(basis.T @ weighted, hermitian=True)
            along = weighted.T @ centred
            b = inverse @ along
            left = np.maximum(w @ centred**2 - (along * b).sum(axis=0), 0.0)
            explained = b[0] ** 2 / max(inverse[0, 0], np.finfo(float).tiny)
            total = explained + left
            found[place] = np.divide(explained, total, out=np.zeros_like(total), where=total > 0)
        return found


def rank_correlation(first: Floats, second: Floats) -> Floats:
    """Spearman's rank correlation of each row of two arrays (draws, columns); NaN where a row is constant.

    Examples
    --------
    >>> rank_correlation(np.array([[1.0, 2.0, 3.0]]), np.array([[2.0, 9.0, 5.0]])).round(3).tolist()
    [0.5]
    """
    ranks = [rankdata(one, axis=1) for one in (first, second)]
    a, b = (one - one.mean(axis=1, keepdims=True) for one in ranks)
    scale = np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
    r: Floats = np.divide((a * b).sum(axis=1), scale, out=np.full(len(scale), np.nan), where=scale > 0)
    return r
