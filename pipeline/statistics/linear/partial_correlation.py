"""Pearson and Spearman correlation, with or without covariates, tested by permutation of participants.

The partial correlation of y and x given Z is that of their residuals on Z; its t is the t of x in the linear model with
Z, so the test is that of `pipeline.statistics.linear.freedman_lane`. Spearman's correlation is Pearson's on ranks of
all variables, including covariates (Conover 1999, section 5.4). Ranks are taken in the units of analysis, i.e. of
participant means, not of scans. With only the intercept as nuisance this is the ordinary correlation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from scipy.stats import rankdata

from pipeline.run.errors import BadInputError
from pipeline.statistics.arrays import Floats
from pipeline.statistics.linear.design import Design
from pipeline.statistics.linear.exchangeability import Exchangeability
from pipeline.statistics.linear.freedman_lane import LinearModel, PermutationTest, permutation_test

Method = Literal["pearson", "spearman"]


def partial_correlation(
    values: Floats, design: Design, exchange: Exchangeability, m: int, rng: np.random.Generator, method: Method
) -> PermutationTest:
    """Correlation of every column of values with the tested term, given the nuisance terms.

    Parameters
    ----------
    values : array, shape (rows of the table,) or (rows of the table, columns)
    design : Design
        With one tested column.
    exchange : Exchangeability
        For the rows of the table.
    m : int
        Random permutations.
    rng : numpy.random.Generator
    method : {"pearson", "spearman"}

    Returns
    -------
    PermutationTest
        ``estimate`` is the (partial) correlation and ``standard_error`` belongs to it: sqrt((1 - r^2) / df).

    Raises
    ------
    BadInputError
        If the tested term has several columns, or ranks are asked for within participants.
    """
    k = design.tested.shape[1]
    if k != 1:
        raise BadInputError(f"term {', '.join(design.names[:k])}: {k} columns cannot be correlated. Use the F test.")
    if method == "spearman" and exchange.scheme == "within":
        raise BadInputError(
            "Spearman's correlation is not available within participants: visits are too few to rank. Use pearson."
        )
    transform = ranks if method == "spearman" else np.asarray
    scheme = exchange.of_rows(design.rows)
    model = LinearModel.of(design, scheme, transform=transform)
    columns = np.asarray(values, float).reshape(len(values), -1)[design.rows]
    permutations = scheme.permutations(m, rng, model.alike.tolist())
    test = permutation_test(transform(scheme.reduce(columns)), model, permutations)
    error = np.sqrt(np.clip(1 - test.partial_r**2, 0, None) / test.df)
    return replace(test, estimate=test.partial_r, standard_error=error)


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
