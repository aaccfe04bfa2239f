"""Whether the networks add anything to simple predictors on the same folds and people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import rankdata

from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.run.declared import declared
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Flags, Floats, Indices, Resampling
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.data.values import participant_codes
from heatlas.pipeline.statistics.performance.classification import weighted_auc_within
from heatlas.pipeline.statistics.resampling import bootstrap
from heatlas.pipeline.training.baselines.stage import BASELINES

BETTER, WORSE, ALIKE = "better than", "worse than", "no better than"
MEAN = "mean"
"""The baseline of a number: always the mean of the training part."""
AUC, BALANCED = "auc_within_folds", "balanced_accuracy"
PERMUTATIONS = 1999
ROUNDING = 1e-12

BASELINES_TABLE = declared("baselines", __file__)


@dataclass(frozen=True, eq=False)
class _Compared:
    """What two predictors say of the same scans.

    `target`: (scans,), classes or numbers. `units`: classes of which there are scores; empty for a number. `network`,
    `baseline`: (scans, scores), a probability of each class of `units`, or the number.
    """

    target: Floats
    units: tuple[int, ...]
    network: Floats
    baseline: Floats


def baselines_tables(inputs: StatisticsInputs) -> pd.DataFrame:
    """Table ``baselines``: each baseline against the networks, best baseline first; empty where there is none."""
    task = task_of(inputs.config.cohort)
    others = inputs.baselines
    if others.empty:
        return BASELINES_TABLE.frame()
    scores = task.scores
    theirs = ["prediction" if name == "probability" else name for name in scores]
    names = ["scan_id", "baseline", *theirs]
    predictions = inputs.predictions
    if not task.classes:
        means = predictions.groupby("fold")["target"].transform(
            lambda inside: (predictions["target"].sum() - inside.sum()) / max(len(predictions) - len(inside), 1)
        )
        mean = pd.DataFrame({"scan_id": predictions["scan_id"], "baseline": MEAN, "prediction": means})
        others = pd.concat([others[names], mean], ignore_index=True)
    rows = []
    for name, their_rows in others[names].groupby("baseline", sort=False):
        both = predictions.merge(their_rows, on="scan_id", suffixes=("", " of baseline"))
        columns = [f"{name} of baseline" if name in predictions else name for name in theirs]
        network, baseline = both[scores].to_numpy(float), both[columns].to_numpy(float)
        # of several classes the target of `inputs` is that of the class explained
        target = both["label"].map(task.outputs.index) if len(scores) > 1 else both["target"]
        both["class"] = target
        compared = _Compared(target.to_numpy(float), task.units, network, baseline)
        rng = generator(inputs.seed, "statistics", "baselines", str(name))
        rows += _rows(str(name), both, compared, inputs.config.statistics.bootstrap_samples, rng)
    rows += [
        {"baseline": baseline.name, "metric": task.kind.measures[0], "n_participants": 0, "n_scans": 0}
        for baseline in BASELINES
        if baseline.name not in set(others["baseline"])
    ]
    table = BASELINES_TABLE.frame(rows)
    best = table.groupby("baseline")["estimate"].transform("first")
    order = (-task.kind.score_sign * best).sort_values(kind="stable").index
    return table.loc[order].reset_index(drop=True)


def _measures(compared: _Compared, fold: NDArray[Any]) -> Mapping[str, Callable[[Floats, Floats], Floats]]:
    """From scores (scans, scores) and weights (draws, scans) to each measure, (draws,)."""
    target, units = compared.target, compared.units

    def areas(score: Floats, weights: Floats) -> Floats:
        every = [
            weighted_auc_within((target == unit).astype(float), score[:, k], fold, weights)
            for k, unit in enumerate(units)
        ]
        return np.mean(every, axis=0)  # type: ignore[no-any-return]

    if not units:
        return {"mae": lambda score, weights: bootstrap.weighted_mean(np.abs(score[:, 0] - target), weights)}

    def balanced(score: Floats, weights: Floats) -> Floats:
        classes = (score[:, 0] > 0.5).astype(float) if score.shape[1] == 1 else score.argmax(axis=1).astype(float)
        return _balanced_accuracy(target, classes, weights)

    return {AUC: areas, BALANCED: balanced}


def _exchange(compared: _Compared, fold: NDArray[Any], swap: Flags) -> Floats:
    """The first measure (draws,) where some scans have the baseline's predictions in place of the network's."""
    target, network, baseline = compared.target, compared.network, compared.baseline
    if not compared.units:
        return errors_after_exchange(np.abs(network[:, 0] - target), np.abs(baseline[:, 0] - target), swap)
    every = []
    for k, unit in enumerate(compared.units):
        ranks = [_ranks(score[:, k], fold) for score in (network, baseline)]
        every.append(areas_after_exchange(ranks[0], ranks[1], (target == unit).astype(float), fold, swap))
    return np.mean(every, axis=0)  # type: ignore[no-any-return]


def _rows(
    name: str, both: pd.DataFrame, compared: _Compared, draws: int, rng: np.random.Generator
) -> list[dict[str, Any]]:
    fold = both["fold"].to_numpy()
    codes, people = participant_codes(both["participant_id"].tolist())
    strata = _strata(both, codes, compared)
    whole = np.ones((1, len(both)))
    rows = []
    for metric, measure in _measures(compared, fold).items():
        of_network, of_baseline = (float(measure(score, whole)[0]) for score in (compared.network, compared.baseline))

        def both_of(drawn: Floats, of: Callable[[Floats, Floats], Floats] = measure) -> Floats:
            """Of the baseline, and of the network less the baseline."""
            network, baseline = (of(score, drawn[:, codes]) for score in (compared.network, compared.baseline))
            return np.stack([baseline, network - baseline], axis=1)

        scales = [bootstrap.LOGIT if compared.units else bootstrap.LOG, bootstrap.AS_IT_IS]
        intervals = bootstrap.scaled_intervals(both_of, strata, scales, Resampling(draws, rng))
        less, more, p = intervals.low[1], intervals.high[1], np.nan
        if metric != BALANCED:  # of areas Student's t is too wide (docs/benchmarks/statistics.md)
            less, more = _percentiles(both_of(bootstrap.participant_draws(strata.tolist(), draws, rng))[:, 1])
            exchanged = (rng.random((PERMUTATIONS, len(people))) < 0.5)[:, codes]
            both_ways = [_exchange(compared, fold, swap) for swap in (exchanged, ~exchanged)]
            beyond = np.abs(both_ways[0] - both_ways[1]) >= abs(of_network - of_baseline) - ROUNDING
            p = float((beyond.sum() + 1) / (PERMUTATIONS + 1)) if np.isfinite(of_network - of_baseline) else np.nan
        row = {"baseline": name, "metric": metric, "estimate": of_baseline, "network": of_network, "p": p}
        row |= {"ci_low": intervals.low[0], "ci_high": intervals.high[0], "difference": of_network - of_baseline}
        row |= {"difference_low": less, "difference_high": more, "n_participants": len(people), "n_scans": len(both)}
        rows.append(row | {"verdict": verdict(less, more, p, not compared.units)})
    return rows


def _strata(both: pd.DataFrame, codes: Indices, compared: _Compared) -> Indices:
    """Fold and class of each participant, whose numbers the splits fix; who has scans of both classes is of neither."""
    of_class = pd.Series(both["class"].to_numpy(float) if compared.units else np.zeros(len(both))).groupby(codes)
    kinds = pd.factorize(pd.MultiIndex.from_arrays([of_class.min(), of_class.max()]))[0]
    return bootstrap.strata_of(
        pd.factorize(both["fold"].groupby(codes).first())[0].astype(np.intp), kinds.astype(np.intp)
    )


def _balanced_accuracy(target: Floats, predicted: Floats, weights: Floats) -> Floats:
    """Mean recall over the classes that occur; NaN of a single one."""
    right, classes = (predicted == target).astype(float), np.unique(target)
    if len(classes) == 1:
        return np.full(len(weights), np.nan)
    recalls = [bootstrap.ratio(weights @ (right * side), weights @ side) for side in (target == k for k in classes)]
    return np.mean(recalls, axis=0)  # type: ignore[no-any-return]


def _percentiles(draws: Floats) -> tuple[float, float]:
    finite = draws[np.isfinite(draws)]
    if len(finite) < 2 or np.ptp(finite) == 0:
        return float("nan"), float("nan")
    low, high = np.quantile(finite, [0.025, 0.975])
    return float(low), float(high)


def areas_after_exchange(
    network: Floats, baseline: Floats, target: Floats, fold: NDArray[Any], exchanged: Flags
) -> Floats:
    """Area within folds (draws,) of predictions that take the baseline's in place of the network's in some scans.

    Scores (scans,) are on one scale: ranks within the fold, which leave the area of either as it is. exchanged (draws,
    scans) has all scans of a participant together.
    """
    scores, picked = (network, baseline), (~exchanged, exchanged)
    wins, pairs = np.zeros(len(exchanged)), 0
    for number in np.unique(fold):
        first, second = (np.flatnonzero((fold == number) & (target == side)) for side in (1, 0))
        pairs += len(first) * len(second)
        for above_of, a in zip(scores, picked, strict=True):
            for other, b in zip(scores, picked, strict=True):
                above = (1 + np.sign(above_of[first][:, None] - other[second])) / 2  # ties count half
                wins += ((a[:, first].astype(float) @ above) * b[:, second]).sum(axis=1)
    return wins / pairs if pairs else np.full(len(exchanged), np.nan)


def errors_after_exchange(network: Floats, baseline: Floats, exchanged: Flags) -> Floats:
    """Mean error (draws,) where some scans have the baseline's error in place of the network's."""
    mean: Floats = np.where(exchanged, baseline, network).mean(axis=1)
    return mean


def _ranks(score: Floats, fold: NDArray[Any]) -> Floats:
    ranks = np.empty(len(score))
    for number in np.unique(fold):
        ranks[fold == number] = rankdata(score[fold == number])
    return ranks


def verdict(low: float, high: float, p: float, less_is_better: bool) -> str:
    """What interval and p of the difference say of the network, if they agree; a smaller error is better.

    >>> verdict(0.01, 0.1, 0.01, False), verdict(-0.2, 0.1, 0.3, False), verdict(0.5, 1.0, float("nan"), True)
    ('better than', 'no better than', 'worse than')
    >>> verdict(0.01, 0.1, 0.051, False)
    'no better than'
    """
    if p > 0.05:
        return ALIKE
    better, worse = (high < 0, low > 0) if less_is_better else (low > 0, high < 0)
    return BETTER if better else WORSE if worse else ALIKE
