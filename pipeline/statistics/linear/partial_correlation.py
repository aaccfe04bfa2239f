"""Pearson and Spearman correlation, with or without covariates, tested by permutation of participants.

The partial correlation of y and x given Z is that of their residuals on Z; its t is the t of x in the linear model with
Z, so the test is that of `pipeline.statistics.linear.freedman_lane`. Spearman's correlation is Pearson's on ranks of
all variables, including covariates (Conover 1999, section 5.4). Ranks are taken in the units of analysis, i.e. of
participant means, not of scans. With only the intercept as nuisance this is the ordinary correlation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from scipy.stats import rankdata

from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.statistics.arrays import Floats
from heatlas.pipeline.statistics.linear.design import Design
from heatlas.pipeline.statistics.linear.exchangeability import Exchangeability
from heatlas.pipeline.statistics.linear.freedman_lane import (
    LinearModel,
    PermutationTest,
    dual_interval,
    permutation_test,
)

Method = Literal["pearson", "spearman"]


def partial_correlation(
    values: Floats,
    design: Design,
    exchange: Exchangeability,
    m: int,
    rng: np.random.Generator,
    method: Method,
    confidence: float = 0.95,
    kinds: Sequence[Any] | None = None,
    variance_groups: Sequence[Any] | None = None,
) -> PermutationTest:
    """Correlation of every column of values with the tested term, given the nuisance terms.

    BadInputError if the tested term has several columns.

    In the result, ``estimate`` is the (partial) correlation; ``standard_error``, ``low`` and ``high`` belong to it.

    Parameters
    ----------
    values : array, shape (rows of the table,) or (rows of the table, columns)
    design : Design
        With one tested column.
    exchange : Exchangeability
        For the rows of the table.
    m : int
        Random permutations.
    method : {"pearson", "spearman"}
    kinds, variance_groups : sequence, optional
        As for `pipeline.statistics.linear.freedman_lane.freedman_lane`: such groups keep their spread. If ten of
        forty people vary three times as much as the others in values and in what is tested, or are what is tested,
        Pearson's p is 5 % in 6 to 11 % and p_fwe over five columns in 11 to 22 % without them, in 5 to 7 % with them;
        Spearman's p_fwe in 14 and 11 %.
    """
    k = design.tested.shape[1]
    if k != 1:
        raise BadInputError(f"term {', '.join(design.names[:k])}: {k} columns cannot be correlated. Use the F test.")
    transform = ranks if method == "spearman" else np.asarray
    scheme = exchange.of_rows(design.rows)
    groups = None if variance_groups is None else [variance_groups[row] for row in design.rows]
    model = LinearModel.of(design, scheme, groups, transform)
    columns = np.asarray(values, float).reshape(len(values), -1)[design.rows]
    permutations = scheme.permutations(m, rng, model.alike.tolist())
    units = transform(scheme.even(scheme.reduce(columns), kinds))
    test = permutation_test(units, model, permutations, confidence, kinds=kinds)
    error, low, high = correlation_interval(
        test.partial_r, test.statistic, test.critical, test.p, 1 - confidence, groups is None
    )
    return replace(test, estimate=test.partial_r, standard_error=error, low=low, high=high)


def correlation_interval(
    r: Floats, t: Floats, critical: Floats, p: Floats, alpha: float, of_null: bool = True
) -> tuple[Floats, Floats, Floats]:
    """Standard error of correlations, and their intervals in Fisher's z, from the robust t and its critical value.

    ``t = r sqrt(df / ((1 - r^2) kappa))`` (`pipeline.statistics.linear.robust`). Of normal variables kappa is
    1 + 2 r^2, and Fisher's z has variance 1 / df; so its variance is taken as kappa / (1 + 2 r^2) / df. That is since
    its residuals are those of the null hypothesis; the t of variance groups (not `of_null`) has its own. The interval
    excludes 0 exactly where p is at most alpha: with |r| above .95 and few participants it would reach beyond 0
    although t is above its critical value, and is then as wide as t allows.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        of_z, z = np.abs(r / t) / np.sqrt((1 - r**2) * (1 + 2 * of_null * r**2)), np.arctanh(r)
        reach = np.where((p <= alpha) & (critical * of_z >= np.abs(z)), critical * np.abs(z / t), critical * of_z)
        low, high = dual_interval(z, reach, p, alpha)
        return of_z * (1 - r**2), np.tanh(low), np.tanh(high)


def ranks(values: Floats) -> Floats:
    """Rank every column, ties at their mean rank; a column with a missing value stays as it is.

    Examples
    --------
    >>> ranks(np.array([[3.0], [1.0], [3.0]]))[:, 0].tolist()
    [2.5, 1.0, 2.5]
    """
    ranked = values.astype(float)
    complete = np.isfinite(values).all(axis=0)
    if len(values):
        ranked[:, complete] = rankdata(values[:, complete], axis=0)
    return ranked
