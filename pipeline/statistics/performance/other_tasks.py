"""Performance in held-out people where a number is predicted or several classes are told apart, with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.stats import skew

from heatlas.pipeline.run.declared import CLASSES, Form, Table
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Floats
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.performance.classification import MEASURE_COLUMNS, by_fold, measured_by_fold
from heatlas.pipeline.statistics.resampling.bootstrap import (
    AS_IT_IS,
    FISHER,
    LOG,
    LOGIT,
    UNEXPLAINED,
    weighted_mean,
    weighted_slope,
)
from heatlas.pipeline.statistics.resampling.means import VERY_SKEWED

NUMBER_PERFORMANCE_COLUMNS = MEASURE_COLUMNS | {
    "metric": "Over scans: mae (mean absolute error), mae_of_mean (mae of always predicting the mean of the target, "
    "the baseline), r (Pearson correlation of predicted and true values), r2 (share of the target's variance "
    "explained; negative if worse than the mean), mean_gap (predicted minus true), gap_slope (change of the gap per "
    "unit of the target), corrected_mae (of the corrected gap, which uses the true value, so it does not measure "
    "prediction) or corrected_gap_slope (0 if the correction works)",
    "note": "Caveat",
}
PERFORMANCE_NUMBER_TABLE = Table(
    "performance_number", NUMBER_PERFORMANCE_COLUMNS, "fold (or all) and metric", "How well is the number predicted?",
    forms={"fold": Form.TEXT},
)  # fmt: skip

SKEWED = "the target is skewed: its few largest values decide r and r2, and the interval of 95 % misses 6 to 9 %"
"""Where the target's skewness is above `VERY_SKEWED` (docs/benchmarks/statistics.md)."""
SCALES = {"mae": LOG, "mae_of_mean": LOG, "corrected_mae": LOG, "r": FISHER, "r2": UNEXPLAINED}
"""Scales of the intervals; other metrics as they are."""


def number_metrics(target: Floats, predicted: Floats, corrected: Floats, weights: Floats) -> dict[str, Floats]:
    """All metrics (draws,) of weighted scans; NaN where undefined, such as r of constant values.

    target, predicted and corrected gaps have shape (scans,), weights (draws, scans). Without corrected gaps (NaN) their
    metrics are NaN.
    """
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
    """Table ``performance_number``, over all folds together and in each."""

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


CLASSES_COLUMNS = MEASURE_COLUMNS | {
    "metric": "Over scans: balanced_accuracy (macro: mean recall over classes), accuracy, or recall of CLASS (share "
    "of its scans that are predicted as CLASS)"
}
PERFORMANCE_CLASSES_TABLE = Table(
    "performance_classes", CLASSES_COLUMNS, "fold (or all) and metric", "How well are the classes distinguished?",
    forms={"fold": Form.TEXT},
)  # fmt: skip
CONFUSION_COLUMNS = {
    "fold": MEASURE_COLUMNS["fold"],
    "label": "True class",
    "predicted": "Class with the largest logit",
    "n_scans": "Scans",
    "n_participants": "Participants with these scans",
    "share": "Share of the scans of the true class",
}
CONFUSION_TABLE = Table(
    "confusion", CONFUSION_COLUMNS, "fold (or all), true and predicted class", "Which classes are confused with which?",
    forms={"fold": Form.TEXT}, values={"label": (CLASSES,), "predicted": (CLASSES,)},
)  # fmt: skip


def class_metrics(
    labels: Sequence[str], predicted: Sequence[str], classes: Sequence[str], weights: Floats
) -> dict[str, Floats]:
    """Macro balanced accuracy, accuracy and recalls (draws,) of scans with weights (draws, scans).

    NaN where a class that the metric needs has no weight.
    """
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
    return pd.DataFrame(rows, columns=list(CONFUSION_COLUMNS))


def classes_tables(inputs: StatisticsInputs) -> Mapping[str, pd.DataFrame]:
    """Tables ``performance_classes`` and ``confusion``."""
    classes = inputs.config.cohort.labels

    def measure(frame: pd.DataFrame, weights: Floats) -> Mapping[str, Floats]:
        return class_metrics(frame["label"].tolist(), frame["predicted"].tolist(), classes, weights)

    rng = generator(inputs.seed, "statistics", "performance_classes")
    table = measured_by_fold(inputs.predictions, measure, "label", lambda _: LOGIT, inputs.config.statistics, rng)
    confusion = confusion_table(inputs.predictions, classes)
    return {"performance_classes": table, "confusion": confusion}
