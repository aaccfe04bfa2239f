"""Maps of a cohort by one set of networks, and the ranking of regions that they give."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline.cohort.people.splits import Fold
from pipeline.evaluation.bench.cohorts import PLANTED, Judged
from pipeline.evaluation.bench.judging import Extent, Judge, gathered, those_judged
from pipeline.evaluation.bench.table import LEAST_SPREAD, Rows, densities
from pipeline.evaluation.nulls.networks import REAL
from pipeline.explaining.explanation import Explanation
from pipeline.regions.effect_size import hedges_g
from pipeline.run.work.digests import DigestCache
from pipeline.run.work.jobs import Job, Outcome

Floats = NDArray[np.float64]
MAPS_ALONE = Extent(0, False, False, False)
"""No null and no faithfulness: the maps of the true networks, and of no network."""


def map_jobs(cohort: Judged, explanations: tuple[Explanation, ...], digests: DigestCache, stage: str) -> list[Job]:
    """One unit per scan: its maps by the networks of the cohort, summed over regions.

    Parameters
    ----------
    stage : str
        Names receipts and failures, which are kept apart from those of other parts.
    """
    untold = dataclasses.replace(cohort, truth=None)  # regions are scored, voxels are not
    jobs = Judge(untold, explanations, MAPS_ALONE, digests).jobs()
    return [dataclasses.replace(job, stage=stage) for job in jobs]


def maps_of(cohort: Judged, explanations: Sequence[Explanation], outcomes: Sequence[Outcome]) -> tuple[Judged, Rows]:
    """The scans that were explained and their sums; raises as `those_judged`."""
    left = those_judged(cohort, outcomes)
    return left, gathered(left, [one for one in outcomes if one.ok], explanations)


def participant_densities(cohort: Judged, rows: Rows, name: str, network: str = REAL) -> pd.DataFrame:
    """Mean density per participant and class; see `pipeline.evaluation.bench.table.densities`."""
    return densities(cohort, rows, network, name, {scan.scan_id for scan in cohort.scans})


def class_difference(table: pd.DataFrame, paired: bool) -> Floats:
    """Hedges' g of each group between the classes, with the fold held, or the person of planted copies.

    Parameters
    ----------
    table : pandas.DataFrame
        From `participant_densities`.
    paired : bool
        Whether everyone has a copy of either class.
    """
    level = table.index.get_level_values("participant_id" if paired else "fold")
    positive = table.index.get_level_values("positive").to_numpy(bool)
    return hedges_g(table.to_numpy(float), positive, pd.factorize(level)[0], LEAST_SPREAD)


def is_paired(cohort: Judged) -> bool:
    return cohort.name.startswith(PLANTED)


def tested_folds(cohort: Judged) -> tuple[Fold, ...]:
    """Folds that have a network and people to test it."""
    used = {cohort.fold_of(scan) for scan in cohort.scans}
    return tuple(fold for fold in cohort.split.folds if fold.index in used)
