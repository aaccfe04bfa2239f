"""Performance metrics from targets and network outputs."""

from __future__ import annotations

import numpy as np
from scipy.special import softmax
from sklearn.metrics import balanced_accuracy_score


def balanced_accuracy(targets: np.ndarray, logits: np.ndarray) -> float:
    """Mean recall over classes (for two classes the mean of sensitivity and specificity).

    `targets`: (N,), class numbers; all must occur. `logits`: (N, classes), the largest is predicted; the first in case
    of ties.
    """
    return float(balanced_accuracy_score(targets, predicted_class(logits)))


def predicted_class(logits: np.ndarray) -> np.ndarray:
    """Predicted class per row of logits; the first in case of ties."""
    classes: np.ndarray = logits.argmax(axis=1)
    return classes


def probabilities(logits: np.ndarray) -> np.ndarray:
    """Softmax of each row of logits, in float64 and without overflow."""
    return np.asarray(softmax(logits.astype(np.float64), axis=1))


def positive_probability(logits: np.ndarray) -> np.ndarray:
    """Softmax probability of class 1, in float64 and without overflow."""
    margin = logits[:, 1].astype(np.float64) - logits[:, 0].astype(np.float64)
    probability: np.ndarray = np.exp(-np.logaddexp(0.0, -margin))
    return probability


def outcome(target: int, predicted: int) -> str:
    """Cell of the confusion matrix: TP, FP, TN or FN.

    Examples
    --------
    >>> outcome(target=1, predicted=0)
    'FN'
    """
    return ("T" if target == predicted else "F") + ("P" if predicted == 1 else "N")
