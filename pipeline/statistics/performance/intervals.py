"""Performance measures with intervals over participants: in each test fold, and over all folds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from heatlas.pipeline.run.columns import described
from heatlas.pipeline.run.config.statistics import StatisticsConfig
from heatlas.pipeline.statistics.arrays import Floats, Indices
from heatlas.pipeline.statistics.data.values import participant_codes
from heatlas.pipeline.statistics.resampling.bootstrap import (
    INTERVAL_OF_SCALED,
    IntervalScale,
    scaled_intervals,
    strata_of,
)

Measure = Callable[[pd.DataFrame, Floats], Mapping[str, Floats]]

ALL_FOLDS = "all"
MEASURE_COLUMNS = {
    "fold": "Test fold, or all: out-of-fold predictions of all folds together",
    "metric": "Name of the metric",
    "estimate": "Value; n/a if undefined",
    "ci_low": "Lower bound of the interval over participants, given the trained networks",
    "ci_high": "Upper bound of the interval over participants",
    "interval": INTERVAL_OF_SCALED + "; none",
    **described("n_participants", "n_scans"),
}


def by_fold(predictions: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The predictions of all folds, and of each."""
    folds = {str(fold): frame for fold, frame in predictions.groupby("fold", sort=True)}
    return {ALL_FOLDS: predictions, **folds}


def participants_of(frame: pd.DataFrame, of_class: str | None) -> tuple[Indices, Sequence[str], Indices]:
    """Participant 0..P-1 of each scan, their names, and the strata they are drawn in: test fold and class.

    `of_class` is the column of the class, that of a participant's first scan; None without classes.
    """
    codes, names = participant_codes(frame["participant_id"].tolist())
    first = frame.iloc[np.unique(codes, return_index=True)[1]]
    classes = np.zeros(len(first), np.intp) if of_class is None else pd.factorize(first[of_class])[0].astype(np.intp)
    return codes, names, strata_of(pd.factorize(first["fold"])[0].astype(np.intp), classes)


def measured_by_fold(
    predictions: pd.DataFrame,
    measure: Measure,
    of_class: str | None,
    scales: Callable[[str], IntervalScale],
    settings: StatisticsConfig,
    rng: np.random.Generator,
) -> pd.DataFrame:
    """One row per fold and metric; columns of `MEASURE_COLUMNS`.

    `measure` takes predictions and weights (draws, scans) and gives metrics (draws,) by name, `scales` the scale of a
    metric's interval; `of_class` as in `participants_of`.
    """
    rows = []
    for fold, frame in by_fold(predictions).items():
        codes, names, strata = participants_of(frame, of_class)
        estimates = measure(frame, np.ones((1, len(frame))))

        def statistic(weights: Floats, frame: pd.DataFrame = frame, codes: Indices = codes) -> Floats:
            return np.stack(list(measure(frame, weights[:, codes]).values()), axis=1)

        found = scaled_intervals(
            statistic,
            strata,
            [scales(name) for name in estimates],
            settings.bootstrap_samples,
            settings.confidence,
            rng,
        )
        for place, (metric, value) in enumerate(estimates.items()):
            bounds = (found.low[place], found.high[place], found.method[place])
            rows.append([fold, metric, float(value[0]), *bounds, len(names), len(frame)])
    return pd.DataFrame(rows, columns=list(MEASURE_COLUMNS))
