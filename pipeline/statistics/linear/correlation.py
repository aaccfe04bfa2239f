"""Correlation tested by permutation of participants: partial, of rows that belong to participants, of matched columns.

*Partial correlation*, Pearson's and Spearman's: of y and x given Z, that of their residuals on Z; its t is the t of x
in the linear model with Z (`pipeline.statistics.linear.freedman_lane`). Spearman's is Pearson's on ranks of all
variables, covariates too (Conover 1999, section 5.4), taken of participant means, not of scans.

*Rows that belong to participants*: the products x y of centred rows are summed over each participant. With r the
correlation, x and y of norm 1 and u the sums,

    t = r sqrt(df / ((1 - r^2) n sum(u^2))),    n participants,

is the t of `RobustModel` where every participant has one row, and holds its level where they have several. Its error is
right where there is no correlation. That of an interval elsewhere is from the influence of each participant on r
(Hampel 1974), x y - r (x^2 + y^2) / 2 summed over their rows, divided by 1 less their share of the sums of squares, as
HC3 of MacKinnon & White (1985). Fisher's z with this error misses 3 to 9 % where that of t misses 9 to 16 %.

*Matched columns* have each their own regressor (relevance and volume of the same region), like the voxelwise regressors
of FSL's randomise, and share covariates and permutations, so the maximum partial R² still gives family-wise p.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata
from scipy.stats import t as t_distribution

from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.statistics.arrays import Flags, Floats, Indices, Resampling
from heatlas.pipeline.statistics.linear import freedman_lane
from heatlas.pipeline.statistics.linear.design import Design
from heatlas.pipeline.statistics.linear.permutations import Exchangeability, Permutations, p_value, pooled_fdr
from heatlas.pipeline.statistics.linear.studentised import RobustModel, tally

Method = Literal["pearson", "spearman"]


def partial_correlation(
    values: Floats,
    design: Design,
    exchange: Exchangeability,
    resampling: Resampling,
    method: Method,
    kinds: Sequence[Any] | None = None,
    variance_groups: Sequence[Any] | None = None,
) -> freedman_lane.PermutationTest:
    """Correlation of every column of values with the single tested column of a design, given the nuisance terms.

    In the result ``estimate``, its error and interval are of the (partial) correlation. `exchange`, `kinds` and
    `variance_groups` are as for `freedman_lane`. If ten of forty people vary three times as much in values and in what
    is tested, Pearson's p is 5 % in 6 to 11 % and p_fwe over five columns in 11 to 22 % without groups, in 5 to 7 %
    with them.
    """
    k = design.tested.shape[1]
    if k != 1:
        raise BadInputError(f"term {', '.join(design.names[:k])}: {k} columns cannot be correlated. Use the F test.")
    transform = ranks if method == "spearman" else np.asarray
    scheme = exchange.of_rows(design.rows)
    groups = None if variance_groups is None else [variance_groups[row] for row in design.rows]
    model = freedman_lane.LinearModel.of(design, scheme, groups, transform)
    columns = np.asarray(values, float).reshape(len(values), -1)[design.rows]
    permutations = scheme.permutations(resampling.m, resampling.rng, model.alike.tolist())
    units = transform(scheme.even(scheme.reduce(columns), kinds))
    test = freedman_lane.permutation_test(units, model, permutations, resampling.confidence, kinds=kinds)
    error, low, high = correlation_interval(
        test.partial_r, test.statistic, test.critical, test.p, 1 - resampling.confidence, groups is None
    )
    return replace(test, estimate=test.partial_r, standard_error=error, low=low, high=high)


def correlation_interval(
    r: Floats, t: Floats, critical: Floats, p: Floats, alpha: float, of_null: bool = True
) -> tuple[Floats, Floats, Floats]:
    """Standard error of correlations, and their intervals in Fisher's z, from the robust t and its critical value.

    ``t = r sqrt(df / ((1 - r^2) kappa))`` (`pipeline.statistics.linear.studentised`). Of normal variables kappa is 1 +
    2 r^2 and Fisher's z has variance 1 / df, so its variance is taken as kappa / (1 + 2 r^2) / df, as the residuals are
    those of the null hypothesis; the t of variance groups (not `of_null`) has its own. The interval excludes 0 exactly
    where p is at most alpha: where it would reach beyond 0 although t is above its critical value, it is as wide as t
    allows.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        of_z, z = np.abs(r / t) / np.sqrt((1 - r**2) * (1 + 2 * of_null * r**2)), np.arctanh(r)
        reach = np.where((p <= alpha) & (critical * of_z >= np.abs(z)), critical * np.abs(z / t), critical * of_z)
        low, high = freedman_lane.dual_interval(z, reach, p, alpha)
        return of_z * (1 - r**2), np.tanh(low), np.tanh(high)


def ranks(values: Floats) -> Floats:
    """Rank every column, ties at their mean rank; a column with a missing value stays as it is.

    >>> ranks(np.array([[3.0], [1.0], [3.0]]))[:, 0].tolist()
    [2.5, 1.0, 2.5]
    """
    ranked = values.astype(float)
    complete = np.isfinite(values).all(axis=0)
    if len(values):
        ranked[:, complete] = rankdata(values[:, complete], axis=0)
    return ranked


ESTIMATORS = ("pearson", "spearman")
FISHER = "Fisher z"
SMALLEST = 1e-24
"""Rounding error of the squared denominator of t, where all rows lie on one line."""


def is_constant(values: Floats) -> Flags:
    """Whether values differ by no more than rounding along the first axis; shape (...) for values (rows, ...)."""
    return np.asarray(np.ptp(values, axis=0) <= 1e-12 * np.abs(values).max(axis=0), dtype=bool)


def standardised(x: Floats, estimator: str) -> Floats:
    """Values, or their ranks, with mean 0 and norm 1; x (rows,) is not constant."""
    values: Floats = rankdata(x) if estimator == "spearman" else x
    centred = values - values.mean()
    scaled: Floats = centred / np.linalg.norm(centred)
    return scaled


def clustered_t(x: Floats, y: Floats, codes: Indices, df: int, rows: NDArray[np.integer]) -> tuple[Floats, Floats]:
    """Correlation and t of y with x rearranged by each of `rows` (m, rows); each of shape (m,).

    x and y (rows,) have mean 0 and norm 1; codes (rows,) are participants 0..n-1.
    """
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], np.arange(int(codes.max()) + 1))
    products = (x[rows] * y)[:, order]
    sums = np.add.reduceat(products, starts, axis=1)
    r = sums.sum(axis=1)
    spread = np.maximum(sums.shape[1] * (sums**2).sum(axis=1) * (1 - r**2), SMALLEST)
    t: Floats = r * np.sqrt(df / spread)
    return r, t


def error_of_z(x: Floats, y: Floats, codes: Indices, df: int) -> float:
    """Standard error of Fisher's z of the correlation of x and y; arguments as of `clustered_t`.

    >>> x = np.array([1.0, 1.0, -1.0, -1.0]) / 2
    >>> error_of_z(x, np.array([1.0, -1.0, 1.0, -1.0]) / 2, np.arange(4), 2)  # sqrt(n sum((xy / (1 - 1/4))^2) / df)
    0.9428090415820634
    """
    r = float(x @ y)
    share = np.bincount(codes, weights=(x**2 + y**2) / 2)
    influence = np.bincount(codes, weights=x * y) - r * share
    left = np.maximum(1 - share, SMALLEST)
    return float(np.sqrt(len(share) * ((influence / left) ** 2).sum() / df) / max(1 - r**2, SMALLEST))


def fisher_interval(
    r: float, t: float, error: float, df: int, critical: float, p: float, confidence: float
) -> tuple[float, float]:
    """Interval of a correlation in Fisher's z: Student's t with df degrees of freedom times `error_of_z`.

    It excludes 0 exactly where p is at most 1 - confidence: where it would reach 0 although p is that small, it goes as
    far towards 0 as t allows. NaN without a critical value.
    """
    if np.isnan(critical):
        return np.nan, np.nan
    z, alpha = float(np.arctanh(r)), 1 - confidence
    reach = float(t_distribution.isf(alpha / 2, df)) * error
    inwards = abs(z) * critical / abs(t) if p <= alpha and reach >= abs(z) else reach
    reaches = np.array([inwards, reach] if z > 0 else [reach, inwards])
    low, high = freedman_lane.dual_interval(np.full(2, z), reaches, np.full(2, p), alpha)
    return float(np.tanh(low[0])), float(np.tanh(high[1]))


CHUNK = 1_000
"""Permutations per chunk; bounds memory (1,000 x 402 columns: 3 MB for each of three arrays)."""
NO_SPREAD = 1e-12
"""Residual variance, relative to the variance about the mean, below which a column counts as fully explained."""


@dataclass(frozen=True, eq=False)
class MatchedTest:
    """Result per column; NaN where `problems` says why there is none."""

    partial_r: Floats
    slope: Floats
    t: Floats
    low: Floats
    high: Floats
    p: Floats
    p_fwe: Floats
    p_fdr: Floats
    problems: tuple[str | None, ...]


def matched_test(
    values: Floats, regressors: Floats, which: Indices, nuisance: Floats, permutations: Permutations,
    confidence: float = 0.95, kinds: Indices | None = None,
) -> MatchedTest:  # fmt: skip
    """Partial correlation of every column of values with its regressor, permuting participants.

    Shapes: values (participants, columns), regressors (participants, regressors), which (columns,) with the regressor
    of each column, nuisance (participants, q) of full rank, intercept first, kinds (columns,) as for `freedman_lane`.
    """
    basis = np.linalg.qr(nuisance)[0]
    left, size, why_not = _residuals(values, basis, "relevance")
    tested, tested_size, why_no_regressor = _residuals(regressors, basis, "volume")
    problems = [why_no_regressor[which[i]] or why for i, why in enumerate(why_not)]
    usable = np.flatnonzero([problem is None for problem in problems])
    names = [field.name for field in fields(MatchedTest) if field.name != "problems"]
    result = {name: np.full(values.shape[1], np.nan) for name in names}
    if len(usable):
        kind = np.zeros(len(usable), np.intp) if kinds is None else kinds[usable]
        tests = _test(left[:, usable], tested, which[usable], basis, permutations, confidence, kind)
        for name, column in tests.items():
            result[name][usable] = column
    result["slope"] = result["partial_r"] * size / tested_size[which]
    return MatchedTest(**result, problems=tuple(problems))


def _test(
    residuals: Floats, tested: Floats, which: Indices, basis: Floats, permutations: Permutations,
    confidence: float, kinds: Indices,
) -> dict[str, Floats]:  # fmt: skip
    """The columns of `MatchedTest` for residuals (participants, columns) of norm 1."""
    moving = basis[:, np.ptp(basis, axis=0) > 1e-12]
    df = len(basis) - basis.shape[1] - 1
    models = {int(of_column): RobustModel(tested[:, [of_column]], moving, df) for of_column in np.unique(which)}
    columns = {of_column: np.flatnonzero(which == of_column) for of_column in models}

    def size(rows: NDArray[Any], data: Floats) -> NDArray[Any]:
        sizes = np.empty((len(rows), data.shape[1]), np.float32)
        for of_column, places in columns.items():
            sizes[:, places] = models[of_column].size(rows, data[:, places])
        return sizes

    t = np.empty(residuals.shape[1])
    for of_column, places in columns.items():
        t[places] = models[of_column].reported(residuals[:, places])[0]
    measured = size(np.arange(len(residuals), dtype=np.intp)[None], residuals)[0].astype(float)
    r = (residuals * tested[:, which]).sum(axis=0)
    threshold = freedman_lane.reached(measured, r**2)
    single, largest, critical, pooled = tally(size, CHUNK, permutations, residuals, threshold, confidence, kinds)
    family = len(permutations) - np.searchsorted(np.sort(largest), threshold, side="left")
    p, p_fwe = (p_value(count, len(permutations), permutations.exact) for count in (single, family))
    low, high = correlation_interval(r, t, critical, p, 1 - confidence)[1:]
    return {"partial_r": r, "t": t, "low": low, "high": high, "p": p, "p_fwe": p_fwe, "p_fdr": pooled_fdr(pooled, p)}


def _residuals(values: Floats, basis: Floats, name: str) -> tuple[Floats, Floats, list[str | None]]:
    """Residuals given the covariates, scaled to norm 1; their norms; and why a column has none."""
    finite = np.asarray(np.isfinite(values).all(axis=0), bool)
    filled = np.where(finite, values, 0.0)
    residuals = filled - basis @ (basis.T @ filled)
    size = np.linalg.norm(residuals, axis=0)
    spread = np.linalg.norm(filled - filled.mean(axis=0), axis=0)
    flat = np.asarray(np.ptp(filled, axis=0) <= NO_SPREAD * np.abs(filled).max(axis=0), bool)
    problems: list[str | None] = []
    for i in range(values.shape[1]):
        if not finite[i]:
            problems.append(f"no {name} in {int((~np.isfinite(values[:, i])).sum())} of {len(values)} participants")
        elif flat[i]:
            problems.append(f"the {name} is constant")
        else:
            explained = size[i] ** 2 <= NO_SPREAD * spread[i] ** 2
            problems.append(f"the {name} is fully explained by the covariates" if explained else None)
    whole = np.array([problem is None for problem in problems], bool)
    return np.where(whole, residuals / np.where(whole, size, 1.0), 0.0), np.where(whole, size, np.nan), problems
