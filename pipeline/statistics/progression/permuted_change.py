"""Change over visits tested by resampling, beside the mixed model, which needs normal errors and a fit that converges.

Each participant's visits give one least-squares slope; participants, not visits, are what is resampled.

- *Does a group change on average?* The signs of participants' slopes are flipped: under the null hypothesis a slope
  is as likely to be up as down. That holds where nobody changes, and where people change at random about a mean of
  zero. (To let visits change places within participants tests that nobody changes: of people who change at random about
  zero it rejects 10.8 % at 5 %.) What it leans on is the symmetry of slopes. They are weighted by the inverse of their
  variance, so that someone with two visits half a year apart counts little.
- *Do groups change differently?* Participants change groups, each with all their visits, with one variance per group
  (Welch's t or F), as patients differ more in change than controls. A short series counts as much as a long one:
  weights by the length of a series would tie variance to leverage where people differ in change, and p would come out
  too small (8 to 9 % false positives at 5 % in a simulation).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.run.errors import BadInputError
from pipeline.statistics.arrays import Floats
from pipeline.statistics.data.values import participant_means
from pipeline.statistics.linear.design import Design
from pipeline.statistics.linear.exchangeability import Exchangeability
from pipeline.statistics.linear.freedman_lane import freedman_lane
from pipeline.statistics.linear.sign_flip import sign_flip_test

SAME_TIME = 1e-9
"""Sum of squared years about their mean below which someone's visits are at one time."""
ROUNDING = 1e-12
"""Deviation from someone's mean, relative to the largest value of the column, that counts as none."""


@dataclass(frozen=True, eq=False)
class OwnLines:
    """Least-squares lines of the participants whose time varies.

    Parameters
    ----------
    slopes : array, shape (participants, columns)
    squares : array, shape (participants,)
        Sum of squared years about their mean: the variance of a slope is that of its person + noise / squares.
    noise : array, shape (columns,)
        Residual variance about the lines, pooled; NaN if nobody has three visits.
    group : array of int, shape (participants,)
    """

    slopes: Floats
    squares: Floats
    noise: Floats
    group: NDArray[np.intp]

    @property
    def weights(self) -> Floats:
        """Inverse variances of the slopes about zero, in arbitrary units, shape (participants, columns).

        The variance between people is DerSimonian and Laird's moment estimate (1986) about a mean of zero. It is made
        of squares of slopes and of residuals, which no flip of signs changes. Equal where nobody has three visits.
        """
        squares = self.squares[:, None]
        if np.isnan(self.noise).all():
            return np.ones_like(self.slopes)
        excess = (self.slopes**2 * squares).sum(axis=0) - len(self.slopes) * self.noise
        between = np.maximum(excess, 0.0) / self.squares.sum()
        variance = between * squares + self.noise
        weights: Floats = squares / np.where(variance > 0, variance, 1.0)  # 0 only where all slopes are
        return weights


@dataclass(frozen=True, eq=False)
class ChangeTest:
    """Two-sided p of every column, and family-wise p over the columns (max-T); NaN where there is no test."""

    p: Floats
    p_fwe: Floats


def change_test(
    values: Floats, years: Floats, participant: NDArray[np.intp], group: NDArray[np.intp], m: int,
    rng: np.random.Generator,
) -> ChangeTest:  # fmt: skip
    """Of mean change over years in one group, or of a difference in change between several.

    Parameters
    ----------
    values : array, shape (scans, columns)
    years : array, shape (scans,)
    participant, group : array of int, shape (scans,)
        The group is the same for all scans of a participant.
    m : int
        Flips or permutations.
    rng : numpy.random.Generator
    """
    lines = own_lines(values, years, participant, group)
    nothing = np.full(values.shape[1], np.nan)
    if len(lines.slopes) < 2:
        return ChangeTest(nothing, nothing)
    if np.ptp(group) == 0:
        flipped = sign_flip_test(lines.slopes, lines.weights, m, rng)
        return ChangeTest(flipped.p, flipped.p_fwe)
    tested = (lines.group[:, None] == np.unique(group)[1:]).astype(float)
    names = (*(f"change {i}" for i in range(tested.shape[1])), "level")
    rows = np.arange(len(tested), dtype=np.intp)
    design = Design(tested, np.ones((len(tested), 1)), rows, {}, names, {})
    exchange = Exchangeability.free(len(tested))
    try:
        test = freedman_lane(lines.slopes, design, exchange, m, rng, variance_groups=lines.group.tolist())
    except BadInputError:  # a group has too few people for a variance
        return ChangeTest(nothing, nothing)
    return ChangeTest(test.p, test.p_fwe)


def own_lines(values: Floats, years: Floats, participant: NDArray[np.intp], group: NDArray[np.intp]) -> OwnLines:
    """Fit a line to each participant's visits; values of shape (scans, columns)."""
    first, codes, visits = np.unique(participant, return_index=True, return_inverse=True, return_counts=True)[1:]
    own = participant_means(np.column_stack([years, values]), codes)[codes]
    time, centred = years - own[:, 0], values - own[:, 1:]
    centred[np.abs(centred) <= ROUNDING * np.abs(values).max(axis=0, initial=0.0)] = 0.0
    squares: Floats = np.bincount(codes, weights=time**2).astype(float)
    products, total = np.zeros((2, len(first), values.shape[1]))
    np.add.at(products, codes, time[:, None] * centred)
    np.add.at(total, codes, centred**2)
    varies = squares > SAME_TIME
    slopes = products[varies] / squares[varies, None]
    left = np.maximum(total[varies] - slopes**2 * squares[varies, None], 0.0)
    degrees = int((visits[varies] - 2).sum())
    noise = left.sum(axis=0) / degrees if degrees else np.full(values.shape[1], np.nan)
    return OwnLines(slopes, squares[varies], noise, group[first][varies])
