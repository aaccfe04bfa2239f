"""Before and after: what ``[objective]`` changed, by networks trained as long without its maps.

The control of a fold has the same people, seed and settings as the run's network, and weight 0: what remains of
guidance and of readable gradients is the task alone, of distillation the answers of the teacher, and of attention
transfer the labels. Networks of further weights (``[evaluation] objective_weights``) are measured alike.

``objective_weights.tsv`` has accuracy and maps by the weight, and the weight chosen by the maps of the validation
people. Both count: Rao et al. 2023, sec. 5, keep what no other training dominates in F1, EPG and IoU, and show the
highest EPG that costs at most five points of F1. (Their code rounds values to .005 first; here none is rounded.)
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heatlas.atlases.catalogue import find_atlas
from heatlas.pipeline.cohort.people.splits import Fold
from heatlas.pipeline.evaluation.bench.part import Part
from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.evaluation.variants import Variant, trained, wrapped
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.jobs import Job, Outcome
from heatlas.pipeline.training.stage import facts_of
from heatlas.studies.before_after.measures import (
    AFTER,
    BEFORE,
    BEFORE_AFTER_TABLE,
    MEASURED_TABLE,
    MEASURES,
    TEST,
    VALIDATION,
    before_after_table,
    trained_and_measured,
)
from heatlas.studies.marker.marked import write_pooled
from heatlas.studies.objectives.maps_in_training import map_settings
from heatlas.studies.tables import declared

LARGEST_DROP = 0.05
"""Of accuracy that a choice may cost, as in the source."""
EQUAL = 1e-9
"""Difference of two accuracies that is rounding."""


def pareto_front(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which candidates no other one dominates: is at least as good in every measure, and better in one.

    `values`: (candidates, measures), higher is better; NaN, a measure that is not defined, is worse than any number. Of
    equal candidates, all or none. The set holds the best of each measure.

    Examples
    --------
    >>> pareto_front(np.array([[0.9, 0.1], [0.8, 0.6], [0.7, 0.5], [0.6, 0.7]])).tolist()
    [True, True, False, True]
    """
    known = np.where(np.isnan(values), -np.inf, values)
    no_worse = (known[:, None] >= known[None]).all(2)
    dominates = no_worse & (known[:, None] > known[None]).any(2)
    return np.asarray(~dominates.any(0))


def chosen(accuracy: NDArray[np.float64], maps: NDArray[np.float64], control: int, drop: float = LARGEST_DROP) -> int:
    """The member of the Pareto set with the best maps among those whose accuracy is at most `drop` below the control.

    All values are those of a validation part that is distributed as the training part: a choice by the shift that a
    test looks for would leak it. The control itself may be chosen. Maps alone must never choose: a network that finds
    one class only can have the best.

    `accuracy`: (candidates,). `maps`: (candidates, measures); the first decides, and among equal ones the first
    candidate. `control`: place of the control, trained as long without maps.

    Examples
    --------
    >>> chosen(np.array([0.9, 0.87, 0.5]), np.array([[0.1, 0.1], [0.6, 0.1], [0.9, 0.1]]), control=0)
    1
    """
    allowed = pareto_front(np.column_stack([accuracy, maps])) & (accuracy >= accuracy[control] - drop - EQUAL)
    allowed[control] |= not allowed.any()
    deciding = np.nan_to_num(maps[:, 0], nan=np.finfo(float).min)
    return int(np.where(allowed, deciding, -np.inf).argmax())


OF_MAPS: Mapping[str, Sequence[str]] = {
    "guided": ("epg", "iou"),
    "distilled": ("teacher_cosine", "agrees"),
    "readable-gradients": ("guided_cosine",),
}
"""Measures that a weight of each kind of objective is chosen by, besides accuracy; the first decides."""
OBJECTIVE_WEIGHTS_TABLE = declared("objective_weights", **MEASURES)


def measures_of_weights(
    measured: Mapping[float, Sequence[pd.DataFrame]], of_run: float
) -> dict[tuple[float, bool], pd.DataFrame]:
    """`MEASURED_TABLE` of all folds by weight, and whether it is that of the run, which the control's tables hold."""
    frames = {(weight, False): pd.concat(folds, ignore_index=True) for weight, folds in measured.items()}
    control = frames[0.0, False]
    after = control["training"] == AFTER
    return frames | {(0.0, False): control[~after], (of_run, True): control[after]}


def objective_weights_table(
    objective: str, measured: Mapping[tuple[float, bool], pd.DataFrame], labels: Mapping[str, str]
) -> pd.DataFrame:
    """One row per weight, from 0 up.

    Accuracy is balanced: where classes are unequal, a network that finds one class only would cost little otherwise.
    `measured`: from `measures_of_weights`; weight 0 is among them. `labels`: class of each participant.
    """
    rows = []
    for (weight, of_run), frame in sorted(measured.items(), key=lambda one: one[0]):
        row: dict[str, object] = {"weight": weight, "of_run": of_run}
        for part, count in ((VALIDATION, "n_validation"), (TEST, "n_participants")):
            of_part = frame[frame["part"] == part]
            right = of_part[of_part["measure"] == "correct"]
            row[count] = len(right)
            of_classes = right["value"].astype(float).groupby(right["participant_id"].map(labels)).mean()
            row[f"{part}_balanced_accuracy"] = float(of_classes.mean())
            # without people who have no value
            means = of_part["value"].astype(float).groupby(of_part["measure"]).mean()
            row |= {f"{part}_{name}": float(means.get(name, np.nan)) for name in OF_MAPS[objective]}
        rows.append(row)
    table = OBJECTIVE_WEIGHTS_TABLE.frame(rows)
    names = [f"validation_{name}" for name in ("balanced_accuracy", *OF_MAPS[objective])]
    values = table[names].to_numpy(float)
    table["in_pareto_set"] = pareto_front(values)
    table["chosen"] = np.arange(len(table)) == chosen(values[:, 0], values[:, 1:], control=0)
    return table


log = logging.getLogger("heatlas")
STAGE = NAME = "objective"
NETWORKS = "objective-control"


def before_and_after(cohort: JudgedCohort, executor: Executor, digests: DigestCache) -> list[Outcome]:
    """Train controls and further weights, measure all networks, write the tables and the mean maps."""
    require_maps(cohort.config)
    config, layout, spec = cohort.config, cohort.layout, configured_input(cohort.config)
    variants = {weight: _variant(cohort, weight, digests) for weight in trained_weights(config)}
    described = "training with other weights of maps" if len(variants) > 1 else "training without maps"
    networks = trained(cohort, list(variants.values()), executor, digests, described)
    jobs = {weight: list(networks.jobs[variant.name].values()) for weight, variant in variants.items()}
    if not jobs[0.0]:
        raise BadInputError(f"training without maps: every network failed; see {layout.failures}.")
    measured = {weight: [MEASURED_TABLE.read(one.outputs["measures"]) for one in made] for weight, made in jobs.items()}
    table = before_after_table(config.objective.kind, measured[0.0])
    BEFORE_AFTER_TABLE.write(layout, table)
    counts = [frame.loc[frame["part"] == TEST, "participant_id"].nunique() for frame in measured[0.0]]
    for training in (BEFORE, AFTER):
        folds = [(job.outputs[training], count) for job, count in zip(jobs[0.0], counts, strict=True)]
        write_pooled(layout.compared_map(NAME, training), folds, spec, f"Heatlas evaluation: mean map {training}")
    log.info("Before and after training with maps (%s):", config.objective.kind)
    for row in table.to_dict("records"):
        log.info(
            "  %s %.3f, then %.3f (%+.3f [%+.3f, %+.3f])",
            *(row[name] for name in ("measure", "before", "after", "change", "change_low", "change_high")),
        )
    whole = {weight: measured[weight] for weight in variants if len(jobs[weight]) == len(cohort.tested_folds)}
    OBJECTIVE_WEIGHTS_TABLE.remove(layout)  # of an earlier call, with other weights
    if config.evaluation.objective_weights and 0.0 in whole:  # of other folds a mean is of other people
        labels = {scan.participant_id: str(scan.label) for scan in reversed(cohort.labelled)}
        by_weight = measures_of_weights(whole, map_settings(config).weight)
        weights = objective_weights_table(config.objective.kind, by_weight, labels)
        OBJECTIVE_WEIGHTS_TABLE.write(layout, weights)
        log.info("Weight chosen on the validation parts: %g", weights.loc[weights["chosen"], "weight"].iloc[0])
    return networks.outcomes


def trained_weights(config: Config) -> list[float]:
    return sorted({0.0, *config.evaluation.objective_weights} - {map_settings(config).weight})


def _variant(cohort: JudgedCohort, weight: float, digests: DigestCache) -> Variant:
    """Networks with a weight, and their measures; with weight 0 the network of the run is measured as well."""
    training, networks = (str(weight), f"objective-weight-{weight}") if weight else (BEFORE, NETWORKS)
    config = dataclasses.replace(cohort.config, objective=dataclasses.replace(cohort.config.objective, weight=weight))

    def measured(job: Job, fold: Fold) -> Job:
        of_run = None if weight else cohort.layout.fold(fold.index)
        files = job.arguments[0].layout.fold(fold.index)
        outputs = {**job.outputs, "measures": files.measures, "measures_columns": files.measures.with_suffix(".json")}
        outputs |= {name: files.mean_map(name) for name in (training, *([AFTER] if of_run else []))}
        facts, digests_of_files = facts_of(config, fold)
        inputs = ({"run": digests.digest(of_run.weights)} if of_run else {}) | dict(digests_of_files)
        facts_of_key = [facts, find_atlas(config.regions.atlas).digest]
        return wrapped(job, STAGE, trained_and_measured, outputs, (training, of_run), facts_of_key, inputs)

    return Variant(networks, config, wrap=measured)


def require_maps(config: Config) -> None:
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


PART = Part(
    "objective", "networks trained with maps and without", tables=(BEFORE_AFTER_TABLE, OBJECTIVE_WEIGHTS_TABLE),
    trains=True, require=lambda _, config: require_maps(config),
    run=lambda bench, cohort: before_and_after(cohort, bench.executor, bench.digests),
)  # fmt: skip
