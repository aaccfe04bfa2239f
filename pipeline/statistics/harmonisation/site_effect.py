"""Tests of the effect of site on mean and variance, over participants; both adjusted for the test fold in relevance.

Location: values on site and covariates by Freedman-Lane, with one variance per site if sites are few and large enough
(`pipeline.statistics.linear.fold_effect.with_variances`).

Scale: Brown & Forsythe (1974) by permutation, over sites with enough participants. The statistic is F of the absolute
distances from the median of the site. Distances of few values from their own median are correlated, so permuting
distances is conservative (0 to 3 % false positives at 5 % with sites of up to ten). Here the residuals of the model
with site, each divided by the square root of its share of degrees of freedom, are permuted, and medians, distances and
F are computed anew each time. The effect of site on the mean is removed with the residuals, so it is not mistaken for a
difference in variance; within the cells of class and test fold, each in units of its own SD, so a class or network that
varies more is not mistaken for a site. With fewer than ten participants the residuals of a site are distributed
differently from the errors (up to 8 % false positives at six with skewed values), so such sites are left out
(docs/benchmarks/statistics.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.statistics.arrays import Floats, Indices, Resampling
from heatlas.pipeline.statistics.harmonisation.combat import POOL
from heatlas.pipeline.statistics.linear.fold_effect import FOLD, FoldModel, model_within_folds, with_variances
from heatlas.pipeline.statistics.linear.freedman_lane import NO_SPREAD, PermutationTest, freedman_lane
from heatlas.pipeline.statistics.linear.permutations import (
    TIE_TOLERANCE,
    Exchangeability,
    compiled,
    in_order_of_cells,
    p_value,
    pooled_fdr,
)
from heatlas.pipeline.statistics.linear.studentised import plain_counts, pooled_p

FEWEST = 10
"""Smallest number of participants of a site that is compared in variance."""
AT_ONCE = 250
"""Permutations drawn per chunk; bounds memory (250 x 344 participants: 0.7 MB)."""


def in_large_sites(site: Sequence[str]) -> NDArray[np.bool_]:
    """Mask of participants at sites with at least `FEWEST`; pooled small sites do not share a location."""
    counts = Counter(site)
    return np.array([name != POOL and counts[name] >= FEWEST for name in site], dtype=bool)


def spread_test(
    values: Floats, model: Floats, site: Sequence[str], cell: NDArray[np.intp], resampling: Resampling
) -> PermutationTest:
    """Test whether sites differ in variance, in every column of values (participants, columns).

    `model` (participants, q) holds site and intercept, full rank; participants are permuted within `cell`
    (participants,), and values are scaled in each cell. A column with NaN has no test. `statistic` is F, `partial_r`
    the square root of the share of the variance of distances that is between sites.
    """
    names, numbers = np.unique(np.asarray(site, dtype=str), return_inverse=True)
    codes: NDArray[np.int32] = np.array(numbers.ravel(), dtype=np.int32)
    lacking = len(values) - np.count_nonzero(np.isfinite(values), axis=0)
    basis = np.linalg.qr(model)[0]
    filled = np.where(np.isfinite(values), values, 0.0)
    residuals = filled - basis @ (basis.T @ filled)
    constant = np.ptp(filled, axis=0) <= NO_SPREAD * np.abs(filled).max(axis=0, initial=0.0)
    flat = constant | ((residuals**2).sum(axis=0) <= NO_SPREAD * ((filled - filled.mean(axis=0)) ** 2).sum(axis=0))
    blocks = None if np.ptp(cell) == 0 else cell.tolist()
    order = (
        Exchangeability.free(len(values))
        .in_blocks(blocks)
        .permutations(resampling.m, resampling.rng, alike=codes.tolist())
    )
    alone = "only one permutation is possible" if len(order) < 2 else None
    problems = [f"no value in {n} of {len(values)}" if n else "no variance beyond the covariates" if none else alone
                for n, none in zip(lacking, flat, strict=True)]  # fmt: skip
    usable = np.array([problem is None for problem in problems], bool)
    left, free = _scaled_within_cells(residuals[:, usable], 1 - (basis**2).sum(axis=1), cell)
    observed = _statistics(left, np.arange(len(values), dtype=np.int32)[None], codes)[0]
    chunks = range(0, len(order), AT_ONCE)
    null = np.concatenate([_statistics(free, order.rows[at : at + AT_ONCE], codes) for at in chunks])
    if order.exact:  # the observed order is among them, with unscaled residuals
        null[(codes[order.rows] == codes).all(axis=1)] = observed
    threshold = observed * (1 - TIE_TOLERANCE)
    single, largest = plain_counts(null, threshold) if usable.any() else (np.zeros(0, np.intp), np.zeros(len(order)))
    columns = {"statistic": observed, "p": p_value(single, len(order), order.exact)}
    columns["p_fwe"] = p_value((largest[:, None] >= threshold).sum(axis=0), len(order), order.exact)
    pooled = pooled_p(null.T, threshold, np.zeros(len(threshold), np.intp), order.exact)
    columns["p_fdr"] = pooled_fdr(pooled, columns["p"])
    between, within = len(names) - 1, len(values) - len(names)
    columns["partial_r"] = np.sqrt(observed * between / (observed * between + within))
    nothing = np.full(values.shape[1], np.nan)
    full: dict[str, Any] = {name: nothing.copy() for name in columns}
    for name, column in columns.items():
        full[name][usable] = column
    return PermutationTest(
        **full, estimate=nothing, standard_error=nothing, critical=nothing, low=nothing, high=nothing,
        coefficients=np.full((between, values.shape[1]), np.nan),
        df=np.full(values.shape[1], float(within)), df_tested=between,
        n_units=len(values), n_permutations=len(order), exact=order.exact, problems=tuple(problems),
    )  # fmt: skip


def _scaled_within_cells(residuals: Floats, freedom: Floats, cell: NDArray[np.intp]) -> tuple[Floats, Floats]:
    """Residuals in units of their cell's SD; and divided by the root of their share of freedom, for permutation."""
    share = np.where(freedom > NO_SPREAD, freedom, np.inf)[:, None]
    free = residuals / np.sqrt(share)
    scale = np.ones_like(residuals)
    for number in np.unique(cell) if np.ptp(cell) else ():
        scale[cell == number] = np.sqrt((free[cell == number] ** 2).mean(axis=0))
    scale[scale == 0] = 1.0
    return residuals / scale, free / scale


def _statistics(residuals: Floats, rows: NDArray[Any], codes: NDArray[Any]) -> Floats:
    """F of site for several permutations of its labels, shape (permutations, columns)."""
    order, start = np.empty(rows.shape, np.int64), np.empty((len(rows), int(codes.max()) + 2), np.int64)
    in_order_of_cells(rows, codes, order, start)
    result = np.empty((len(rows), residuals.shape[1]))
    _brown_forsythe(np.ascontiguousarray(residuals.T), order, start, result)
    return result


@compiled
def _brown_forsythe(by_column: Any, order: Any, start: Any, result: Any) -> None:
    n, n_sites = by_column.shape[1], start.shape[1] - 1
    of_site = np.empty(n)
    for i in range(order.shape[0]):
        for column in range(by_column.shape[0]):
            between, squares, total = 0.0, 0.0, 0.0
            for site in range(n_sites):
                size = start[i, site + 1] - start[i, site]
                for j in range(size):
                    of_site[j] = by_column[column, order[i, start[i, site] + j]]
                middle, distances = np.median(of_site[:size]), 0.0
                for j in range(size):
                    distances += abs(of_site[j] - middle)
                    squares += (of_site[j] - middle) ** 2
                between += distances**2 / size
                total += distances
            between -= total**2 / n
            within = squares - total**2 / n - between
            result[i, column] = (between / (n_sites - 1)) / (within / (n - n_sites)) if within > 0 else np.inf


Effect = Literal["location", "scale"]

SITE = "site_tested"
CLASS = "label"


def site_effect(
    effect: Effect,
    values: Floats,
    site: Sequence[str],
    covariates: str,
    frame: pd.DataFrame,
    resampling: Resampling,
    hold_fold: bool = False,
) -> tuple[PermutationTest, FoldModel]:
    """Test the effect of site in every column of values (participants, columns); also returns the model.

    `covariates` is a formula over `frame` (one row per participant), whose column `label` is the class in the test of
    scale; `hold_fold` is for values of networks that differ between folds. BadInputError if there is only one site (for
    scale: with enough participants), or site is collinear with the covariates or fold.
    """
    # Without participant_id every row is a participant; the prefix makes site 990 a name, not a number.
    names = [f"site {name}" for name in site]
    table = frame.drop(columns="participant_id", errors="ignore").assign(**{SITE: names})
    formula = " + ".join(part for part in (covariates.strip(), SITE) if part)
    if effect == "location":
        model, groups = with_variances(model_within_folds(formula, SITE, table, hold_fold), names, SITE)
        return freedman_lane(values, model.design, model.exchange, resampling, groups), model
    chosen = np.flatnonzero(in_large_sites(site))
    table = table.iloc[chosen].reset_index(drop=True)
    if table[SITE].nunique() < 2:
        large = counted(table[SITE].nunique(), "site")
        raise BadInputError(f"scale not compared: {large} with {FEWEST} or more participants; two are needed.")
    model = model_within_folds(formula, SITE, table, hold_fold)
    design, rows = model.design, model.design.rows
    columns = np.column_stack([design.nuisance, design.tested])
    within = [name for name, used in ((FOLD, model.held), (CLASS, CLASS in table)) if used]
    cell: Indices = np.zeros(len(rows), np.intp)
    if within:
        cell = np.asarray(table.iloc[rows].groupby(within, dropna=False).ngroup(), dtype=np.intp)
    site_of_rows = [names[row] for row in chosen[rows]]
    return spread_test(values[chosen[rows]], columns, site_of_rows, cell, resampling), model
