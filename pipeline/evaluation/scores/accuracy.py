"""How well networks do on people they have not seen: balanced accuracy and AUC, with intervals over participants.

Logits of different networks are on different scales, so the AUC compares pairs of one fold only. The bootstrap of
`scipy.stats` draws rows, and here a row is a participant. (Statistics of weighted scans have their own bootstrap in
`pipeline.statistics`, which this room does not import.)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from heatlas.pipeline.run.work.seeds import generator

Floats = NDArray[np.float64]
DRAWS = 1000
"""Usual number of bootstrap draws."""
FEWEST = 3
"""Participants below which there is no interval."""


def participant_interval(
    samples: tuple[Floats, ...], statistic: Callable[..., float], draws: int, seed: int, confidence: float = 0.95
) -> tuple[float, float]:
    """BCa interval of a statistic; percentile where BCa is not defined, or the statistic does not exist in some draws.

    `samples`: (participants,) each; several are drawn together. NaN for fewer than three participants, where all draws
    are the same (an interval without width would claim certainty), and where the statistic does not exist (NaN) in half
    of the draws or more.

    Examples
    --------
    >>> participant_interval((np.array([1.0, 1.0, 1.0]),), np.mean, 100, 0)
    (nan, nan)
    """
    if len(samples[0]) < FEWEST:
        return float("nan"), float("nan")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # degenerate draws: the interval is NaN and is told by that
        options = {"vectorized": False, "confidence_level": confidence, "random_state": np.random.default_rng(seed)}
        found = stats.bootstrap(samples, statistic, n_resamples=draws, paired=len(samples) > 1, method="BCa", **options)
    low, high = found.confidence_interval
    values = np.asarray(found.bootstrap_distribution, dtype=np.float64)
    known = values[np.isfinite(values)]
    if len(known) > len(values) / 2 and not (len(known) == len(values) and np.isfinite([low, high]).all()):
        low, high = np.quantile(known, [(1 - confidence) / 2, (1 + confidence) / 2])
    return (float(low), float(high)) if low < high else (float("nan"), float("nan"))


@dataclass(frozen=True, eq=False)
class HeldOutPeople:
    """Participant, fold and class of each scan that is tested, in the order of all margins."""

    participant: NDArray[np.str_]
    fold: NDArray[np.intp]
    positive: NDArray[np.bool_]

    def weights(self, draws: int, seed: int) -> Floats:
        """How often each scan is drawn: participants with all scans, within fold and class; (draws, scans)."""
        table = pd.DataFrame({"who": self.participant, "fold": self.fold, "positive": self.positive})
        ends = table.groupby("who")["positive"].agg(["min", "max"]).astype(int)
        kinds = ends["min"] + ends["max"]  # 0 and 2: one class, 1: both
        stratum = pd.factorize(pd.MultiIndex.from_arrays([table["fold"], table["who"].map(kinds)]))[0]
        random, found = generator(seed, "accuracy"), np.zeros((draws, len(table)))
        for one in np.unique(stratum):
            places = np.flatnonzero(stratum == one)
            codes, names = pd.factorize(self.participant[places])
            times = random.multinomial(len(names), np.full(len(names), 1 / len(names)), size=draws)
            found[:, places] = times[:, codes]
        return found


def balanced_accuracy(margin: Floats, people: HeldOutPeople, weights: Floats) -> Floats:
    """Mean over the classes of the share recognised, for each row of weights (draws, scans).

    Examples
    --------
    >>> people = HeldOutPeople(np.array(["a", "b", "c", "d"]), np.zeros(4, int), np.array([True, True, False, False]))
    >>> balanced_accuracy(np.array([1.0, -1.0, -2.0, -3.0]), people, np.ones((1, 4))).tolist()
    [0.75]
    """
    right = ((margin > 0) == people.positive).astype(float)
    sides = [
        weights[:, side] @ right[side] / weights[:, side].sum(axis=1) for side in (people.positive, ~people.positive)
    ]
    return np.asarray(np.mean(sides, axis=0))


def auc(margin: Floats, people: HeldOutPeople, weights: Floats) -> Floats:
    """Probability that of a positive and a negative scan of one fold the positive has the larger margin; ties half.

    NaN where no fold has both.

    Examples
    --------
    >>> positive = np.array([True, False, True, False])
    >>> people = HeldOutPeople(np.array(["a", "b", "c", "d"]), np.array([0, 0, 1, 1]), positive)
    >>> auc(np.array([2.0, 1.0, -5.0, -4.0]), people, np.ones((1, 4))).tolist()
    [0.5]
    """
    won, pairs = np.zeros(len(weights)), np.zeros(len(weights))
    for fold in np.unique(people.fold):
        first, second = (np.flatnonzero((people.fold == fold) & side) for side in (people.positive, ~people.positive))
        wins = np.sign(margin[first, None] - margin[None, second]) / 2 + 0.5
        won += np.einsum("dp,pn,dn->d", weights[:, first], wins, weights[:, second], optimize=True)
        pairs += weights[:, first].sum(axis=1) * weights[:, second].sum(axis=1)
    found: Floats = np.divide(won, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)
    return found


SCORES = {"balanced_accuracy": balanced_accuracy, "auc": auc}


@dataclass(frozen=True, eq=False)
class Scored:
    """A score and what it is in each bootstrap draw; draws of all networks are of the same people."""

    value: float
    draws: Floats

    def __sub__(self, other: Scored) -> Scored:
        return Scored(self.value - other.value, self.draws - other.draws)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % percentile interval; NaN where draws do not exist or are all the same."""
        if not np.isfinite(self.draws).all() or np.ptp(self.draws) == 0:
            return float("nan"), float("nan")
        low, high = np.quantile(self.draws, [0.025, 0.975])
        return float(low), float(high)


def scored(margin: Floats, people: HeldOutPeople, weights: Floats) -> dict[str, Scored]:
    """Both scores of one set of networks.

    `margin`: (scans,), logit of the positive class less that of the other. `weights`: of `HeldOutPeople`.
    """
    once = np.ones((1, len(margin)))
    few = len(set(people.participant)) < FEWEST
    nowhere = np.full(1, np.nan)
    return {
        name: Scored(float(score(margin, people, once)[0]), nowhere if few else score(margin, people, weights))
        for name, score in SCORES.items()
    }


def rank_p(value: float, of_random: Floats) -> float:
    """Share (b + 1) / (m + 1), where b of m random removals leave no more than this one; NaN without any.

    Examples
    --------
    >>> rank_p(0.5, np.array([0.9, 0.8, 0.5, 0.95]))
    0.4
    """
    if not len(of_random) or np.isnan(value):
        return float("nan")
    return float((np.sum(of_random <= value) + 1) / (len(of_random) + 1))
