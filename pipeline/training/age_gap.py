"""The gap between a predicted and a true number, and its correction for regression to the mean.

Predictions are too high for the young and too low for the old, so the gap depends on age itself. De Lange & Cole (2020,
doi:10.1016/j.nicl.2020.102229) fit ``predicted = intercept + slope * true`` and subtract the value of this line from
each prediction. The line of a test fold is fitted to the out-of-fold predictions of all other folds, so no participant
of the test fold is in the fit.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

GAP_COLUMNS = {
    "gap": "prediction minus target",
    "corrected_gap": "prediction minus (intercept + slope x target): the gap without its dependence on the target "
    "(de Lange & Cole 2020); n/a with fewer than 3 participants in the fit",
    "correction_intercept": "Intercept of the correction line, fitted to the out-of-fold predictions of the other "
    "folds",
    "correction_slope": "Slope of the correction line; 1 for unbiased predictions",
}
"""Further columns of ``predictions.tsv`` for regression."""
MIN_PARTICIPANTS = 3
"""A line fits two points exactly."""


def bias_line(target: np.ndarray, predicted: np.ndarray) -> tuple[float, float]:
    """Intercept and slope of the regression of predicted on true values; NaN if the true values are constant.

    Examples
    --------
    >>> bias_line(np.array([50.0, 70.0, 90.0]), np.array([60.0, 70.0, 80.0]))
    (35.0, 0.5)
    """
    deviation = target - target.mean()
    if len(target) < MIN_PARTICIPANTS or not deviation.any():
        return float("nan"), float("nan")
    slope = float(deviation @ predicted / (deviation @ deviation))
    return float(predicted.mean()) - slope * float(target.mean()), slope


def with_corrected_gaps(predictions: pd.DataFrame) -> pd.DataFrame:
    """Fill in `GAP_COLUMNS` of the predictions of all folds; each participant counts once in a fit."""
    result = predictions.copy()
    for fold in result["fold"].unique():
        here = result["fold"] == fold
        others = result[~here].groupby("participant_id")[["target", "prediction"]].mean()
        if len(others):
            intercept, slope = bias_line(others["target"].to_numpy(float), others["prediction"].to_numpy(float))
        else:
            intercept = slope = float("nan")
        expected = intercept + slope * result.loc[here, "target"]
        result.loc[here, "corrected_gap"] = result.loc[here, "prediction"] - expected
        result.loc[here, ["correction_intercept", "correction_slope"]] = [intercept, slope]
    return result
