"""Difference in relevance density between the classes, per bilateral group, corrected over all groups and maps.

Welch's t is the statistic, since patients vary more than controls; a permutation test with a studentised statistic
keeps its level under unequal variances, also in unequal groups (Janssen 1997). Participants are reassigned, the same
way for all maps and groups, so the largest |t| of each permutation gives family-wise p values (Westfall & Young 1993)
that take account of how the maps and groups go together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import gammaln

from pipeline.run.config import CohortConfig
from pipeline.run.seeds import generator
from pipeline.run.statistics_config import StatisticsConfig
from pipeline.statistics.bootstrap import NO_INTERVAL, bootstrap_intervals
from pipeline.statistics.correction_family import benjamini_hochberg
from pipeline.statistics.correlation import is_constant
from pipeline.statistics.inputs import StatisticsInputs
from pipeline.statistics.permutation import CHUNK, TIE_TOLERANCE, Regroupings, regroupings
from pipeline.statistics.values import RelevanceValues, participant_codes, participant_means

Floats = NDArray[np.float64]

MIN_PER_CLASS = 2
NO_SPREAD = 1e-12
"""Variance within a class, relative to that of all participants, below which it counts as zero."""

EFFECT_COLUMNS = {
    "map": "Relevance map",
    "group": "Bilateral group of regions",
    "mean_positive": "Mean density over participants of the positive class (each participant's scans averaged first)",
    "mean_negative": "Mean density over participants of the negative class",
    "difference": "mean_positive - mean_negative",
    "ci_low": "Lower bound of the interval of the difference, participants drawn within each class",
    "ci_high": "Upper bound of the interval of the difference",
    "interval": "BCa or percentile; none where there is none",
    "hedges_g": "Difference in pooled standard deviations, corrected for small samples",
    "t": "Welch's t",
    "p": "Two-sided p from reassigning participants to the classes, (b+1)/(m+1)",
    "p_fwe": "p corrected for all maps and groups by the largest |t| of each permutation",
    "p_fdr": "p adjusted by Benjamini and Hochberg over all maps and groups",
    "family": "Tests corrected together",
    "n_positive": "Participants of the positive class",
    "n_negative": "Participants of the negative class",
    "n_permutations": "Permutations used",
    "exact": "true if these are all permutations there are",
    "note": "Why there is no value, or what to know of it",
}


@dataclass(frozen=True, eq=False)
class TwoClasses:
    """Mean density of each participant.

    Parameters
    ----------
    values : array, shape (participants, columns)
    is_positive : array of bool, shape (participants,)
    n_both : int
        Participants with scans of both classes; they are of the positive class here, by their positive scans.
    """

    values: Floats
    is_positive: NDArray[np.bool_]
    n_both: int

    @classmethod
    def of(cls, values: RelevanceValues) -> TwoClasses:
        target = values.scans["target"].to_numpy(int)
        codes, names = participant_codes(values.scans["participant_id"].tolist())
        is_positive = np.zeros(len(names), bool)
        is_positive[codes[target == 1]] = True
        has_negative = np.zeros(len(names), bool)
        has_negative[codes[target == 0]] = True
        counts = target == is_positive[codes]
        columns = values.densities.reshape(len(target), -1)
        means = participant_means(np.where(counts[:, None], columns, np.nan), codes)
        return cls(means, is_positive, int((is_positive & has_negative).sum()))


def welch_t(values: Floats, first: Floats) -> Floats:
    """Welch's t of two classes, for many assignments to the classes.

    Parameters
    ----------
    values : array, shape (participants, columns)
    first : array of 0 and 1, shape (m, participants)
        1 for the first class.

    Returns
    -------
    array, shape (m, columns)
        Infinite where the classes differ without any spread within; 0 where nothing differs.
    """
    centred = values - values.mean(axis=0)
    variance = (centred**2).mean(axis=0)
    scaled = centred / np.sqrt(np.where(variance > 0, variance, 1.0))
    squares = scaled**2
    means, errors = [], []
    for members in (first, 1 - first):
        n = members.sum(axis=1, keepdims=True)
        mean = (members @ scaled) / n
        spread = ((members @ squares) - n * mean**2) / (n - 1)
        means.append(mean)
        errors.append(np.where(spread > NO_SPREAD, spread, 0.0) / n)
    difference, error = means[0] - means[1], np.sqrt(errors[0] + errors[1])
    t = np.copysign(np.inf, difference)
    np.divide(difference, error, out=t, where=error > 0)
    return np.where((error == 0) & (np.abs(difference) <= NO_SPREAD), 0.0, t)


def hedges_g(values: Floats, is_first: NDArray[np.bool_]) -> Floats:
    """Standardised mean difference with Hedges' exact small-sample correction, per column."""
    a, b = values[is_first], values[~is_first]
    freedom = len(a) + len(b) - 2
    pooled = np.sqrt(((len(a) - 1) * a.var(axis=0, ddof=1) + (len(b) - 1) * b.var(axis=0, ddof=1)) / freedom)
    correction = np.exp(gammaln(freedom / 2) - gammaln((freedom - 1) / 2)) / np.sqrt(freedom / 2)
    result: Floats = correction * (a.mean(axis=0) - b.mean(axis=0)) / pooled
    return result


def max_t_test(values: Floats, observed: Floats, groupings: Regroupings) -> tuple[Floats, Floats]:
    """Uncorrected and family-wise p of every column; memory is bounded by `permutation.CHUNK` rows.

    Parameters
    ----------
    values : array, shape (participants, columns)
    observed : array, shape (columns,)
    groupings : Regroupings

    Returns
    -------
    tuple of array, shape (columns,)
    """
    threshold = np.abs(observed) * (1 - TIE_TOLERANCE)
    single, family = np.zeros(len(observed)), np.zeros(len(observed))
    for start in range(0, len(groupings), CHUNK):
        extreme = np.abs(welch_t(values, groupings.first[start : start + CHUNK]))
        single += (extreme >= threshold).sum(axis=0)
        family += (extreme.max(axis=1, keepdims=True) >= threshold).sum(axis=0)
    if groupings.exact:
        return single / len(groupings), family / len(groupings)
    return (single + 1) / (len(groupings) + 1), (family + 1) / (len(groupings) + 1)


def region_effects(
    values: RelevanceValues, cohort: CohortConfig, settings: StatisticsConfig, seed: int
) -> pd.DataFrame:
    """One row per map and bilateral group.

    Returns
    -------
    pandas.DataFrame
        Columns of `EFFECT_COLUMNS`; a row that could not be computed says why.
    """
    data = TwoClasses.of(values)
    n_positive, n_negative = int(data.is_positive.sum()), int((~data.is_positive).sum())
    table = _blank(values, n_positive, n_negative)
    known = np.asarray(~np.isnan(data.values).any(axis=0), dtype=bool)
    table["note"] = [None if there else "the group has no voxel on this grid" for there in known.tolist()]
    for column, members in (("mean_positive", data.is_positive), ("mean_negative", ~data.is_positive)):
        if members.any():
            table[column] = data.values[members].mean(axis=0)
    table["difference"] = table["mean_positive"] - table["mean_negative"]
    for name, n in ((cohort.positive, n_positive), (cohort.negative, n_negative)):
        if n < MIN_PER_CLASS:
            table["note"] = f"{n} participants of {name}; at least {MIN_PER_CLASS} are needed"
            return table
    varies = known & ~is_constant(np.where(known, data.values, 0.0))
    table.loc[known & ~varies, "note"] = "the density is the same in all participants"
    if data.n_both:
        said = f"{data.n_both} participants with scans of both classes count as {cohort.positive}, by those scans"
        table.loc[varies, "note"] = said
    if varies.any():
        _fill(table, np.flatnonzero(varies), data, settings, seed)
    return table


def region_effects_tables(inputs: StatisticsInputs) -> Mapping[str, tuple[pd.DataFrame, Mapping[str, str]]]:
    """Table ``region_effects``."""
    table = region_effects(inputs.values, inputs.config.cohort, inputs.config.statistics, inputs.seed)
    return {"region_effects": (table, EFFECT_COLUMNS)}


def _blank(values: RelevanceValues, n_positive: int, n_negative: int) -> pd.DataFrame:
    numbers = dict.fromkeys(
        ("mean_positive", "mean_negative", "difference", "ci_low", "ci_high", "hedges_g", "t", "p", "p_fwe", "p_fdr"),
        np.nan,
    )
    table = pd.DataFrame([(name, group) for name in values.maps for group in values.groups], columns=["map", "group"])
    table = table.assign(**numbers, interval=NO_INTERVAL, family="none", note=None)
    table = table.assign(n_positive=n_positive, n_negative=n_negative, n_permutations=0, exact=False)
    return table[list(EFFECT_COLUMNS)]


def _fill(table: pd.DataFrame, rows: NDArray[np.intp], data: TwoClasses, settings: StatisticsConfig, seed: int) -> None:
    """Enter the statistics of the given rows."""
    values, is_positive = data.values[:, rows], data.is_positive
    observed = welch_t(values, is_positive[None].astype(float))[0]
    rng = generator(seed, "statistics", "region_effects", "permutation")
    groupings = regroupings(is_positive, settings.permutations, rng)
    p, p_fwe = max_t_test(values, observed, groupings)
    columns: dict[str, Any] = {"t": observed, "p": p, "p_fwe": p_fwe, "p_fdr": benjamini_hochberg(p)}
    with np.errstate(divide="ignore", invalid="ignore"):
        columns["hedges_g"] = hedges_g(values, is_positive)

    def difference(weights: Floats) -> Floats:
        means = [
            (weights[:, members] @ values[members]) / weights[:, members].sum(axis=1, keepdims=True)
            for members in (is_positive, ~is_positive)
        ]
        result: Floats = means[0] - means[1]
        return result

    rng = generator(seed, "statistics", "region_effects", "bootstrap")
    strata = is_positive.astype(int).tolist()
    intervals = bootstrap_intervals(difference, strata, settings.bootstrap_samples, settings.confidence, rng)
    columns |= {"ci_low": intervals.low, "ci_high": intervals.high}
    for name, column in columns.items():
        table.loc[rows, name] = column
    table.loc[rows, "interval"] = intervals.method
    table.loc[rows, "family"] = f"{len(rows)} maps x groups"
    table["n_permutations"], table["exact"] = len(groupings), groupings.exact
