"""Relevance within subgroups: mean, number of participants, and difference between the classes.

Descriptive: differences between subgroups are tested in ``interactions.tsv``; that p is below 5 % in one subgroup and
not in another does not show that they differ. Subgroups with fewer participants than the minimum are suppressed: their
means are noise, and could identify participants.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.stats import t as t_distribution

from heatlas.pipeline.run.columns import Form, described
from heatlas.pipeline.run.config.statistics import StatisticsConfig
from heatlas.pipeline.run.declared import Table
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.statistics.arrays import Floats
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.data.members import (
    LEVEL_IS,
    Levels,
    difference_within,
    interval_of_g,
    reported_g,
    subgroup_levels,
    welch_within,
)
from heatlas.pipeline.statistics.data.notes import joined
from heatlas.pipeline.statistics.data.values import participant_codes, participant_means
from heatlas.pipeline.statistics.linear.fold_effect import fold_of_participants
from heatlas.pipeline.statistics.resampling.bootstrap import NO_INTERVAL
from heatlas.pipeline.statistics.resampling.means import (
    INTERVAL_OF_MEANS,
    OF_INTERVAL,
    caveats_of_groups,
    mean_intervals,
)

WELCH = "Welch"
NO_ERROR = "class difference: no interval: participants do not differ within a class and test fold"

SUBGROUPS_COLUMNS = {
    "variable": "Variable that defines the subgroups; course is the diagnosis at the scan, with MCI divided by outcome",
    "level": LEVEL_IS,
    "map": "Relevance map; n/a for a suppressed subgroup",
    **described("group"),
    "n_participants": "Participants of the subgroup",
    **described("n_scans"),
    "mean_density": "Mean density over participants (each participant's scans averaged first)",
    "sd_density": "Standard deviation over participants (n - 1)",
    "ci_low": "Lower bound of the interval of mean_density over participants",
    "ci_high": "Upper bound of the interval of mean_density over participants",
    "interval": INTERVAL_OF_MEANS,
    "n_positive": "Participants of the positive class in the subgroup; n/a if suppressed",
    "n_negative": "Participants of the negative class in the subgroup, without those counted in n_positive; n/a if "
    "suppressed",
    "class_difference": "Mean density of the positive minus the negative class in the subgroup; if fold_held, the "
    "mean of the differences within test folds, weighted by n1 n2 / (n1 + n2)",
    "fold_held": "Whether class_difference is adjusted for the test fold (each fold's maps come from its own network)",
    "class_difference_low": "Lower bound of the interval of class_difference over participants",
    "class_difference_high": "Upper bound of the interval of class_difference",
    "class_difference_interval": "Welch: t interval with one variance per class (within test folds if fold_held); none",
    "class_hedges_g": "Hedges' g of class_difference: in pooled standard deviations (within test folds if "
    "fold_held), corrected for small samples; n/a with fewer than 8 degrees of freedom",
    "class_hedges_g_low": "Lower bound of the interval of class_hedges_g, from the same t",
    "class_hedges_g_high": "Upper bound",
    "note": "Why there is no value, what was suppressed, or a caveat",
}
_OF_CLASSES = (
    "class_difference", "class_difference_low", "class_difference_high", "class_hedges_g", "class_hedges_g_low",
    "class_hedges_g_high",
)  # fmt: skip
SUBGROUPS_TABLE = Table(
    "subgroups", SUBGROUPS_COLUMNS, "subgroup, map and bilateral group", "How relevant are regions in each subgroup?",
    forms={"level": Form.TEXT},
)  # fmt: skip


def subgroups_tables(inputs: StatisticsInputs) -> pd.DataFrame:
    """Table ``subgroups``: a row per variable, level, map and bilateral group."""
    settings = inputs.config.statistics
    scans = inputs.all_scans
    frame, densities = scans.frame, scans.values.densities.reshape(len(scans.frame), -1)
    blocks = [pd.DataFrame(columns=list(SUBGROUPS_COLUMNS))]
    for variable in settings.subgroups.variables:
        try:
            levels = subgroup_levels(inputs, variable)
        except BadInputError as error:
            blocks.append(_blank(variable, None, str(error)))
            continue
        for level in levels.names:
            blocks.append(_of_level(inputs, levels, level, frame, densities, settings))
    table = pd.concat(blocks[1:] or blocks, ignore_index=True)
    return table[list(SUBGROUPS_COLUMNS)]


def _of_level(
    inputs: StatisticsInputs,
    levels: Levels,
    level: str,
    frame: pd.DataFrame,
    densities: Floats,
    settings: StatisticsConfig,
) -> pd.DataFrame:
    members = levels.members(level)
    members_frame, values = frame[members], densities[members]
    minimum = settings.subgroups.minimum_participants
    n_participants, n_scans = members_frame["participant_id"].nunique(), len(members_frame)
    counts = {"n_participants": n_participants, "n_scans": n_scans}
    if n_participants < minimum:
        note = f"suppressed: {counted(n_participants, 'participant')}, fewer than {minimum}"
        return _blank(levels.variable, level, note).assign(**counts)
    codes, _ = participant_codes(members_frame["participant_id"].tolist())
    means = participant_means(values, codes)
    table = pd.DataFrame(
        [(name, group) for name in inputs.values.maps for group in inputs.values.groups], columns=["map", "group"]
    ).assign(variable=levels.variable, level=level, **counts)
    found, said = mean_intervals(means, settings.confidence)
    table = table.assign(
        mean_density=means.mean(axis=0),
        sd_density=means.std(axis=0, ddof=1),
        ci_low=found.low,
        ci_high=found.high,
        interval=found.method.tolist(),
    )
    empty = np.asarray(np.isnan(means).all(axis=0), bool)
    table["note"] = [
        joined(levels.note, "the group has no voxel on this grid" if none else note)
        for none, note in zip(empty, said, strict=True)
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
    blank = dict.fromkeys(_OF_CLASSES, np.nan)
    table = table.assign(**counts, **blank, class_difference_interval=NO_INTERVAL, fold_held=False)
    minimum = settings.subgroups.minimum_participants
    if min(counts.values()) < minimum:
        if max(counts.values()) > 0:
            suppressed = f"difference between the classes suppressed: fewer than {minimum} participants in one of them"
            table["note"] = [joined(note, suppressed) for note in table["note"]]
        return table
    means = participant_means(values[used], codes)
    fold, no_fold = fold_of_participants(scans[used], settings.fold_effect)
    difference = difference_within(means, is_positive, fold, np.ones((1, len(means))))[0]
    error, df = welch_within(means, is_positive, fold)
    critical = t_distribution.isf((1 - settings.confidence) / 2, df)
    g, no_g = reported_g(means, is_positive, fold)
    g_low, g_high = interval_of_g(g, fold, difference / error, critical)
    flat = np.isfinite(difference) & np.isnan(error)
    skewed = caveats_of_groups(means, is_positive.astype(np.intp), OF_INTERVAL)
    notes = [
        joined(note, no_fold, why, NO_ERROR if none else one and f"class difference: {one}")
        for note, why, none, one in zip(table["note"], no_g, flat.tolist(), skewed, strict=True)
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


def _blank(variable: str, level: str | None, note: str) -> pd.DataFrame:
    """A row with the reason why there are no others."""
    row: dict[str, object] = dict.fromkeys(SUBGROUPS_COLUMNS)
    numbers = [name for name in SUBGROUPS_COLUMNS if name.endswith(("density", "low", "high", "_g", "difference"))]
    row |= dict.fromkeys(numbers, np.nan) | {"n_participants": 0, "n_scans": 0, "n_positive": None, "n_negative": None}
    row |= {"fold_held": False}
    row |= {"variable": variable, "level": level, "note": note, "interval": NO_INTERVAL}
    return pd.DataFrame([row | {"class_difference_interval": NO_INTERVAL}])
