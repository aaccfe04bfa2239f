"""Calibration and precision-recall curve of out-of-fold predictions."""

from __future__ import annotations

import numpy as np
import pandas as pd
from sklearn.metrics import precision_recall_curve
from statsmodels.stats.proportion import proportion_confint

from heatlas.pipeline.run.columns import described
from heatlas.pipeline.run.declared import Table

BINS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
"""Edges of the probability bins: narrow at the ends, where most predictions lie."""

CALIBRATION_COLUMNS = {
    "low": "Lower edge of the bin of probability",
    "high": "Upper edge; only the last bin includes it",
    "mean_probability": "Mean probability in the bin, each participant counting once",
    "share_positive": "Share of the positive class in the bin, each participant counting once",
    "ci_low": "Lower bound of the Wilson interval of share_positive over participants",
    **described("ci_high"),
    "n_participants": "Participants with scans in the bin",
    "n_scans": "Scans of these participants in the bin",
}
CALIBRATION_TABLE = Table(
    "calibration", CALIBRATION_COLUMNS, "bin of probability", "Do predicted probabilities match observed frequencies?",
    filled=("low", "high", "n_participants"),
)  # fmt: skip
PRECISION_RECALL_COLUMNS = {
    "threshold": "Scans with at least this probability are called positive; n/a for the point with recall 0",
    "recall": "Share of scans of the positive class called positive (sensitivity)",
    "precision": "Share of scans called positive that are of the positive class",
}
PRECISION_RECALL_TABLE = Table(
    "precision_recall", PRECISION_RECALL_COLUMNS, "threshold",
    "What precision and recall does each threshold give?",
)  # fmt: skip


def calibration_table(predictions: pd.DataFrame, confidence: float) -> pd.DataFrame:
    """Observed against predicted frequency of the positive class, in bins of probability.

    The scans of a participant in a bin share one vote, so that participants with many visits do not count more; bins
    without scans have no row.
    """
    edges = np.asarray(BINS)
    place = np.clip(
        np.searchsorted(edges, predictions["probability"].to_numpy(float), side="right") - 1, 0, len(edges) - 2
    )
    frame = predictions[["participant_id", "probability", "target"]].assign(bin=place)
    rows = []
    for index, scans in frame.groupby("bin", sort=True):
        people = scans.groupby("participant_id")[["probability", "target"]].mean()
        share, n = people["target"].mean(), len(people)
        low, high = proportion_confint(share * n, n, 1 - confidence, "wilson")
        bounds = (edges[int(str(index))], edges[int(str(index)) + 1])
        rows.append([*bounds, people["probability"].mean(), share, low, high, n, len(scans)])
    return pd.DataFrame(rows, columns=list(CALIBRATION_COLUMNS))


def precision_recall_table(predictions: pd.DataFrame) -> pd.DataFrame:
    """Points of the precision-recall curve over scans; none if a class is missing."""
    if predictions["target"].nunique() < 2:
        return pd.DataFrame(columns=list(PRECISION_RECALL_COLUMNS))
    target, probability = predictions["target"].to_numpy(int), predictions["probability"].to_numpy(float)
    precision, recall, threshold = precision_recall_curve(target, probability)
    columns = dict(zip(PRECISION_RECALL_COLUMNS, (np.append(threshold, np.nan), recall, precision), strict=True))
    return pd.DataFrame(columns)
