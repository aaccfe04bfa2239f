"""How well a classifier does, from targets and logits."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import balanced_accuracy_score


def balanced_accuracy(targets: np.ndarray, logits: np.ndarray) -> float:
    """Mean of sensitivity and specificity.

    Parameters
    ----------
    targets : array of int, shape (N,)
        0 (negative) or 1 (positive); both must occur.
    logits : array, shape (N, 2)
        The larger one decides; the negative class where they are equal.
    """
    return float(balanced_accuracy_score(targets, predicted_class(logits)))


def predicted_class(logits: np.ndarray) -> np.ndarray:
    """0 or 1 per row of logits; 0 where both are equal."""
    classes: np.ndarray = (logits[:, 1] > logits[:, 0]).astype(int)
    return classes


def positive_probability(logits: np.ndarray) -> np.ndarray:
    """Softmax probability of class 1, in float64 and without overflow."""
    margin = logits[:, 1].astype(np.float64) - logits[:, 0].astype(np.float64)
    probability: np.ndarray = np.exp(-np.logaddexp(0.0, -margin))
    return probability


def outcome(target: int, predicted: int) -> str:
    """Cell of the confusion table: TP, FP, TN or FN.

    Examples
    --------
    >>> outcome(target=1, predicted=0)
    'FN'
    """
    return ("T" if target == predicted else "F") + ("P" if predicted == 1 else "N")
