"""Tables of harmonised region features, of the models, and of the effect of site before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
import pandas as pd

from heatlas.pipeline.cohort.cells.values import code_text
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.declared import declared
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Indices, Resampling
from heatlas.pipeline.statistics.data.features import VOLUME, FoldedScans, refuse_class
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.data.values import joined, stacked
from heatlas.pipeline.statistics.harmonisation import sites
from heatlas.pipeline.statistics.harmonisation.combat import POOL
from heatlas.pipeline.statistics.linear.fold_effect import FOLD

CLASSES_NEED_SITE = "classes compared in these values: hold site"
HARMONISED_RELEVANCE_TABLE = declared("harmonised_relevance", __file__)
HARMONISED_VOLUMES_TABLE = declared("harmonised_volumes", __file__)
HARMONISATION_MODELS_TABLE = declared("harmonisation_models", __file__)
SITE_EFFECTS_TABLE = declared("site_effects", __file__)
HARMONISATION_TABLES = (
    HARMONISED_RELEVANCE_TABLE,
    HARMONISED_VOLUMES_TABLE,
    HARMONISATION_MODELS_TABLE,
    SITE_EFFECTS_TABLE,
)


def harmonisation_tables(inputs: StatisticsInputs) -> Mapping[str, pd.DataFrame]:
    """Harmonise densities and volumes fold by fold, and test the effect of site before and after.

    BadInputError if a setting names a missing column or one that contains the class, or if no model can be fitted.
    """
    config = inputs.config
    scans = FoldedScans.of(inputs)
    _require_settings(scans.frame, config)
    settings, hold = config.statistics.harmonisation, config.statistics.fold_effect
    done = [
        sites.harmonise(features, scans, settings, hold and features.source != VOLUME) for features in scans.sources
    ]
    if not any(source.models for source in done):
        fold, why = next(iter(done[0].problems.items()))
        raise BadInputError(f"{done[0].features.source}, fold {fold}: {why}")
    relevance, volumes = [], []
    for source in done:
        if source.features.source == VOLUME:
            volumes.append(_values(source, scans, config, "volume_mm3"))
        else:
            relevance.append(_values(source, scans, config, "density").assign(map=source.features.source))
    models = [_models(source, scans, config) for source in done]
    effects = [_effects(source, scans, config) for source in done]
    return {
        "harmonised_relevance": inputs.as_named(stacked(HARMONISED_RELEVANCE_TABLE, relevance)),
        "harmonised_volumes": inputs.as_named(stacked(HARMONISED_VOLUMES_TABLE, volumes)),
        "harmonisation_models": stacked(HARMONISATION_MODELS_TABLE, models),
        "site_effects": stacked(SITE_EFFECTS_TABLE, effects),
    }


def _require_settings(frame: pd.DataFrame, config: Config) -> None:
    settings = config.statistics.harmonisation
    if settings.site_column not in frame.columns:
        raise BadInputError(
            f"statistics.harmonisation.site_column = '{settings.site_column}': scans have no such column. Use one of "
            f"{', '.join(map(str, frame.columns))}."
        )
    if frame[settings.site_column].isna().all():
        raise BadInputError(
            f"harmonisation: {settings.site_column} is n/a in every scan. Add it to the input, or name another column "
            "in statistics.harmonisation.site_column."
        )
    for name in ("relevance_covariates", "volume_covariates"):
        setting = f"statistics.harmonisation.{name}"
        refuse_class(getattr(settings, name), config.cohort.contrast_column, list(map(str, frame.columns)), setting)


def _values(done: sites.Harmonised, scans: FoldedScans, config: Config, column: str) -> pd.DataFrame:
    groups, frame = done.features.groups, scans.frame
    rows = np.repeat(np.arange(len(frame)), len(groups))
    table = frame.iloc[rows][["participant_id", "session_id", "scan_id"]].reset_index(drop=True)
    table["fold"] = np.array(scans.fold, dtype=object)[rows]
    table["site"] = frame[config.statistics.harmonisation.site_column].to_numpy()[rows]
    table["group"] = list(groups) * len(frame)
    table[column] = done.features.values.ravel()
    table["harmonised"] = done.values.ravel()
    table["note"] = np.array(done.notes, dtype=object)[rows]
    return table


def _models(done: sites.Harmonised, scans: FoldedScans, config: Config) -> pd.DataFrame:
    """One row per fold and site; one for a fold without a model."""
    column = config.statistics.harmonisation.site_column
    rows: list[dict[str, Any]] = [
        {"source": done.features.source, "fold": fold, "note": why} for fold, why in done.problems.items()
    ]
    for fold, model in done.models.items():
        combat, groups = model.combat, done.features.groups
        tested = scans.frame[column][scans.tested(fold)].dropna().map(code_text)
        tested_here = Counter(tested)
        notes = [f"{counted(n, 'participant')} left out: {reason}" for reason, n in model.left_out.items()]
        notes += [f"covariate {name} left out: {reason}" for name, reason in model.covariates.dropped.items()]
        notes += [f"{groups[i]} unchanged: {reason}" for i, reason in sorted(combat.unadjusted.items())]
        notes += [*([model.not_held] if model.not_held else []), CLASSES_NEED_SITE]
        shared = {"source": done.features.source, "fold": fold, "fold_held": model.held, "note": "; ".join(notes)}
        shared["covariates"] = ", ".join(model.covariates.names) or None
        trained = Counter(dict.fromkeys((*combat.members, *combat.left_out), 0))
        trained.update(code_text(name) for name in scans.frame[column][scans.training(fold)].dropna())
        for site in sorted({*combat.sites, *trained, *tested_here}):
            serving = None if site in combat.left_out else combat.serving(site)
            treatment, gamma, scale = "unchanged", np.nan, np.nan
            if serving is not None:
                of_itself = "own parameters" if serving == site else "pooled"
                treatment, i = "reference" if serving == combat.reference else of_itself, combat.sites.index(serving)
                gamma, scale = np.nanmedian(combat.gamma[i]), np.nanmedian(np.sqrt(combat.delta[i]))
            row = {"n_training": combat.counts.get(site, trained[site]), "n_tested": tested_here[site]}
            rows.append(shared | row | {"site": site, "treatment": treatment, "gamma": gamma, "scale": scale})
    return HARMONISATION_MODELS_TABLE.frame(rows).astype({"n_training": "Int64", "n_tested": "Int64"})


def _effects(done: sites.Harmonised, scans: FoldedScans, config: Config) -> pd.DataFrame:
    """Tests of location and scale, before and after, on the same participants and permutations, or why not."""
    try:
        return _tests(done, scans, config)
    except BadInputError as error:
        why = joined(*dict.fromkeys(done.problems.values()), str(error) if done.models else None)
        return SITE_EFFECTS_TABLE.frame([{"source": done.features.source, "note": why}])


def _tests(done: sites.Harmonised, scans: FoldedScans, config: Config) -> pd.DataFrame:
    settings, source = config.statistics.harmonisation, done.features.source
    if not done.models:
        raise BadInputError("no fold could be harmonised")
    rows = np.flatnonzero(scans.first & ~np.isnan(done.values).all(axis=1))
    frame = scans.frame.iloc[rows].reset_index(drop=True)
    names = frame[settings.site_column].map(code_text)
    counts = names.value_counts()
    small = set(counts.index[counts < settings.min_participants])
    pooled = names.where(~names.isin(small), POOL)
    keep = ((pooled != POOL) | (int((pooled == POOL).sum()) >= settings.min_participants)).to_numpy(bool)
    frame, site, rows = frame[keep].reset_index(drop=True), pooled[keep].tolist(), rows[keep]
    notes = [f"{counted(len(small), 'small site')} pooled"] if POOL in site else []
    notes += [f"{counted(int((~keep).sum()), 'participant')} of small sites left out"] if not keep.all() else []
    notes += [f"fold {fold} left out: {why}" for fold, why in done.problems.items()]
    formula = " + ".join(filter(None, (sites.covariates_of(done.features, settings), settings.training_covariates)))
    tables = []
    for effect in get_args(sites.Effect):
        part = sites.in_large_sites(site) if effect == "scale" else np.ones(len(site), bool)
        small_sites = f"{counted(int((~part).sum()), 'participant')} of sites with fewer than {sites.FEWEST} left out"
        shared = notes if part.all() else [*notes, small_sites]
        try:
            table = _test_table(done, effect, rows, site, formula, frame, config)
        except BadInputError as error:
            if effect == "location":
                raise
            table = pd.DataFrame([{"source": source, "effect": effect, "note": str(error)}])
        else:
            table["n_sites"] = len(set(np.array(site, dtype=object)[part]))
        tables.append(table.assign(note=np.array([joined(*shared, note) for note in table["note"]], dtype=object)))
    return pd.concat(tables)


def _test_table(
    done: sites.Harmonised, effect: sites.Effect, rows: Indices, site: list[str], formula: str, frame: pd.DataFrame,
    config: Config,
) -> pd.DataFrame:  # fmt: skip
    """One test in all groups of a source, before and after."""
    source, tests = done.features.source, dict[str, Any]()
    hold = config.statistics.fold_effect and source != VOLUME
    table = pd.DataFrame({"source": source, "group": done.features.groups, "effect": effect})
    for when, values in (("before", done.features.values), ("after", done.values)):
        rng = generator(config.seed, "statistics", "site_effects", source, effect)
        orders = Resampling.orders(config.statistics, rng)
        tests[when] = sites.site_effect(effect, values[rows], site, formula, frame, orders, hold)
        test = tests[when][0]
        f = test.statistic**2 if test.df_tested == 1 else test.statistic
        numbers = {"f": f, "r2": test.partial_r**2, "p": test.p, "p_fwe": test.p_fwe, "p_fdr": test.p_fdr}
        for name, column in numbers.items():
            table[f"{name}_{when}"] = column
    before, model = tests["before"]
    dropped = model.design.dropped
    remarks = [
        f"{name}: {dropped[column]}" for column, name in ((FOLD, FOLD), (sites.SITE, "site")) if column in dropped
    ]
    notes = [joined(*remarks, problem) for problem in before.problems]
    table = table.assign(n_participants=before.n_units, fold_held=model.held, note=pd.Series(notes, dtype=object))
    return table.assign(n_permutations=before.n_permutations, exact=before.exact)
