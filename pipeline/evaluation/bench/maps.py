"""Maps of a cohort by its true networks, summed over regions: units of work, and what they found."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pandas as pd

from heatlas.pipeline.evaluation.bench.densities import Rows, densities
from heatlas.pipeline.evaluation.bench.judging import Extent, Judge, gathered, those_judged
from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.evaluation.nulls.networks import REAL
from heatlas.pipeline.explaining.explanation import Explanation
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.jobs import Job, Outcome


def map_jobs(
    cohort: JudgedCohort, explanations: tuple[Explanation, ...], digests: DigestCache, stage: str
) -> list[Job]:
    """One unit per scan: its maps by the networks of the cohort, summed over regions.

    Parameters
    ----------
    stage : str
        Names receipts and failures, which are kept apart from those of other parts.
    """
    untold = dataclasses.replace(cohort, truth=None)  # regions are scored, voxels are not
    jobs = Judge(untold, explanations, Extent(), digests).jobs()
    return [dataclasses.replace(job, stage=stage) for job in jobs]


def maps_of(
    cohort: JudgedCohort, explanations: Sequence[Explanation], outcomes: Sequence[Outcome]
) -> tuple[JudgedCohort, Rows]:
    """The scans that were explained and their sums; raises as `those_judged`."""
    left = those_judged(cohort, outcomes)
    return left, gathered(left, [one for one in outcomes if one.ok], explanations)


def participant_densities(cohort: JudgedCohort, rows: Rows, name: str, network: str = REAL) -> pd.DataFrame:
    """Mean density per participant and class; see `pipeline.evaluation.bench.densities.densities`."""
    return densities(cohort, rows, network, name, {scan.scan_id for scan in cohort.scans})
