"""Performance measures with intervals over participants: in each test fold, and over all folds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline.run.config.statistics import StatisticsConfig
from pipeline.statistics.arrays import Floats
from pipeline.statistics.data.values import participant_codes
from pipeline.statistics.resampling.bootstrap import bootstrap_intervals

Measure = Callable[[pd.DataFrame, Floats], Mapping[str, Floats]]

ALL_FOLDS = "all"
MEASURE_COLUMNS = {
    "fold": "Test fold, or all: out-of-fold predictions of all folds together",
    "metric": "Name of the metric",
    "estimate": "Value; n/a if undefined",
    "ci_low": "Lower bound of the interval over participants, given the trained networks",
    "ci_high": "Upper bound of the interval over participants",
    "interval": "Kind of bootstrap interval: BCa, percentile or none",
    "n_participants": "Participants",
    "n_scans": "Scans of these participants",
}


def by_fold(predictions: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The predictions of all folds, and of each."""
    folds = {str(fold): frame for fold, frame in predictions.groupby("fold", sort=True)}
    return {ALL_FOLDS: predictions, **folds}


def measured_by_fold(
    predictions: pd.DataFrame, measure: Measure, settings: StatisticsConfig, rng: np.random.Generator
) -> pd.DataFrame:
    """One row per fold and metric; columns of `MEASURE_COLUMNS`.

    `measure` takes predictions and weights (draws, scans) and gives metrics (draws,) by name.
    """
    rows = []
    for fold, frame in by_fold(predictions).items():
        codes, names = participant_codes(frame["participant_id"].tolist())
        estimates = measure(frame, np.ones((1, len(frame))))

        def statistic(weights: Floats, frame: pd.DataFrame = frame, codes: NDArray[np.intp] = codes) -> Floats:
            return np.stack(list(measure(frame, weights[:, codes]).values()), axis=1)

        found = bootstrap_intervals(statistic, [0] * len(names), settings.bootstrap_samples, settings.confidence, rng)
        for place, (metric, value) in enumerate(estimates.items()):
            bounds = (found.low[place], found.high[place], found.method[place])
            rows.append([fold, metric, float(value[0]), *bounds, len(names), len(frame)])
    return pd.DataFrame(rows, columns=list(MEASURE_COLUMNS))
