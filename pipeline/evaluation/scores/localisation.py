"""How well a ranking of regions, or a map, finds true places; how concentrated it is; and what chance gives.

*Rankings* against a truth: every score is the mean over all orders of tied values, so that a map that is even
everywhere gets what chance gives. Larger values come first. A place without a value (NaN) comes last.

*Chance*: a map by a network that has learned nothing true should put regions in an order that says nothing of the
planted ones. Whether it does is tested once with all swaps of labels together, since one swap alone decides nothing. By
area, not by hits among the first: where classes differ in the images, the evidence of any network differs most there,
up or down, so groups with disease gather at both ends of the order, and hits exceed chance though nothing was learned.

*Rank correlation* is Spearman's, as every part of the bench computes it; also of evidence with planted severity.

*Overlap* of a map with a mask: only positive attribution counts, ``A+ = max(A, 0)``. ``S = A+ / max A+`` lies in
[0, 1]. In three dimensions the truth is a mask, so EPG, IoU and F1 use the mask itself. A map without positive values
has no score (NaN).

*Concentration* (Gini index, Shannon entropy) does not ask whether the map is right. Bounds over n voxels: an even map
has Gini 0 and entropy log2 n; a single voxel has (n - 1) / n and 0.

Sources: EPG (Wang et al. 2020); IoU, with the threshold of other people's maps (Rao et al. 2023); F1 of saliency
(Achanta et al. 2009; Zhang et al. 2024, Opti-CAM); Gini (Chalasani et al. 2020); entropy (Bhatt et al. 2020).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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
    """Refuse a truth that nothing can be ranked against: no true place, or no other."""
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
    """``auroc``, ``auprc`` and ``hits`` of one ranking; all NaN if all values are 0, or one is infinite.

    `values`: (regions,), NaN for a region without a value, which comes last. `planted`: which regions are the true
    ones.

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
    return {"auroc": auroc(array, truth), "auprc": auprc(array, truth), "hits": hits_in_first(array, truth, first)}


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
    """Spearman's rho of severity and evidence, with its 95 % bootstrap interval; NaN where there is none."""

    rho: float
    low: float = float("nan")
    high: float = float("nan")


def dose_response(severity: Floats, evidence: Floats, draws: int = DRAWS_OF_RANKS, seed: int = 0) -> DoseResponse:
    """Rank correlation of severity with evidence over participants, one scan of each; `draws`: for the interval.

    Examples
    --------
    >>> dose_response(np.array([0.0, 0.5, 1.0]), np.array([1.0, 4.0, 2.0]), draws=0).rho
    0.5
    """
    rho = rank_correlation(severity, evidence)
    if not draws or np.isnan(rho):
        return DoseResponse(rho)
    return DoseResponse(rho, *participant_interval((severity, evidence), rank_correlation, draws, seed))


IOU_THRESHOLDS = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Thresholds of S that an IoU chooses from: finer near 0, since one voxel may be far above all others."""
HALF = 0.5


def positive(values: NDArray[np.floating]) -> Floats:
    """``max(A, 0)`` in float64."""
    return np.maximum(np.asarray(values, dtype=np.float64), 0)


def scaled(values: NDArray[np.floating]) -> Floats:
    """``A+ / max A+``; all zero where nothing is positive.

    Examples
    --------
    >>> scaled(np.array([-1.0, 1.0, 4.0])).tolist()
    [0.0, 0.25, 1.0]
    """
    part = positive(values)
    top = part.max()
    return part / top if top > 0 else part


def energy(values: NDArray[np.floating]) -> Floats:
    """``A+ / sum A+``, whose sum over a mask is the EPG; all zero where nothing is positive.

    Examples
    --------
    >>> energy(np.array([3.0, 1.0, -9.0])).tolist()
    [0.75, 0.25, 0.0]
    """
    part = positive(values)
    total = part.sum()
    return part / total if total > 0 else part


def energy_share(values: NDArray[np.floating], mask: Bools) -> float:
    """EPG: share of positive attribution in the mask; NaN where nothing is positive.

    A map that is even everywhere gets the share of voxels that the mask takes up.

    Examples
    --------
    >>> energy_share(np.array([3.0, 1.0, -9.0]), np.array([True, False, False]))
    0.75
    """
    part = positive(values)
    total = part.sum()
    return float(part[mask].sum() / total) if total > 0 else float("nan")


def intersection_over_union(values: NDArray[np.floating], mask: Bools, threshold: float = HALF) -> float:
    """IoU of the mask with the voxels where ``S >= threshold`` and S > 0; NaN where nothing is positive, or for NaN.

    Examples
    --------
    >>> intersection_over_union(np.array([4.0, 2.0, 1.0, 0.0]), np.array([True, False, True, False]))
    0.3333333333333333
    """
    return float(iou_curve(values, mask, (threshold,))[0])


def iou_curve(values: NDArray[np.floating], mask: Bools, thresholds: Sequence[float] = IOU_THRESHOLDS) -> Floats:
    """`intersection_over_union` at each threshold."""
    share = scaled(values)
    if not share.any() or np.isnan(thresholds).any():
        return np.full(len(thresholds), np.nan)
    chosen = [(share >= threshold) & (share > 0) for threshold in thresholds]
    return np.array([(one & mask).sum() / (one | mask).sum() for one in chosen])


def best_threshold(maps: Iterable[NDArray[np.floating]], masks: Iterable[Bools]) -> float:
    """The one of `IOU_THRESHOLDS` with the largest mean IoU over maps of people who are not scored; NaN without any.

    Examples
    --------
    >>> best_threshold([np.array([4.0, 0.9, 0.3, 0.0])], [np.array([True, True, False, False])])
    0.1
    """
    place = best_place([iou_curve(values, mask) for values, mask in zip(maps, masks, strict=True)])
    return float("nan") if place is None else IOU_THRESHOLDS[place]


def best_place(curves: ArrayLike) -> int | None:
    """Place of the largest mean of curves (maps, thresholds), the first of equal ones; None if no curve is known."""
    found = np.asarray(curves, dtype=np.float64).reshape(-1, len(IOU_THRESHOLDS))
    found = found[np.isfinite(found).all(axis=1)]
    return int(found.mean(axis=0).argmax()) if len(found) else None


def held_out_ious(curves: Floats, people: Sequence[str]) -> Floats:
    """IoU of each map at the threshold that is best for the maps of all other people; NaN if there are none.

    `curves`: (maps, thresholds), one `iou_curve` per map. `people`: whose maps they are.
    """
    owner = np.asarray(people)
    places = {one: best_place(curves[owner != one]) for one in set(people)}
    return np.array(
        [np.nan if (place := places[one]) is None else curve[place] for one, curve in zip(people, curves, strict=True)]
    )


def f1(values: NDArray[np.floating], mask: Bools) -> float:
    """``2 P R / (P + R)`` with ``P = sum over mask of S / sum of S`` and ``R = sum over mask of S / voxels of mask``.

    1 if and only if S is the mask; NaN where nothing is positive.

    Examples
    --------
    >>> f1(np.array([1.0, 1.0, 0.0]), np.array([True, False, False]))
    0.6666666666666666
    """
    share = scaled(values)
    inside = share[mask].sum()
    if inside == 0:
        return 0.0 if share.any() else float("nan")
    precision, recall = inside / share.sum(), inside / mask.sum()
    return float(2 * precision * recall / (precision + recall))


def ratio_of(wrong: float, right: float) -> float:
    """``wrong / right``; infinite where only `right` is 0, NaN where both are."""
    if right > 0:
        return wrong / right
    return float("inf") if wrong > 0 else float("nan")


def gini(values: NDArray[np.floating]) -> float:
    """``sum_i (2 i - n - 1) a_(i) / (n sum a)`` of the positive part, ascending; NaN where nothing is positive.

    Examples
    --------
    >>> gini(np.array([1.0, 1.0, 1.0])), gini(np.array([0.0, 0.0, 0.0, 2.0]))
    (0.0, 0.75)
    """
    part = np.sort(positive(values), axis=None)
    n, total = part.size, part.sum()
    if not total > 0:
        return math.nan
    return float(max(0.0, (2 * np.arange(1, n + 1) - n - 1) @ (part / total) / n))


def entropy(values: NDArray[np.floating]) -> float:
    """``- sum p log2 p`` of the positive part scaled to sum 1, in bits; NaN where nothing is positive.

    Examples
    --------
    >>> entropy(np.ones(8)), entropy(np.array([0.0, 5.0]))
    (3.0, 0.0)
    """
    part = positive(values)
    total = part.sum()
    if not total > 0:
        return math.nan
    share = part[part > 0] / total
    return float(max(0.0, -(share * np.log2(share)).sum()))
