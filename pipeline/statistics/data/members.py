"""Who is compared: groups of scans by name, their subgroups, and the clinical course of a participant.

A subgroup is a level of any column. A participant belongs to one: numbers are averaged over their scans, and of text
the most frequent value is used (the earliest in case of ties). Only ``course``, the diagnosis at the scan with the
outcome of MCI, is taken per scan: participants whose diagnosis changes are in both, each with the scans concerned.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from heatlas.pipeline.cohort.cells.values import code_text
from heatlas.pipeline.regions.effect_size import hedges_g
from heatlas.pipeline.run.config.statistics import SubgroupsConfig
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.statistics.arrays import Flags, Floats, Indices
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.linear.design import ALWAYS_CATEGORIES
from heatlas.pipeline.statistics.resampling.bootstrap import SAME

CLASSES = ("positive", "negative")
MIN_FREEDOM_OF_G = 8
"""Degrees of freedom below which the pooled standard deviation is too uncertain to divide by: its relative error is
1 / sqrt(2 df), a quarter at 8 (with five participants per class in several folds, Hedges' g came out at 35)."""


def members_of(inputs: StatisticsInputs, scan_group: str) -> Flags:
    """Mask of the scans in ``all``, ``positive``, ``negative``, TP, FP, TN or FN."""
    if scan_group == "all":
        return np.ones(len(inputs.values.scans), bool)
    return inputs.values.members(scan_group, "negative", "positive")


def label_of(inputs: StatisticsInputs, scan_group: str) -> str:
    """Name of a group of scans in tables: the class label for ``positive`` and ``negative``."""
    cohort = inputs.config.cohort
    return {"positive": cohort.positive, "negative": cohort.negative}.get(scan_group, scan_group)


@dataclass(frozen=True, eq=False)
class TwoGroups:
    """Scans of two groups without a participant in common; rows are positions of the scans used, is_first (rows,).

    `n_both` counts participants with scans in both groups, and `note` says how they were handled.
    """

    rows: Indices
    is_first: Flags
    n_both: int
    note: str | None

    @classmethod
    def of(cls, inputs: StatisticsInputs, first: str, second: str) -> TwoGroups:
        in_first, in_second = members_of(inputs, first), members_of(inputs, second)
        people = inputs.frame["participant_id"]
        both = set(people[in_first]) & set(people[in_second])
        of_both = people.isin(both).to_numpy(bool)
        note = None
        if {first, second} == set(CLASSES):
            in_positive, in_negative = (in_first, in_second) if first == CLASSES[0] else (in_second, in_first)
            used = in_positive | (in_negative & ~of_both)
            if both:
                label = label_of(inputs, CLASSES[0])
                note = (
                    f"{counted(len(both), 'participant')} with scans of both classes counted as {label}, by those scans"
                )
        else:
            used = (in_first | in_second) & ~of_both
            if both:
                note = f"{counted(len(both), 'participant')} with scans of both groups left out"
        rows = np.flatnonzero(used)
        return cls(rows.astype(np.intp), in_first[rows], len(both), note)


def drawn_means(means: Floats, of_first: Flags, weights: Floats) -> tuple[Floats, Floats]:
    """Means of both groups in bootstrap draws of participants, each of shape (draws, columns)."""
    sides = [(weights[:, side], means[side]) for side in (of_first, ~of_first)]
    first, second = (part @ members / part.sum(axis=1, keepdims=True) for part, members in sides)
    return first, second


def difference_within(means: Floats, is_first: Flags, fold: Indices, weights: Floats) -> Floats:
    """Difference of two groups adjusted for fold, in bootstrap draws of participants; shape (draws, columns).

    The mean of the differences within folds, weighted by n1 n2 / (n1 + n2): the coefficient of the group in a linear
    model with fold. Shapes: means (participants, columns), weights (draws, participants).
    """
    above, below = np.zeros((len(weights), means.shape[1])), np.zeros((len(weights), 1))
    for number in np.unique(fold):
        sides = [np.flatnonzero((fold == number) & side) for side in (is_first, ~is_first)]
        if not (len(sides[0]) and len(sides[1])):
            continue
        (n_first, first), (n_second, second) = (
            (weights[:, side].sum(axis=1, keepdims=True), weights[:, side] @ means[side]) for side in sides
        )
        n = np.maximum(n_first + n_second, np.finfo(float).tiny)
        above += (n_second * first - n_first * second) / n
        below += n_first * n_second / n
    result: Floats = np.divide(above, below, out=np.full(above.shape, np.nan), where=below > 0)
    return result


def welch_within(means: Floats, is_first: Flags, fold: Indices) -> tuple[Floats, Floats]:
    """Standard error of the difference adjusted for fold, and its degrees of freedom; each of shape (columns,).

    That of Welch's t, with one variance per group about its mean in each fold; folds without both groups do not count.
    NaN where a group has no deviations.
    """
    folds = [number for number in np.unique(fold) if len(set(is_first[fold == number].tolist())) == 2]
    sizes = np.array([[((fold == number) & side).sum() for side in (is_first, ~is_first)] for number in folds], float)
    sizes = sizes.reshape(-1, 2)
    weights = sizes.prod(axis=1) / sizes.sum(axis=1)
    parts, freedom = [], []
    for column, side in enumerate((is_first, ~is_first)):
        groups = [means[(fold == number) & side] for number in folds]
        squares = sum((((rows - rows.mean(axis=0)) ** 2).sum(axis=0) for rows in groups), np.zeros(means.shape[1]))
        df = sizes[:, column].sum() - len(folds)
        variance = squares / df if df > 0 else np.full(means.shape[1], np.nan)
        parts.append(variance * (weights**2 / sizes[:, column]).sum() / max(weights.sum() ** 2, np.finfo(float).tiny))
        freedom.append(max(df, 1))
    error, size = np.sqrt(parts[0] + parts[1]), np.abs(means).max(axis=0, initial=0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        df = (parts[0] + parts[1]) ** 2 / (parts[0] ** 2 / freedom[0] + parts[1] ** 2 / freedom[1])
    return np.where(error > SAME * size, error, np.nan), df


def reported_g(values: Floats, is_first: Flags, fold: Indices) -> tuple[Floats, list[str | None]]:
    """`hedges_g` of values (participants, columns), and why it is missing; no note for columns with NaN."""
    whole = np.asarray(np.isfinite(values).all(axis=0), dtype=bool)
    freedom = _freedom(fold)
    if freedom < MIN_FREEDOM_OF_G:
        note = f"no Hedges' g: fewer than {MIN_FREEDOM_OF_G} degrees of freedom ({freedom})"
        return np.full(values.shape[1], np.nan), [note if is_known else None for is_known in whole.tolist()]
    g = np.where(whole, hedges_g(np.where(whole, values, 0.0), is_first, fold), np.nan)
    note = "no Hedges' g: participants do not differ within the groups"
    return g, [note if is_known else None for is_known in (whole & np.isnan(g)).tolist()]


def interval_of_g(g: Floats, fold: Indices, t: Floats, critical: Floats) -> tuple[Floats, Floats]:
    """Interval of `hedges_g` from the t of the difference and the critical value of its permutation.

    The variance of g is that of the difference, (g / t)^2, and that of the standard deviation, g^2 / (2 df) (Hedges &
    Olkin 1985, section 5.E). On the scale that stabilises this sum, sinh^-1(t / sqrt(2 df)), the interval excludes 0
    exactly if |t| is above the critical value.
    """
    scale = np.sqrt(2 * max(_freedom(fold), 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        middle, reach, unit = np.arcsinh(t / scale), np.arcsinh(critical / scale), scale * np.abs(g / t)
    return unit * np.sinh(middle - reach), unit * np.sinh(middle + reach)


def _freedom(fold: Indices) -> int:
    """Residual degrees of freedom given group and fold."""
    return len(fold) - len(np.unique(fold)) - 1


YEARS = "years_since_first_scan"
CONVERTED, TO_CONVERSION, FOLLOWED = "converted", "months_to_conversion", "months_followed"
OTHER_DEMENTIA = "other_dementia"
"""Columns of ``clinical.tsv``."""
NETWORKS = "networks"
"""Column of ``predictions_applied.tsv``."""


def years_since_first(frame: pd.DataFrame) -> pd.Series:
    """Years since each participant's first scan in the table, from the clinical table (`YEARS`) or else from age.

    NaN if neither is known; an age that is the same at several visits is that of the person and dates none of them. All
    scans of a participant are dated from the same source, since a difference between sources is not change.
    """
    age = frame["age"].astype(float)
    years = frame[YEARS].astype(float) if YEARS in frame.columns else pd.Series(np.nan, frame.index)
    person = frame["participant_id"]
    whole = years.notna().groupby(person).transform("all")
    one_visit = frame["session_id"].groupby(person).transform("nunique") < 2
    of_visits = one_visit | (age.groupby(person).transform("nunique") > 1)
    clock = years.where(whole, age.where(of_visits))
    return clock - clock.groupby(person).transform("min")


def first_visits(frame: pd.DataFrame) -> pd.DataFrame:
    """The earliest scan of each participant; undated scans come after dated ones, then by session name."""
    years = years_since_first(frame).fillna(np.inf).rename("_years")
    ordered = frame.assign(_years=years).sort_values(
        ["participant_id", "_years", "session_id", "scan_id"], na_position="first", kind="stable"
    )
    return ordered.drop_duplicates("participant_id").drop(columns="_years")


def course_of(frame: pd.DataFrame) -> pd.Series:
    """Diagnosis at the scan, with MCI divided by outcome, or None; without any diagnosis the class of the contrast."""
    course = frame["progression"].astype(object)
    diagnosis = frame["diagnosis"].astype(object)
    course = course.where(course.notna() & (diagnosis.isna() | (diagnosis == "MCI")), diagnosis)
    if course.isna().all():
        course = frame["label"].astype(object)
    return course.where(course.notna(), None)


def networks_of(frame: pd.DataFrame, column: str = NETWORKS) -> pd.Series:
    """Networks that predicted each scan, as in ``predictions_applied.tsv`` (0 or 0;1;2), or the test fold.

    Participants with labelled scans get the network of their fold, all others the mean of all networks; so all scans of
    a participant have the same value, whatever type a table was read in.
    """
    if column not in frame.columns:
        return pd.Series("applied", frame.index)
    return frame[column].map(lambda value: code_text(value) if isinstance(value, float) else str(value)).astype(object)


def log_odds(frame: pd.DataFrame) -> Floats:
    """Log odds of the positive class; from the probability, which may saturate, if a scan has no logits."""
    p = frame["probability"].to_numpy(float)
    smallest = np.finfo(np.float32).tiny
    odds: Floats = np.log(np.clip(p, smallest, 1.0)) - np.log(np.clip(1 - p, smallest, 1.0))
    if not {"logit_positive", "logit_negative"} <= set(frame.columns):
        return odds
    difference = (frame["logit_positive"] - frame["logit_negative"]).to_numpy(float)
    return np.where(np.isnan(difference), odds, difference)


COURSE = "course"
COURSES = ("CN", "sMCI", "pMCI", "rMCI", "uMCI", "MCI", "AD")
MAX_VALUES = 6
"""Numeric variables with more distinct values are cut into tertiles."""
TERTILES = (1 / 3, 2 / 3)


@dataclass(frozen=True, eq=False)
class Levels:
    """Subgroups of one variable; `names` in natural order.

    `of_scan` is aligned with the frame, None where unknown; `is_banded` if a number was cut into bands.
    """

    variable: str
    of_scan: pd.Series
    names: tuple[str, ...]
    is_banded: bool

    def members(self, level: str) -> Flags:
        return (self.of_scan == level).to_numpy(bool)

    def of_rows(self, rows: Indices) -> Levels:
        """The same subgroups for some of the scans; BadInputError if none of them has a level."""
        chosen = self.of_scan.iloc[rows].reset_index(drop=True)
        if chosen.isna().all():
            raise BadInputError(f"{self.variable}: no scan has a value.")
        present = set(chosen.dropna())
        return Levels(self.variable, chosen, tuple(name for name in self.names if name in present), self.is_banded)

    @property
    def note(self) -> str | None:
        """How many scans have no level; None if all have one."""
        unknown = int(self.of_scan.isna().sum())
        return f"{counted(unknown, 'scan')} without {self.variable} in no subgroup" if unknown else None


def subgroup_levels(inputs: StatisticsInputs, variable: str) -> Levels:
    """Subgroups of all scans with relevance, in the order of `StatisticsInputs.all_scans`."""
    scans = inputs.all_scans
    return levels_of(variable, scans.frame, inputs.config.statistics.subgroups, scans.labelled)


def levels_of(variable: str, frame: pd.DataFrame, settings: SubgroupsConfig, cut_over: Flags | None = None) -> Levels:
    """Subgroups by a column of a frame with one row per scan, or by ``course``; BadInputError without a value.

    Tertiles are those of the participants in `cut_over` (rows,), or of all if none of these has a value.
    """
    if variable == COURSE:
        return _order_levels(variable, course_of(frame), COURSES, False)
    if variable not in frame:
        raise BadInputError(f"{variable}: no such column in scans.tsv or clinical.tsv.")
    if frame[variable].isna().all():
        raise BadInputError(f"{variable}: no scan has a value.")
    values = one_value_per_participant(frame[variable], frame["participant_id"], variable in ALWAYS_CATEGORIES)
    if not pd.api.types.is_numeric_dtype(values):
        return _order_levels(variable, values, sorted(values.dropna().unique()), False)
    if variable == "apoe4":
        carrier = values.map(lambda n: "e4 carrier" if n > 0 else "no e4", na_action="ignore")
        return _order_levels(variable, carrier.astype(object), ("no e4", "e4 carrier"), False)
    if variable == "mmse":
        return _cut_into_bands(variable, values, settings.mmse_bands)
    if values.nunique() <= MAX_VALUES:
        text = values.map(code_text, na_action="ignore").astype(object)
        return _order_levels(variable, text, [code_text(number) for number in sorted(values.dropna().unique())], False)
    cut = values if cut_over is None or values[cut_over].isna().all() else values[cut_over]
    per_person = cut.groupby(frame["participant_id"].loc[cut.index].to_numpy()).first().dropna()
    return _cut_into_bands(variable, values, sorted(set(per_person.quantile(list(TERTILES)))))


def one_value_per_participant(column: pd.Series, participants: pd.Series, is_category: bool) -> pd.Series:
    """One value per participant for all their scans: the mean of numbers, the most frequent category."""
    people = participants.to_numpy()
    is_flag = column.map(lambda value: isinstance(value, bool | np.bool_))  # with n/a the column is of type object
    if is_flag.any():
        column = column.astype(object).where(~is_flag, column.map({True: "yes", False: "no"}))
    if pd.api.types.is_numeric_dtype(column) and not is_category:
        return column.astype(float).groupby(people).transform("mean")
    if pd.api.types.is_numeric_dtype(column):
        column = column.map(code_text, na_action="ignore")
    values = column.astype(object).where(column.notna(), None)
    chosen = {
        person: max(known, key=known.count) if (known := [value for value in of_one if value is not None]) else None
        for person, of_one in values.groupby(people)
    }
    return pd.Series([chosen[person] for person in people], index=column.index, dtype=object)


def _order_levels(variable: str, of_scan: pd.Series, order: Sequence[str], is_banded: bool) -> Levels:
    present = set(of_scan.dropna())
    names = [name for name in order if name in present] + sorted(present - set(order))
    return Levels(variable, of_scan, tuple(names), is_banded)


def _cut_into_bands(variable: str, values: pd.Series, bounds: Sequence[float]) -> Levels:
    """Bands below, between and above the bounds; each band includes its lower bound."""
    if not bounds:
        return _order_levels(variable, values.map(lambda _: "any", na_action="ignore").astype(object), ("any",), True)
    shown = _round_bounds(bounds)
    names = [f"below {shown[0]}"]
    names += [f"{low} to below {high}" for low, high in itertools.pairwise(shown)]
    names += [f"{shown[-1]} and above"]
    place = np.searchsorted(np.asarray(bounds, float), values.to_numpy(float), side="right")
    of_scan = pd.Series([names[i] for i in place], index=values.index, dtype=object)
    return _order_levels(variable, of_scan.where(values.notna(), None), names, True)


def _round_bounds(bounds: Sequence[float]) -> list[str]:
    """Bounds rounded to a hundredth of the order of the smallest step between them.

    >>> _round_bounds([71.1633, 75.7]), _round_bounds([1400049.96, 1400100.0])
    (['71.16', '75.7'], ['1400050', '1400100'])
    """
    step = min((high - low for low, high in itertools.pairwise(bounds)), default=abs(bounds[0]) or 1.0)
    decimals = 2 - math.floor(math.log10(step))
    return [f"{round(bound, decimals):.15g}" for bound in bounds]
