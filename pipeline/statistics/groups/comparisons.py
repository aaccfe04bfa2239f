"""Relevance of one group of scans against another: classes (AD, CN) or outcomes (TP, FP, TN, FN).

A participant with scans in both groups cannot be permuted between them: between classes they count as positive, by
their scans of that class, as everywhere; between outcomes they are left out. Participants are permuted, with one
residual variance per group, since patients vary more than controls (`pipeline.statistics.linear.studentised`); all
regions and maps of a metric, which is a family, share the permutations (Westfall & Young 1993). The test is repeated
with covariates (Freedman-Lane) and, between the classes, on ranks (Brunner & Munzel 2000), which keep their power where
values are skewed (docs/benchmarks/statistics.md). All hold the test fold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from heatlas.pipeline.run.config.statistics import StatisticsConfig
from heatlas.pipeline.run.declared import declared
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Flags, Floats, Indices, Resampling
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.data.members import CLASSES, TwoGroups, interval_of_g, label_of, reported_g
from heatlas.pipeline.statistics.data.values import (
    RelevanceColumns,
    family_of,
    joined,
    kinds_of,
    numbers_of,
    participant_codes,
    participant_means,
    stacked,
)
from heatlas.pipeline.statistics.groups.gains import PLACES, influence_on_g, with_gains, write_places
from heatlas.pipeline.statistics.linear.fold_effect import FoldModel, fold_of_units, model_within_folds
from heatlas.pipeline.statistics.linear.freedman_lane import TEST_INTERVAL, PermutationTest, freedman_lane
from heatlas.pipeline.statistics.linear.permutations import Exchangeability
from heatlas.pipeline.statistics.resampling.bootstrap import NO_INTERVAL
from heatlas.pipeline.statistics.resampling.means import FEW_OF_GROUP, OF_RANKS, caveats_of_groups

MIN_PER_GROUP = 2
NO_VALUE = "no value in any participant: no voxel on this grid, or no reference for the gain"

GROUP_COMPARISONS_TABLE = declared("group_comparisons", __file__)


def comparisons_tables(inputs: StatisticsInputs) -> pd.DataFrame:
    settings = inputs.config.statistics
    columns = RelevanceColumns.of(inputs.values, settings.group_comparisons.metrics)
    blocks = []
    for pair in settings.group_comparisons.comparisons:
        first, second = pair.split("/")
        name = f"{label_of(inputs, first)}/{label_of(inputs, second)}"
        compared = compare(inputs, columns, first, second)
        table = compared.table
        if compared.tested:
            rng = generator(inputs.seed, "statistics", "group_comparisons", first, second, "gain")
            table = with_gains(table, compared.means, compared.of_first, label_of(inputs, second), settings, rng)
        blocks.append(table.assign(comparison=name))
    return stacked(GROUP_COMPARISONS_TABLE, blocks)


@dataclass(frozen=True, eq=False)
class Compared:
    """Rows of one comparison, and the participants behind them.

    `table` has the columns of `GROUP_COMPARISONS_TABLE` but the name, gains empty; means (participants, columns);
    of_first (participants,); `tested` if both groups have enough participants.
    """

    table: pd.DataFrame
    means: Floats
    of_first: Flags
    tested: bool


def compare(inputs: StatisticsInputs, columns: RelevanceColumns, first: str, second: str) -> Compared:
    """Differences, their tests and intervals between two groups (positive, negative, TP, FP, TN or FN).

    Without covariates in the settings there is no adjusted test.
    """
    two, settings = TwoGroups.of(inputs, first, second), inputs.config.statistics
    frame = inputs.frame.iloc[two.rows].assign(_first=two.is_first.astype(float)).reset_index(drop=True)
    numbers = dict.fromkeys(numbers_of(GROUP_COMPARISONS_TABLE), np.nan)
    table = columns.table.assign(**numbers, interval=NO_INTERVAL, covariates=None)
    table = table.assign(**dict.fromkeys(PLACES, pd.array([pd.NA] * len(table), "Int64")))
    table = table.assign(family="none", n_both=two.n_both, n_permutations=0, exact=False, fold_held=False)
    codes, _ = participant_codes(frame["participant_id"].tolist())
    means = participant_means(columns.values[two.rows], codes)
    of_first = np.asarray(participant_means(two.is_first.astype(float), codes) > 0.5, bool)
    too_small = []
    for name, group, scans, people in (
        ("first", first, two.is_first, of_first),
        ("second", second, ~two.is_first, ~of_first),
    ):
        n = int(people.sum())
        table[f"n_{name}"], table[f"n_scans_{name}"] = n, int(scans.sum())
        table[f"mean_{name}"] = means[people].mean(axis=0) if n else np.nan
        if n < MIN_PER_GROUP:
            too_small.append(
                f"{counted(n, 'participant')} of {label_of(inputs, group)}; at least {MIN_PER_GROUP} are needed"
            )
    table["difference"] = table["mean_first"] - table["mean_second"]
    if too_small:
        return Compared(table.assign(note=joined(*too_small, two.note)), means, of_first, False)
    seed = (inputs.seed, "statistics", "group_comparisons", first, second)
    try:
        fold, critical, by_chance, notes = _test(
            table, columns.values[two.rows], frame, settings, (*seed, "permutation"), {first, second} == set(CLASSES)
        )
    except BadInputError as error:  # the groups are collinear with fold
        why = str(error).replace("_first", "group")
        return Compared(table.assign(note=joined(why, two.note)), means, of_first, True)
    empty = np.asarray(np.isnan(means).all(axis=0), bool).tolist()
    notes = [NO_VALUE if none else note for none, note in zip(empty, notes, strict=True)]
    few = min(of_first.sum(), (~of_first).sum()) < FEW_OF_GROUP
    of_design = caveats_of_groups(means, of_first.astype(np.intp))
    caveats = [text if tested else None for text, tested in zip(of_design, table["p"].notna(), strict=True)]
    of_ranks = [OF_RANKS if few and ranked else None for ranked in table["p_fwe_ranks"].notna()]
    table["note"] = [joined(*remarks, two.note) for remarks in zip(notes, caveats, of_ranks, strict=True)]
    alike = Exchangeability.free(len(means)).in_blocks(fold.tolist()).even(means, kinds_of(table))
    _estimate(table, alike, of_first, fold, critical, by_chance)
    if {first, second} == set(CLASSES):
        influence, rng = influence_on_g(alike, of_first, fold), generator(*seed, "places")
        write_places(table, "hedges_g", influence, of_first.astype(np.intp), settings.confidence, rng)
    return Compared(table, means, of_first, True)


def _test(
    table: pd.DataFrame, values: Floats, frame: pd.DataFrame, settings: StatisticsConfig, seed: tuple[Any, ...],
    with_ranks: bool,
) -> tuple[Indices, Floats, Floats, list[str | None]]:  # fmt: skip
    """Fill in the tests; return the fold of each participant (0 if not held), both critical |t| and notes of rows."""
    critical, plain = np.full(len(table), np.nan), table["difference"].copy()
    by_chance = critical.copy()
    families = [rows.index.to_numpy() for _, rows in table.groupby("metric", sort=False)]
    kinds = kinds_of(table)
    tests, model = _permute(values, frame, "", settings, families, kinds, seed)
    fold = fold_of_units(frame, Exchangeability.participant_means(frame["participant_id"].tolist()), model.held)
    table["fold_held"] = model.held
    names = {"statistic": "t", "df": "df", "p": "p", "p_fwe": "p_fwe", "p_fdr": "p_fdr"}
    bounds = {"estimate": "difference", "low": "ci_low", "high": "ci_high"}
    notes: list[str | None] = [None] * len(table)
    for family, test in zip(families, tests, strict=True):
        for field, column in (names | bounds).items():
            table.loc[family, column] = getattr(test, field)
        table.loc[family, "difference"] = table.loc[family, "difference"].fillna(plain[family])
        critical[family], by_chance[family] = test.critical, test.critical_fwe
        table.loc[family, "family"] = family_of(test.p, f"regions x maps: {table['metric'][family[0]]}")
        for row, problem in zip(family, test.problems, strict=True):
            notes[row] = joined(problem, model.design.note)
    if with_ranks:
        of_ranks, _ = _permute(values, frame, "", settings, families, kinds, seed, by_ranks=True)
        for family, test in zip(families, of_ranks, strict=True):
            table.loc[family, "superiority"] = test.estimate + 0.5
            table.loc[family, "p_fwe_ranks"] = test.p_fwe
    table["n_permutations"], table["exact"] = tests[0].n_permutations, tests[0].exact
    if not settings.covariates.strip():
        return fold, critical, by_chance, notes
    try:
        tests, model = _permute(values, frame, settings.covariates, settings, families, kinds, seed)
    except BadInputError as error:
        why = f"not adjusted: {error}".replace("_first", "group")
        return fold, critical, by_chance, [joined(note, why) for note in notes]
    names = {"estimate": "difference_adjusted"} | {key: f"{name}_adjusted" for key, name in names.items()}
    for family, test in zip(families, tests, strict=True):
        for field, column in names.items():
            table.loc[family, column] = getattr(test, field)
    table["covariates"] = ", ".join(model.covariates) or None
    adjusted = f"adjusted: {model.design.note}" if model.design.note else None
    return fold, critical, by_chance, [joined(note, adjusted) for note in notes]


def _permute(
    values: Floats, frame: pd.DataFrame, covariates: str, settings: StatisticsConfig,
    families: Sequence[Indices], kinds: Sequence[str], seed: tuple[Any, ...], by_ranks: bool = False,
) -> tuple[list[PermutationTest], FoldModel]:  # fmt: skip
    """The test of each family, all with the same permutations, and the model."""
    groups = frame["_first"].tolist()
    model = model_within_folds(f"{covariates or '1'} + _first", "_first", frame, settings.fold_effect, groups)
    tests = [
        freedman_lane(
            values[:, family],
            model.design,
            model.exchange,
            Resampling.orders(settings, generator(*seed)),
            variance_groups=groups,
            kinds=[kinds[column] for column in family],
            by_ranks=by_ranks,
        )
        for family in families
    ]
    return tests, model


def _estimate(
    table: pd.DataFrame, means: Floats, of_first: Flags, fold: Indices, critical: Floats, by_chance: Floats
) -> None:
    """Fill in the effect size with its interval, and the kind of intervals, with a note where one is missing."""
    g, no_g = reported_g(means, of_first, fold)
    table["hedges_g"] = g
    bounds = interval_of_g(g, fold, table["t"].to_numpy(float), critical)
    table["hedges_g_low"], table["hedges_g_high"] = bounds
    with np.errstate(divide="ignore", invalid="ignore"):
        reached = np.abs(g / table["t"].to_numpy(float)) * by_chance
    table["g_by_chance"] = np.where(np.isfinite(reached), reached, np.nan)
    table["interval"] = np.where(table["ci_low"].isna(), NO_INTERVAL, TEST_INTERVAL)
    table["note"] = np.array([joined(note, no_g[i]) for i, note in enumerate(table["note"])], dtype=object)
