"""Relevance within subgroups: how much, of how many, and how much the classes differ there.

Descriptive: whether subgroups differ is asked in ``interactions.tsv``; that one p is below 5 % and another is not says
nothing about their difference. A cell of fewer participants than the minimum is suppressed: its numbers are noise, and
they are too close to single people.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from pipeline.run.columns import Form
from pipeline.run.config.statistics import StatisticsConfig
from pipeline.run.declared import Table
from pipeline.run.errors import BadInputError
from pipeline.run.work.seeds import generator
from pipeline.statistics.arrays import Floats
from pipeline.statistics.data.inputs import StatisticsInputs
from pipeline.statistics.data.notes import joined, so_many
from pipeline.statistics.data.values import participant_codes, participant_means
from pipeline.statistics.groups.levels import LEVEL_IS, Levels, subgroup_levels
from pipeline.statistics.groups.members import difference_within, reported_g
from pipeline.statistics.linear.fold_effect import fold_of_participants
from pipeline.statistics.resampling.bootstrap import NO_INTERVAL, bootstrap_intervals, mean_intervals

SUBGROUPS_COLUMNS = {
    "variable": "What subgroups differ in; course is the diagnosis at the scan, MCI by what became of it",
    "level": LEVEL_IS,
    "map": "Relevance map; n/a for a suppressed subgroup",
    "group": "Bilateral group of regions",
    "n_participants": "Participants of the subgroup",
    "n_scans": "Their scans",
    "mean_density": "Mean density over participants (each participant's scans averaged first)",
    "sd_density": "Standard deviation between participants (n - 1)",
    "ci_low": "Lower bound of the participant-bootstrap interval of mean_density",
    "ci_high": "Upper bound of the participant-bootstrap interval of mean_density",
    "interval": "BCa or percentile; none where there is none",
    "n_positive": "Participants of the positive class in the subgroup, by their scans of that class; n/a if suppressed",
    "n_negative": "Other participants of the negative class in the subgroup; n/a if suppressed",
    "class_difference": "Mean density of the positive class minus that of the negative class within the subgroup; the "
    "test fold held (mean of the differences within folds, weighted by n1 n2 / (n1 + n2)), if fold_held",
    "fold_held": "Whether the test fold, whose maps come from one network, is held in class_difference",
    "class_difference_low": "Lower bound of its interval, participants drawn within each class",
    "class_difference_high": "Upper bound of its interval",
    "class_difference_interval": "BCa or percentile; none where there is none",
    "class_hedges_g": "The same in pooled standard deviations (within folds, if held), corrected for small samples; "
    "n/a where these rest on fewer than 8 degrees of freedom",
    "note": "Why there is no value, or what was suppressed",
}
SUBGROUPS_TABLE = Table(
    "subgroups", SUBGROUPS_COLUMNS, "subgroup, map and bilateral group", "What does relevance look like in subgroups?",
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
    own, values = frame[members], densities[members]
    minimum = settings.subgroups.minimum_participants
    n_participants, n_scans = own["participant_id"].nunique(), len(own)
    counts = {"n_participants": n_participants, "n_scans": n_scans}
    if n_participants < minimum:
        note = f"suppressed: {so_many(n_participants, 'participant')}, fewer than {minimum}"
        return _blank(levels.variable, level, note).assign(**counts)
    codes, _ = participant_codes(own["participant_id"].tolist())
    means = participant_means(values, codes)
    table = pd.DataFrame(
        [(name, group) for name in inputs.values.maps for group in inputs.values.groups], columns=["map", "group"]
    ).assign(variable=levels.variable, level=level, **counts)
    rng = generator(inputs.seed, "statistics", "subgroups", levels.variable, level)
    found = mean_intervals(means, settings, rng)
    table = table.assign(
        mean_density=means.mean(axis=0),
        sd_density=means.std(axis=0, ddof=1),
        ci_low=found.low,
        ci_high=found.high,
        interval=found.method.tolist(),
    )
    unknown = (
        f"{so_many(levels.n_unknown, 'scan')} without {levels.variable} in no subgroup" if levels.n_unknown else None
    )
    empty = np.asarray(np.isnan(means).all(axis=0), bool)
    table["note"] = [
        joined(unknown, "the group has no voxel on this grid" if none else flat)
        for none, flat in zip(empty, found.notes, strict=True)
    ]
    return _with_class_difference(table, own, values, settings, rng)


def _with_class_difference(
    table: pd.DataFrame, own: pd.DataFrame, values: Floats, settings: StatisticsConfig, rng: np.random.Generator
) -> pd.DataFrame:
    """Add the difference between the classes within a subgroup, if each has enough participants."""
    target = own["target"].to_numpy(float)
    people = own["participant_id"].to_numpy()
    of_positive = np.isin(people, people[target == 1])
    used = (target == 1) | ((target == 0) & ~of_positive)
    codes, _ = participant_codes(people[used].tolist())
    is_positive = participant_means(target[used], codes) > 0.5
    counts = {"n_positive": int(is_positive.sum()), "n_negative": int((~is_positive).sum())}
    blank = dict.fromkeys(
        ("class_difference", "class_difference_low", "class_difference_high", "class_hedges_g"), np.nan
    )
    table = table.assign(**counts, **blank, class_difference_interval=NO_INTERVAL, fold_held=False)
    minimum = settings.subgroups.minimum_participants
    if min(counts.values()) < minimum:
        if max(counts.values()) > 0:
            said = f"difference between the classes suppressed: fewer than {minimum} participants in one of them"
            table["note"] = [joined(note, said) for note in table["note"]]
        return table
    means = participant_means(values[used], codes)
    fold, said_of_fold = fold_of_participants(own[used], settings.fold_effect, 2)

    def difference(weights: Floats) -> Floats:
        return difference_within(means, is_positive, fold, weights)

    strata = is_positive.astype(int).tolist()
    size = np.abs(means).max(axis=0)
    found = bootstrap_intervals(difference, strata, settings.bootstrap_samples, settings.confidence, rng, size)
    g, no_g = reported_g(means, is_positive, fold)
    notes = [
        joined(note, said_of_fold, why, f"class difference: {flat}" if flat else None)
        for note, why, flat in zip(table["note"], no_g, found.notes, strict=True)
    ]
    return table.assign(
        class_difference=difference(np.ones((1, len(means))))[0],
        class_difference_low=found.low,
        class_difference_high=found.high,
        class_difference_interval=found.method,
        class_hedges_g=g,
        fold_held=bool(fold.any()),
        note=np.array(notes, dtype=object),
    )


def _blank(variable: str, level: str | None, note: str) -> pd.DataFrame:
    """One row that says why there are no others."""
    row: dict[str, object] = dict.fromkeys(SUBGROUPS_COLUMNS)
    numbers = [name for name in SUBGROUPS_COLUMNS if name.endswith(("density", "low", "high", "_g", "difference"))]
    row |= dict.fromkeys(numbers, np.nan) | {"n_participants": 0, "n_scans": 0, "n_positive": None, "n_negative": None}
    row |= {"fold_held": False}
    row |= {"variable": variable, "level": level, "note": note, "interval": NO_INTERVAL}
    return pd.DataFrame([row | {"class_difference_interval": NO_INTERVAL}])
