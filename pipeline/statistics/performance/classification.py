"""Performance of the classifier in held-out participants: measures, their calibration, and the precision-recall curve.

Measures have intervals over participants, in each test fold and over all folds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.metrics import precision_recall_curve, roc_curve
from statsmodels.stats.proportion import proportion_confint

from heatlas.pipeline.run.config.statistics import StatisticsConfig
from heatlas.pipeline.run.declared import declared
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Floats, Indices, Resampling
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.data.values import joined, participant_codes
from heatlas.pipeline.statistics.resampling import bootstrap

BINS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
"""Edges of the probability bins: narrow at the ends, where most predictions lie."""

CALIBRATION_TABLE = declared("calibration", __file__)
PRECISION_RECALL_TABLE = declared("precision_recall", __file__)


def calibration_table(predictions: pd.DataFrame, confidence: float) -> pd.DataFrame:
    """Observed against predicted frequency of the positive class, in bins of probability; none for bins without scans.

    The scans of a participant in a bin share one vote, so that participants with many visits do not count more.
    """
    edges, probability = np.asarray(BINS), predictions["probability"].to_numpy(float)
    place = np.clip(np.searchsorted(edges, probability, side="right") - 1, 0, len(edges) - 2)
    frame = predictions[["participant_id", "probability", "target"]].assign(bin=place)
    rows = []
    for index, scans in frame.groupby("bin", sort=True):
        people = scans.groupby("participant_id")[["probability", "target"]].mean()
        share, n = people["target"].mean(), len(people)
        low, high = proportion_confint(share * n, n, 1 - confidence, "wilson")
        bounds = (edges[int(str(index))], edges[int(str(index)) + 1])
        rows.append([*bounds, people["probability"].mean(), share, low, high, n, len(scans)])
    return CALIBRATION_TABLE.frame(rows)


def precision_recall_table(predictions: pd.DataFrame) -> pd.DataFrame:
    """Points of the precision-recall curve over scans; none if a class is missing."""
    if predictions["target"].nunique() < 2:
        return PRECISION_RECALL_TABLE.frame()
    target, probability = predictions["target"].to_numpy(int), predictions["probability"].to_numpy(float)
    precision, recall, threshold = precision_recall_curve(target, probability)
    columns = dict(zip(PRECISION_RECALL_TABLE.meanings, (np.append(threshold, np.nan), recall, precision), strict=True))
    return pd.DataFrame(columns)


Measure = Callable[[pd.DataFrame, Floats], Mapping[str, Floats]]

ALL_FOLDS = "all"


_MEASURED = ("fold", "metric", "estimate", "ci_low", "ci_high", "interval", "n_participants", "n_scans")


def by_fold(predictions: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The predictions of all folds, and of each."""
    folds = {str(fold): frame for fold, frame in predictions.groupby("fold", sort=True)}
    return {ALL_FOLDS: predictions, **folds}


def participants_of(frame: pd.DataFrame, of_class: str | None) -> tuple[Indices, Sequence[str], Indices]:
    """Participant 0..P-1 of each scan, their names, and the strata they are drawn in: test fold and class.

    `of_class` is the column of the class, that of a participant's first scan; None without classes.
    """
    codes, names = participant_codes(frame["participant_id"].tolist())
    first = frame.iloc[np.unique(codes, return_index=True)[1]]
    classes = np.zeros(len(first), np.intp) if of_class is None else pd.factorize(first[of_class])[0].astype(np.intp)
    return codes, names, bootstrap.strata_of(pd.factorize(first["fold"])[0].astype(np.intp), classes)


def measured_by_fold(
    predictions: pd.DataFrame,
    measure: Measure,
    of_class: str | None,
    scales: Callable[[str], bootstrap.IntervalScale],
    settings: StatisticsConfig,
    rng: np.random.Generator,
) -> pd.DataFrame:
    """One row per fold and metric, without a note.

    `measure` takes predictions and weights (draws, scans) and gives metrics (draws,) by name, `scales` the scale of a
    metric's interval; `of_class` as in `participants_of`.
    """
    rows = []
    for fold, frame in by_fold(predictions).items():
        codes, names, strata = participants_of(frame, of_class)
        estimates = measure(frame, np.ones((1, len(frame))))

        def statistic(weights: Floats, frame: pd.DataFrame = frame, codes: Indices = codes) -> Floats:
            return np.stack(list(measure(frame, weights[:, codes]).values()), axis=1)

        of_metrics = [scales(name) for name in estimates]
        intervals = bootstrap.scaled_intervals(statistic, strata, of_metrics, Resampling.draws(settings, rng))
        for place, (metric, value) in enumerate(estimates.items()):
            bounds = (intervals.low[place], intervals.high[place], intervals.method[place])
            rows.append([fold, metric, float(value[0]), *bounds, len(names), len(frame)])
    return pd.DataFrame(rows, columns=list(_MEASURED))


PERFORMANCE_TABLE = declared("performance", __file__)
ROC_TABLE = declared("roc", __file__)


WITHIN_FOLDS = "auc_within_folds"
FEW = 20
FEW_WRONG = (
    f"fewer than {FEW} participants of a class: a Brier score hangs on the few whom a good network gets wrong, so its "
    "interval of 95 % misses 4 to 12 %"
)
"""Caveat by design (docs/benchmarks/statistics.md)."""
NO_CLASS = "a class that the metric needs has no scan"
LEAVES_OUT_RETRAINING = "the interval leaves out how results vary when networks are trained again"


def weighted_auc(target: Floats, score: Floats, weights: Floats) -> Floats:
    """Area under the ROC curve (draws,): a positive scores above a negative, ties counted half; NaN without a class."""
    return bootstrap.ratio(*_wins(target, score, weights))


def weighted_auc_within(target: Floats, score: Floats, fold: NDArray[Any], weights: Floats) -> Floats:
    """Area under the ROC curve of pairs of scans of the same fold (scans,); else as `weighted_auc`.

    Scores of networks of different folds are not comparable (Airola et al. 2011, Comput Stat Data Anal 55:1828). It is
    the mean of the areas of the folds, weighted by their numbers of pairs.
    """
    parts = [
        _wins(target[fold == number], score[fold == number], weights[:, fold == number]) for number in np.unique(fold)
    ]
    wins, pairs = np.sum(parts, axis=0)
    return bootstrap.ratio(wins, pairs)


def _wins(target: Floats, score: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Weight of pairs in which the positive scores above the negative, ties counted half, and of all pairs (draws,)."""
    _, level, sizes = np.unique(score, return_inverse=True, return_counts=True)
    order, starts = np.argsort(level, kind="stable"), np.cumsum(sizes) - sizes
    positive = np.add.reduceat((weights * target)[:, order], starts, axis=1)
    negative = np.add.reduceat((weights * (1 - target))[:, order], starts, axis=1)
    below = np.cumsum(negative, axis=1) - negative
    wins: Floats = (positive * (below + negative / 2)).sum(axis=1)
    return wins, positive.sum(axis=1) * negative.sum(axis=1)


def weighted_average_precision(target: Floats, score: Floats, weights: Floats) -> Floats:
    """Precision averaged over the steps of recall; NaN without a positive. Tied scores share one threshold."""
    _, level, sizes = np.unique(-score, return_inverse=True, return_counts=True)
    order, starts = np.argsort(level, kind="stable"), np.cumsum(sizes) - sizes
    positive = np.add.reduceat((weights * target)[:, order], starts, axis=1)
    called = np.cumsum(np.add.reduceat(weights[:, order], starts, axis=1), axis=1)
    precision = np.nan_to_num(bootstrap.ratio(np.cumsum(positive, axis=1), called))
    return bootstrap.ratio((positive * precision).sum(axis=1), positive.sum(axis=1))


def metrics(target: Floats, predicted: Floats, probability: Floats, weights: Floats) -> dict[str, Floats]:
    """All metrics (draws,) of weighted scans; NaN where a class that the metric needs has no weight.

    target, predicted (0 or 1) and probability of class 1 have shape (scans,), weights (draws, scans).
    """
    right = (target == predicted).astype(float)
    sensitivity = bootstrap.ratio(weights @ (right * target), weights @ target)
    specificity = bootstrap.ratio(weights @ (right * (1 - target)), weights @ (1 - target))
    return {
        "balanced_accuracy": (sensitivity + specificity) / 2,
        "sensitivity": sensitivity,
        "specificity": specificity,
        "accuracy": bootstrap.ratio(weights @ right, weights.sum(axis=1)),
        "auc": weighted_auc(target, probability, weights),
        "average_precision": weighted_average_precision(target, probability, weights),
        "brier": bootstrap.ratio(weights @ (probability - target) ** 2, weights.sum(axis=1)),
    }


def performance_table(
    predictions: pd.DataFrame, settings: StatisticsConfig, seed: int, repeats: int = 1
) -> pd.DataFrame:
    rows = []
    for fold, frame in by_fold(predictions).items():
        rows += measured_rows(fold, frame, settings, seed)
    table = PERFORMANCE_TABLE.frame(rows)
    over_folds = (table["fold"] == ALL_FOLDS) & table["ci_low"].notna()
    elsewhere = "; performance_repeats has one that includes it" if repeats > 1 else ""
    caveats = [LEAVES_OUT_RETRAINING + elsewhere if is_over_folds else None for is_over_folds in over_folds]
    table["note"] = [joined(*both) for both in zip(table["note"], caveats, strict=True)]
    return table


def roc_table(predictions: pd.DataFrame) -> pd.DataFrame:
    """Points of the ROC curves; none if a class is missing."""
    blocks = [ROC_TABLE.frame()]
    for fold, frame in by_fold(predictions).items():
        if frame["target"].nunique() == 2:
            fpr, tpr, threshold = roc_curve(frame["target"].to_numpy(int), frame["probability"].to_numpy(float))
            threshold = np.where(np.isinf(threshold), np.nan, threshold)
            columns = dict(zip(ROC_TABLE.meanings, (fold, threshold, fpr, tpr), strict=True))
            blocks.append(pd.DataFrame(columns))
    return pd.concat([block for block in blocks if len(block)] or blocks, ignore_index=True)


def performance_tables(inputs: StatisticsInputs) -> Mapping[str, pd.DataFrame]:
    predictions, settings = inputs.predictions, inputs.config.statistics
    return {
        "performance": performance_table(predictions, settings, inputs.seed, inputs.config.training.repeats),
        "roc": roc_table(predictions),
        "precision_recall": precision_recall_table(predictions),
        "calibration": calibration_table(predictions, settings.confidence),
    }


def measured_rows(fold: str, frame: pd.DataFrame, settings: StatisticsConfig, seed: int) -> list[dict[str, Any]]:
    """Rows of `PERFORMANCE_TABLE` of the predictions of a fold, or of all; the draws depend on the fold and seed."""
    rng = generator(seed, "statistics", "performance", fold)
    target = frame["target"].to_numpy(float)
    predicted = frame["outcome"].isin(["TP", "FP"]).to_numpy().astype(float)
    probability = frame["probability"].to_numpy(float)
    codes, names, strata = participants_of(frame, "target")
    folds = frame["fold"].to_numpy()

    def of_weights(weights: Floats) -> Mapping[str, Floats]:
        measures = metrics(target, predicted, probability, weights[:, codes])
        if fold == ALL_FOLDS:
            measures[WITHIN_FOLDS] = weighted_auc_within(target, probability, folds, weights[:, codes])
        return measures

    def statistic(weights: Floats) -> Floats:
        return np.stack(list(of_weights(weights).values()), axis=1)

    estimates = of_weights(np.ones((1, len(names))))
    counts = {"n_positive": int(target.sum()), "n_negative": int((1 - target).sum())}
    intervals = bootstrap.scaled_intervals(
        statistic, strata, [bootstrap.LOGIT] * len(estimates), Resampling.draws(settings, rng)
    )
    of_class = {"sensitivity": codes[target == 1], "specificity": codes[target == 0], "accuracy": codes}
    shares = {
        i: (float(value[0]), len(np.unique(of_class[metric])))
        for i, (metric, value) in enumerate(estimates.items())
        if metric in of_class
    }
    intervals = bootstrap.with_exact_shares(intervals, shares, settings.confidence)
    few = min(len(np.unique(codes[target == side])) for side in (0, 1)) < FEW
    caveats = {"brier": FEW_WRONG} if few else {}
    return [
        {
            "fold": fold,
            "metric": metric,
            "estimate": float(value[0]),
            **intervals.row(i),
            "n_participants": len(names),
            "n_scans": len(frame),
            **counts,
            "note": NO_CLASS if np.isnan(value[0]) else intervals.notes[i] or caveats.get(metric),
        }
        for i, (metric, value) in enumerate(estimates.items())
    ]
