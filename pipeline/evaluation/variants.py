"""Networks trained for the evaluation, beside those of the run: on its people and folds, with one change.

A `Variant` says the change: of the recipe, of the scans that a fold learns from, or of what is done in the same unit of
work besides training. All variants of a study are trained in one go. Each network has a folder and a receipt of its
own, so that a further call trains what is new alone.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from heatlas.pipeline.cohort.people.splits import Fold
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.work.digests import DigestCache, unit_key
from heatlas.pipeline.run.work.jobs import Job, Outcome, run_jobs
from heatlas.pipeline.training.stage import fold_job, registered_versions, remove_checkpoints

log = logging.getLogger("heatlas")


@dataclass(frozen=True, eq=False)
class Variant:
    """Networks of a cohort, one per fold, that differ from those of the run.

    `name`: folder of the networks, and the beginning of their units' names. `config`: recipe. `scans`: scans that a
    fold learns from and is tested on; None for all labelled ones. `wrap`: makes the training of a fold part of a unit
    that does more (`wrapped`). `folds`: indices of the folds that are trained; None for all. `repeat`: which training
    of a fold it is.
    """

    name: str
    config: Config
    scans: Callable[[Fold], Sequence[Scan]] | None = None
    wrap: Callable[[Job, Fold], Job] | None = None
    folds: Collection[int] | None = None
    repeat: int = 1


class Trained(NamedTuple):
    """What became of some variants; `jobs`: those that finished, by name of the variant and index of the fold."""

    outcomes: list[Outcome]
    jobs: Mapping[str, Mapping[int, Job]]


def trained(
    cohort: JudgedCohort, variants: Sequence[Variant], executor: Executor, digests: DigestCache, description: str
) -> Trained:
    """Train what is missing, remove the checkpoints of what finished, and warn of what failed."""
    planned = training_jobs(cohort, variants, digests)
    digests.save()
    jobs = [job for by_fold in planned.values() for job in by_fold.values()]
    outcomes = run_jobs(cohort.layout, jobs, executor, description) if jobs else []
    for outcome in outcomes:
        if outcome.ok:
            remove_checkpoints(outcome.job.arguments[0])
    failed = {outcome.job.unit for outcome in outcomes if not outcome.ok}
    if failed:
        log.warning(
            "%s: %d of %d networks failed; see %s", description, len(failed), len(outcomes), cohort.layout.failures
        )
    finished = {
        name: {fold: job for fold, job in by_fold.items() if job.unit not in failed}
        for name, by_fold in planned.items()
    }
    return Trained(outcomes, finished)


def training_jobs(cohort: JudgedCohort, variants: Sequence[Variant], digests: DigestCache) -> dict[str, dict[int, Job]]:
    """One unit of work per variant and fold that has a network of the run, by name and index."""
    versions: dict[bool, Mapping[str, str]] = {}  # of copies with other labels too: these are the same files
    planned: dict[str, dict[int, Job]] = {}
    for variant in variants:
        config, layout = variant.config, dataclasses.replace(cohort.layout, networks=variant.name)
        own_anatomy, spec = config.objective.own_anatomy, configured_input(config)
        if own_anatomy not in versions:
            versions[own_anatomy] = registered_versions(cohort.layout, cohort.labelled, config, digests)
        planned[variant.name] = {}
        for fold in cohort.tested_folds:
            if variant.folds is None or fold.index in variant.folds:
                scans = cohort.labelled if variant.scans is None else variant.scans(fold)
                known = versions[own_anatomy]
                job = fold_job(layout, fold, scans, spec, config, known, variant.repeat, prefix=f"{variant.name}_")
                planned[variant.name][fold.index] = job if variant.wrap is None else variant.wrap(job, fold)
    return planned


def wrapped(
    training: Job, stage: str, function: Callable[..., Any], outputs: Mapping[str, Path], arguments: Sequence[Any],
    facts: Sequence[Any], inputs: Mapping[str, str] | None = None,
) -> Job:  # fmt: skip
    """A unit that trains a fold and does more; its key is that of the training with what else it depends on.

    `function`: called with the outputs, the task of the training, the key of the unit, and the arguments. `facts`,
    `inputs`: parameters and digests of files that the unit depends on besides those of the training.
    """
    key = unit_key({"training": training.key, **(inputs or {})}, facts, function)
    return Job(stage, training.unit, key, outputs, function, (training.arguments[0], key, *arguments), on_gpu=True)
