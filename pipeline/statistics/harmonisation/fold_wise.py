"""ComBat on region features, fitted for every test fold on the participants outside it.

Values, sites and covariates of the participants of a fold are not used to fit the model applied to them. Volumes are
thereby fully held out. Relevance is not: the maps of the training participants were made by the networks of their own
folds, which were trained on the participants of this fold.

Networks of different folds differ in level and scale. Where sites are unbalanced over folds, ComBat would take that for
effects of site, and write them into the values of other networks. So relevance is divided by the spread of its fold,
fold is in the model while sites are estimated, and the level of the test fold's network is taken off before the model
is applied (`hold`). Spread and level of the test fold are those of its own participants, whatever their site and class;
they are put back afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from heatlas.pipeline.cohort.cells.values import code_text
from heatlas.pipeline.run.config.statistics import HarmonisationConfig
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.statistics.arrays import Flags, Floats, Indices
from heatlas.pipeline.statistics.data.features import NO_FOLD, VOLUME, CovariateColumns, FoldedScans, RegionFeatures
from heatlas.pipeline.statistics.harmonisation.combat import ComBatModel, fit
from heatlas.pipeline.statistics.resampling.bootstrap import ratio


@dataclass(frozen=True, eq=False)
class FoldHarmonisation:
    """Model applied to the scans of one fold; `left_out` counts excluded training participants by reason.

    `held` says whether fold was in the model, and `not_held` why not.
    """

    combat: ComBatModel
    covariates: CovariateColumns
    left_out: Mapping[str, int]
    held: bool = False
    not_held: str | None = None


@dataclass(frozen=True, eq=False)
class Harmonised:
    """One source of features, harmonised fold by fold; values (scans, groups), NaN where not possible.

    `features` are as measured; `notes` give the reason for each scan; `models` and `problems` are by fold.
    """

    features: RegionFeatures
    values: Floats
    notes: tuple[str | None, ...]
    models: Mapping[str, FoldHarmonisation]
    problems: Mapping[str, str]


def harmonise(
    features: RegionFeatures, scans: FoldedScans, settings: HarmonisationConfig, hold: bool = False
) -> Harmonised:
    """Fit and apply one model per fold; a fold that cannot be harmonised gets a problem instead.

    `hold` is for values of networks that differ between folds.
    """
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
    """Fit on the first scans of participants outside a fold; raises like `fit`.

    With `hold`, fold is in the model if its effect can be told from those of sites.
    """
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
    networks = _indicators([scans.fold[row] for row in rows[used]]) if hold else np.zeros((int(used.sum()), 0))
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


def _indicators(names: Sequence[str]) -> Floats:
    """A column for each name but the first."""
    return pd.get_dummies(pd.Series(list(names), dtype=object)).to_numpy(float)[:, 1:]


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
