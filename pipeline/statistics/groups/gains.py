"""Gain of one group of scans over another in every region: ratio, log-gain, and shrunken log-gain."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline.run.config.statistics import StatisticsConfig
from pipeline.statistics.arrays import Floats
from pipeline.statistics.data.notes import joined
from pipeline.statistics.groups.log_gain import gain_floor, log_gain, shrink
from pipeline.statistics.groups.members import drawn_means
from pipeline.statistics.resampling.bootstrap import bootstrap_intervals, participant_draws

ERROR_DRAWS = 200
"""Bootstrap draws; enough for standard errors (Efron & Tibshirani 1993, section 6.4)."""


def with_gains(
    table: pd.DataFrame,
    means: Floats,
    of_first: NDArray[np.bool_],
    second: str,
    settings: StatisticsConfig,
    rng: np.random.Generator,
) -> pd.DataFrame:
    """Add the ratio, the log-gain with its interval, and the shrunken log-gain of every map.

    The table has a row per column of means (participants, columns); `second` names the group in the denominator.
    """
    keys = table["metric"] + "\t" + table["map"]
    floors = keys.map(
        {
            key: gain_floor(rows["mean_second"].to_numpy(float), settings.group_comparisons.gain_floor)
            for key, rows in table.groupby(keys, sort=False)
        }
    ).to_numpy(float)
    table = table.assign(
        floor=floors,
        log_gain=log_gain(table["mean_first"].to_numpy(float), table["mean_second"].to_numpy(float), floors),
        ratio=table["mean_first"] / table["mean_second"].where(table["mean_second"] > 0),
    )
    said = _gain_notes(table, second)
    notes = [joined(note, why) for note, why in zip(table["note"], said, strict=True)]
    table["note"] = np.array(notes, dtype=object)
    complete = np.flatnonzero(np.isfinite(means).all(axis=0))

    def gains(weights: Floats) -> Floats:
        return log_gain(*drawn_means(means[:, complete], of_first, weights), floors[complete])

    strata = of_first.astype(int).tolist()
    found = bootstrap_intervals(gains, strata, settings.bootstrap_samples, settings.confidence, rng)
    table.loc[complete, "log_gain_low"], table.loc[complete, "log_gain_high"] = found.low, found.high
    draws = np.full((ERROR_DRAWS, len(table)), np.nan)
    draws[:, complete] = gains(participant_draws(strata, ERROR_DRAWS, rng))
    for _, rows in table.groupby(keys, sort=False).groups.items():
        result = shrink(table.loc[rows, "log_gain"].to_numpy(float), draws[:, rows], settings.confidence)
        for column, shrunk in (("", result.estimate), ("_low", result.low), ("_high", result.high)):
            table.loc[rows, f"log_gain_shrunk{column}"] = shrunk
    return table


def _gain_notes(table: pd.DataFrame, second: str) -> list[str | None]:
    """Notes on gains that are infinite, undefined or limited by the floor."""
    notes: list[str | None] = []
    for first_mean, second_mean, floor in table[["mean_first", "mean_second", "floor"]].to_numpy(float):
        first_low, second_low = first_mean < floor, second_mean < floor
        if first_low and second_low:
            notes.append("no gain: both means are below the floor")
        elif second_low and second_mean == 0:
            notes.append(f"infinite ratio: the mean of {second} is 0; log_gain uses the floor instead")
        elif second_low:
            notes.append(f"the mean of {second} is below the floor; log_gain uses the floor instead")
        else:
            notes.append("the first mean is below the floor; log_gain uses the floor instead" if first_low else None)
    return notes
