"""Tests of change over visits by resampling, which need neither normal errors nor a converged mixed model.

Each participant's visits give one least-squares slope; participants, not visits, are resampled.

- *Does a group change on average?* The signs of participants' slopes are flipped: under the null hypothesis a slope
  is as likely to be positive as negative. That holds if no one changes, and if participants change at random about a
  mean of zero. (Permuting visits within participants would test that no one changes: if participants change at random
  about zero it rejects in 10.8 % at 5 %.) The test assumes symmetric slopes. They are weighted by the inverse of their
  variance, so that a participant with two visits half a year apart counts little.
- *Do groups change differently?* Participants are permuted between groups with all their visits, with one variance per
  group (Welch's t or F), since patients vary more in change than controls. Series count equally whatever their length:
  weights by length would correlate variance with leverage where participants differ in change, and p would be too
  small (8 to 9 % false positives at 5 % in a simulation).
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
"""Sum of squared deviations of years from their mean below which a participant's visits count as simultaneous."""
ROUNDING = 1e-12
"""Deviation from a participant's mean, relative to the largest value of the column, that counts as zero."""


@dataclass(frozen=True, eq=False)
class ParticipantSlopes:
    """Least-squares lines of the participants with visits at different times.

    Shapes: slopes (participants, columns); squares (participants,), the sum of squared deviations of years from their
    mean: the variance of a slope is that between participants + noise / squares; noise (columns,), pooled residual
    variance, NaN if no one has three visits.
    """

    slopes: Floats
    squares: Floats
    noise: Floats
    group: NDArray[np.intp]

    @property
    def weights(self) -> Floats:
        """Inverse variances of the slopes about zero, in arbitrary units, shape (participants, columns).

        The variance between participants is the moment estimate of DerSimonian and Laird (1986) about a mean of zero.
        It depends on squares of slopes and residuals only, which sign flips do not change. Equal weights if no one has
        three visits.
        """
        squares = self.squares[:, None]
        if np.isnan(self.noise).all():
            return np.ones_like(self.slopes)
        excess = (self.slopes**2 * squares).sum(axis=0) - len(self.slopes) * self.noise
        between = np.maximum(excess, 0.0) / self.squares.sum()
        variance = between * squares + self.noise
        weights: Floats = squares / np.where(variance > 0, variance, 1.0)  # 0 only if all slopes are 0
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
    """Test of mean change over years in one group, or of a difference in change between several.

    values (scans, columns); years, participant and group (scans,), one group per participant; m flips or permutations.
    """
    lines = participant_slopes(values, years, participant, group)
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
    except BadInputError:  # a group has too few participants for a variance
        return ChangeTest(nothing, nothing)
    return ChangeTest(test.p, test.p_fwe)


def participant_slopes(
    values: Floats, years: Floats, participant: NDArray[np.intp], group: NDArray[np.intp]
) -> ParticipantSlopes:
    """Fit a line to the visits of each participant; values of shape (scans, columns)."""
    first, codes, visits = np.unique(participant, return_index=True, return_inverse=True, return_counts=True)[1:]
    means = participant_means(np.column_stack([years, values]), codes)[codes]
    time, centred = years - means[:, 0], values - means[:, 1:]
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
    return ParticipantSlopes(slopes, squares[varies], noise, group[first][varies])
