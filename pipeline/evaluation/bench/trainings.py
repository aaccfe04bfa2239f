"""Networks trained for the evaluation, beside those of the run."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Executor

from heatlas.pipeline.run.layout.run_layout import EvaluationLayout
from heatlas.pipeline.run.work.jobs import Job, Outcome, run_jobs
from heatlas.pipeline.training.stage import remove_checkpoints

log = logging.getLogger("heatlas")


def trained(layout: EvaluationLayout, jobs: Sequence[Job], executor: Executor, description: str) -> list[Outcome]:
    """Run trainings, remove the checkpoints of those that finished, and warn of those that failed."""
    outcomes = run_jobs(layout, jobs, executor, description) if jobs else []
    for one in outcomes:
        if one.ok:
            remove_checkpoints(one.job.arguments[0])
    failed = sum(not one.ok for one in outcomes)
    if failed:
        log.warning("%s: %d of %d networks failed; see %s", description, failed, len(outcomes), layout.failures)
    return outcomes
