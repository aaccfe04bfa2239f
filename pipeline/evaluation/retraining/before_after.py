"""Before and after: what ``[objective]`` changed, by networks trained as long without its maps.

The control of a fold has the same people, seed and settings as the run's network, and weight 0: of guidance and
readable gradients the task alone remains, of distillation the answers of the teacher. Both are asked for the maps of
the test people of the fold.
"""

from __future__ import annotations

import dataclasses
import logging
from concurrent.futures import Executor

from heatlas.pipeline.evaluation.bench.trainings import trained
from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.evaluation.planting.mean_maps import write_pooled
from heatlas.pipeline.evaluation.retraining.before_after_table import (
    AFTER,
    BEFORE,
    BEFORE_AFTER_TABLE,
    MEASURED_TABLE,
    before_after_table,
)
from heatlas.pipeline.evaluation.retraining.before_after_unit import control_and_measures
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.work.digests import DigestCache, unit_key
from heatlas.pipeline.run.work.jobs import Job, Outcome
from heatlas.pipeline.training.objectives.explanations import facts_of
from heatlas.pipeline.training.stage import fold_job, registered_versions

log = logging.getLogger("heatlas")
STAGE = NAME = "objective"
NETWORKS = "objective-control"


def before_and_after(cohort: JudgedCohort, executor: Executor, digests: DigestCache) -> list[Outcome]:
    """Train the controls, measure all networks, write ``before_after.tsv`` and the mean maps.

    Raises
    ------
    UsageError
        Before any work: if the run was trained without maps.
    BadInputError
        If no control could be trained.
    """
    require_maps(cohort.config)
    spec, layout = configured_input(cohort.config), cohort.layout
    without = dataclasses.replace(cohort.config, objective=dataclasses.replace(cohort.config.objective, weight=0.0))
    controls = dataclasses.replace(layout, networks=NETWORKS)
    scans = cohort.labelled
    versions = registered_versions(layout, scans, cohort.config, digests)
    jobs = []
    for fold in cohort.tested_folds:
        base = fold_job(controls, fold, scans, spec, without, versions, prefix=f"{NETWORKS}_")
        own = fold_job(layout, fold, scans, spec, cohort.config, versions)
        files = controls.fold(fold.index)
        outputs = {**base.outputs, "measures": files.measures, "measures_columns": files.measures.with_suffix(".json")}
        outputs |= {training: files.mean_map(training) for training in (BEFORE, AFTER)}
        inputs = {"control": base.key, "run": digests.digest(own.outputs["weights"])}
        facts, digests_of_files = facts_of(cohort.config, fold)
        key = unit_key({**inputs, **digests_of_files}, [facts, cohort.config.regions.atlas], control_and_measures)
        jobs.append(
            Job(
                STAGE,
                base.unit,
                key,
                outputs,
                control_and_measures,
                (base.arguments[0], key, own.arguments[0]),
                on_gpu=True,
            )
        )
    digests.save()
    outcomes = trained(layout, jobs, executor, "training without maps")
    done = [one.job for one in outcomes if one.ok]
    if not done:
        raise BadInputError(f"training without maps: every network failed; see {layout.failures}.")
    measured = [MEASURED_TABLE.read(job.outputs["measures"]) for job in done]
    table = before_after_table(cohort.config.objective.kind, measured)
    BEFORE_AFTER_TABLE.write(layout, table)
    counts = [frame["participant_id"].nunique() for frame in measured]
    for training in (BEFORE, AFTER):
        folds = [(job.outputs[training], count) for job, count in zip(done, counts, strict=True)]
        write_pooled(layout.compared_map(NAME, training), folds, spec, f"Heatlas evaluation: mean map {training}")
    log.info("Before and after training with maps (%s):", cohort.config.objective.kind)
    for row in table.to_dict("records"):
        log.info(
            "  %s %.3f, then %.3f (%+.3f [%+.3f, %+.3f])",
            *(row[name] for name in ("measure", "before", "after", "change", "change_low", "change_high")),
        )
    return outcomes


def require_maps(config: Config) -> None:
    """Refuse a run whose training used no maps.

    Raises
    ------
    UsageError
    """
    if not config.objective.uses_maps:
        raise UsageError(
            "--parts objective compares networks trained with maps with networks trained without, and this run used "
            "none. Train one with heatlas run --preset guided or distilled, or set objective.kind."
        )
