"""Relevance of every bilateral group in every group of scans, averaged over participants."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heatlas.pipeline.run.columns import described
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.declared import CLASSES, Table
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Floats
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.data.values import OUTCOMES, RelevanceValues, participant_codes, participant_means
from heatlas.pipeline.statistics.groups.gains import PLACES, places_by, write_places
from heatlas.pipeline.statistics.resampling.bootstrap import MIN_PARTICIPANTS
from heatlas.pipeline.statistics.resampling.means import INTERVAL_OF_MEANS, mean_intervals

SUMMARY_COLUMNS = {
    **described("map", "group"),
    "scan_group": "Scans averaged: those of a class, or TP, FP, TN, FN",
    "n_participants": "Participants with such scans",
    **described("n_scans"),
    "mean_sum": "Mean sum over participants (each participant's scans averaged first)",
    "mean_density": "Mean density over participants",
    "sd_density": "Standard deviation of density over participants (n - 1)",
    "ci_low": "Lower bound of the interval of mean_density over participants",
    "ci_high": "Upper bound of the interval of mean_density over participants",
    "interval": INTERVAL_OF_MEANS,
    **places_by("mean_density", "all but the positive class"),
    "mean_gain": "Mean gain over participants",
    "n_gain": "Participants with a known gain",
    "scan_mean_sum": "Mean sum over scans, as in the founding study",
    "scan_mean_density": "Mean density over scans, as in the founding study",
    "ratio_of_means": "scan_mean_sum divided by that of the negative class (the founding study's gain); n/a if the "
    "latter is not above 0",
    "note": "Why there is no value or interval, or a caveat",
}
REGION_SUMMARY_TABLE = Table(
    "region_summary", SUMMARY_COLUMNS, "map, bilateral group and group of scans",
    "What is the mean relevance of each region in each group?", filled=("map", "group", "scan_group", "n_participants",
    "n_scans"), later=tuple(PLACES), values={"scan_group": (CLASSES, "TP", "FP", "TN", "FN")},
)  # fmt: skip


def region_summary(values: RelevanceValues, cohort: CohortConfig, confidence: float, seed: int) -> pd.DataFrame:
    """One row per map, bilateral group and group of scans, including groups without scans."""
    negative, positive = cohort.negative, cohort.positive
    controls = _mean(values.sums[values.members(negative, negative, positive)])
    blocks = []
    for scan_group in (positive, negative, *OUTCOMES):
        members = values.members(scan_group, negative, positive)
        rng = generator(seed, "statistics", "region_summary", "places") if scan_group == positive else None
        blocks.append(_block(values, scan_group, members, controls, confidence, rng))
    table = pd.concat(blocks, ignore_index=True)
    order = {name: i for i, name in enumerate(values.maps)}
    return table.sort_values("map", key=lambda names: names.map(order), kind="stable")


def region_summary_tables(inputs: StatisticsInputs) -> pd.DataFrame:
    """Table ``region_summary``."""
    return region_summary(inputs.values, inputs.config.cohort, inputs.config.statistics.confidence, inputs.seed)


def _block(
    values: RelevanceValues,
    scan_group: str,
    members: NDArray[np.bool_],
    controls: Floats,
    confidence: float,
    rng: np.random.Generator | None,
) -> pd.DataFrame:
    """Rows of one group of scans; with bounds of places if there is an `rng`."""
    codes, names = participant_codes(values.scans["participant_id"][members].tolist())
    sums, densities, gains = (
        participant_means(array[members], codes) for array in (values.sums, values.densities, values.gains)
    )
    scan_sums = _mean(values.sums[members])
    shape = (len(values.maps), len(values.groups))
    intervals, said = mean_intervals(densities.reshape(len(names), shape[0] * shape[1]), confidence)
    mean_density = _mean(densities)
    why_empty = "the group has no voxel on this grid" if names else "no scan in this group"
    spread = densities.std(axis=0, ddof=1) if len(names) > 1 else np.full(shape, np.nan)
    columns = {
        "map": np.repeat(values.maps, shape[1]),
        "group": np.tile(values.groups, shape[0]),
        "mean_sum": _mean(sums).ravel(),
        "mean_density": mean_density.ravel(),
        "sd_density": spread.ravel(),
        "ci_low": intervals.low,
        "ci_high": intervals.high,
        "interval": intervals.method,
        "mean_gain": _mean(gains).ravel(),
        "n_gain": (~np.isnan(gains)).sum(axis=0).ravel(),
        "scan_mean_sum": scan_sums.ravel(),
        "scan_mean_density": _mean(values.densities[members]).ravel(),
        "ratio_of_means": np.divide(scan_sums, controls, out=np.full(shape, np.nan), where=controls > 0).ravel(),
        "note": [
            why_empty if empty else note for empty, note in zip(np.isnan(mean_density.ravel()), said, strict=True)
        ],
    }
    table = pd.DataFrame(columns).astype({"map": str, "group": str})
    table = table.assign(scan_group=scan_group, n_participants=len(names), n_scans=int(members.sum()))
    if rng is not None and len(names) >= MIN_PARTICIPANTS:
        each = densities.reshape(len(names), -1)
        influence = (each - each.mean(axis=0)) / np.sqrt(len(names) * (len(names) - 1))
        write_places(table, "mean_density", influence, np.zeros(len(names), np.intp), confidence, rng)
    return table.reindex(columns=list(SUMMARY_COLUMNS))


def _mean(values: Floats) -> Floats:
    """Mean over the first axis without NaN; NaN if there are no values."""
    known = ~np.isnan(values)
    means = np.full(values.shape[1:], np.nan)
    np.divide(np.where(known, values, 0.0).sum(axis=0), known.sum(axis=0), out=means, where=known.any(axis=0))
    return means
