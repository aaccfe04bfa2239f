"""Relevance of one group of scans against another: classes (AD, CN) or outcomes (TP, FP, TN, FN).

Participants are the units: the mean over someone's scans in their group. Someone with scans in both groups cannot be
reassigned between them: for the classes they belong to the positive one, by those scans, as everywhere in this program;
for outcomes they are left out. Both are counted.

The difference is tested by permuting participants with one residual variance per group (Welch's t without covariates),
since patients vary more than controls; the same permutation for all regions, maps and metrics gives family-wise p
values. The same test is done with covariates (Freedman-Lane).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import gammaln

from pipeline.run.errors import BadInputError
from pipeline.run.seeds import generator
from pipeline.run.statistics_config import StatisticsConfig
from pipeline.statistics.associations.associations import label_of, members_of
from pipeline.statistics.bootstrap import NO_INTERVAL, bootstrap_intervals, participant_draws
from pipeline.statistics.groups.log_gain import gain_floor, log_gain, shrink
from pipeline.statistics.inputs import StatisticsInputs
from pipeline.statistics.linear.design import design_of
from pipeline.statistics.linear.exchangeability import Exchangeability
from pipeline.statistics.linear.freedman_lane import PermutationTest, freedman_lane
from pipeline.statistics.notes import joined
from pipeline.statistics.relevance_columns import RelevanceColumns
from pipeline.statistics.values import participant_codes, participant_means

Floats = NDArray[np.float64]

MIN_PER_GROUP = 2
CLASSES = ("positive", "negative")
ERROR_DRAWS = 200
"""Draws for standard errors; enough for those (Efron & Tibshirani 1993, section 6.4)."""

COMPARISONS_COLUMNS = {
    "comparison": "The two groups of scans, first/second",
    "map": "Relevance map; n/a in a row about a comparison that cannot be made",
    "group": "Bilateral group of regions",
    "metric": "density, sum, gain or share (sum divided by the absolute sums of all regions)",
    "mean_first": "Mean over participants of the first group (each participant's scans averaged first)",
    "mean_second": "Mean over participants of the second group",
    "difference": "mean_first - mean_second",
    "ci_low": "Lower bound of the interval of the difference, participants drawn within each group",
    "ci_high": "Upper bound of the interval of the difference",
    "interval": "BCa or percentile; none where there is none",
    "hedges_g": "Difference in pooled standard deviations, corrected for small samples",
    "t": "Welch's t",
    "p": "Two-sided p from reassigning participants to the groups, (b+1)/(m+1)",
    "p_fwe": "p corrected for the family by the largest |t| of each permutation",
    "p_fdr": "p adjusted by Benjamini and Hochberg over the family",
    "difference_adjusted": "Difference with the covariates held",
    "t_adjusted": "Its t, one residual variance per group",
    "p_adjusted": "Its two-sided p (Freedman-Lane)",
    "p_fwe_adjusted": "p_adjusted corrected for the family",
    "p_fdr_adjusted": "p_adjusted adjusted by Benjamini and Hochberg over the family",
    "covariates": "Columns that were adjusted for; n/a for none",
    "family": "Tests corrected together",
    "ratio": "mean_first divided by mean_second; n/a where that is not above 0",
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
_NUMBERS = (
    "mean_first", "mean_second", "difference", "ci_low", "ci_high", "hedges_g", "t", "p", "p_fwe", "p_fdr",
    "difference_adjusted", "t_adjusted", "p_adjusted", "p_fwe_adjusted", "p_fdr_adjusted", "ratio", "floor", "log_gain",
    "log_gain_low", "log_gain_high", "log_gain_shrunk", "log_gain_shrunk_low", "log_gain_shrunk_high",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class TwoGroups:
    """Scans of two groups without a participant in common.

    Parameters
    ----------
    rows : array of int
        Positions of the scans used.
    is_first : array of bool, shape (rows,)
    n_both : int
        Participants with scans of both groups.
    note : str or None
        What happened to them.
    """

    rows: NDArray[np.intp]
    is_first: NDArray[np.bool_]
    n_both: int
    note: str | None

    @classmethod
    def of(cls, inputs: StatisticsInputs, first: str, second: str) -> TwoGroups:
        """Scans of two groups, named as in `members_of`."""
        in_first, in_second = members_of(inputs, first), members_of(inputs, second)
        people = inputs.by_person["participant_id"]
        both = set(people[in_first]) & set(people[in_second])
        of_both = people.isin(both).to_numpy(bool)
        note = None
        if (first, second) == CLASSES:
            used = in_first | (in_second & ~of_both)
            if both:
                label = label_of(inputs, first)
                note = f"{len(both)} participants with scans of both classes count as {label}, by those scans"
        else:
            used = (in_first | in_second) & ~of_both
            if both:
                note = f"{len(both)} participants with scans of both groups left out"
        rows = np.flatnonzero(used)
        return cls(rows.astype(np.intp), in_first[rows], len(both), note)


def comparisons_tables(inputs: StatisticsInputs) -> Mapping[str, tuple[pd.DataFrame, Mapping[str, str]]]:
    """Table ``group_comparisons``: a row per comparison, metric, map and bilateral group."""
    settings = inputs.config.statistics
    columns = RelevanceColumns.of(inputs.values, settings.group_comparisons.metrics)
    blocks = [pd.DataFrame(columns=list(COMPARISONS_COLUMNS))]
    for pair in settings.group_comparisons.comparisons:
        first, second = pair.split("/")
        name = f"{label_of(inputs, first)}/{label_of(inputs, second)}"
        blocks.append(compare(inputs, columns, first, second, settings).assign(comparison=name))
    table = pd.concat(blocks[1:] or blocks, ignore_index=True)
    return {"group_comparisons": (table[list(COMPARISONS_COLUMNS)], COMPARISONS_COLUMNS)}


def compare(
    inputs: StatisticsInputs, columns: RelevanceColumns, first: str, second: str, settings: StatisticsConfig
) -> pd.DataFrame:
    """Rows of one comparison, without its name.

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
    frame = inputs.by_person.iloc[two.rows].assign(_first=two.is_first.astype(float)).reset_index(drop=True)
    table = columns.table.assign(**dict.fromkeys(_NUMBERS, np.nan), interval=NO_INTERVAL, covariates=None)
    table = table.assign(family="none", n_both=two.n_both, n_permutations=0, exact=False)
    counts = {}
    for name, members in (("first", two.is_first), ("second", ~two.is_first)):
        counts[name] = frame.loc[members, "participant_id"].nunique()
        table[f"n_{name}"], table[f"n_scans_{name}"] = counts[name], int(members.sum())
    codes, _ = participant_codes(frame["participant_id"].tolist())
    means = participant_means(columns.values[two.rows], codes)
    of_first = participant_means(two.is_first.astype(float), codes) > 0.5
    for name, members in (("mean_first", of_first), ("mean_second", ~of_first)):
        table[name] = means[members].mean(axis=0) if members.any() else np.nan
    table["difference"] = table["mean_first"] - table["mean_second"]
    for name, group in (("first", first), ("second", second)):
        if counts[name] < MIN_PER_GROUP:
            n = counts[name]
            why = f"{n} participants of {label_of(inputs, group)}; at least {MIN_PER_GROUP} are needed"
            return table.assign(note=joined(why, two.note))
    seed = (inputs.seed, "statistics", "group_comparisons", first, second)
    notes = _test(table, columns.values[two.rows], frame, settings, generator(*seed, "permutation"))
    _estimate(table, means, of_first, settings, generator(*seed, "bootstrap"))
    gain_notes = _gain_notes(table, label_of(inputs, second))
    table["note"] = [joined(note, gain_note, two.note) for note, gain_note in zip(notes, gain_notes, strict=True)]
    return table


def _test(
    table: pd.DataFrame, values: Floats, frame: pd.DataFrame, settings: StatisticsConfig, rng: np.random.Generator
) -> list[str | None]:
    """Enter both tests; return a note per row."""
    plain, _, _ = _permute(values, frame, "", settings.permutations, rng)
    names = {"statistic": "t", "p": "p", "p_fwe": "p_fwe", "p_fdr": "p_fdr"}
    for field, column in names.items():
        table[column] = getattr(plain, field)
    table["n_permutations"], table["exact"] = plain.n_permutations, plain.exact
    n_tests = int(np.isfinite(plain.p).sum())
    table["family"] = f"{n_tests} regions x maps x metrics" if n_tests else "none"
    notes: list[str | None] = list(plain.problems)
    if not settings.covariates.strip():
        return notes
    try:
        adjusted, covariates, said = _permute(values, frame, settings.covariates, settings.permutations, rng)
    except BadInputError as error:
        return [joined(note, f"not adjusted: {error}") for note in notes]
    names = {"estimate": "difference_adjusted"} | {key: f"{name}_adjusted" for key, name in names.items()}
    for field, column in names.items():
        table[column] = getattr(adjusted, field)
    table["covariates"] = ", ".join(covariates) or None
    said = f"adjusted: {said}" if said else None
    return [joined(note, said) for note in notes]


def _permute(
    values: Floats, frame: pd.DataFrame, covariates: str, m: int, rng: np.random.Generator
) -> tuple[PermutationTest, tuple[str, ...], str | None]:
    """The test, the covariates it holds, and what was left out for them."""
    design = design_of(f"{covariates or '1'} + _first", "_first", frame)
    exchange = Exchangeability.participant_means(frame["participant_id"].tolist())
    test = freedman_lane(values, design, exchange, m, rng, variance_groups=frame["_first"].tolist())
    return test, tuple(name for name in design.names[1:] if name not in ("Intercept", "1")), design.note


def _estimate(
    table: pd.DataFrame,
    means: Floats,
    of_first: NDArray[np.bool_],
    settings: StatisticsConfig,
    rng: np.random.Generator,
) -> None:
    """Enter effect sizes, gains and all intervals."""
    known = np.isfinite(means).all(axis=0)
    table["hedges_g"] = np.where(known, hedges_g(np.where(known, means, 0.0), of_first), np.nan)
    keys = table["metric"] + "\t" + table["map"]
    floors = keys.map(
        {
            key: gain_floor(rows["mean_second"].to_numpy(float), settings.group_comparisons.gain_floor)
            for key, rows in table.groupby(keys, sort=False)
        }
    ).to_numpy(float)
    table["floor"] = floors
    table["log_gain"] = log_gain(table["mean_first"].to_numpy(float), table["mean_second"].to_numpy(float), floors)
    above = table["mean_second"].where(table["mean_second"] > 0)
    table["ratio"] = table["mean_first"] / above
    own = np.flatnonzero(known)

    def statistic(weights: Floats) -> Floats:
        drawn = []
        for members in (of_first, ~of_first):
            part = weights[:, members]
            drawn.append((part @ means[np.ix_(members, own)]) / part.sum(axis=1, keepdims=True))
        return np.concatenate([drawn[0] - drawn[1], log_gain(drawn[0], drawn[1], floors[own])], axis=1)

    strata = of_first.astype(int).tolist()
    found = bootstrap_intervals(statistic, strata, settings.bootstrap_samples, settings.confidence, rng)
    n = len(own)
    draws = np.full((ERROR_DRAWS, len(table)), np.nan)
    draws[:, own] = statistic(participant_draws(strata, ERROR_DRAWS, rng))[:, n:]
    for column, values in {
        "ci_low": found.low[:n], "ci_high": found.high[:n], "interval": found.method[:n],
        "log_gain_low": found.low[n:], "log_gain_high": found.high[n:],
    }.items():  # fmt: skip
        table.loc[own, column] = values
    for _, rows in table.groupby(keys, sort=False).groups.items():
        result = shrink(table.loc[rows, "log_gain"].to_numpy(float), draws[:, rows], settings.confidence)
        for column, shrunk in (("", result.estimate), ("_low", result.low), ("_high", result.high)):
            table.loc[rows, f"log_gain_shrunk{column}"] = shrunk


def _gain_notes(table: pd.DataFrame, second: str) -> list[str | None]:
    """Where a gain would be infinite or has no meaning, said in words."""
    notes: list[str | None] = []
    for first_mean, second_mean, floor in table[["mean_first", "mean_second", "floor"]].to_numpy(float):
        first_low, second_low = first_mean < floor, second_mean < floor
        if first_low and second_low:
            notes.append("no gain: both means are below the floor")
        elif second_low and second_mean == 0:
            notes.append(f"infinite gain: the mean of {second} is 0; log_gain counts it as the floor")
        elif second_low:
            notes.append(f"the mean of {second} is below the floor; log_gain counts it as the floor")
        else:
            notes.append("the first mean is below the floor; log_gain counts it as the floor" if first_low else None)
    return notes


def hedges_g(values: Floats, is_first: NDArray[np.bool_]) -> Floats:
    """Standardised mean difference with Hedges' exact small-sample correction, per column; NaN without spread."""
    a, b = values[is_first], values[~is_first]
    freedom = len(a) + len(b) - 2
    pooled = np.sqrt(((len(a) - 1) * a.var(axis=0, ddof=1) + (len(b) - 1) * b.var(axis=0, ddof=1)) / freedom)
    correction = np.exp(gammaln(freedom / 2) - gammaln((freedom - 1) / 2)) / np.sqrt(freedom / 2)
    difference = correction * (a.mean(axis=0) - b.mean(axis=0))
    result: Floats = np.divide(difference, pooled, out=np.full(values.shape[1], np.nan), where=pooled > 0)
    return result
