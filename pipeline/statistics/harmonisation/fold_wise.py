"""ComBat on region features, fitted for every test fold on the participants outside it.

Values, sites and covariates of the participants of a fold are not used to fit the model applied to them. Volumes are
thereby fully held out. Relevance is not: the maps of the training participants were made by the networks of their own
folds, which were trained on the participants of this fold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipeline.cohort.cells.values import code_text
from pipeline.run.config.statistics import HarmonisationConfig
from pipeline.run.errors import BadInputError
from pipeline.statistics.arrays import Floats
from pipeline.statistics.data.region_features import VOLUME, FoldedScans, RegionFeatures
from pipeline.statistics.harmonisation.combat import ComBatModel
from pipeline.statistics.harmonisation.combat_fit import fit
from pipeline.statistics.linear.covariates import CovariateColumns


@dataclass(frozen=True, eq=False)
class FoldModel:
    """Model applied to the scans of one fold; `left_out` counts excluded training participants by reason."""

    combat: ComBatModel
    covariates: CovariateColumns
    left_out: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Harmonised:
    """One source of features, harmonised fold by fold; values (scans, groups), NaN where not possible.

    `features` are as measured; `notes` give the reason for each scan; `models` and `problems` are by fold.
    """

    features: RegionFeatures
    values: Floats
    notes: tuple[str | None, ...]
    models: Mapping[str, FoldModel]
    problems: Mapping[str, str]


def harmonise(features: RegionFeatures, scans: FoldedScans, settings: HarmonisationConfig) -> Harmonised:
    """Fit and apply one model per fold; a fold that cannot be harmonised gets a problem instead."""
    values = np.full_like(features.values, np.nan)
    notes: list[str | None] = [None] * len(scans.frame)
    models: dict[str, FoldModel] = {}
    problems: dict[str, str] = {}
    for fold in scans.folds:
        rows = np.flatnonzero(scans.tested(fold))
        try:
            model = fold_model(features, scans, fold, settings)
            values[rows], said = _apply(model, features.values[rows], scans.frame.iloc[rows], settings)
            models[fold] = model
        except BadInputError as error:
            problems[fold] = str(error)
            said = [problems[fold]] * len(rows)
        for row, note in zip(rows, said, strict=True):
            notes[row] = note
    return Harmonised(features, values, tuple(notes), models, problems)


def fold_model(features: RegionFeatures, scans: FoldedScans, fold: str, settings: HarmonisationConfig) -> FoldModel:
    """Fit on the first scans of participants outside a fold; raises like `fit`."""
    rows = np.flatnonzero(scans.training(fold))
    if not len(rows):
        raise BadInputError(
            'harmonisation: no participant outside the fold has out-of-fold values. Set cohort.split = "folds".'
        )
    training = scans.frame.iloc[rows]
    covariates = CovariateColumns.of(covariates_of(features, settings), training)
    columns, why = covariates.matrix(training)
    extra = CovariateColumns.of(settings.training_covariates, training)
    extra_columns, extra_why = extra.matrix(training)
    site_known = training[settings.site_column].notna().to_numpy(bool)
    reasons = [
        (f"{settings.site_column} is n/a" if not known else None) or one or other
        for known, one, other in zip(site_known, why, extra_why, strict=True)
    ]
    used = np.array([reason is None for reason in reasons], dtype=bool)
    combat = fit(
        features.values[rows][used],
        [code_text(name) for name in training.loc[used, settings.site_column]],
        columns[used],
        training_covariates=extra_columns[used],
        empirical_bayes=settings.empirical_bayes,
        reference=settings.reference_site or None,
        min_rows=settings.min_participants,
        small_site=settings.small_site,
        unseen_site=settings.unseen_site,
        covariate_names=[*covariates.names, *extra.names],
    )
    lost = [reason for reason in reasons if reason is not None]
    return FoldModel(combat, covariates, {reason: lost.count(reason) for reason in sorted(set(lost))})


def covariates_of(features: RegionFeatures, settings: HarmonisationConfig) -> str:
    """Formula for a source of features."""
    return settings.volume_covariates if features.source == VOLUME else settings.relevance_covariates


def _apply(
    model: FoldModel, values: Floats, frame: pd.DataFrame, settings: HarmonisationConfig
) -> tuple[Floats, list[str | None]]:
    columns, notes = model.covariates.matrix(frame)
    known = frame[settings.site_column].notna().to_numpy(bool)
    harmonised = np.full_like(values, np.nan)
    sites = [code_text(name) for name in frame.loc[known, settings.site_column]]
    harmonised[known] = model.combat.transform(values[known], sites, columns[known])
    harmonised[[note is not None for note in notes]] = np.nan
    named = iter(sites)
    for row, there in enumerate(known):
        site = next(named) if there else None
        if site is None:
            notes[row] = f"{settings.site_column} is n/a"
        elif notes[row] is None and site not in model.combat.sites:
            serving = model.combat.treated_as(site)
            treated = "unchanged" if serving is None else "treated as one of the pooled small sites"
            notes[row] = f"no parameters for site {site} in this fold: {treated}"
    return harmonised, notes
