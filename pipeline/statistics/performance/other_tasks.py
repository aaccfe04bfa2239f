"""Performance in held-out people beyond two classes and one training: of a number, of several classes, of repeats.

Intervals over participants take the trained networks as given. The corrected resampled interval of Nadeau & Bengio
(2003, Mach Learn 52:239) is about the training procedure, with other participants and seeds to train on. Each fold is
the mean over its repeats, since its test participants are the same in all: so the interval of 95 % missed the true area
under the curve in 4.8 % of 3,000 data sets (linear discriminant, five folds, three seeds, 60 people), with one value
per fold and seed in 12.8 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import skew, t
from sklearn.metrics import balanced_accuracy_score

from heatlas.pipeline.cohort.people.persons import name_of_person
from heatlas.pipeline.cohort.people.tasks import TWO_CLASSES, Task, task_of
from heatlas.pipeline.run.declared import declared
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Floats
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs, renamed
from heatlas.pipeline.statistics.performance.classification import (
    WITHIN_FOLDS,
    by_fold,
    measured_by_fold,
    weighted_auc,
    weighted_auc_within,
)
from heatlas.pipeline.statistics.resampling.bootstrap import (
    AS_IT_IS,
    FISHER,
    LOG,
    LOGIT,
    NO_INTERVAL,
    UNEXPLAINED,
    weighted_mean,
    weighted_slope,
)
from heatlas.pipeline.statistics.resampling.means import VERY_SKEWED
from heatlas.pipeline.training.stage import PREDICTIONS_REPEATS_TABLE

SKEWED = "the target is skewed: its few largest values decide r and r2, and the interval of 95 % misses 6 to 9 %"
"""Where the target's skewness is above `VERY_SKEWED` (docs/benchmarks/statistics.md)."""
SCALES = {"mae": LOG, "mae_of_mean": LOG, "corrected_mae": LOG, "r": FISHER, "r2": UNEXPLAINED}
"""Scales of the intervals; other metrics as they are."""


def number_metrics(target: Floats, predicted: Floats, corrected: Floats, weights: Floats) -> dict[str, Floats]:
    """All metrics (draws,) of scans with weights (draws, scans); NaN where undefined, such as r of constant values."""
    gap = predicted - target
    mean = weighted_mean(target, weights)
    from_mean = target - mean[:, None]
    slope = weighted_slope(target, predicted, weights)
    back = weighted_slope(predicted, target, weights)
    with np.errstate(invalid="ignore", divide="ignore"):
        total = (weights * from_mean**2).sum(axis=1)
        r2 = np.where(total > 0, 1 - weights @ gap**2 / total, np.nan)
    return {
        "mae": weighted_mean(np.abs(gap), weights),
        "mae_of_mean": (weights * np.abs(from_mean)).sum(axis=1) / weights.sum(axis=1),
        "r": np.sign(slope) * np.sqrt(np.clip(slope * back, 0, 1)),
        "r2": r2,
        "mean_gap": weighted_mean(gap, weights),
        "gap_slope": weighted_slope(target, gap, weights),
        "corrected_mae": weighted_mean(np.abs(corrected), weights),
        "corrected_gap_slope": weighted_slope(target, corrected, weights),
    }


def number_tables(inputs: StatisticsInputs) -> pd.DataFrame:

    def statistic(frame: pd.DataFrame, weights: Floats) -> Mapping[str, Floats]:
        target, predicted, corrected = (
            frame[name].to_numpy(float) for name in ("target", "prediction", "corrected_gap")
        )
        return number_metrics(target, predicted, corrected, weights)

    rng = generator(inputs.seed, "statistics", "performance_number")
    table = measured_by_fold(
        inputs.predictions, statistic, None, lambda metric: SCALES.get(metric, AS_IT_IS), inputs.config.statistics, rng
    )
    is_skewed = np.abs(skew(inputs.predictions.groupby("participant_id")["target"].mean())) > VERY_SKEWED
    of_squares = table["metric"].isin(["r", "r2"]) & table["ci_low"].notna()
    return table.assign(note=pd.Series(SKEWED, table.index, dtype=object).where(of_squares & is_skewed, None))


CONFUSION_TABLE = declared("confusion", __file__)


def class_metrics(
    labels: Sequence[str], predicted: Sequence[str], classes: Sequence[str], weights: Floats
) -> dict[str, Floats]:
    """Macro balanced accuracy, accuracy and recalls (draws,) of scans with weights (draws, scans)."""
    true, right = np.asarray(labels), np.asarray(labels) == np.asarray(predicted)
    recalls = {}
    for name in classes:
        members = weights * (true == name)
        total = members.sum(axis=1)
        recalls[f"recall of {name}"] = np.divide(
            members @ right.astype(float), total, out=np.full(len(weights), np.nan), where=total > 0
        )
    return {
        "balanced_accuracy": np.stack(list(recalls.values())).mean(axis=0),
        "accuracy": weights @ right.astype(float) / weights.sum(axis=1),
        **recalls,
    }


def confusion_table(predictions: pd.DataFrame, classes: Sequence[str]) -> pd.DataFrame:
    """One row per fold, true class and predicted class, including pairs without scans."""
    rows = []
    for fold, frame in by_fold(predictions).items():
        for label in classes:
            of_class = frame[frame["label"] == label]
            for predicted in classes:
                cell = of_class[of_class["predicted"] == predicted]
                share = len(cell) / len(of_class) if len(of_class) else float("nan")
                rows.append([fold, label, predicted, len(cell), cell["participant_id"].nunique(), share])
    return CONFUSION_TABLE.frame(rows)


def classes_tables(inputs: StatisticsInputs) -> Mapping[str, pd.DataFrame]:
    classes = inputs.config.cohort.labels

    def measure(frame: pd.DataFrame, weights: Floats) -> Mapping[str, Floats]:
        return class_metrics(frame["label"].tolist(), frame["predicted"].tolist(), classes, weights)

    rng = generator(inputs.seed, "statistics", "performance_classes")
    table = measured_by_fold(inputs.predictions, measure, "label", lambda _: LOGIT, inputs.config.statistics, rng)
    confusion = confusion_table(inputs.predictions, classes)
    return {"performance_classes": table, "confusion": confusion}


CORRECTED = "corrected resampled t"
OF_FOLDS = "mean of folds"
LIMITS: Mapping[str, tuple[float, float]] = {"r": (-1.0, 1.0), "mae": (0.0, np.inf)}
"""Smallest and largest possible value of metrics that are no share of 1."""

PERFORMANCE_REPEATS_TABLE = declared("performance_repeats", __file__)


def corrected_interval(values: Floats, test_to_train: float, confidence: float) -> tuple[float, float]:
    """Interval of the mean of k resampled estimates that share training data (Nadeau & Bengio 2003).

    `values` (k,): performance in each test fold; `test_to_train`: test participants over training participants.

    >>> low, high = corrected_interval(np.array([0.7, 0.8, 0.9]), 0.5, 0.95)
    >>> round(low, 4), round(high, 4)
    (0.4072, 1.1928)
    """
    k = len(values)
    error = np.sqrt((1 / k + test_to_train) * values.var(ddof=1))
    reach = t.ppf(0.5 + confidence / 2, k - 1) * error
    return float(values.mean() - reach), float(values.mean() + reach)


def repeats_tables(inputs: StatisticsInputs) -> Mapping[str, pd.DataFrame]:
    """Table ``performance_repeats``; none if each fold was trained once."""
    if not PREDICTIONS_REPEATS_TABLE.path(inputs.layout).is_file():
        return {}
    predictions = PREDICTIONS_REPEATS_TABLE.read(inputs.layout, ["repeat", "fold", "target"])
    task = task_of(inputs.config.cohort)
    return {"performance_repeats": repeats_table(predictions, task, inputs.config.statistics.confidence)}


def repeats_table(predictions: pd.DataFrame, task: Task, confidence: float) -> pd.DataFrame:
    """One row per repeat and metric, mean and standard deviation over repeats, and mean over folds with interval."""
    predictions = renamed(predictions, name_of_person(predictions["participant_id"]))
    rows = []
    for repeat, frame in predictions.groupby("repeat", sort=True):
        counts = (frame["participant_id"].nunique(), len(frame))
        measures = _metrics(frame, task) | _within_folds(frame, task)
        rows += [(str(repeat), metric, value, *counts) for metric, value in measures.items()]
    table = pd.DataFrame(rows, columns=["repeat", "metric", "estimate", "n_participants", "n_scans"])
    by_metric = table.groupby("metric", sort=False)
    fewest = by_metric[["n_participants", "n_scans"]].min()
    both = {"mean": by_metric["estimate"].mean(), "sd": by_metric["estimate"].std()}
    summary = [fewest.assign(repeat=name, estimate=values).reset_index() for name, values in both.items()]
    counts_of_all = {name: int(fewest[name].min()) for name in fewest.columns}
    of_folds = pd.DataFrame([row | counts_of_all for row in _of_folds(predictions, task, confidence)])
    table = pd.concat([table, *summary, of_folds], ignore_index=True)
    return table.assign(interval=table["interval"].fillna(NO_INTERVAL))[list(PERFORMANCE_REPEATS_TABLE.meanings)]


def _of_folds(predictions: pd.DataFrame, task: Task, confidence: float) -> list[dict[str, Any]]:
    """Mean over folds of each metric, with its corrected resampled interval."""
    tested = predictions.groupby("fold")["participant_id"].nunique()
    per_training = pd.DataFrame(
        [{"fold": fold} | _metrics(frame, task) for (fold, _), frame in predictions.groupby(["fold", "repeat"])]
    )
    rows = []
    for metric, values in per_training.groupby("fold").mean().items():
        row: dict[str, Any] = {"repeat": OF_FOLDS, "metric": metric, "ci_low": np.nan, "ci_high": np.nan, "note": None}
        row |= {"estimate": values.mean(skipna=False), "interval": NO_INTERVAL}
        undefined = ", ".join(f"{fold}" for fold in values.index[values.isna()])
        if undefined:
            row["note"] = f"not defined in fold {undefined}"
        elif len(values) < 2:
            row["note"] = "one test fold: no interval with retraining"
        elif np.ptp(values) == 0:
            row["note"] = "folds do not differ: no interval with retraining"
        else:
            share = float((tested / (tested.sum() - tested)).mean())
            limits = LIMITS.get(str(metric), (0.0, 1.0))
            bounds = np.clip(corrected_interval(values.to_numpy(float), share, confidence), *limits)
            row |= {"ci_low": bounds[0], "ci_high": bounds[1], "interval": CORRECTED}
        rows.append(row)
    return rows


def _metrics(frame: pd.DataFrame, task: Task) -> dict[str, float]:
    if not task.classes:
        with np.errstate(invalid="ignore", divide="ignore"):
            r = float(frame["prediction"].corr(frame["target"]))
        return {"mae": float((frame["prediction"] - frame["target"]).abs().mean()), "r": r}
    all_classes = frame["target"].nunique() == len(task.outputs)
    accuracy = float(balanced_accuracy_score(frame["label"], frame["predicted"])) if all_classes else np.nan
    if task.kind.name != TWO_CLASSES:
        return {"balanced_accuracy": accuracy}
    target, score = frame["target"].to_numpy(float), frame["probability"].to_numpy(float)
    return {"balanced_accuracy": accuracy, "auc": float(weighted_auc(target, score, np.ones((1, len(frame))))[0])}


def _within_folds(frame: pd.DataFrame, task: Task) -> dict[str, float]:
    if task.kind.name != TWO_CLASSES:
        return {}
    target, score = frame["target"].to_numpy(float), frame["probability"].to_numpy(float)
    area = weighted_auc_within(target, score, frame["fold"].to_numpy(), np.ones((1, len(frame))))
    return {WITHIN_FOLDS: float(area[0])}
