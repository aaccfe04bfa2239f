"""Variation of performance over training seeds: each repeat, mean and SD over repeats, and intervals with retraining.

Intervals over participants take the trained networks as given. The corrected resampled interval of Nadeau & Bengio
(2003, Mach Learn 52:239) is about the training procedure, with other participants and seeds to train on. Each fold is
the mean over its repeats, since its test participants are the same in all of them: with one value per fold the interval
of 95 % missed the true area under the curve in 4.8 % of 3,000 data sets (linear discriminant, five folds, three seeds,
60 people; 3.3 % with 120), with one value per fold and seed in 12.8 % (8.9 %).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t
from sklearn.metrics import balanced_accuracy_score

from heatlas.pipeline.cohort.people.persons import name_of_person
from heatlas.pipeline.cohort.people.tasks import TWO_CLASSES, Task, task_of
from heatlas.pipeline.run.columns import Form, described
from heatlas.pipeline.run.declared import Table
from heatlas.pipeline.statistics.arrays import Floats
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs, renamed
from heatlas.pipeline.statistics.performance.classification import WITHIN_FOLDS, weighted_auc, weighted_auc_within
from heatlas.pipeline.statistics.resampling.bootstrap import NO_INTERVAL
from heatlas.pipeline.training.stage import PREDICTIONS_REPEATS_TABLE

CORRECTED = "corrected resampled t"
OF_FOLDS = "mean of folds"
LIMITS: Mapping[str, tuple[float, float]] = {"r": (-1.0, 1.0), "mae": (0.0, np.inf)}
"""Smallest and largest possible value of metrics that are no share of 1."""

REPEATS_COLUMNS = {
    "repeat": "Repeat of training; maps come from repeat 1; mean and sd: over repeats; mean of folds: over test folds, "
    "each the mean of its repeats",
    "metric": "For classes balanced_accuracy (macro), for two classes auc and auc_within_folds (as in performance), "
    "for a number mae and r; over out-of-fold scans of all folds, or (mean of folds) in each fold",
    "estimate": "Value; the standard deviation is that of the sample of repeats",
    "ci_low": "Lower bound of the interval of the mean of folds, which includes training again with other participants "
    "and seeds: mean ± t sqrt((1/k + n_test / n_train) variance over k folds), k - 1 degrees of freedom; n_train "
    "counts all participants outside the fold",
    **described("ci_high"),
    "interval": "Kind of interval: corrected resampled t (Nadeau & Bengio 2003) or none",
    "n_participants": "Participants predicted by this repeat; for mean, sd and mean of folds the smallest number",
    **described("n_scans"),
    "note": "Why there is no value or interval",
}
PERFORMANCE_REPEATS_TABLE = Table(
    "performance_repeats", REPEATS_COLUMNS, "training (or mean, sd, or mean of folds) and metric",
    "Does the performance depend on the training seed?", forms={"repeat": Form.TEXT},
)  # fmt: skip


def corrected_interval(values: Floats, test_to_train: float, confidence: float) -> tuple[float, float]:
    """Interval of the mean of k resampled estimates that share training data (Nadeau & Bengio 2003).

    `values` (k,): performance in each test fold; `test_to_train`: test participants over training participants.

    Examples
    --------
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
    return table.assign(interval=table["interval"].fillna(NO_INTERVAL))[list(REPEATS_COLUMNS)]


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
