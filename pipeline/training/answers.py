"""What outputs of networks amount to: classes and probabilities, the gap of a number, the mark of a control run.

Predictions of a number are too high for the young and too low for the old. De Lange & Cole (2020,
doi:10.1016/j.nicl.2020.102229) fit ``predicted = intercept + slope * true`` and subtract the value of this line. The
line of a test fold is fitted to the out-of-fold predictions of all other folds.

Networks of control runs are trained without disease information: on brain masks (``training.control = "binarised"``;
Tinauer et al. 2025), or on permuted labels (``cohort.shuffle_labels``). Their outputs are marked.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.special import softmax
from sklearn.metrics import balanced_accuracy_score

from heatlas.pipeline.run.config.settings import Config


def balanced_accuracy(targets: np.ndarray, logits: np.ndarray) -> float:
    """Mean recall over classes, all of which must occur; of class numbers (N,) and logits (N, classes)."""
    return float(balanced_accuracy_score(targets, predicted_class(logits)))


def predicted_class(logits: np.ndarray) -> np.ndarray:
    return np.asarray(logits.argmax(axis=1))


def probabilities(logits: np.ndarray) -> np.ndarray:
    return np.asarray(softmax(logits.astype(np.float64), axis=1))


def positive_probability(logits: np.ndarray) -> np.ndarray:
    """Softmax probability of class 1, in float64 and without overflow."""
    margin = logits[:, 1].astype(np.float64) - logits[:, 0].astype(np.float64)
    return np.asarray(np.exp(-np.logaddexp(0.0, -margin)))


def outcome(target: int, predicted: int) -> str:
    """Cell of the confusion matrix: TP, FP, TN or FN.

    Examples
    --------
    >>> outcome(target=1, predicted=0)
    'FN'
    """
    return ("T" if target == predicted else "F") + ("P" if predicted == 1 else "N")


MIN_PARTICIPANTS = 3
"""A line fits two points exactly."""


def bias_line(target: np.ndarray, predicted: np.ndarray) -> tuple[float, float]:
    """Intercept and slope of the regression of predicted on true values; NaN if the true values are constant.

    Examples
    --------
    >>> bias_line(np.array([50.0, 70.0, 90.0]), np.array([60.0, 70.0, 80.0]))
    (35.0, 0.5)
    """
    deviation = target - target.mean() if len(target) >= MIN_PARTICIPANTS else np.zeros(1)
    if not deviation.any():
        return float("nan"), float("nan")
    slope = float(deviation @ predicted / (deviation @ deviation))
    return float(predicted.mean()) - slope * float(target.mean()), slope


def with_corrected_gaps(predictions: pd.DataFrame) -> pd.DataFrame:
    """Fill in the gaps of the predictions of all folds; each participant counts once in a fit."""
    result = predictions.copy()
    for fold in result["fold"].unique():
        here = result["fold"] == fold
        others = result[~here].groupby("participant_id")[["target", "prediction"]].mean()
        intercept, slope = bias_line(others["target"].to_numpy(float), others["prediction"].to_numpy(float))
        expected = intercept + slope * result.loc[here, "target"]
        result.loc[here, "corrected_gap"] = result.loc[here, "prediction"] - expected
        result.loc[here, ["correction_intercept", "correction_slope"]] = [intercept, slope]
    return result


NO_CONTROL = "none"


def control_of(config: Config) -> str:
    """Kind of control run; ``none`` for an ordinary run.

    Examples
    --------
    >>> from heatlas.pipeline.run.config.files import load_config
    >>> control_of(load_config())
    'none'
    >>> control_of(load_config(overrides={"training": {"control": "binarised"}, "cohort": {"shuffle_labels": True}}))
    'binarised, shuffled labels'
    """
    kinds = {"binarised": config.training.control == "binarised", "shuffled labels": config.cohort.shuffle_labels}
    return ", ".join(name for name, is_kind in kinds.items() if is_kind) or NO_CONTROL
