"""Difference in performance between a subgroup and the rest, studentised, with the network held.

Networks of different folds differ in quality: a subgroup that was mostly tested by a worse network would pass for one
that is classified worse. So differences are taken within folds and averaged with weights n1 n2 / (n1 + n2) of
participants, who change places within fold and class. Every participant counts once, with the share of their scans that
is correct: over scans, few participants with many scans each, which are all right or all wrong, are rejected in up to
32 % at 5 %. The statistic is divided by its standard error over participants, since shares of fewer scans vary more.
The area under the curve counts pairs of participants of one fold; its standard error is that of DeLong et al. (1988)
with sums divided by the number of participants, not by one less; p and interval come from permutations of the same
ratio.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heatlas.pipeline.statistics.arrays import Floats, Indices
from heatlas.pipeline.statistics.linear.exchangeability import two_sided_p
from heatlas.pipeline.statistics.linear.freedman_lane import dual_interval
from heatlas.pipeline.statistics.linear.studentised import critical_values

METRICS = ("balanced_accuracy", "sensitivity", "specificity", "auc")
AT_ONCE = 500
"""Permutations per chunk; bounds memory (500 x 1,000 participants: 4 MB for each of a dozen arrays)."""


@dataclass(frozen=True, eq=False)
class Answers:
    """What the classifier answered: of each participant, and of each pair of one with positive and negative scans.

    Shapes: fold (participants,) 0..F-1; scans (2, participants), number of scans of the negative and the positive
    class; right (2, participants), the share of them that was classified correctly, 0 without scans; pairs and wins
    (participants, participants), 1 for a participant with positive scans (row) and one with negative scans (column) of
    the same fold, and the share of their pairs of scans in which the positive scores higher (ties half).
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
        found = np.stack([part.sum(axis=1) for part in parts[:3]] + [estimate - rest], axis=1)
        error: Floats = np.sqrt(np.stack([(part**2).sum(axis=1) for part in parts], axis=1))
        return found, error

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
        influence = sum(won - area[:, None] * own for won, own in zip(wins, pairs, strict=True))
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


def subgroup_difference(
    answers: Answers, inside: NDArray[np.bool_], m: int, rng: np.random.Generator, confidence: float
) -> Difference:
    """Test a subgroup (participants,) against the rest; participants change places within fold and class."""
    found, error = (each[0] for each in answers.differences(inside.astype(float)[None]))
    strata = np.unique(np.column_stack([answers.fold, answers.scans[1] > 0]), axis=0, return_inverse=True)[1].ravel()
    moved = inside[_within(strata, m, rng)]
    if not (moved != inside).any():
        nothing = np.full(len(METRICS), np.nan)
        return Difference(found, nothing, nothing, nothing, 0)
    null = np.concatenate(
        [_studentised(*answers.differences(moved[at : at + AT_ONCE].astype(float))) for at in range(0, m, AT_ONCE)]
    )
    t = _studentised(found, error)
    p = np.where(error > 0, two_sided_p(t, np.nan_to_num(null, nan=np.inf), False), np.nan)
    critical = critical_values(np.abs(np.nan_to_num(null, nan=np.inf)).T, confidence, False)
    reach = np.where(error > 0, critical * error, np.nan)
    return Difference(found, *dual_interval(found, reach, p, 1 - confidence), p, m)


def _studentised(difference: Floats, error: Floats) -> Floats:
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
