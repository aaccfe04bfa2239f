"""Rankings of regions: whether true places come first, how far two rankings agree, and what chance gives.

*Against a truth*, every score is the mean over all orders of tied values, so that a map that is even everywhere gets
what chance gives. Larger values come first. A place without a value (NaN) comes last.

*Chance*: a map by a network that has learned nothing true should put regions in an order that says nothing of the
planted ones. Whether it does is tested once with all swaps of labels together, since one swap alone decides nothing. By
area, not by hits among the first: where classes differ in the images, the evidence of any network differs most there,
up or down, so groups with disease gather at both ends of the order, and hits exceed chance though nothing was learned.

*Rank correlation* is Spearman's, as every part of the bench computes it; also of evidence with planted severity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from sklearn.metrics import average_precision_score, roc_auc_score

from heatlas.pipeline.evaluation.scores.accuracy import Floats, participant_interval
from heatlas.pipeline.run.errors import BadInputError

Bools = NDArray[np.bool_]


def is_undefined(values: ArrayLike) -> bool:
    """Whether a map says nothing: it holds NaN or infinity, or nothing but zeros.

    Examples
    --------
    >>> is_undefined([0.0, 0.0]), is_undefined([1.0, np.nan]), is_undefined([-1.0, 0.0])
    (True, True, False)
    """
    array = np.asarray(values)
    return not (bool(np.isfinite(array).all()) and bool(array.any()))


def require_two_kinds(truth: Bools, what: str) -> None:
    """Refuse a truth that nothing can be ranked against: no true place, or no other.

    Raises BadInputError, naming what is empty or full.
    """
    if not truth.any():
        raise BadInputError(f"{what} is empty: there is nothing to find. Check the grid and the labels it was made of.")
    if truth.all():
        raise BadInputError(f"{what} covers everything: no map can do better or worse there. Give a smaller one.")


def ranked(values: ArrayLike) -> Floats:
    """Values as they are ranked: NaN (a place without a value) after all others."""
    array = np.asarray(values, dtype=np.float64)
    return np.where(np.isnan(array), -np.inf, array)


def auroc(values: ArrayLike, truth: Bools) -> float:
    """Probability that a true place has a larger value than another one; ties count half. Chance is 0.5.

    Examples
    --------
    >>> auroc([3.0, 1.0, 2.0, 0.0], np.array([True, False, True, False]))
    1.0
    """
    return float(roc_auc_score(truth.ravel(), _finite(values)))


def auprc(values: ArrayLike, truth: Bools) -> float:
    """Average precision: area under precision against recall. Chance is the share of true places.

    Examples
    --------
    >>> auprc([1.0, 1.0, 1.0, 1.0], np.array([True, False, False, False]))
    0.25
    """
    return float(average_precision_score(truth.ravel(), _finite(values)))


def hits_in_first(values: ArrayLike, truth: Bools, k: int) -> float:
    """Expected number of true places among the `k` largest values, over all orders of ties.

    Examples
    --------
    >>> truth = np.array([True, True, False, False])
    >>> hits_in_first([9.0, 1.0, 1.0, 0.0], truth, 2), hits_in_first([1.0, 1.0, 1.0, 1.0], truth, 2)
    (1.5, 1.0)
    """
    array, found = ranked(values).ravel(), truth.ravel()
    k = min(k, array.size)
    if k < 1:
        return 0.0
    last = np.partition(array, array.size - k)[array.size - k]
    above, tied = array > last, array == last
    return float(found[above].sum() + (k - above.sum()) * found[tied].mean())


def pointing(values: ArrayLike, truth: Bools) -> float:
    """Probability that the largest value lies in a true place; 1 or 0 where it is one place only.

    Usual implementations count a hit if *any* of the tied maxima is inside, by which a map of ones is perfect.
    """
    return hits_in_first(values, truth, 1)


def _finite(values: ArrayLike) -> Floats:
    """Ranked values for scikit-learn, which refuses infinity: NaN goes just below the smallest."""
    array = ranked(values).ravel()
    finite = array[np.isfinite(array)]
    return np.where(np.isfinite(array), array, finite.min() - 1 if finite.size else 0.0)


FIRST = 10
"""Length of the list that is looked at."""


def region_scores(values: ArrayLike, planted: Sequence[bool], first: int = FIRST) -> dict[str, float]:
    """``auroc``, ``auprc`` and ``hits`` of one ranking.

    All are NaN where no region has a value other than 0, or one is infinite.

    `values`: (regions,), NaN for a region without a value, which comes last. `planted`: which regions are the true
    ones. Raises BadInputError if lengths differ, or no or every region is planted.

    Examples
    --------
    >>> scores = region_scores([5.0, 1.0, 3.0, 2.0], [True, False, True, False], first=2)
    >>> scores["auroc"], scores["hits"]
    (1.0, 2.0)
    """
    array, truth = np.asarray(values, dtype=np.float64), np.asarray(planted, dtype=bool)
    if array.shape != truth.shape or array.ndim != 1:
        raise BadInputError(f"{array.shape} values for {truth.shape} regions: give one value per region.")
    require_two_kinds(truth, "the list of planted regions")
    there = array[~np.isnan(array)]
    if is_undefined(there):
        return dict.fromkeys(("auroc", "auprc", "hits"), np.nan)
    return {
        "auroc": auroc(array, truth), "auprc": auprc(array, truth), "hits": hits_in_first(array, truth, first),
    }  # fmt: skip


YES, PARTLY, NO, UNKNOWN = "yes", "partly", "no", "not known"
LEVEL = 0.05
"""A p below this answers a question. With shuffled labels it is a map that fails: random orders of the regions would
find planted ones as well in fewer cases than this. So it is also the share of sound maps that fail, were regions
independent."""

TIE = 1e-9
"""Sums of scores that differ by less are the same."""


def wins_in_random_order(planted: int, others: int) -> Floats:
    """Probability of 0, 1, ... pairs in which the planted region comes first (Mann and Whitney); area = pairs / all.

    Examples
    --------
    >>> wins_in_random_order(1, 2).round(4).tolist(), wins_in_random_order(2, 2).round(4).tolist()
    ([0.3333, 0.3333, 0.3333], [0.1667, 0.1667, 0.3333, 0.1667, 0.1667])
    """
    counts: Floats = np.ones(1)
    for one in range(1, planted + 1):  # the Gaussian binomial coefficient, factor by factor
        counts = np.convolve(counts, np.ones(others + one)).astype(np.float64)
        quotient = np.zeros(len(counts) - one + 1)
        for place in range(len(quotient)):  # divided by 1 + q + ... + q^(one - 1)
            quotient[place] = counts[place] - quotient[max(place - one + 1, 0) : place].sum()
        counts = quotient / quotient.sum()
    return counts


def at_least(of_one: Floats, observed: Sequence[float]) -> float:
    """Probability that the sum over independent orders is at least that of the observed ones.

    Examples
    --------
    >>> coin = np.array([0.5, 0.5])
    >>> at_least(coin, [1]), at_least(coin, [1, 1]), at_least(coin, [0, 0.5])
    (0.5, 0.25, 0.75)
    """
    together: Floats = np.ones(1)
    for _ in observed:
        together = np.convolve(together, of_one).astype(np.float64)
    return float(together[int(np.ceil(sum(observed) - TIE)) :].sum())


def chance_of_order(areas: Sequence[float], regions: int, planted: int) -> float:
    """Probability that random orders of the regions have areas under the ROC whose sum is as large.

    Examples
    --------
    >>> round(chance_of_order([0.5], 67, 5), 3), round(chance_of_order([0.75], 67, 5), 3)
    (0.505, 0.032)
    >>> chance_of_order([1.0], 67, 5) < 1e-4
    True
    """
    others = regions - planted
    return at_least(wins_in_random_order(planted, others), [area * planted * others for area in areas])


FEWEST = 3
"""Fewest values whose order can be compared."""


def rank_correlation(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    """Spearman's rho; NaN for fewer than `FEWEST` values, and where either is constant or not finite.

    Examples
    --------
    >>> rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([1.0, 4.0, 9.0]))
    1.0
    >>> rank_correlation(np.array([1.0, 2.0]), np.array([1.0, 4.0]))
    nan
    """
    if len(a) < FEWEST or np.ptp(a) == 0 or np.ptp(b) == 0 or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return float("nan")
    return float(np.corrcoef(stats.rankdata(a), stats.rankdata(b))[0, 1].clip(-1, 1))


DRAWS_OF_RANKS = 500


@dataclass(frozen=True)
class DoseResponse:
    """Rank correlation of severity and evidence, with its 95 % bootstrap interval.

    `rho`: Spearman; NaN without an answer. `low`, `high`: NaN for fewer than three participants, where all draws are
    the same, and where no interval was asked for.
    """

    rho: float
    low: float = float("nan")
    high: float = float("nan")


def dose_response(severity: Floats, evidence: Floats, draws: int = DRAWS_OF_RANKS, seed: int = 0) -> DoseResponse:
    """Rank correlation of severity with evidence over participants.

    `severity`, `evidence`: (participants,), one scan of each. `draws`: bootstrap draws for the interval; 0 for none.

    Examples
    --------
    >>> dose_response(np.array([0.0, 0.5, 1.0]), np.array([1.0, 4.0, 2.0]), draws=0).rho
    0.5
    """
    rho = rank_correlation(severity, evidence)
    if not draws or np.isnan(rho):
        return DoseResponse(rho)
    return DoseResponse(rho, *participant_interval((severity, evidence), rank_correlation, draws, seed))
