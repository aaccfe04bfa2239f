"""Performance of predicting a number in held-out participants, with intervals over participants."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from heatlas.pipeline.run.columns import Form
from heatlas.pipeline.run.declared import Table
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Floats
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.performance.intervals import MEASURE_COLUMNS, measured_by_fold
from heatlas.pipeline.statistics.resampling.scaled import AS_IT_IS, FISHER, LOG, UNEXPLAINED
from heatlas.pipeline.statistics.resampling.weighted import weighted_mean, weighted_slope

NUMBER_PERFORMANCE_COLUMNS = MEASURE_COLUMNS | {
    "metric": "Over scans: mae (mean absolute error), mae_of_mean (mae of always predicting the mean of the target, "
    "the baseline), r (Pearson correlation of predicted and true values), r2 (share of the target's variance "
    "explained; negative if worse than the mean), mean_gap (predicted minus true), gap_slope (change of the gap per "
    "unit of the target), corrected_mae (of the corrected gap, which uses the true value, so it does not measure "
    "prediction) or corrected_gap_slope (0 if the correction works)"
}
PERFORMANCE_NUMBER_TABLE = Table(
    "performance_number", NUMBER_PERFORMANCE_COLUMNS, "fold (or all) and metric", "How well is the number predicted?",
    forms={"fold": Form.TEXT},
)  # fmt: skip

SCALES = {"mae": LOG, "mae_of_mean": LOG, "corrected_mae": LOG, "r": FISHER, "r2": UNEXPLAINED}
"""Of the intervals; other metrics as they are."""


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
    return measured_by_fold(
        inputs.predictions, statistic, None, lambda metric: SCALES.get(metric, AS_IT_IS), inputs.config.statistics, rng
    )
