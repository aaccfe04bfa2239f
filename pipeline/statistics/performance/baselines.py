"""Whether the networks add anything to simple predictors on the same folds and people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import rankdata

from pipeline.run.columns import Form
from pipeline.run.declared import Inference, Table
from pipeline.run.work.seeds import generator
from pipeline.statistics.arrays import Floats
from pipeline.statistics.data.inputs import StatisticsInputs
from pipeline.statistics.data.values import participant_codes
from pipeline.statistics.performance.classification import weighted_auc_within
from pipeline.statistics.resampling.bootstrap import participant_draws
from pipeline.statistics.resampling.weighted import ratio, weighted_mean

BETTER, WORSE, ALIKE = "better than", "worse than", "no better than"
MEAN = "mean"
"""The baseline of a number: always the mean of the training part."""
PERMUTATIONS = 1999
ROUNDING = 1e-12

COLUMNS = {
    "baseline": "What it sees; see predictions_baselines.tsv. mean: always the mean of the training part",
    "metric": "auc_within_folds or balanced_accuracy, of classes; mae (mean absolute error), of a number",
    "estimate": "Of the baseline, out of fold",
    "ci_low": "Lower bound of its 95 % bootstrap interval: participants drawn within fold and class",
    "ci_high": "Upper bound",
    "network": "The same of the networks, on the same scans",
    "difference": "Network less baseline",
    "difference_low": "Lower bound of its 95 % bootstrap interval; the same participants are drawn for both",
    "difference_high": "Upper bound",
    "p": "That network and baseline are as good: their predictions (as ranks within the fold, or as errors) change "
    "places in random participants. Of auc_within_folds and mae",
    "verdict": f"The network is {BETTER}, {WORSE} or {ALIKE} the baseline, by the interval of the difference",
    "n_participants": "Participants",
    "n_scans": "Scans",
}
BASELINES_TABLE = Table(
    "baselines", COLUMNS, "baseline and metric", "Do the networks add anything to simple predictors?",
    forms={"baseline": Form.CODE, "network": Form.VALUE}, filled=("baseline", "metric", "n_participants", "n_scans"),
    inference=Inference("secondary", "one baseline"),
)  # fmt: skip


def baselines_tables(inputs: StatisticsInputs) -> pd.DataFrame:
    """Table ``baselines``: each baseline against the networks, best baseline first; empty where there is none."""
    names = ["scan_id", "baseline", "prediction"]
    others = inputs.baselines
    if others.empty:
        return pd.DataFrame(columns=list(COLUMNS))
    is_number = "prediction" in inputs.predictions
    own = inputs.predictions.rename(columns={"prediction" if is_number else "probability": "network"})
    if is_number:
        means = own.groupby("fold")["target"].transform(lambda one: (own["target"].sum() - one.sum())
                                                        / max(len(own) - len(one), 1))  # fmt: skip
        mean = pd.DataFrame({"scan_id": own["scan_id"], "baseline": MEAN, "prediction": means})
        others = pd.concat([others[names], mean], ignore_index=True)
    rows = []
    for name, theirs in others[names].groupby("baseline", sort=False):
        both = own.merge(theirs, on="scan_id")
        rng = generator(inputs.seed, "statistics", "baselines", str(name))
        rows += _rows(str(name), both, is_number, inputs.config.statistics.bootstrap_samples, rng)
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    best = table.groupby("baseline")["estimate"].transform("first")
    order = (best if is_number else -best).sort_values(kind="stable").index
    return table.loc[order].reset_index(drop=True)


def _rows(name: str, both: pd.DataFrame, is_number: bool, draws: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    target, fold = both["target"].to_numpy(float), both["fold"].to_numpy()
    network, baseline = both["network"].to_numpy(float), both["prediction"].to_numpy(float)
    codes, people = participant_codes(both["participant_id"].tolist())
    weights = participant_draws(_strata(both, codes, is_number), draws, rng)[:, codes]
    measures: Mapping[str, Callable[[Floats, Floats], Floats]] = (
        {"mae": lambda score, w: weighted_mean(np.abs(score - target), w)}
        if is_number
        else {
            "auc_within_folds": lambda score, w: weighted_auc_within(target, score, fold, w),
            "balanced_accuracy": lambda score, w: _balanced(target, score, w),
        }
    )
    whole = np.ones((1, len(both)))
    rows = []
    for metric, measure in measures.items():
        one, two = (float(measure(score, whole)[0]) for score in (network, baseline))
        drawn_network, drawn = measure(network, weights), measure(baseline, weights)
        low, high = _percentiles(drawn)
        less, more = _percentiles(drawn_network - drawn)
        p = np.nan
        if metric != "balanced_accuracy":
            exchanged = (rng.random((PERMUTATIONS, len(people))) < 0.5)[:, codes]
            both_ways = [
                errors_after_exchange(np.abs(network - target), np.abs(baseline - target), swap)
                if is_number
                else areas_after_exchange(_ranks(network, fold), _ranks(baseline, fold), target, fold, swap)
                for swap in (exchanged, ~exchanged)
            ]
            beyond = np.abs(both_ways[0] - both_ways[1]) >= abs(one - two) - ROUNDING
            p = float((beyond.sum() + 1) / (PERMUTATIONS + 1))
        rows.append(
            {
                "baseline": name, "metric": metric, "estimate": two, "ci_low": low, "ci_high": high, "network": one,
                "difference": one - two, "difference_low": less, "difference_high": more, "p": p,
                "verdict": verdict(less, more, is_number), "n_participants": len(people), "n_scans": len(both),
            }
        )  # fmt: skip
    return rows


def _strata(both: pd.DataFrame, codes: NDArray[np.intp], is_number: bool) -> list[int]:
    """Fold and class of each participant, whose numbers the splits fix; who has scans of both classes is of neither."""
    of_class = pd.Series(np.zeros(len(both)) if is_number else both["target"].to_numpy(float)).groupby(codes)
    fold = both["fold"].groupby(codes).first()
    kinds = pd.MultiIndex.from_arrays([fold, of_class.min(), of_class.max()])
    return [int(one) for one in pd.factorize(kinds)[0]]


def _balanced(target: Floats, score: Floats, weights: Floats) -> Floats:
    right = ((score > 0.5) == (target == 1)).astype(float)
    sides = [ratio(weights @ (right * side), weights @ side) for side in (target, 1 - target)]
    return (sides[0] + sides[1]) / 2


def _percentiles(draws: Floats) -> tuple[float, float]:
    known = draws[np.isfinite(draws)]
    if len(known) < 2 or np.ptp(known) == 0:
        return float("nan"), float("nan")
    low, high = np.quantile(known, [0.025, 0.975])
    return float(low), float(high)


def areas_after_exchange(
    network: Floats, baseline: Floats, target: Floats, fold: NDArray[Any], exchanged: NDArray[np.bool_]
) -> Floats:
    """Area within folds of predictions that take the baseline's in place of the network's in some scans.

    Parameters
    ----------
    network, baseline : array, shape (scans,)
        On one scale: ranks within the fold, which leave the area of either as it is.
    target : array of 0 and 1, shape (scans,)
    fold : array, shape (scans,)
    exchanged : array of bool, shape (draws, scans)
        All scans of a participant together.

    Returns
    -------
    array, shape (draws,)
    """
    scores, picked = (network, baseline), (~exchanged, exchanged)
    wins, pairs = np.zeros(len(exchanged)), 0
    for one in np.unique(fold):
        first, second = (np.flatnonzero((fold == one) & (target == side)) for side in (1, 0))
        pairs += len(first) * len(second)
        for own, a in zip(scores, picked, strict=True):
            for other, b in zip(scores, picked, strict=True):
                above = (1 + np.sign(own[first][:, None] - other[second])) / 2  # ties count half
                wins += ((a[:, first].astype(float) @ above) * b[:, second]).sum(axis=1)
    return wins / pairs if pairs else np.full(len(exchanged), np.nan)


def errors_after_exchange(network: Floats, baseline: Floats, exchanged: NDArray[np.bool_]) -> Floats:
    """Mean error (draws,) where some scans have the baseline's error in place of the network's."""
    mean: Floats = np.where(exchanged, baseline, network).mean(axis=1)
    return mean


def _ranks(score: Floats, fold: NDArray[Any]) -> Floats:
    ranks = np.empty(len(score))
    for one in np.unique(fold):
        ranks[fold == one] = rankdata(score[fold == one])
    return ranks


def verdict(low: float, high: float, is_number: bool) -> str:
    """What the interval of the difference says of the network; a smaller error is better.

    Examples
    --------
    >>> verdict(0.01, 0.1, False), verdict(-0.2, 0.1, False), verdict(0.5, 1.0, True)
    ('better than', 'no better than', 'worse than')
    """
    better, worse = (high < 0, low > 0) if is_number else (low > 0, high < 0)
    return BETTER if better else WORSE if worse else ALIKE
