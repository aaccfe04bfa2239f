"""``--parts marker``: every scan with and without a bright block, and networks that could use it as a shortcut.

The people and folds are those of the run. Whoever trains or selects a network has one copy, with the marker nearly
always in the positive class; whoever is tested has both. Networks learn the diagnosis, and in the reversed task the
marker; each with guidance, and without it for as long. (Rao et al. 2023, after Waterbirds-100 of Petryk et al. 2022.)
Where a run is distilled, its teacher teaches the diagnosis, with its maps and without; nobody can teach the marker.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path

import numpy as np
import torch

from heatlas.atlases.catalogue import find_atlas
from heatlas.pipeline.cohort.people.splits import Fold
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.evaluation.bench.part import Part
from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.evaluation.planting.copies import require_masks_of_copies
from heatlas.pipeline.evaluation.scores.map_scores import MARKER_OFFSET
from heatlas.pipeline.evaluation.variants import Variant, trained, wrapped
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.run.config.networks import ObjectiveConfig
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout
from heatlas.pipeline.run.work.digests import DigestCache, file_digest, unit_key
from heatlas.pipeline.run.work.jobs import Job, Outcome, run_jobs
from heatlas.pipeline.training.objectives.known_networks import without_other_runs
from heatlas.pipeline.training.objectives.records import kind_of
from heatlas.studies.marker.marked import (
    MARKED,
    MARKER_MM,
    NAME,
    PLAIN,
    STAGE,
    mark_scan,
    train_and_measure,
    write_pooled,
)
from heatlas.studies.marker.marker_groups import DIAGNOSIS, MARKER_TABLE, REVERSED, marker_row, read_answers, tied_marks
from heatlas.studies.objectives.guidance import BRAIN
from heatlas.studies.objectives.maps_in_training import map_settings

CONTROL, GUIDED, TAUGHT = "control", "guided", "distilled"


def marker_cohort(cohort: JudgedCohort, executor: Executor, digests: DigestCache) -> list[Outcome]:
    """Write the copies, train and test all networks, and write ``marker_groups.tsv`` and the mean maps.

    Before any work, refuses an objective whose mask does not fit.
    """
    require_masks_of_copies(cohort.config)
    spec = configured_input(cohort.config)
    with_maps = training_with_maps(cohort.config)
    tasks = (DIAGNOSIS,) if with_maps == TAUGHT else (DIAGNOSIS, REVERSED)
    recipes = {(task, kind): recipe_of(cohort.config, task, kind) for task in tasks for kind in (CONTROL, with_maps)}
    for config in recipes.values():
        for fold in cohort.tested_folds:
            kind_of(config).context(config, task_of(config.cohort), spec, fold, (), torch.device("cpu"), None)
    copies = dataclasses.replace(cohort.layout, images=NAME)
    people = _people(cohort)
    copied = run_jobs(cohort.layout, copying_jobs(cohort, copies, people, digests), executor, "planting the marker")
    if not all(outcome.ok for outcome in copied):
        raise BadInputError(f"the marker could not be planted in every scan; see {cohort.layout.failures}.")
    of_class = [scan.label == cohort.config.cohort.positive for scan in people]
    positive = {scan.participant_id: label for scan, label in zip(people, of_class, strict=True)}
    marks = tied_marks(np.array(of_class), cohort.config.seed)
    tied = {scan.participant_id: bool(mark) for scan, mark in zip(people, marks, strict=True)}

    def both_copies(task: str) -> tuple[Scan, ...]:
        return tuple(copy_of(scan, which, task) for scan in people for which in (PLAIN, MARKED))

    def variant(task: str, kind: str) -> Variant:
        guidance, scans = recipes[task, with_maps].objective, both_copies(task)
        name, recipe = f"{NAME}_{task}_{kind}", recipes[task, kind]
        return Variant(name, recipe, lambda fold: _seen(scans, fold, tied), lambda job, _: _measured(job, guidance))

    marked = dataclasses.replace(cohort, layout=copies, labelled=both_copies(DIAGNOSIS))
    networks = trained(marked, [variant(*recipe) for recipe in recipes], executor, digests, "training with a marker")
    rows = []
    for task in tasks:
        answers = {}
        for kind in (CONTROL, with_maps):
            jobs = networks.jobs[f"{NAME}_{task}_{kind}"].values()
            answers[kind] = read_answers([job.outputs["measures"] for job in jobs])
            folds = [(job.outputs["mean_map"], len(read_answers([job.outputs["measures"]])) // 2) for job in jobs]
            path = cohort.layout.compared_map(f"{NAME}_{task}", kind)
            write_pooled(path, folds, spec, f"Heatlas evaluation: mean map, {kind}")
        for kind, measured in answers.items():
            weight = map_settings(recipes[task, kind]).weight
            rows += [marker_row(task, kind, measured, answers[CONTROL], weight, positive)] if len(measured) else []
    if not rows:
        raise BadInputError(f"training with a marker: every network failed; see {cohort.layout.failures}.")
    MARKER_TABLE.write(cohort.layout, rows)
    return copied + networks.outcomes


def training_with_maps(config: Config) -> str:
    """What is compared with the control: networks taught by the teacher of the run where it has one, else guided."""
    return TAUGHT if config.objective.kind == "distilled" and config.objective.uses_maps else GUIDED


def recipe_of(config: Config, task: str, kind: str) -> Config:
    """Settings of one of the trainings: those of the run, or usual guidance where it has no maps; weight 0 without."""
    objective = config.objective
    if objective.kind not in ("guided", "distilled") or objective.weight == 0:
        objective = ObjectiveConfig(kind="guided")
    if task == REVERSED:
        objective = dataclasses.replace(
            objective, classes=(), mask="", regions=(BRAIN,), outside=True, boxes=False, dilate_voxels=0
        )
    if kind == CONTROL:
        objective = dataclasses.replace(objective, weight=0.0)
    cohort = dataclasses.replace(config.cohort, classes=(), target="", shuffle_labels=False)
    if task == REVERSED:
        cohort = dataclasses.replace(cohort, contrast_column=NAME, negative=PLAIN, positive=MARKED)
    return dataclasses.replace(without_other_runs(config), objective=objective, cohort=cohort)


def copy_of(scan: Scan, which: str, task: str) -> Scan:
    label, scan_id = which if task == REVERSED else scan.label, f"{scan.participant_id}_{which}"
    return dataclasses.replace(scan, session_id=f"ses-{which}", scan_id=scan_id, image=None, label=label)


def _people(cohort: JudgedCohort) -> tuple[Scan, ...]:
    """The first labelled scan of everybody in a fold, in the order of their names."""
    firsts: dict[str, Scan] = {}
    members = {who for fold in cohort.tested_folds for who in (*fold.train, *fold.validation, *fold.test)}
    for scan in sorted(cohort.labelled, key=lambda one: one.place):
        if scan.participant_id in members and scan.label in cohort.config.cohort.labels:
            firsts.setdefault(scan.participant_id, scan)
    return tuple(firsts[name] for name in sorted(firsts))


def _seen(scans: Sequence[Scan], fold: Fold, tied: Mapping[str, bool]) -> tuple[Scan, ...]:
    """One copy of each person a fold trains or selects with, both copies of each person it tests."""
    return tuple(
        scan
        for scan in scans
        if scan.participant_id in fold.test or (scan.session_id == f"ses-{MARKED}") == tied[scan.participant_id]
    )


def copying_jobs(
    cohort: JudgedCohort, copies: EvaluationLayout, people: Sequence[Scan], digests: DigestCache
) -> list[Job]:
    spec, jobs = configured_input(cohort.config), []
    for scan in people:
        source = cohort.layout.scan(scan.participant_id, scan.session_id, spec.resolution_mm)
        outputs: dict[str, Path] = {}
        for which in (PLAIN, MARKED):
            files = copies.scan(scan.participant_id, f"ses-{which}", spec.resolution_mm)
            outputs |= {f"{which}_t1w": files.image, f"{which}_mask": files.brain_mask}
        inputs = {"seen": digests.joined(source.seen)}
        start = None if spec.box is None else spec.box.start
        key = unit_key(inputs, [start, spec.resolution_mm, MARKER_MM, MARKER_OFFSET], mark_scan)
        jobs.append(Job(STAGE, f"{NAME}_{scan.participant_id}", key, outputs, mark_scan, (source, spec)))
    return jobs


def _measured(training: Job, guidance: ObjectiveConfig) -> Job:
    """The training of a fold, followed by measures of the maps of its test part."""
    task = training.arguments[0]
    files = task.layout.fold(task.fold.index)
    outputs = {**training.outputs, "measures": files.measures, "measures_columns": files.measures.with_suffix(".json")}
    outputs["mean_map"] = files.mean_map("marked")
    places = dataclasses.replace(guidance, mask="", teacher="", scans="")
    facts = [places, find_atlas(task.config.regions.atlas).digest]
    mask = {"mask": file_digest(Path(guidance.mask))} if guidance.mask else {}
    return wrapped(training, STAGE, train_and_measure, outputs, (guidance,), facts, mask)


PART = Part(
    "marker", "a scanner marker that goes with the diagnosis in training only", tables=(MARKER_TABLE,), trains=True,
    run=lambda bench, cohort: marker_cohort(cohort, bench.executor, bench.digests),
)  # fmt: skip
