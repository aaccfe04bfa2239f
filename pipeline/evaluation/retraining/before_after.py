"""Before and after: what ``[objective]`` changed, by networks trained as long without its maps.

The control of a fold has the same people, seed and settings as the run's network, and weight 0: what remains of
guidance and of readable gradients is the task alone, of distillation the answers of the teacher, and of attention
transfer the labels. Both are asked for the maps of the test people of the fold. So are networks of further weights
(``[evaluation] objective_weights``), one of which is chosen by the maps of the validation people.
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
    TEST,
    before_after_table,
)
from heatlas.pipeline.evaluation.retraining.before_after_unit import trained_and_measured
from heatlas.pipeline.evaluation.retraining.weights_table import (
    OBJECTIVE_WEIGHTS_TABLE,
    measures_of_weights,
    objective_weights_table,
)
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.work.digests import DigestCache, unit_key
from heatlas.pipeline.run.work.jobs import Job, Outcome
from heatlas.pipeline.training.objectives.explanations import facts_of
from heatlas.pipeline.training.objectives.map_settings import map_settings
from heatlas.pipeline.training.stage import fold_job, registered_versions

log = logging.getLogger("heatlas")
STAGE = NAME = "objective"
NETWORKS = "objective-control"


def before_and_after(cohort: JudgedCohort, executor: Executor, digests: DigestCache) -> list[Outcome]:
    """Train controls and further weights, measure all networks, write the tables and the mean maps.

    Raises
    ------
    UsageError
        Before any work: if the run was trained without maps.
    BadInputError
        If no control could be trained.
    """
    require_maps(cohort.config)
    config, layout, spec = cohort.config, cohort.layout, configured_input(cohort.config)
    jobs = {weight: _jobs(cohort, weight, digests) for weight in trained_weights(config)}
    digests.save()
    described = "training with other weights of maps" if len(jobs) > 1 else "training without maps"
    outcomes = trained(layout, [job for own in jobs.values() for job in own], executor, described)
    finished = {one.job.unit for one in outcomes if one.ok}
    done = {weight: [job for job in own if job.unit in finished] for weight, own in jobs.items()}
    if not done[0.0]:
        raise BadInputError(f"training without maps: every network failed; see {layout.failures}.")
    measured = {weight: [MEASURED_TABLE.read(job.outputs["measures"]) for job in own] for weight, own in done.items()}
    table = before_after_table(config.objective.kind, measured[0.0])
    BEFORE_AFTER_TABLE.write(layout, table)
    counts = [frame.loc[frame["part"] == TEST, "participant_id"].nunique() for frame in measured[0.0]]
    for training in (BEFORE, AFTER):
        folds = [(job.outputs[training], count) for job, count in zip(done[0.0], counts, strict=True)]
        write_pooled(layout.compared_map(NAME, training), folds, spec, f"Heatlas evaluation: mean map {training}")
    log.info("Before and after training with maps (%s):", config.objective.kind)
    for row in table.to_dict("records"):
        log.info(
            "  %s %.3f, then %.3f (%+.3f [%+.3f, %+.3f])",
            *(row[name] for name in ("measure", "before", "after", "change", "change_low", "change_high")),
        )
    whole = {weight: measured[weight] for weight, own in jobs.items() if len(done[weight]) == len(own)}
    OBJECTIVE_WEIGHTS_TABLE.remove(layout)  # of an earlier call, with other weights
    if config.evaluation.objective_weights and 0.0 in whole:  # of other folds a mean is of other people
        labels = {scan.participant_id: str(scan.label) for scan in reversed(cohort.labelled)}
        by_weight = measures_of_weights(whole, map_settings(config).weight)
        weights = objective_weights_table(config.objective.kind, by_weight, labels)
        OBJECTIVE_WEIGHTS_TABLE.write(layout, weights)
        log.info("Weight chosen on the validation parts: %g", weights.loc[weights["chosen"], "weight"].iloc[0])
    return outcomes


def trained_weights(config: Config) -> list[float]:
    """0, and the further weights that are asked for; those of the run are trained."""
    return sorted({0.0, *config.evaluation.objective_weights} - {map_settings(config).weight})


def _jobs(cohort: JudgedCohort, weight: float, digests: DigestCache) -> list[Job]:
    """One training and its measures per fold; with weight 0 the network of the run is measured as well."""
    spec, layout, scans = configured_input(cohort.config), cohort.layout, cohort.labelled
    name, networks = (str(weight), f"objective-weight-{weight}") if weight else (BEFORE, NETWORKS)
    config = dataclasses.replace(cohort.config, objective=dataclasses.replace(cohort.config.objective, weight=weight))
    others = dataclasses.replace(layout, networks=networks)
    versions = registered_versions(layout, scans, config, digests)
    jobs = []
    for fold in cohort.tested_folds:
        base = fold_job(others, fold, scans, spec, config, versions, prefix=f"{networks}_")
        own = None if weight else layout.fold(fold.index)
        files = others.fold(fold.index)
        outputs = {**base.outputs, "measures": files.measures, "measures_columns": files.measures.with_suffix(".json")}
        outputs |= {training: files.mean_map(training) for training in (name, *([AFTER] if own else []))}
        inputs = {"training": base.key} | ({"run": digests.digest(own.weights)} if own else {})
        facts, digests_of_files = facts_of(config, fold)
        key = unit_key({**inputs, **digests_of_files}, [facts, config.regions.atlas], trained_and_measured)
        arguments = (base.arguments[0], key, name, own)
        jobs.append(Job(STAGE, base.unit, key, outputs, trained_and_measured, arguments, on_gpu=True))
    return jobs


def require_maps(config: Config) -> None:
    """Refuse a run whose training used no maps, and weights of maps that have none.

    Raises
    ------
    UsageError
    """
    if not config.objective.uses_maps:
        raise UsageError(
            "--parts objective compares networks trained with maps with networks trained without, and this run used "
            "none. Train one with heatlas run --preset guided or distilled, or set objective.kind."
        )
    if config.objective.guided_alone and config.evaluation.objective_weights:
        raise UsageError(
            "evaluation.objective_weights: networks that learn by guided gradients alone (objective.guided_alone) have "
            "no weight of maps. Leave the weights out."
        )
