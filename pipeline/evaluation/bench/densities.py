"""What scans have in each region by each map: sums, densities, and how far the classes differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heatlas.pipeline.evaluation.cohorts import PLANTED, JudgedCohort
from heatlas.pipeline.evaluation.scores.overlap import ratio_of
from heatlas.pipeline.regions.effect_size import hedges_g

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
LEAST_SPREAD = 1e-6
"""Least standard deviation within classes, over the largest density: a perfect map has none, and must come first."""


@dataclass(frozen=True, eq=False)
class CohortMaps:
    """Scores and sums of all scans of a cohort.

    Parameters
    ----------
    scores : pandas.DataFrame
        CohortMaps of `pipeline.evaluation.bench.scan_job`, with ``scan_id``.
    sums : mapping of (str, str) to mapping of str to array
        By network and map, then by scan id: sums over bilateral groups. A scan without a finite map is missing.
    n_voxels : array
        Voxels of each group.
    groups : tuple of str
    methods : mapping of str to str
        Method by map.
    intensity : mapping of str to array
        By scan id: mean intensity of each group, as networks see it.
    """

    scores: pd.DataFrame
    sums: Mapping[tuple[str, str], Mapping[str, Floats]]
    n_voxels: Floats
    groups: tuple[str, ...]
    methods: Mapping[str, str] = field(default_factory=dict)
    intensity: Mapping[str, Floats] = field(default_factory=dict)


def densities(cohort: JudgedCohort, rows: CohortMaps, network: str, name: str, scans: set[str]) -> pd.DataFrame:
    """Mean density per participant and outcome: index ``participant_id, outcome, fold``, a column per group.

    A scan without a finite map is left out; a map that is 0 everywhere counts as it is.
    """
    made, outcome = [], cohort.outcome
    for scan in cohort.scans:
        if scan.scan_id in scans:
            values = density_of(rows, network, name, scan.scan_id)
            made.append([scan.participant_id, outcome[scan.scan_id], cohort.fold_of(scan), *values.tolist()])
    table = pd.DataFrame(made, columns=["participant_id", "outcome", "fold", *rows.groups])
    return table.groupby(["participant_id", "outcome", "fold"], sort=False).mean().dropna()


def density_of(rows: CohortMaps, network: str, name: str, scan_id: str) -> Floats:
    """Density of each group in a scan; NaN without a finite map."""
    sums = rows.sums.get((network, name), {}).get(scan_id)
    if sums is None:
        return np.full(len(rows.groups), np.nan)
    return np.divide(sums, rows.n_voxels, out=np.zeros(len(sums)), where=rows.n_voxels > 0)


def class_difference(table: pd.DataFrame, paired: bool) -> Floats:
    """Hedges' g of each group between the classes, with the fold held, or the person of planted copies.

    Where a number is predicted: the slope on it, per standard deviation, in the same unit.

    Parameters
    ----------
    table : pandas.DataFrame
        From `densities`.
    paired : bool
        Whether everyone has a copy of either class.
    """
    level = table.index.get_level_values("participant_id" if paired else "fold")
    outcome = table.index.get_level_values("outcome").to_numpy(float)
    return hedges_g(table.to_numpy(float), outcome, pd.factorize(level)[0], LEAST_SPREAD)


def is_paired(cohort: JudgedCohort) -> bool:
    return cohort.name.startswith(PLANTED)


def density_ratio(densities: Sequence[Floats], planted: Flags, other: Flags) -> float:
    """Mean |density| in another group over the mean |density| in planted groups; NaN without scans that have a map.

    Infinite where only the other group has something; NaN where neither has.

    Examples
    --------
    >>> density_ratio([np.array([2.0, -1.0, 0.0])], np.array([True, False, False]), np.array([False, True, False]))
    0.5
    """
    known = [one for one in densities if np.isfinite(one).all()]
    if not known:
        return float("nan")
    sizes = np.abs(np.stack(known))
    return ratio_of(float(sizes[:, other].mean()), float(sizes[:, planted].mean()))
