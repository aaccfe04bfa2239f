"""Permutation test of a linear model's term for many columns of values at once (Freedman & Lane 1983).

In ``y = X b + Z g + error`` the residuals ``e`` of y on Z are permuted, added to the fit of Z, and the model is fitted
again. With an orthonormal basis ``[Qz, Qx]`` of ``[Z, X]`` the fit of Z cancels, and a permuted data set needs only

    signal = |Qx' P e|^2,    nuisance = |Qz' P e|^2,    partial R^2 = signal / (|e|^2 - nuisance).

The rows of the basis are permuted instead of the data (the inverse permutation is drawn equally often), so one matrix
product serves a chunk of permutations and all columns. t and F rise with partial R^2, so the largest of both come from
the same column. Directions of Qz that no permutation changes are left out: e is orthogonal to them before and after.
What each statistic supposes of the variance stands in `pipeline.statistics.linear.studentised`.

Not used: `nilearn.mass_univariate.permuted_ols` (t only, no repeated scans, no exact enumeration; the oracle of the
tests), `scipy.stats.permutation_test` (no covariates), statsmodels (none).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.statistics.arrays import Flags, Floats, Indices, Resampling
from heatlas.pipeline.statistics.linear.design import Design, new_direction
from heatlas.pipeline.statistics.linear.permutations import (
    TIE_TOLERANCE,
    Exchangeability,
    Permutations,
    p_value,
    pooled_fdr,
)
from heatlas.pipeline.statistics.linear.studentised import HomoscedasticModel, RobustModel, StudentisedModel, tally

CHUNK_BYTES = 2_000_000
"""Size of the largest array of a chunk of permutations; fastest near the size of a core's cache."""
SINGLE_TOLERANCE = 1e-5
"""Relative; as `TIE_TOLERANCE`, for statistics in single precision."""
ROUNDING, SINGLE_ROUNDING = 1e-14, 1e-6
"""Error of 1 - R^2 in double and in single precision. t divides by its root, so ties at R^2 near 1 are less exact."""
TEST_INTERVAL = "permutation"
"""Kind of an interval made with the critical value of the permuted statistic."""
OF_ONE_COLUMN = ("estimate", "standard_error", "critical", "low", "high")
NO_SPREAD_IN_GROUP = "the values are the same in all of a group, however people are permuted: no variance to divide by"
NO_SPREAD = 1e-12
"""Residual variance, relative to the variance about the mean, below which a column counts as explained."""


@dataclass(frozen=True, eq=False)
class LinearModel:
    """A design in the units of analysis, as orthonormal bases tested (units, k) and nuisance (units, q).

    `tested` is residualised for nuisance; to_coefficients (k, k) turns coordinates in it into coefficients; alike
    (units,) is equal for units with equal model rows and variance group; `df` are residual degrees of freedom; stays
    (q,) marks nuisance directions that no permutation changes; groups (units,) are variance groups.
    """

    tested: Floats
    nuisance: Floats
    to_coefficients: Floats
    alike: Indices
    df: int
    stays: Flags
    groups: Indices | None = None

    @classmethod
    def of(
        cls,
        design: Design,
        exchange: Exchangeability,
        variance_groups: Sequence[Any] | None = None,
        transform: Callable[[Floats], Floats] = np.asarray,
    ) -> LinearModel:
        """Reduce a design to the units of an exchangeability scheme for the rows of the design (not of the table).

        `variance_groups` has one group per row of the design; `transform`, such as ranks, is applied in the units of
        analysis. BadInputError if the tested term is collinear in these units, or no residual degree of freedom is
        left.
        """
        term = ", ".join(design.names[: design.tested.shape[1]])
        tested, nuisance = (transform(exchange.reduce(part)) for part in (design.tested, design.nuisance))
        basis = np.empty((len(tested), 0))
        # Directions that no permutation changes come first, then factors, so that each keep directions of their own.
        moves = ~exchange.stays(nuisance)
        distinct = np.array([len(np.unique(column)) for column in nuisance.T], dtype=np.intp)
        for column in nuisance.T[np.lexsort([distinct, moves])]:
            direction = new_direction(column, basis) if np.any(column) else None
            basis = basis if direction is None else np.column_stack([basis, direction])
        q = basis.shape[1]
        for column in tested.T:
            direction = new_direction(column, basis) if np.any(column) else None
            if direction is None:
                raise BadInputError(
                    f"term {term}: collinear with the covariates once each participant's scans are averaged. Test it "
                    "another way or leave it out."
                )
            basis = np.column_stack([basis, direction])
        df = len(tested) - basis.shape[1]
        if df < 1:
            raise BadInputError(
                f"term {term}: {counted(len(tested), exchange.unit, 'is')} too few for "
                f"{basis.shape[1]} coefficients. Leave covariates out, e.g. site."
            )
        tested_basis = basis[:, q:]
        groups = None if variance_groups is None else exchange.groups_of_units(variance_groups)
        rows = np.column_stack([tested, nuisance] + ([] if groups is None else [groups]))
        scale = np.abs(rows).max(axis=0)
        rounded = np.round(rows / np.where(scale > 0, scale, 1.0), 12)
        alike = np.unique(rounded, axis=0, return_inverse=True)[1].ravel()
        to_coefficients = np.asarray(np.linalg.inv(tested_basis.T @ tested), dtype=float)
        return cls(tested_basis, basis[:, :q], to_coefficients, alike, df, exchange.stays(basis[:, :q]), groups)

    @property
    def moving_nuisance(self) -> Floats:
        return self.nuisance[:, ~self.stays]


@dataclass(frozen=True, eq=False)
class PermutationTest:
    """Result for every column of values; arrays have shape (columns,), NaN where there is no test.

    `estimate` and `standard_error` are of the coefficient of a single tested column; `critical` is the value that |t|
    must exceed for p to be at most 1 - confidence, and `low` to `high` the interval made with it, which excludes 0
    exactly where p is that small. All these are NaN for a term of several columns, whose `coefficients` are (k,
    columns). `statistic` is signed t or F. p is two-sided: uncorrected; family-wise by the largest statistic of each
    permutation; false discovery rate (Benjamini & Hochberg on `studentised.pooled_p`, at least p). `partial_r` is
    signed for one tested column, else the root of partial R^2. `df` is Welch-Satterthwaite's with variance groups,
    `df_tested` k, `n_units` participants or rows tested. `exact`: all distinct permutations were used; p is then exact
    without covariates and variance groups. `problems` say why a column has no test. `critical_fwe`: as `critical`, for
    p_fwe; NaN without variance groups.
    """

    estimate: Floats
    standard_error: Floats
    critical: Floats
    low: Floats
    high: Floats
    coefficients: Floats
    statistic: Floats
    p: Floats
    p_fwe: Floats
    p_fdr: Floats
    partial_r: Floats
    df: Floats
    df_tested: int
    n_units: int
    n_permutations: int
    exact: bool
    problems: tuple[str | None, ...]
    critical_fwe: float = np.nan

    def columns(self) -> dict[str, Any]:
        """The columns of a table that a test fills, by their usual names."""
        hidden = ("critical", "critical_fwe", "coefficients", "problems")
        renamed = {"low": "ci_low", "high": "ci_high", "n_units": "n_participants"}
        names = (field.name for field in fields(self) if field.name not in hidden)
        return {renamed.get(name, name): getattr(self, name) for name in names}


def freedman_lane(
    values: Floats,
    design: Design,
    exchange: Exchangeability,
    resampling: Resampling,
    variance_groups: Sequence[Any] | None = None,
    equal_variances: bool = False,
    kinds: Sequence[Any] | None = None,
    by_ranks: bool = False,
) -> PermutationTest:
    """Test the tested term of a design in every column of values (rows of the table, columns).

    `exchange` and `variance_groups` have an entry per row of the table; groups with different residual variances get a
    studentised statistic (in a comparison of groups, these). `equal_variances`: plain t of one tested column, as of
    `nilearn.mass_univariate.permuted_ols`, instead of that of `RobustModel`; F without groups takes equal variances
    always. `kinds`, one per column: the map, whose scale differs between blocks (`Exchangeability.even`) and whose
    columns share a null distribution for p_fdr (`studentised.pooled_p`). `by_ranks`: ranks within blocks instead of
    values. BadInputError if the design cannot be tested in the units of the scheme, or a group is too small for a
    variance.
    """
    scheme = exchange.of_rows(design.rows)
    groups = None if variance_groups is None else np.asarray(variance_groups, dtype=object)[design.rows]
    model = LinearModel.of(design, scheme, None if groups is None else groups.tolist())
    columns = np.asarray(values, float).reshape(len(values), -1)[design.rows]
    permutations = scheme.permutations(resampling.m, resampling.rng, model.alike.tolist())
    units = scheme.reduce(columns)
    units = scheme.ranked(units) if by_ranks else scheme.even(units, kinds)
    return permutation_test(units, model, permutations, resampling.confidence, equal_variances, kinds)


def permutation_test(
    values: Floats,
    model: LinearModel,
    permutations: Permutations,
    confidence: float = 0.95,
    equal_variances: bool = False,
    kinds: Sequence[Any] | None = None,
) -> PermutationTest:
    """Test values (units, columns) with given permutations of the model's rows; columns with NaN have no test."""
    lacking = len(values) - np.count_nonzero(np.isfinite(values), axis=0)
    filled = np.where(np.isfinite(values), values, 0.0) if lacking.any() else values
    residuals = filled - model.nuisance @ (model.nuisance.T @ filled)
    norms = np.linalg.norm(residuals, axis=0)
    problems = _problems(filled, lacking, norms, len(permutations))
    usable = np.array([problem is None for problem in problems], bool)
    if not usable.all():
        residuals, norms = residuals[:, usable], norms[usable]
    residuals /= norms
    coefficients = np.full((model.tested.shape[1], values.shape[1]), np.nan)
    coefficients[:, usable] = model.to_coefficients @ (model.tested.T @ residuals) * norms
    r_squared = ((model.tested.T @ residuals) ** 2).sum(axis=0)
    # Where groups keep their spread, the observed order is none of the permuted ones.
    orders = permutations if model.groups is None else replace(permutations, exact=False)
    kind = pd.factorize(pd.Series([0] * values.shape[1] if kinds is None else list(kinds)))[0][usable]
    threshold, statistic, df, single, largest, critical, pooled = _measure(
        residuals, model, orders, confidence, equal_variances, kind.astype(np.intp)
    )
    endless = np.isinf(statistic) & (single == len(permutations))
    if endless.any():  # such a column would also be the largest of the family in every permutation
        left_out = np.flatnonzero(usable)[endless]
        without = values.astype(float, copy=True)
        without[:, left_out] = np.nan
        others = permutation_test(without, model, permutations, confidence, equal_variances, kinds)
        reasons = [NO_SPREAD_IN_GROUP if i in left_out else why for i, why in enumerate(others.problems)]
        return replace(others, coefficients=coefficients, problems=tuple(reasons))
    family = len(permutations) - np.searchsorted(np.sort(largest), threshold, side="left")
    result: dict[str, Floats] = {
        "statistic": statistic,
        "df": df,
        "partial_r": np.sqrt(np.clip(r_squared, 0, 1)),
        "p": p_value(single, len(orders), orders.exact),
        "p_fwe": p_value(family, len(orders), orders.exact),
    }
    result["p_fdr"] = pooled_fdr(pooled, result["p"])
    k = model.tested.shape[1]
    if k == 1:
        estimate = coefficients[0, usable]
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.where(statistic == 0, np.nan, estimate / statistic)
        if model.groups is None and not equal_variances:
            # Residuals under the null hypothesis contain the effect, which the standard error must not.
            error = error / np.sqrt(1 + 2 * r_squared)
        with np.errstate(invalid="ignore"):  # an infinite t has no error, and no bounds if its critical value is too
            low, high = dual_interval(estimate, critical * error, result["p"], 1 - confidence)
        result |= {"estimate": estimate, "standard_error": error, "critical": critical, "low": low, "high": high}
        result["partial_r"] = result["partial_r"] * np.sign(statistic)
    full = {name: np.full(values.shape[1], np.nan) for name in (*OF_ONE_COLUMN, *result)}
    for name, column in result.items():
        full[name][usable] = column
    return PermutationTest(
        **full,
        coefficients=coefficients,
        df_tested=k,
        n_units=len(values),
        n_permutations=len(permutations),
        exact=permutations.exact,
        problems=tuple(problems),
        critical_fwe=np.nan if model.groups is None else largest_by_chance(largest, 1 - confidence),
    )


def largest_by_chance(largest: Floats, alpha: float) -> float:
    """Value that a statistic must exceed for a family-wise p of at most alpha; infinite where none can have one.

    `largest` (permutations,): the largest statistic of each permutation over the family.

    >>> largest_by_chance(np.arange(1.0, 100.0), 0.05)  # 96 to 99 exceed it: (4 + 1) / (99 + 1)
    95.0
    """
    m = len(largest)
    allowed = np.count_nonzero(p_value(np.arange(m), m, exact=False) <= alpha + 1e-12) - 1
    return float(np.sort(largest)[m - 1 - allowed]) if allowed >= 0 else np.inf


def _measure(
    residuals: Floats, model: LinearModel, permutations: Permutations, confidence: float, equal: bool, kinds: Indices
) -> tuple[Floats, Floats, Floats, Indices, Floats, Floats, Floats]:
    """Threshold of sizes, statistic, df, and what `tally` gives; `equal`: with one variance."""
    r_squared = ((model.tested.T @ residuals) ** 2).sum(axis=0)
    if model.groups is not None:
        by_group = StudentisedModel(model.tested, model.nuisance, model.groups, model.stays)
        statistic, df = by_group.reported(residuals)
        threshold = reached(np.abs(statistic), r_squared, TIE_TOLERANCE, ROUNDING)
        alike, deviations = by_group.standardised(residuals)
        size, step = partial(by_group.size, deviations=deviations), by_group.step(alike, CHUNK_BYTES)
        return threshold, statistic, df, *tally(size, step, permutations, alike, threshold, confidence, kinds)
    as_observed = np.arange(len(residuals), dtype=np.intp)[None]
    if equal or model.tested.shape[1] > 1:
        plain = HomoscedasticModel(model.tested, model.moving_nuisance, model.df)
        measured = plain.size(as_observed, residuals)[0]
        threshold = measured * (1 - TIE_TOLERANCE) - ROUNDING
        step = plain.step(residuals, CHUNK_BYTES)
        counts, largest, _, pooled = tally(plain.size, step, permutations, residuals, threshold, confidence, kinds)
        return threshold, *plain.reported(residuals), counts, largest, np.full(len(measured), np.nan), pooled
    null = RobustModel(model.tested, model.moving_nuisance, model.df)
    threshold = reached(null.size(as_observed, residuals)[0].astype(float), r_squared)
    step = null.step(residuals, CHUNK_BYTES)
    of_null = tally(null.size, step, permutations, residuals, threshold, confidence, kinds)
    return threshold, *null.reported(residuals), *of_null


def reached(
    size: Floats, r_squared: Floats, tolerance: float = SINGLE_TOLERANCE, rounding: float = SINGLE_ROUNDING
) -> Floats:
    """What permuted statistics must reach to count as at least as extreme as `size`, given R^2; each (columns,)."""
    threshold: Floats = size * (1 - np.minimum(tolerance + rounding / np.maximum(1 - r_squared, rounding), 0.5))
    return threshold - rounding  # a statistic of 0 is 0 but for rounding


def dual_interval(estimate: Floats, reach: Floats, p: Floats, alpha: float) -> tuple[Floats, Floats]:
    """Bounds of ``estimate`` -+ ``reach``, with 0 inside wherever p is above alpha."""
    low, high = estimate - reach, estimate + reach
    inside = p > alpha
    return np.where(inside, np.minimum(low, 0.0), low), np.where(inside, np.maximum(high, 0.0), high)


def _problems(filled: Floats, lacking: Indices, norms: Floats, n_permutations: int) -> list[str | None]:
    """Why a column cannot be tested, from its values, the number missing, and the norm of its residuals."""
    if n_permutations < 2:
        return ["only one permutation is possible"] * filled.shape[1]
    constant = np.ptp(filled, axis=0) <= NO_SPREAD * np.abs(filled).max(axis=0, initial=0.0)
    explained = norms**2 <= NO_SPREAD * len(filled) * filled.var(axis=0)
    reasons = (
        (lacking > 0, [f"no value in {count} of {len(filled)}" for count in lacking]),
        (constant, ["the values are constant"] * len(norms)),
        (explained, ["fully explained by the covariates"] * len(norms)),
    )
    return [next((texts[i] for holds, texts in reasons if holds[i]), None) for i in range(len(norms))]
