"""The marker cohort: every scan with and without a bright block, and networks that could use it as a shortcut.

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
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from heatlas.atlases.spaces import write_template_image
from heatlas.pipeline.cohort.people.splits import Fold
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.evaluation.bench.trainings import trained
from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.evaluation.marker import MARKER_OFFSET, with_marker
from heatlas.pipeline.evaluation.planting.copies import read_registered, require_masks_of_copies
from heatlas.pipeline.evaluation.scores.overlap import best_threshold
from heatlas.pipeline.models.inputs import NetworkInput, configured_input, read_network_volume
from heatlas.pipeline.models.storage import load_model
from heatlas.pipeline.run.config.images import DEFAULT_TEMPLATE
from heatlas.pipeline.run.config.networks import ObjectiveConfig
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout, FoldFiles
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.work.digests import DigestCache, unit_key
from heatlas.pipeline.run.work.jobs import Job, Outcome, run_jobs
from heatlas.pipeline.training.objectives.known_networks import without_other_runs
from heatlas.pipeline.training.objectives.records import kind_of
from heatlas.pipeline.training.stage import FoldTask, fold_job, registered_versions, train_fold
from heatlas.studies.marker.marker_groups import (
    DIAGNOSIS,
    REVERSED,
    MarkerMasks,
    map_measures,
    tied_marks,
)
from heatlas.studies.marker.marker_table import MARKER_TABLE, MEASURES_TABLE, marker_row, read_answers
from heatlas.studies.marker.mean_maps import MeanEnergyMap, write_pooled
from heatlas.studies.objectives.guidance import BRAIN, mask_of, own_mask
from heatlas.studies.objectives.maps_in_training import explained_batch, map_settings

STAGE = NAME = "marker"
PLAIN, MARKED = "plain", "marked"
MARKER_MM = 24.0
"""Edge of the block, as a vitamin capsule or a coil artefact; small networks did not use a block of half this edge."""
CONTROL, GUIDED, TAUGHT = "control", "guided", "distilled"


def marker_cohort(cohort: JudgedCohort, executor: Executor, digests: DigestCache) -> list[Outcome]:
    """Write the copies, train and test all networks, and write ``marker_groups.tsv`` and the mean maps.

    Raises UsageError before any work: for an objective whose mask does not fit. Raises BadInputError if a copy could
    not be written, or no network of a task was trained.
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
    made = run_jobs(cohort.layout, copying_jobs(cohort, copies, people, digests), executor, "planting the marker")
    if not all(one.ok for one in made):
        raise BadInputError(f"the marker could not be planted in every scan; see {cohort.layout.failures}.")
    positive = np.array([scan.label == cohort.config.cohort.positive for scan in people])
    marks = tied_marks(positive, cohort.config.seed)
    tied = {scan.participant_id: bool(mark) for scan, mark in zip(people, marks, strict=True)}
    jobs: dict[tuple[str, str], list[Job]] = {}
    for (task, kind), config in recipes.items():
        layout = dataclasses.replace(copies, networks=f"{NAME}_{task}_{kind}")
        guidance = recipes[task, with_maps].objective
        scans = tuple(copy_of(scan, which, task) for scan in people for which in (PLAIN, MARKED))
        versions = registered_versions(copies, scans, config, digests)
        jobs[task, kind] = [
            _training(layout, fold, _seen(scans, fold, tied), spec, config, versions, guidance)
            for fold in cohort.tested_folds
        ]
    digests.save()
    outcomes = trained(cohort.layout, [job for own in jobs.values() for job in own], executor, "training with a marker")
    done = {one.job.unit for one in outcomes if one.ok}
    diagnosis = {scan.participant_id: bool(one) for scan, one in zip(people, positive, strict=True)}
    rows = []
    for task in tasks:
        finished = {kind: [job for job in jobs[task, kind] if job.unit in done] for kind in (CONTROL, with_maps)}
        answers = {kind: read_answers([job.outputs["measures"] for job in own]) for kind, own in finished.items()}
        for kind, own in finished.items():
            folds = [(job.outputs["mean_map"], len(read_answers([job.outputs["measures"]])) // 2) for job in own]
            path = cohort.layout.compared_map(f"{NAME}_{task}", kind)
            write_pooled(path, folds, spec, f"Heatlas evaluation: mean map, {kind}")
        rows += [
            marker_row(task, kind, answers[kind], answers[CONTROL], map_settings(recipes[task, kind]).weight, diagnosis)
            for kind in (CONTROL, with_maps)
            if len(answers[kind])
        ]
    if not rows:
        raise BadInputError(f"training with a marker: every network failed; see {cohort.layout.failures}.")
    MARKER_TABLE.write(cohort.layout, rows)
    return made + outcomes


def training_with_maps(config: Config) -> str:
    """What is compared with the control: networks taught by the teacher of the run where it has one, else guided."""
    return TAUGHT if config.objective.kind == "distilled" and config.objective.uses_maps else GUIDED


def recipe_of(config: Config, task: str, kind: str) -> Config:
    """Settings of one of the trainings: those of the run, or usual guidance where it has no maps; weight 0 without."""
    objective = config.objective
    if objective.kind not in ("guided", "distilled") or objective.weight == 0:
        objective = ObjectiveConfig(kind="guided")
    if task == REVERSED:
        background: dict[str, Any] = {
            "mask": "",
            "regions": (BRAIN,),
            "outside": True,
            "boxes": False,
            "dilate_voxels": 0,
        }
        objective = dataclasses.replace(objective, classes=(), **background)
    if kind == CONTROL:
        objective = dataclasses.replace(objective, weight=0.0)
    cohort = dataclasses.replace(config.cohort, classes=(), target="", shuffle_labels=False)
    if task == REVERSED:
        cohort = dataclasses.replace(cohort, contrast_column=NAME, negative=PLAIN, positive=MARKED)
    return dataclasses.replace(without_other_runs(config), objective=objective, cohort=cohort)


def copy_of(scan: Scan, which: str, task: str) -> Scan:
    """The scan record of a copy, with the label of the task."""
    return dataclasses.replace(
        scan, session_id=f"ses-{which}", scan_id=f"{scan.participant_id}_{which}", image=None,
        label=which if task == REVERSED else scan.label,
    )  # fmt: skip


def block(spec: NetworkInput) -> NDArray[np.bool_]:
    """Where the marker is, on the template grid: near a corner of what networks see."""
    grid = spec.template_grid
    edge = max(round(MARKER_MM / spec.resolution_mm), 1)
    start = (0, 0, 0) if spec.box is None else spec.box.start
    found = np.zeros(grid.shape, bool)
    found[tuple(slice(first + MARKER_OFFSET, first + MARKER_OFFSET + edge) for first in start)] = True
    return found


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
    """One unit per person, which writes both copies and their masks."""
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


def mark_scan(outputs: Mapping[str, Path], source: ScanFiles, spec: NetworkInput) -> Mapping[str, Any]:
    """Write both copies of a scan; the function of a `Job`. The brain itself is never covered."""
    grid = spec.template_grid
    volume, brain = read_registered(source, grid)
    for which, (copied, mask) in {
        PLAIN: (volume, brain),
        MARKED: with_marker(volume, brain, block(spec) & ~brain),
    }.items():
        title = f"Heatlas evaluation: {which} copy of a scan"
        write_template_image(outputs[f"{which}_t1w"], copied, grid, title)
        write_template_image(outputs[f"{which}_mask"], mask, grid, title)
    return {"marker_mm": MARKER_MM}


def _training(
    layout: EvaluationLayout, fold: Fold, scans: Sequence[Scan], spec: NetworkInput, config: Config,
    versions: Mapping[str, str], guidance: ObjectiveConfig,
) -> Job:  # fmt: skip
    """The training of a fold, followed by measures of the maps of its test part."""
    base = fold_job(layout, fold, scans, spec, config, versions, prefix=f"{layout.networks}_")
    measures = layout.fold(fold.index).measures
    outputs = {**base.outputs, "measures": measures, "measures_columns": measures.with_suffix(".json")}
    outputs["mean_map"] = layout.fold(fold.index).mean_map("marked")
    places = dataclasses.replace(guidance, teacher="", scans="")
    key = unit_key({"training": base.key}, [places, config.regions.atlas], train_and_measure)
    return Job(STAGE, base.unit, key, outputs, train_and_measure, (base.arguments[0], key, guidance), on_gpu=True)


def train_and_measure(
    outputs: dict[str, Path], task: FoldTask, key: str, guidance: ObjectiveConfig
) -> Mapping[str, Any]:
    """Train one fold and measure the maps of the true class of its test people; the function of a `Job`."""
    own = ("measures", "measures_columns", "mean_map")
    facts = train_fold({name: path for name, path in outputs.items() if name not in own}, task, key)
    loaded = load_model(FoldFiles(outputs["weights"].parent))
    settings = task.config
    places, rows = places_of(guidance, settings.regions.atlas, task.spec, settings.registration.template), []
    mean = MeanEnergyMap(task.spec)
    device = torch.device("cpu")
    teacher = task.besides.context(settings, task.task, task.spec, task.fold, (), device, None).teacher

    def explained(scan: Scan) -> tuple[NDArray[np.floating], bool, bool | None]:
        """The map of the true class, whether it is found, and whether the class found is that of the teacher."""
        files = task.layout.scan(scan.participant_id, scan.session_id, task.spec.resolution_mm)
        volume = torch.from_numpy(read_network_volume(files, task.spec))[None, None]
        target = int(task.task.value(scan.label, scan.name))
        found = explained_batch(loaded.model, volume, torch.tensor([target]), "input-x-gradient", 0, learning=False)
        answer = int(found.logits.argmax(1).item())
        agrees = None if teacher is None else answer == int(teacher(volume).argmax(1).item())
        return found.maps[0].detach().numpy(), answer == target, agrees

    held_out = [explained(scan)[0] for scan in task.part(task.fold.validation)]
    threshold = best_threshold(held_out, [places.mask] * len(held_out))
    for scan in task.part(task.fold.test):
        values, correct, agrees = explained(scan)
        marked = scan.session_id == f"ses-{MARKED}"
        if marked:
            mean.add(values)
        rows.append([scan.participant_id, marked, correct, agrees, *map_measures(values, places, threshold).values()])
    mean.write(outputs["mean_map"], "Heatlas evaluation: mean map of copies with the marker")
    MEASURES_TABLE.write(outputs["measures"], rows)
    return facts


def places_of(
    guidance: ObjectiveConfig, atlas: str, spec: NetworkInput, template: str = DEFAULT_TEMPLATE
) -> MarkerMasks:
    """Mask before dilation, its boxes, and the marker, as networks see them."""
    mask = mask_of(dataclasses.replace(guidance, boxes=False), atlas, spec, template)
    boxed = dataclasses.replace(guidance, boxes=True)
    boxes = np.ones_like(mask) if guidance.outside else mask_of(boxed, atlas, spec, template)
    marker = block(spec)
    return MarkerMasks(mask, boxes, marker if spec.box is None else np.asarray(spec.box.crop(marker)))


def own_places(guidance: ObjectiveConfig, files: ScanFiles, spec: NetworkInput) -> MarkerMasks | None:
    """The same by the person's own labels; None without them."""
    mask = own_mask(dataclasses.replace(guidance, boxes=False), files, spec)
    if mask is None:
        return None
    boxes = None if guidance.outside else own_mask(dataclasses.replace(guidance, boxes=True), files, spec)
    marker = block(spec)
    return MarkerMasks(
        mask, np.ones_like(mask) if boxes is None else boxes,
        marker if spec.box is None else np.asarray(spec.box.crop(marker)),
    )  # fmt: skip
