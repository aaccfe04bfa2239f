"""Sites in region features: ComBat fold by fold takes their effects off, and tests say what is left of them.

*ComBat* is fitted for every test fold on the participants outside it. Volumes are thereby fully held out; relevance is
not, since the networks that made the maps of the training participants were trained on those of this fold. Networks of
different folds differ in level and scale, which ComBat would take for effects of site where sites are unbalanced. So
relevance is divided by the spread of its fold, fold is in the model while sites are estimated, and the level of the
test fold's network is taken off before the model is applied (`hold`); both are put back afterwards.

*Tests* are over participants, adjusted for the test fold in relevance. Location: values on site and covariates by
Freedman-Lane, with one variance per site where possible. Scale: Brown & Forsythe (1974), F of the absolute distances
from the median of the site. Permuting distances is conservative, as those from their own median are correlated (0 to 3
% at 5 % with sites of up to ten). Here the residuals of the model with site, each divided by the root of its share of
degrees of freedom, are permuted within the cells of class and test fold, each in units of its SD, and medians,
distances and F are computed anew. With fewer than ten participants the residuals of a site are distributed differently
from the errors (up to 8 % at six with skewed values), so such sites are left out (docs/benchmarks/statistics.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heatlas.pipeline.cohort.cells.values import code_text
from heatlas.pipeline.run.config.statistics import HarmonisationConfig
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.statistics.arrays import Flags, Floats, Indices, Resampling
from heatlas.pipeline.statistics.data.features import NO_FOLD, VOLUME, CovariateColumns, FoldedScans, RegionFeatures
from heatlas.pipeline.statistics.harmonisation.combat import POOL, ComBatModel, fit
from heatlas.pipeline.statistics.linear import permutations
from heatlas.pipeline.statistics.linear.fold_effect import FOLD, FoldModel, model_within_folds, with_variances
from heatlas.pipeline.statistics.linear.freedman_lane import NO_SPREAD, OF_ONE_COLUMN, PermutationTest, freedman_lane
from heatlas.pipeline.statistics.linear.studentised import plain_counts, pooled_p
from heatlas.pipeline.statistics.resampling.bootstrap import ratio


@dataclass(frozen=True, eq=False)
class FoldHarmonisation:
    """Model applied to the scans of one fold; `left_out` counts excluded training participants by reason."""

    combat: ComBatModel
    covariates: CovariateColumns
    left_out: Mapping[str, int]
    held: bool = False
    not_held: str | None = None


@dataclass(frozen=True, eq=False)
class Harmonised:
    """One source of features, harmonised fold by fold; values (scans, groups), NaN where a scan's note says why not."""

    features: RegionFeatures
    values: Floats
    notes: tuple[str | None, ...]
    models: Mapping[str, FoldHarmonisation]
    problems: Mapping[str, str]


def harmonise(
    features: RegionFeatures, scans: FoldedScans, settings: HarmonisationConfig, hold: bool = False
) -> Harmonised:
    """Fit and apply one model per fold; a fold that cannot be harmonised gets a problem instead."""
    hold = hold and len({fold for fold in scans.folds if fold != NO_FOLD}) > 1
    scale = _scale_of_folds(features.values, scans) if hold else np.ones_like(features.values)
    comparable = replace(features, values=features.values / scale)
    values = np.full_like(features.values, np.nan)
    notes: list[str | None] = [None] * len(scans.frame)
    models: dict[str, FoldHarmonisation] = {}
    problems: dict[str, str] = {}
    for fold in scans.folds:
        rows = np.flatnonzero(scans.tested(fold))
        try:
            model = fold_model(comparable, scans, fold, settings, hold)
            of_level = scans.first[rows] if scans.first[rows].any() else np.ones(len(rows), bool)
            values[rows], row_notes = _apply(model, comparable.values[rows], scans.frame.iloc[rows], settings, of_level)
            models[fold] = model
        except BadInputError as error:
            problems[fold] = str(error)
            row_notes = [problems[fold]] * len(rows)
        for row, note in zip(rows, row_notes, strict=True):
            notes[row] = note
    # What was not adjusted stays the same bit for bit, whatever the scale.
    values = np.where(values == comparable.values, features.values, values * scale)
    return Harmonised(features, values, tuple(notes), models, problems)


def _scale_of_folds(values: Floats, scans: FoldedScans) -> Floats:
    """Standard deviation of each scan's fold (scans, groups), over first scans; the mean of folds for scans of none."""
    spread = {}
    for fold in scans.folds:
        of_fold = values[scans.first & scans.tested(fold)]
        if fold != NO_FOLD:
            variance = _known_mean((of_fold - _known_mean(of_fold)) ** 2)
            spread[fold] = np.sqrt(np.where(variance > 0, variance, np.nan))
    usual = np.nan_to_num(_known_mean(np.array([*spread.values()])), nan=1.0)
    of_scans = np.array([spread.get(fold, usual) for fold in scans.fold])
    return np.where(np.isnan(of_scans), usual, of_scans)


def _known_mean(values: Floats) -> Floats:
    """Mean over rows (rows, columns) of known values; NaN where there are none."""
    present = ~np.isnan(values)
    return ratio(np.where(present, values, 0.0).sum(axis=0), present.sum(axis=0))


def fold_model(
    features: RegionFeatures, scans: FoldedScans, fold: str, settings: HarmonisationConfig, hold: bool = False
) -> FoldHarmonisation:
    """Fit on the first scans of participants outside a fold; `hold`: with fold in the model where sites allow it."""
    rows = np.flatnonzero(scans.training(fold))
    if not len(rows):
        raise BadInputError(
            'harmonisation: no participant outside the fold has out-of-fold values. Set cohort.split = "folds".'
        )
    if hold:
        try:
            return replace(_fit_fold(features, scans, rows, settings, True), held=True)
        except BadInputError as error:
            return replace(_fit_fold(features, scans, rows, settings, False), not_held=f"fold not held: {error}")
    return _fit_fold(features, scans, rows, settings, False)


def _fit_fold(
    features: RegionFeatures, scans: FoldedScans, rows: Indices, settings: HarmonisationConfig, hold: bool
) -> FoldHarmonisation:
    training = scans.frame.iloc[rows]
    covariates = CovariateColumns.of(covariates_of(features, settings), training)
    columns, why = covariates.matrix(training)
    extra = CovariateColumns.of(settings.training_covariates, training)
    extra_columns, extra_why = extra.matrix(training)
    site_known = training[settings.site_column].notna().to_numpy(bool)
    reasons = [
        (f"{settings.site_column} is n/a" if not has_site else None) or why_site or why_extra
        for has_site, why_site, why_extra in zip(site_known, why, extra_why, strict=True)
    ]
    used = np.array([reason is None for reason in reasons], dtype=bool)
    networks = np.zeros((int(used.sum()), 0))
    if hold:  # a column for each network but the first
        of_fold = pd.Series([scans.fold[row] for row in rows[used]], dtype=object)
        networks = pd.get_dummies(of_fold).to_numpy(float)[:, 1:]
    combat = fit(
        features.values[rows][used],
        [code_text(name) for name in training.loc[used, settings.site_column]],
        columns[used],
        training_covariates=np.column_stack([extra_columns[used], networks]),
        empirical_bayes=settings.empirical_bayes,
        reference=settings.reference_site or None,
        min_rows=settings.min_participants,
        small_site=settings.small_site,
        unseen_site=settings.unseen_site,
        covariate_names=[*covariates.names, *extra.names, *["fold"] * networks.shape[1]],
    )
    lost = [reason for reason in reasons if reason is not None]
    return FoldHarmonisation(combat, covariates, {reason: lost.count(reason) for reason in sorted(set(lost))})


def covariates_of(features: RegionFeatures, settings: HarmonisationConfig) -> str:
    """Formula for a source of features."""
    return settings.volume_covariates if features.source == VOLUME else settings.relevance_covariates


def _apply(
    model: FoldHarmonisation, values: Floats, frame: pd.DataFrame, settings: HarmonisationConfig, of_level: Flags
) -> tuple[Floats, list[str | None]]:
    """Harmonised values of the scans of a fold; `of_level` marks those that the level of its network is taken from."""
    columns, notes = model.covariates.matrix(frame)
    has_site = frame[settings.site_column].notna().to_numpy(bool)
    harmonised = np.full_like(values, np.nan)
    sites = [code_text(name) for name in frame.loc[has_site, settings.site_column]]
    level = np.zeros(values.shape[1])
    if model.held:
        left = values[has_site] - model.combat.expected(sites, columns[has_site])
        level = np.nan_to_num(_known_mean(left[of_level[has_site]]))
    from_level = values[has_site] - level
    moved = model.combat.transform(from_level, sites, columns[has_site])
    harmonised[has_site] = np.where(moved == from_level, values[has_site], moved + level)
    harmonised[[note is not None for note in notes]] = np.nan
    named = iter(sites)
    for row, there in enumerate(has_site):
        site = next(named) if there else None
        if site is None:
            notes[row] = f"{settings.site_column} is n/a"
        elif notes[row] is None and site not in model.combat.sites:
            serving = model.combat.treated_as(site)
            treated = "unchanged" if serving is None else "treated as one of the pooled small sites"
            notes[row] = f"no parameters for site {site} in this fold: {treated}"
    return harmonised, notes


FEWEST = 10
"""Smallest number of participants of a site that is compared in variance."""
AT_ONCE = 250
"""Permutations drawn per chunk; bounds memory (250 x 344 participants: 0.7 MB)."""


def in_large_sites(site: Sequence[str]) -> Flags:
    """Mask of participants at sites with at least `FEWEST`; pooled small sites do not share a location."""
    counts = Counter(site)
    return np.array([name != POOL and counts[name] >= FEWEST for name in site], dtype=bool)


def spread_test(
    values: Floats, model: Floats, site: Sequence[str], cell: Indices, resampling: Resampling
) -> PermutationTest:
    """Test whether sites differ in variance, in every column of values (participants, columns).

    `model` (participants, q) holds site and intercept, full rank; participants are permuted and values scaled within
    `cell` (participants,). `statistic` is F, `partial_r` the root of the share of the variance of distances between
    sites.
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
    exchange = permutations.Exchangeability.free(len(values)).in_blocks(blocks)
    order = exchange.permutations(resampling.m, resampling.rng, alike=codes.tolist())
    alone = "only one permutation is possible" if len(order) < 2 else None
    unexplained = ["no variance beyond the covariates" if none else alone for none in flat]
    problems = [f"no value in {n} of {len(values)}" if n else why for n, why in zip(lacking, unexplained, strict=True)]
    usable = np.array([problem is None for problem in problems], bool)
    left, free = _scaled_within_cells(residuals[:, usable], 1 - (basis**2).sum(axis=1), cell)
    observed = _statistics(left, np.arange(len(values), dtype=np.int32)[None], codes)[0]
    chunks = range(0, len(order), AT_ONCE)
    null = np.concatenate([_statistics(free, order.rows[at : at + AT_ONCE], codes) for at in chunks])
    if order.exact:  # the observed order is among them, with unscaled residuals
        null[(codes[order.rows] == codes).all(axis=1)] = observed
    threshold = observed * (1 - permutations.TIE_TOLERANCE)
    single, largest = plain_counts(null, threshold) if usable.any() else (np.zeros(0, np.intp), np.zeros(len(order)))
    columns = {"statistic": observed, "p": permutations.p_value(single, len(order), order.exact)}
    columns["p_fwe"] = permutations.p_value((largest[:, None] >= threshold).sum(axis=0), len(order), order.exact)
    pooled = pooled_p(null.T, threshold, np.zeros(len(threshold), np.intp), order.exact)
    columns["p_fdr"] = permutations.pooled_fdr(pooled, columns["p"])
    between, within = len(names) - 1, len(values) - len(names)
    columns["partial_r"] = np.sqrt(observed * between / (observed * between + within))
    nothing = np.full(values.shape[1], np.nan)
    full: dict[str, Any] = {name: nothing.copy() for name in columns}
    for name, column in columns.items():
        full[name][usable] = column
    full |= dict.fromkeys(OF_ONE_COLUMN, nothing)
    full |= {"coefficients": np.full((between, values.shape[1]), np.nan), "df": np.full(values.shape[1], float(within))}
    counts: dict[str, Any] = {"df_tested": between, "n_units": len(values), "n_permutations": len(order)}
    return PermutationTest(**full, **counts, exact=order.exact, problems=tuple(problems))


def _scaled_within_cells(residuals: Floats, freedom: Floats, cell: Indices) -> tuple[Floats, Floats]:
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
    permutations.in_order_of_cells(rows, codes, order, start)
    result = np.empty((len(rows), residuals.shape[1]))
    _brown_forsythe(np.ascontiguousarray(residuals.T), order, start, result)
    return result


@permutations.compiled
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
    scale. BadInputError if there is only one site (for scale: with enough participants), or site is collinear with the
    covariates or fold.
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
