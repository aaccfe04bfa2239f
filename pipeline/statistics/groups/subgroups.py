"""Relevance within subgroups, and effects of covariates: on the difference between the classes, or on both alike.

``subgroups.tsv`` is descriptive: that p is below 5 % in one subgroup and not in another does not show that they differ.
Subgroups with fewer participants than the minimum are suppressed: their means are noise, and could identify people.

``interactions.tsv`` tests differences between subgroups: the interaction of class and subgroup over participants, with
main effects, covariates and test fold, by Freedman-Lane with one residual variance per class. Numbers (age, MMSE) are
not cut into bands. ``main_effects.tsv`` tests sex, age, education, field strength and site on relevance (adjusted for
the test fold) and log(volume / intracranial volume), each adjusted for the others and the class: an effect is one that
patients and controls share.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as t_distribution

from heatlas.pipeline.run.config.statistics import StatisticsConfig
from heatlas.pipeline.run.declared import declared
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Floats, Resampling
from heatlas.pipeline.statistics.data.features import VOLUME, RegionFeatures, region_features
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.data.members import (
    CLASSES,
    COURSE,
    Levels,
    TwoGroups,
    difference_within,
    interval_of_g,
    one_value_per_participant,
    reported_g,
    subgroup_levels,
    welch_within,
)
from heatlas.pipeline.statistics.data.values import (
    RelevanceColumns,
    family_of,
    joined,
    kinds_of,
    numbers_of,
    participant_codes,
    participant_means,
    stacked,
    untested,
)
from heatlas.pipeline.statistics.linear import fold_effect
from heatlas.pipeline.statistics.linear.freedman_lane import freedman_lane
from heatlas.pipeline.statistics.resampling.bootstrap import NO_INTERVAL
from heatlas.pipeline.statistics.resampling.means import OF_INTERVAL, caveats_of_groups, mean_intervals

WELCH = "Welch"
NO_ERROR = "class difference: no interval: participants do not differ within a class and test fold"

SUBGROUPS_TABLE = declared("subgroups", __file__)


def subgroups_tables(inputs: StatisticsInputs) -> pd.DataFrame:
    blocks = []
    for variable in inputs.config.statistics.subgroups.variables:
        try:
            levels = subgroup_levels(inputs, variable)
        except BadInputError as error:
            blocks.append(untested(SUBGROUPS_TABLE, variable=variable, note=str(error)))
            continue
        blocks += [_of_level(inputs, levels, level) for level in levels.names]
    return stacked(SUBGROUPS_TABLE, blocks)


def _of_level(inputs: StatisticsInputs, levels: Levels, level: str) -> pd.DataFrame:
    scans, settings, members = inputs.all_scans, inputs.config.statistics, levels.members(level)
    members_frame = scans.frame[members]
    values = scans.values.densities[members].reshape(len(members_frame), -1)
    minimum = settings.subgroups.minimum_participants
    n_participants, n_scans = members_frame["participant_id"].nunique(), len(members_frame)
    counts = {"n_participants": n_participants, "n_scans": n_scans}
    if n_participants < minimum:
        note = f"suppressed: {counted(n_participants, 'participant')}, fewer than {minimum}"
        return untested(SUBGROUPS_TABLE, variable=levels.variable, level=level, note=note).assign(**counts)
    codes, _ = participant_codes(members_frame["participant_id"].tolist())
    means = participant_means(values, codes)
    intervals, interval_notes = mean_intervals(means, settings.confidence)
    maps_and_groups = itertools.product(inputs.values.maps, inputs.values.groups)
    table = pd.DataFrame(maps_and_groups, columns=["map", "group"]).assign(
        variable=levels.variable,
        level=level,
        **counts,
        mean_density=means.mean(axis=0),
        sd_density=means.std(axis=0, ddof=1),
        ci_low=intervals.low,
        ci_high=intervals.high,
        interval=intervals.method.tolist(),
    )
    empty = np.asarray(np.isnan(means).all(axis=0), bool)
    table["note"] = [
        joined(levels.note, "the group has no voxel on this grid" if none else note)
        for none, note in zip(empty, interval_notes, strict=True)
    ]
    return _with_class_difference(table, members_frame, values, settings)


def _with_class_difference(
    table: pd.DataFrame, scans: pd.DataFrame, values: Floats, settings: StatisticsConfig
) -> pd.DataFrame:
    """Add the difference between the classes within a subgroup, if each has enough participants."""
    target = scans["target"].to_numpy(float)
    people = scans["participant_id"].to_numpy()
    of_positive = np.isin(people, people[target == 1])
    used = (target == 1) | ((target == 0) & ~of_positive)
    codes, _ = participant_codes(people[used].tolist())
    is_positive = participant_means(target[used], codes) > 0.5
    counts = {"n_positive": int(is_positive.sum()), "n_negative": int((~is_positive).sum())}
    blank = {name: np.nan for name in numbers_of(SUBGROUPS_TABLE) if name.startswith("class_")}
    table = table.assign(**counts, **blank, class_difference_interval=NO_INTERVAL, fold_held=False)
    minimum = settings.subgroups.minimum_participants
    if min(counts.values()) < minimum:
        if max(counts.values()) > 0:
            suppressed = f"difference between the classes suppressed: fewer than {minimum} participants in one of them"
            table["note"] = [joined(note, suppressed) for note in table["note"]]
        return table
    means = participant_means(values[used], codes)
    fold, no_fold = fold_effect.fold_of_participants(scans[used], settings.fold_effect)
    difference = difference_within(means, is_positive, fold, np.ones((1, len(means))))[0]
    error, df = welch_within(means, is_positive, fold)
    critical = t_distribution.isf((1 - settings.confidence) / 2, df)
    g, no_g = reported_g(means, is_positive, fold)
    g_low, g_high = interval_of_g(g, fold, difference / error, critical)
    flat = np.isfinite(difference) & np.isnan(error)
    skewed = caveats_of_groups(means, is_positive.astype(np.intp), OF_INTERVAL)
    notes = [
        joined(note, no_fold, why, NO_ERROR if none else caveat and f"class difference: {caveat}")
        for note, why, none, caveat in zip(table["note"], no_g, flat.tolist(), skewed, strict=True)
    ]
    return table.assign(
        class_difference=difference,
        class_difference_low=difference - critical * error,
        class_difference_high=difference + critical * error,
        class_difference_interval=np.where(np.isnan(error), NO_INTERVAL, WELCH),
        class_hedges_g=g,
        class_hedges_g_low=g_low,
        class_hedges_g_high=g_high,
        fold_held=bool(fold.any()),
        note=np.array(notes, dtype=object),
    )


INTERACTIONS_TABLE = declared("interactions", __file__)


def interactions_tables(inputs: StatisticsInputs) -> pd.DataFrame:
    columns = RelevanceColumns.of(inputs.values, ["density"])
    two = TwoGroups.of(inputs, *CLASSES)
    frame = inputs.frame.iloc[two.rows].assign(_positive=two.is_first.astype(float)).reset_index(drop=True)
    blocks = []
    for variable in inputs.config.statistics.subgroups.variables:
        if variable == COURSE:  # the class itself
            continue
        try:
            blocks.append(_of_variable(inputs, columns, variable, frame, two))
        except BadInputError as error:
            why = str(error).replace("_positive", "class").replace("_level", variable)
            blocks.append(untested(INTERACTIONS_TABLE, variable=variable, df_tested=0, note=why))
    return stacked(INTERACTIONS_TABLE, blocks)


def _of_variable(
    inputs: StatisticsInputs, columns: RelevanceColumns, variable: str, frame: pd.DataFrame, two: TwoGroups
) -> pd.DataFrame:
    """Rows of one variable.

    BadInputError if fewer than two subgroups have enough participants, or the interaction cannot be estimated.
    """
    settings = inputs.config.statistics
    levels = subgroup_levels(inputs, variable).of_rows(two.rows)
    notes = [two.note]
    if levels.is_banded:
        values = one_value_per_participant(frame[variable], frame["participant_id"], False)
        counts, minimum = _participants(frame, values.notna().to_numpy()), settings.subgroups.minimum_participants
        if min(counts) < minimum:
            raise BadInputError(
                f"{counts[0]} and {counts[1]} participants of the two classes; {minimum} of each are needed."
            )
        names: tuple[str, ...] = ()
        # Centred and scaled for numerical stability; centring does not change the interaction, scaling is undone below.
        spread = float(values.std()) or 1.0
        coded = frame.assign(_level=(values - values.mean()) / spread)
    else:
        names, left_out = _large_enough(levels, frame, settings.subgroups.minimum_participants)
        if left_out:
            notes.append(f"fewer than {settings.subgroups.minimum_participants} of a class in {', '.join(left_out)}")
        spread = 1.0
        ranked = {name: f"{i} {name}" for i, name in enumerate(names)}  # so that levels sort in their natural order
        coded = frame.assign(_level=levels.of_scan.where(levels.of_scan.isin(names), None).map(ranked))
    others = [term.strip() for term in settings.covariates.split("+") if term.strip() not in ("", variable)]
    formula = " + ".join([*others, "_positive", "_level", "_positive:_level"])
    of_class = coded["_positive"].tolist()
    model = fold_effect.model_within_folds(formula, "_positive:_level", coded, settings.fold_effect, of_class)
    design = model.design
    rng = generator(inputs.seed, "statistics", "interactions", variable)
    relevance = columns.values[two.rows]
    test = freedman_lane(
        relevance, design, model.exchange, Resampling.orders(settings, rng), of_class, kinds=kinds_of(columns.table)
    )
    table = columns.table.drop(columns="metric").assign(
        **test.columns(), variable=variable, levels=", ".join(names) or None, n_scans=len(design.rows)
    )
    table["estimate"], table["standard_error"] = test.estimate / spread, test.standard_error / spread
    held = [name for name in model.covariates if name != "_positive" and "_level" not in name]
    design_note = (design.note or "").replace("_level", variable).replace("_positive", "class")
    shared = joined(*notes, design_note)
    return table.assign(
        family=family_of(test.p, "regions x maps"),
        covariates=", ".join(held) or None,
        note=np.array([joined(problem, shared) for problem in test.problems], dtype=object),
    )


def _large_enough(levels: Levels, frame: pd.DataFrame, minimum: int) -> tuple[tuple[str, ...], list[str]]:
    """Levels with enough participants of both classes, and the others with their counts."""
    kept: list[tuple[str, tuple[int, int]]] = []
    left_out: list[tuple[str, tuple[int, int]]] = []
    for level in levels.names:
        counts = _participants(frame, levels.members(level))
        (kept if min(counts) >= minimum else left_out).append((level, counts))
    shown = [f"{level} ({counts[0]} and {counts[1]})" for level, counts in left_out]
    if len(kept) < 2:
        raise BadInputError(
            f"{counted(len(kept), 'subgroup')} with {counted(minimum, 'participant')} of each class; two are needed"
            + (f"; too small: {', '.join(shown)}." if shown else ".")
        )
    return tuple(level for level, _ in kept), shown


def _participants(frame: pd.DataFrame, members: np.ndarray) -> tuple[int, int]:
    """Number of participants of the positive and of the negative class."""
    is_positive = frame["_positive"].to_numpy() == 1
    people = frame["participant_id"]
    return people[members & is_positive].nunique(), people[members & ~is_positive].nunique()


CLASS = "label"
FEWEST_KNOWN = 0.8
"""Share of participants for whom a covariate must be known; a rarer one would exclude too many from every test."""

MAIN_EFFECTS_TABLE = declared("main_effects", __file__)
Models = dict[tuple[str, bool, bytes], tuple[fold_effect.FoldModel, list[Any] | None]]
"""Models, with variance groups, by variable, whether fold is held, and the scans that have a value."""


def main_effects_tables(inputs: StatisticsInputs) -> pd.DataFrame:
    frame = inputs.frame
    variables = inputs.config.statistics.main_effects.variables
    blocks = [MAIN_EFFECTS_TABLE.frame()]
    models: Models = {}
    for features in region_features(inputs.values, inputs.volumes):
        values = relative_volumes(features, frame) if features.source == VOLUME else features.values
        for variable in variables:
            try:
                blocks.append(_test_source(inputs, features, values, variable, models))
            except BadInputError as error:
                row = dict.fromkeys(MAIN_EFFECTS_TABLE.meanings) | {"source": features.source, "variable": variable}
                blocks.append(pd.DataFrame([row | {"note": str(error)}]).astype({"n_participants": "Int64"}))
    filled = [block.dropna(axis=1, how="all") for block in blocks[1:]]  # which pandas 2 warns of
    table = pd.concat(filled or blocks, ignore_index=True)
    return table.reindex(columns=list(MAIN_EFFECTS_TABLE.meanings))


def relative_volumes(features: RegionFeatures, frame: pd.DataFrame) -> Floats:
    """Log of volume over intracranial volume, shape (scans, groups); NaN where one of them is unknown or 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        relative: Floats = np.log(features.values / frame["tiv_mm3"].to_numpy(float)[:, None])
    relative[~np.isfinite(relative)] = np.nan
    return relative


def _test_source(
    inputs: StatisticsInputs, features: RegionFeatures, values: Floats, variable: str, models: Models
) -> pd.DataFrame:
    """Rows of one variable in one source; BadInputError if it cannot be tested. Maps of the same scans share models."""
    settings, frame = inputs.config.statistics, inputs.frame
    variables = settings.main_effects.variables
    if variable not in frame.columns:
        raise BadInputError(f"no column {variable} in scans.tsv or clinical.tsv.")
    has_value = np.isfinite(values).any(axis=1)
    if not has_value.any():
        raise BadInputError("no scan has a volume and an intracranial volume.")
    lacking = None if has_value.all() else f"{counted(int((~has_value).sum()), 'scan')} without a value in any group"
    frame, values = frame.iloc[np.flatnonzero(has_value)].reset_index(drop=True), values[has_value]
    others, sparse = _covariates([name for name in variables if name != variable], frame)
    key = variable, settings.fold_effect and features.source != VOLUME, has_value.tobytes()
    if key not in models:
        held = fold_effect.model_within_folds(" + ".join([CLASS, *others, variable]), variable, frame, key[1])
        models[key] = fold_effect.with_variances(held, frame[variable].tolist(), variable)
    (model, groups), design = models[key], models[key][0].design
    rng = generator(inputs.seed, "statistics", "main_effects", features.source, variable)
    test = freedman_lane(values, design, model.exchange, Resampling.orders(settings, rng), groups)
    notes = [joined(problem, lacking, sparse, design.note) for problem in test.problems]
    level = re.fullmatch(re.escape(variable) + r"\[T\.(.+)\]", design.names[0]) if test.df_tested == 1 else None
    return pd.DataFrame({"group": features.groups, **test.columns()}).assign(
        source=features.source,
        variable=variable,
        contrast=level and f"{level[1]} - the other",  # of a factor with two levels, in the direction of the estimate
        covariates=", ".join(model.covariates) or None,
        note=np.array(notes, dtype=object),
    )


def _covariates(names: list[str], frame: pd.DataFrame) -> tuple[list[str], str | None]:
    """Covariates known for enough participants, and a note on those left out."""
    has_value = frame[[name for name in names if name in frame.columns]].notna().groupby(frame["participant_id"]).any()
    kept = [str(name) for name in has_value if has_value[name].mean() >= FEWEST_KNOWN]
    rare = [f"{name} ({int(has_value[name].sum())} of {len(has_value)})" for name in has_value if name not in kept]
    return kept, f"not adjusted for, known for too few participants: {', '.join(rare)}" if rare else None
