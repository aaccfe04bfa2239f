"""Performance of the classifier in each subgroup, and its difference from all other participants.

All metrics are over scans, each participant with all of theirs, as in ``performance.tsv``. The difference counts every
participant once, with the share of their scans that is correct: over scans, few participants with many scans each,
which are all right or all wrong, are rejected in up to 32 % at 5 %.

Networks of different folds differ in quality, and a subgroup that a worse network tested would pass for one that is
classified worse. So differences are taken within folds and averaged with weights n1 n2 / (n1 + n2) of participants, who
change places within fold and class. The statistic is divided by its standard error over participants, since shares of
fewer scans vary more. The area under the curve counts pairs of participants of one fold; its standard error is that of
DeLong et al. (1988) with sums divided by the number of participants, not by one less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from heatlas.pipeline.run.config.statistics import StatisticsConfig
from heatlas.pipeline.run.declared import declared
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Flags, Floats, Indices, Resampling
from heatlas.pipeline.statistics.data import values
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.data.members import COURSE, Levels, subgroup_levels
from heatlas.pipeline.statistics.linear.fold_effect import FOLD, several_folds
from heatlas.pipeline.statistics.linear.freedman_lane import TEST_INTERVAL, dual_interval
from heatlas.pipeline.statistics.linear.permutations import benjamini_hochberg, two_sided_p
from heatlas.pipeline.statistics.linear.studentised import critical_values
from heatlas.pipeline.statistics.performance.classification import weighted_auc
from heatlas.pipeline.statistics.resampling.bootstrap import (
    LOGIT,
    NO_INTERVAL,
    ratio,
    scaled_intervals,
    with_exact_shares,
)

METRICS = ("balanced_accuracy", "sensitivity", "specificity", "auc")
AT_ONCE = 500
"""Permutations per chunk; bounds memory (500 x 1,000 participants: 4 MB for each of a dozen arrays)."""


@dataclass(frozen=True, eq=False)
class Answers:
    """What the classifier answered: of each participant, and of each pair of one with positive and negative scans.

    Shapes: fold (participants,) 0..F-1; scans (2, participants), number of scans of the negative and the positive
    class; right (2, participants), the share of them that was classified correctly; pairs and wins (participants,
    participants), 1 for one with positive scans (row) and one with negative scans (column) of the same fold, and the
    share of their pairs of scans in which the positive scores higher (ties half).
    """

    fold: Indices
    scans: Floats
    right: Floats
    pairs: Floats
    wins: Floats

    @classmethod
    def of(cls, codes: Indices, fold: Indices, target: Floats, right: Floats, score: Floats) -> Answers:
        """From scans: participant 0..P-1 and fold of each, class (0 or 1), whether classified correctly, and score."""
        n = int(codes.max()) + 1
        scans, correct = np.zeros((2, n)), np.zeros((2, n))
        np.add.at(scans, (target.astype(np.intp), codes), 1.0)
        np.add.at(correct, (target.astype(np.intp), codes), right)
        of_participant = np.zeros(n, np.intp)
        of_participant[codes] = fold
        above, below = np.flatnonzero(target == 1), np.flatnonzero(target == 0)
        same = (fold[above][:, None] == fold[below]).astype(float)
        higher = (score[above][:, None] > score[below]) + 0.5 * (score[above][:, None] == score[below])
        place = codes[above][:, None] * n + codes[below]
        pairs, wins = np.zeros((2, n * n))
        np.add.at(pairs, place, same)
        np.add.at(wins, place, same * higher)
        shares = [part / np.maximum(whole, 1.0) for part, whole in ((correct, scans), (wins, pairs))]
        return cls(of_participant, scans, shares[0], (pairs > 0).reshape(n, n).astype(float), shares[1].reshape(n, n))

    def differences(self, inside: Floats) -> tuple[Floats, Floats]:
        """Differences of `METRICS` for several subgroups (m, participants) of 0 and 1, and standard errors; (m, 4).

        NaN where a class is missing on either side.
        """
        sensitivity, specificity = self._of_class(inside, 1), self._of_class(inside, 0)
        estimate, influence = self._of_pairs(inside)
        rest, of_rest = self._of_pairs(1 - inside)
        parts = [(sensitivity + specificity) / 2, sensitivity, specificity, influence - of_rest]
        estimates = np.stack([part.sum(axis=1) for part in parts[:3]] + [estimate - rest], axis=1)
        error: Floats = np.sqrt(np.stack([(part**2).sum(axis=1) for part in parts], axis=1))
        return estimates, error

    def _of_class(self, inside: Floats, of_class: int) -> Floats:
        """Each participant's part of the difference in the share that is correct, shape (m, participants)."""
        there, right = (self.scans[of_class] > 0).astype(float), self.right[of_class]
        members = np.eye(int(self.fold.max()) + 1)[self.fold]
        total = np.maximum(there @ members, 1.0)
        left = right - there * (right @ members / total)[self.fold]
        of_fold = (inside * there) @ members
        weight = (of_fold * (1 - of_fold / total)).sum(axis=1, keepdims=True)
        parts = (inside - (of_fold / total)[:, self.fold]) * left
        result: Floats = np.divide(parts, weight, out=np.full(parts.shape, np.nan), where=weight > 0)
        return result

    def _of_pairs(self, inside: Floats) -> tuple[Floats, Floats]:
        """Area under the curve of a group (m,), and each participant's influence on it (m, participants)."""
        pairs = (inside @ self.pairs.T * inside, inside @ self.pairs * inside)
        wins = (inside @ self.wins.T * inside, inside @ self.wins * inside)
        count = pairs[0].sum(axis=1)
        area = np.divide(wins[0].sum(axis=1), count, out=np.full(len(inside), np.nan), where=count > 0)
        influence = sum(won - area[:, None] * pairs_of_person for won, pairs_of_person in zip(wins, pairs, strict=True))
        return area, np.asarray(influence) / np.maximum(count, 1.0)[:, None]


@dataclass(frozen=True, eq=False)
class Difference:
    """Result for each of `METRICS`, shape (4,); `low` to `high` excludes 0 exactly where p is at most 1 - confidence.

    NaN where a class is missing on either side, and p and bounds where nobody can change places or all are alike.
    """

    difference: Floats
    low: Floats
    high: Floats
    p: Floats
    n_permutations: int


def subgroup_difference(answers: Answers, inside: Flags, resampling: Resampling) -> Difference:
    """Test a subgroup (participants,) against the rest; participants change places within fold and class."""
    differences, error = (each[0] for each in answers.differences(inside.astype(float)[None]))
    strata = np.unique(np.column_stack([answers.fold, answers.scans[1] > 0]), axis=0, return_inverse=True)[1].ravel()
    moved = inside[_within(strata, resampling.m, resampling.rng)]
    if not (moved != inside).any():
        nothing = np.full(len(METRICS), np.nan)
        return Difference(differences, nothing, nothing, nothing, 0)
    null = np.concatenate(
        [
            _studentise(*answers.differences(moved[at : at + AT_ONCE].astype(float)))
            for at in range(0, resampling.m, AT_ONCE)
        ]
    )
    t = _studentise(differences, error)
    p = np.where(error > 0, two_sided_p(t, np.nan_to_num(null, nan=np.inf), False), np.nan)
    critical = critical_values(np.abs(np.nan_to_num(null, nan=np.inf)).T, resampling.confidence, False)
    reach = np.where(error > 0, critical * error, np.nan)
    return Difference(differences, *dual_interval(differences, reach, p, 1 - resampling.confidence), p, resampling.m)


def _studentise(difference: Floats, error: Floats) -> Floats:
    """t; 0 where there is neither difference nor error (everyone is classified correctly)."""
    t: Floats = np.divide(difference, error, out=np.where(np.isnan(difference), np.nan, 0.0), where=error > 0)
    return t


def _within(strata: Indices, count: int, rng: np.random.Generator) -> Indices:
    """Random permutations of participants within strata, shape (count, participants)."""
    order = np.empty((count, len(strata)), np.intp)
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        order[:, members] = rng.permuted(np.tile(members, (count, 1)), axis=1)
    return order


FLAT_ERROR = "no test: participants do not differ in what the metric counts"
FEW, FEWER_SCANS = 30, 1.25
UNEVEN = (
    f"fewer than {FEW} participants of a class {{where}} the subgroup, with fewer scans each than the others: if their "
    "scans agree better, p of difference is too small (8 to 17 % at 5 %)"
)
"""Caveat by design: shares of one scan vary more than those of many, and few of them do not show by how much.

No studentised statistic tried mends it: with variances of each side, or shares that keep their side's spread under
permutation, sensitivity is as far off or further (docs/benchmarks/statistics.md).
"""

FAIRNESS_TABLE = declared("fairness", __file__)


def fairness_tables(inputs: StatisticsInputs) -> pd.DataFrame:
    settings = inputs.config.statistics
    frame = inputs.frame
    blocks = []
    for variable in settings.subgroups.variables:
        if variable == COURSE:  # the class itself
            continue
        try:
            levels = subgroup_levels(inputs, variable).of_rows(np.arange(len(frame)))
        except BadInputError as error:
            blocks.append(values.untested(FAIRNESS_TABLE, variable=variable, note=str(error)))
            continue
        blocks.append(_of_variable(inputs, levels, frame))
    return values.stacked(FAIRNESS_TABLE, blocks)


def _of_variable(inputs: StatisticsInputs, levels: Levels, frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of one variable, with p adjusted over them."""
    settings, variable = inputs.config.statistics, levels.variable
    minimum = settings.subgroups.minimum_participants
    with_level = levels.of_scan.notna().to_numpy(bool)
    blocks = []
    for level in levels.names:
        members = levels.members(level)
        n_participants, n_scans = frame.loc[members, "participant_id"].nunique(), int(members.sum())
        if n_participants < minimum:
            note = f"suppressed: {counted(n_participants, 'participant')}, fewer than {minimum}"
            block = values.untested(FAIRNESS_TABLE, variable=variable, level=level, note=note)
        else:
            # One random stream per variable, so that two complementary subgroups have the same p.
            rng = generator(inputs.seed, "statistics", "fairness", variable)
            block = _of_level(frame[with_level].reset_index(drop=True), members[with_level], settings, rng)
            block = block.assign(variable=variable, level=level)
            block["note"] = [values.joined(note, levels.note) for note in block["note"]]
        blocks.append(block.assign(n_participants=n_participants, n_scans=n_scans))
    table = pd.concat(blocks, ignore_index=True)
    table["p_fdr"] = benjamini_hochberg(table["p"].to_numpy(float))
    return table.assign(family=values.family_of(table["p"], f"subgroups x metrics: {variable}"))


def _of_level(
    frame: pd.DataFrame, members: Flags, settings: StatisticsConfig, rng: np.random.Generator
) -> pd.DataFrame:
    """Rows of one subgroup against the rest of the frame."""
    codes, names = values.participant_codes(frame["participant_id"].tolist())
    target = frame["target"].to_numpy(float)
    predicted = frame["outcome"].isin(["TP", "FP"]).to_numpy().astype(float)
    probability = frame["probability"].to_numpy(float)
    right = (target == predicted).astype(float)
    inside = values.participant_means(members.astype(float), codes) > 0.5

    def of_weights(weights: Floats) -> Floats:
        """Metrics of weighted participants, shape (draws, metrics)."""
        of_scans = weights[:, codes]
        sensitivity = ratio(of_scans @ (right * target), of_scans @ target)
        specificity = ratio(of_scans @ (right * (1 - target)), of_scans @ (1 - target))
        auc = weighted_auc(target, probability, of_scans)
        return np.stack([(sensitivity + specificity) / 2, sensitivity, specificity, auc], axis=1)

    is_inside = inside.astype(float)[None]
    estimate, rest = of_weights(is_inside)[0], of_weights(1 - is_inside)[0]
    has = {1: values.participant_means(target, codes) > 0, 0: values.participant_means(target, codes) < 1}
    fold = pd.factorize(frame[FOLD])[0].astype(np.intp) if several_folds(frame, settings.fold_effect) else 0 * codes
    answers = Answers.of(codes, fold, target, right, probability)
    tested = subgroup_difference(answers, inside, Resampling.orders(settings, rng))

    def of_members(weights: Floats) -> Floats:
        everyone = np.zeros((len(weights), len(names)))
        everyone[:, inside] = weights
        return of_weights(everyone)

    strata = has[1][inside].astype(np.intp)
    intervals = scaled_intervals(of_members, strata, [LOGIT] * len(METRICS), Resampling.draws(settings, rng))
    counts = {of_class: int((inside & has[of_class]).sum()) for of_class in (1, 0)}
    shares = {1: (float(estimate[1]), counts[1]), 2: (float(estimate[2]), counts[0])}  # sensitivity, specificity
    intervals = with_exact_shares(intervals, shares, settings.confidence)
    notes = [
        values.joined(_note(estimate[i], rest[i], tested, i), _caveat(answers, inside, i), flat)
        for i, flat in enumerate(intervals.notes)
    ]
    columns = {"metric": METRICS, "estimate": estimate, "rest": rest, "note": np.array(notes, dtype=object)}
    columns |= {"ci_low": intervals.low, "ci_high": intervals.high, "interval": intervals.method}
    columns |= {"difference": tested.difference, "difference_low": tested.low, "difference_high": tested.high}
    columns |= {"difference_interval": np.where(np.isnan(tested.low), NO_INTERVAL, TEST_INTERVAL), "p": tested.p}
    table = pd.DataFrame(columns).assign(n_positive=counts[1], n_negative=counts[0])
    table["n_permutations"] = tested.n_permutations
    return _suppress(table, counts, settings.subgroups.minimum_participants)


def _suppress(table: pd.DataFrame, counts: Mapping[int, int], minimum: int) -> pd.DataFrame:
    """Remove metrics based on fewer participants of a class than the minimum."""
    few = [name for name, of_class in (("positive", 1), ("negative", 0)) if 0 < counts[of_class] < minimum]
    for name in few:
        spared = "specificity" if name == "positive" else "sensitivity"
        rows = (table["metric"] != spared) & table["estimate"].notna()
        table.loc[rows, [column for column in values.numbers_of(FAIRNESS_TABLE) if column in table]] = np.nan
        table.loc[rows, ["interval", "difference_interval"]] = NO_INTERVAL
        table.loc[rows, "note"] = f"suppressed: fewer than {minimum} participants of the {name} class"
    return table


def _note(value: float, rest: float, tested: Difference, metric: int) -> str | None:
    for side, where in ((value, "in"), (rest, "outside")):
        if np.isnan(side):
            return f"a class that the metric needs has no scan {where} the subgroup"
    if np.isnan(tested.difference[metric]):
        return "no fold has scans of the classes that the metric needs both in and outside the subgroup"
    if tested.difference[metric] == 0 and np.isnan(tested.p[metric]) and tested.n_permutations:
        return f"difference: {FLAT_ERROR}"
    if np.isnan(tested.p[metric]):
        return "the subgroup is the same as a fold, so it cannot be distinguished from the network"
    return None


def _caveat(answers: Answers, inside: Flags, metric: int) -> str | None:
    """`UNEVEN` where a class that the metric needs has few people with few scans on one side."""
    for of_class in {"sensitivity": (1,), "specificity": (0,)}.get(METRICS[metric], (0, 1)):
        scans = answers.scans[of_class]
        for where, side in (("in", inside), ("outside", ~inside)):
            scans_inside, others = scans[side & (scans > 0)], scans[~side & (scans > 0)]
            if 0 < len(scans_inside) < FEW and len(others) and FEWER_SCANS * scans_inside.mean() < others.mean():
                return UNEVEN.format(where=where)
    return None
