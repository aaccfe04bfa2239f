"""Relevance of one group of scans against another: classes (AD, CN) or outcomes (TP, FP, TN, FN).

Participants are the units: the mean over someone's scans in their group. Someone with scans in both groups cannot be
reassigned between them: for the classes they belong to the positive one, by those scans, as everywhere in this program;
for outcomes they are left out. Both are counted.

The difference is tested by permuting participants with one residual variance per group (Welch's t without covariates),
since patients vary more than controls; the same permutation for all regions and maps gives family-wise p values. A
metric is a family of its own, so the density rows are those of ``region_effects.tsv``. The same test is done with
covariates (Freedman-Lane). Both hold the test fold (`pipeline.statistics.linear.fold_effect`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline.run.config.statistics import StatisticsConfig
from pipeline.run.declared import Table
from pipeline.run.errors import BadInputError
from pipeline.run.work.seeds import generator
from pipeline.statistics.arrays import Floats
from pipeline.statistics.data.inputs import StatisticsInputs
from pipeline.statistics.data.notes import joined, so_many
from pipeline.statistics.data.relevance_columns import RelevanceColumns
from pipeline.statistics.data.values import participant_codes, participant_means
from pipeline.statistics.groups.gains import with_gains
from pipeline.statistics.groups.members import TwoGroups, difference_within, label_of, reported_g
from pipeline.statistics.linear.exchangeability import Exchangeability
from pipeline.statistics.linear.fold_effect import FoldModel, fold_of_units, model_within_folds
from pipeline.statistics.linear.freedman_lane import PermutationTest, freedman_lane
from pipeline.statistics.resampling.bootstrap import NO_INTERVAL, bootstrap_intervals

MIN_PER_GROUP = 2
NO_VALUE = "no value in any participant: no voxel on this grid, or no reference for a gain"

COMPARISONS_COLUMNS = {
    "comparison": "The two groups of scans, first/second",
    "map": "Relevance map; n/a in a row about a comparison that cannot be made",
    "group": "Bilateral group of regions",
    "metric": "density, sum, gain or share (sum divided by the absolute sums of all regions)",
    "mean_first": "Mean over participants of the first group (each participant's scans averaged first)",
    "mean_second": "Mean over participants of the second group",
    "difference": "Difference of the groups with fold held: the mean of the differences within folds, each weighted by "
    "n1 n2 / (n1 + n2); mean_first - mean_second where fold_held is false",
    "ci_low": "Lower bound of the interval of the difference, participants drawn within each group",
    "ci_high": "Upper bound of the interval of the difference",
    "interval": "BCa or percentile; none where there is none",
    "hedges_g": "Difference in pooled standard deviations (within folds, if held), corrected for small samples; n/a "
    "where these rest on fewer than 8 degrees of freedom",
    "fold_held": "Whether the test fold, whose maps come from one network, is held in difference, t and p",
    "t": "Welch's t; with fold held the same of the model with fold, one residual variance per group",
    "df": "Its degrees of freedom (Welch-Satterthwaite)",
    "p": "Two-sided p from reassigning participants to the groups, within folds if held, (b+1)/(m+1)",
    "p_fwe": "p corrected for the family (all regions and maps of the metric) by the largest |t| of each permutation",
    "p_fdr": "p adjusted by Benjamini and Hochberg over the family",
    "difference_adjusted": "Difference with the covariates held",
    "t_adjusted": "Its t, one residual variance per group",
    "df_adjusted": "Its degrees of freedom (Welch-Satterthwaite)",
    "p_adjusted": "Its two-sided p (Freedman-Lane)",
    "p_fwe_adjusted": "p_adjusted corrected for the family",
    "p_fdr_adjusted": "p_adjusted adjusted by Benjamini and Hochberg over the family",
    "covariates": "Columns that the adjusted test holds, fold among them where it is; n/a for none",
    "family": "Tests corrected together",
    "ratio": "mean_first divided by mean_second, over all folds; n/a where that is not above 0",
    "floor": "Means below this count as this in the log-gain: a share (statistics.group_comparisons.gain_floor) of the "
    "second group's mean absolute relevance over the regions of the map",
    "log_gain": "Natural logarithm of the ratio of the means, each at least the floor; n/a where both are below",
    "log_gain_low": "Lower bound of its interval over participants",
    "log_gain_high": "Upper bound of its interval over participants",
    "log_gain_shrunk": "log_gain drawn towards the mean of its map (empirical Bayes over regions); n/a where "
    "log_gain is missing, here or in a draw of the bootstrap",
    "log_gain_shrunk_low": "Lower bound of its normal interval",
    "log_gain_shrunk_high": "Upper bound of its normal interval",
    "n_first": "Participants of the first group",
    "n_second": "Participants of the second group",
    "n_scans_first": "Their scans",
    "n_scans_second": "Their scans",
    "n_both": "Participants with scans of both groups",
    "n_permutations": "Permutations used",
    "exact": "true if these are all distinct permutations there are",
    "note": "Why there is no value, what was left out, or what to know of it",
}
GROUP_COMPARISONS_TABLE = Table(
    "group_comparisons", COMPARISONS_COLUMNS, "comparison, map, bilateral group and metric",
    "Where do two groups of people differ in relevance?", filled=("map", "group", "comparison", "metric", "n_first",
    "n_second"),
)  # fmt: skip
_NUMBERS = (
    "mean_first", "mean_second", "difference", "ci_low", "ci_high", "hedges_g", "t", "df", "p", "p_fwe",
    "p_fdr", "difference_adjusted", "t_adjusted", "df_adjusted", "p_adjusted", "p_fwe_adjusted", "p_fdr_adjusted",
    "ratio", "floor", "log_gain", "log_gain_low", "log_gain_high", "log_gain_shrunk", "log_gain_shrunk_low",
    "log_gain_shrunk_high",
)  # fmt: skip


def comparisons_tables(inputs: StatisticsInputs) -> pd.DataFrame:
    """Table ``group_comparisons``: a row per comparison, metric, map and bilateral group."""
    settings = inputs.config.statistics
    columns = RelevanceColumns.of(inputs.values, settings.group_comparisons.metrics)
    blocks = [pd.DataFrame(columns=list(COMPARISONS_COLUMNS))]
    for pair in settings.group_comparisons.comparisons:
        first, second = pair.split("/")
        name = f"{label_of(inputs, first)}/{label_of(inputs, second)}"
        compared = compare(inputs, columns, first, second, settings)
        table = compared.table
        if compared.tested:
            rng = generator(inputs.seed, "statistics", "group_comparisons", first, second, "gain")
            table = with_gains(table, compared.means, compared.of_first, label_of(inputs, second), settings, rng)
        blocks.append(table.assign(comparison=name))
    table = pd.concat(blocks[1:] or blocks, ignore_index=True)
    return table[list(COMPARISONS_COLUMNS)]


@dataclass(frozen=True, eq=False)
class Compared:
    """Rows of one comparison and the participants behind them.

    Parameters
    ----------
    table : pandas.DataFrame
        Columns of `COMPARISONS_COLUMNS` without the comparison's name; gains are empty.
    means : array, shape (participants, columns)
    of_first : array of bool, shape (participants,)
    tested : bool
        Whether both groups have enough participants.
    """

    table: pd.DataFrame
    means: Floats
    of_first: NDArray[np.bool_]
    tested: bool


def compare(
    inputs: StatisticsInputs, columns: RelevanceColumns, first: str, second: str, settings: StatisticsConfig
) -> Compared:
    """Differences, their tests and intervals.

    Parameters
    ----------
    inputs : StatisticsInputs
    columns : RelevanceColumns
    first, second : str
        ``positive``, ``negative``, TP, FP, TN or FN.
    settings : StatisticsConfig
        An empty ``covariates`` leaves the adjusted test out.
    """
    two = TwoGroups.of(inputs, first, second)
    frame = inputs.frame.iloc[two.rows].assign(_first=two.is_first.astype(float)).reset_index(drop=True)
    table = columns.table.assign(**dict.fromkeys(_NUMBERS, np.nan), interval=NO_INTERVAL, covariates=None)
    table = table.assign(family="none", n_both=two.n_both, n_permutations=0, exact=False, fold_held=False)
    codes, _ = participant_codes(frame["participant_id"].tolist())
    means = participant_means(columns.values[two.rows], codes)
    of_first = np.asarray(participant_means(two.is_first.astype(float), codes) > 0.5, bool)
    few = []
    for name, group, scans, people in (
        ("first", first, two.is_first, of_first),
        ("second", second, ~two.is_first, ~of_first),
    ):
        n = int(people.sum())
        table[f"n_{name}"], table[f"n_scans_{name}"] = n, int(scans.sum())
        table[f"mean_{name}"] = means[people].mean(axis=0) if n else np.nan
        if n < MIN_PER_GROUP:
            few.append(f"{so_many(n, 'participant')} of {label_of(inputs, group)}; at least {MIN_PER_GROUP} are needed")
    table["difference"] = table["mean_first"] - table["mean_second"]
    if few:
        return Compared(table.assign(note=joined(*few, two.note)), means, of_first, False)
    seed = (inputs.seed, "statistics", "group_comparisons", first, second)
    try:
        fold, notes = _test(table, columns.values[two.rows], frame, settings, (*seed, "permutation"))
    except BadInputError as error:  # the groups follow from fold
        why = str(error).replace("_first", "group")
        return Compared(table.assign(note=joined(why, two.note)), means, of_first, True)
    empty = np.asarray(np.isnan(means).all(axis=0), bool).tolist()
    notes = [NO_VALUE if none else note for none, note in zip(empty, notes, strict=True)]
    table["note"] = [joined(note, two.note) for note in notes]
    _estimate(table, means, of_first, fold, settings, generator(*seed, "bootstrap"))
    return Compared(table, means, of_first, True)


def _test(
    table: pd.DataFrame, values: Floats, frame: pd.DataFrame, settings: StatisticsConfig, seed: tuple[Any, ...]
) -> tuple[NDArray[np.intp], list[str | None]]:
    """Enter both tests; return the fold of each participant (all 0 if not held) and a note per row."""
    families = [own.index.to_numpy() for _, own in table.groupby("metric", sort=False)]
    tests, model = _permute(values, frame, "", settings, families, seed)
    fold = fold_of_units(frame, Exchangeability.participant_means(frame["participant_id"].tolist()), model.held)
    table["fold_held"] = model.held
    names = {"statistic": "t", "df": "df", "p": "p", "p_fwe": "p_fwe", "p_fdr": "p_fdr"}
    notes: list[str | None] = [None] * len(table)
    for own, test in zip(families, tests, strict=True):
        for field, column in names.items():
            table.loc[own, column] = getattr(test, field)
        n_tests = int(np.isfinite(test.p).sum())
        table.loc[own, "family"] = f"{n_tests} regions x maps: {table['metric'][own[0]]}" if n_tests else "none"
        for row, problem in zip(own, test.problems, strict=True):
            notes[row] = joined(problem, model.design.note)
    table["n_permutations"], table["exact"] = tests[0].n_permutations, tests[0].exact
    if not settings.covariates.strip():
        return fold, notes
    try:
        tests, model = _permute(values, frame, settings.covariates, settings, families, seed)
    except BadInputError as error:
        return fold, [joined(note, f"not adjusted: {error}".replace("_first", "group")) for note in notes]
    names = {"estimate": "difference_adjusted"} | {key: f"{name}_adjusted" for key, name in names.items()}
    for own, test in zip(families, tests, strict=True):
        for field, column in names.items():
            table.loc[own, column] = getattr(test, field)
    table["covariates"] = ", ".join(model.covariates) or None
    said = f"adjusted: {model.design.note}" if model.design.note else None
    return fold, [joined(note, said) for note in notes]


def _permute(
    values: Floats, frame: pd.DataFrame, covariates: str, settings: StatisticsConfig,
    families: Sequence[NDArray[np.intp]], seed: tuple[Any, ...],
) -> tuple[list[PermutationTest], FoldModel]:  # fmt: skip
    """The test of each family, all with the same permutations, and the model."""
    groups = frame["_first"].tolist()
    model = model_within_folds(f"{covariates or '1'} + _first", "_first", frame, settings.fold_effect, groups)
    tests = [
        freedman_lane(
            values[:, own],
            model.design,
            model.exchange,
            settings.permutations,
            generator(*seed),
            variance_groups=groups,
        )
        for own in families
    ]
    return tests, model


def _estimate(
    table: pd.DataFrame,
    means: Floats,
    of_first: NDArray[np.bool_],
    fold: NDArray[np.intp],
    settings: StatisticsConfig,
    rng: np.random.Generator,
) -> None:
    """Enter the difference, the effect size and the interval of the difference, and why one is missing."""
    table["hedges_g"], no_g = reported_g(means, of_first, fold)
    own = np.flatnonzero(np.isfinite(means).all(axis=0))

    def difference(weights: Floats) -> Floats:
        return difference_within(means[:, own], of_first, fold, weights)

    table.loc[own, "difference"] = difference(np.ones((1, len(means))))[0]

    strata = of_first.astype(int).tolist()
    size = np.abs(means[:, own]).max(axis=0)
    found = bootstrap_intervals(difference, strata, settings.bootstrap_samples, settings.confidence, rng, size)
    for column, values in {"ci_low": found.low, "ci_high": found.high, "interval": found.method}.items():
        table.loc[own, column] = values
    flat = dict(zip(own.tolist(), found.notes, strict=True))
    notes = [joined(note, no_g[i], flat.get(i)) for i, note in enumerate(table["note"])]
    table["note"] = np.array(notes, dtype=object)
