"""Groups of scans by name: classes of the contrast and outcomes, and pairs of groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heatlas.pipeline.regions.effect_size import hedges_g
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.statistics.arrays import Flags, Floats, Indices
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
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
    """Scans of two groups without a participant in common.

    `rows` are positions of the scans used, is_first has shape (rows,), `n_both` counts participants with scans in both
    groups, and `note` says how they were handled.
    """

    rows: Indices
    is_first: Flags
    n_both: int
    note: str | None

    @classmethod
    def of(cls, inputs: StatisticsInputs, first: str, second: str) -> TwoGroups:
        """Scans of two groups, named as in `members_of`."""
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
    model with fold. With one fold, the difference of the means.

    Parameters
    ----------
    means : array, shape (participants, columns)
    is_first : array of bool, shape (participants,)
    fold : array of int, shape (participants,)
    weights : array, shape (draws, participants)
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

    That of Welch's t, with one variance per group: of the deviations from the group's own mean in each fold. Folds
    without both groups do not count. NaN where a group has no deviations.
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
    known = np.asarray(np.isfinite(values).all(axis=0), dtype=bool)
    freedom = _freedom(fold)
    if freedom < MIN_FREEDOM_OF_G:
        note = f"no Hedges' g: fewer than {MIN_FREEDOM_OF_G} degrees of freedom ({freedom})"
        return np.full(values.shape[1], np.nan), [note if is_known else None for is_known in known.tolist()]
    g = np.where(known, hedges_g(np.where(known, values, 0.0), is_first, fold), np.nan)
    note = "no Hedges' g: participants do not differ within the groups"
    return g, [note if is_known else None for is_known in (known & np.isnan(g)).tolist()]


def interval_of_g(g: Floats, fold: Indices, t: Floats, critical: Floats) -> tuple[Floats, Floats]:
    """Interval of `hedges_g` from the t of the difference and the critical value of its permutation.

    The variance of g is that of the difference, (g / t)^2, and that of the standard deviation, g^2 / (2 df) (Hedges &
    Olkin 1985, section 5.E). The interval is made on the scale that stabilises this sum, sinh^-1(t / sqrt(2 df)), where
    it excludes 0 exactly if |t| is above the critical value.
    """
    scale = np.sqrt(2 * max(_freedom(fold), 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        middle, reach, unit = np.arcsinh(t / scale), np.arcsinh(critical / scale), scale * np.abs(g / t)
    return unit * np.sinh(middle - reach), unit * np.sinh(middle + reach)


def _freedom(fold: Indices) -> int:
    """Residual degrees of freedom given group and fold."""
    return len(fold) - len(np.unique(fold)) - 1
