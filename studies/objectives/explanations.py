"""Training with explanations, as the settings ask: the objective of the task with its maps, masks and teacher."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from heatlas.pipeline.cohort.people.splits import Fold, Split, annotated_people
from heatlas.pipeline.cohort.people.tasks import Task, task_of
from heatlas.pipeline.cohort.records import SCANS_TABLE, Scan, ScanTable
from heatlas.pipeline.models.families.registry import build_network, family_of
from heatlas.pipeline.models.inputs import NetworkInput, configured_input
from heatlas.pipeline.run.config.objectives import ObjectiveConfig
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import ImageNames, RunLayout
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.template_name import template_name
from heatlas.pipeline.run.work.digests import file_digest
from heatlas.pipeline.run.work.host import on_host
from heatlas.pipeline.training.objectives.known_networks import fold_of_run, known_network, start_of
from heatlas.pipeline.training.objectives.of_task import objective_of, targets_of
from heatlas.pipeline.training.objectives.records import Batch, Context, Objective
from heatlas.pipeline.training.volumes import LabelledVolumes
from heatlas.studies.objectives.distillation import Distillation, distilled
from heatlas.studies.objectives.guidance import Guidance, guided
from heatlas.studies.objectives.guidance_losses import dilated
from heatlas.studies.objectives.map_settings import map_settings
from heatlas.studies.objectives.masks import mask_of, own_masks
from heatlas.studies.objectives.readable_gradients import guided_alone, readable
from heatlas.studies.probes.body import backbone_digest
from heatlas.studies.probes.settings import ProbeConfig


def with_explanations(objective: Objective, config: Config, task: Task) -> Objective:
    """The objective of a task as ``[objective]`` changes it; unchanged for the kind ``task``."""
    wanted = config.objective
    if wanted.kind == "guided":
        maps, classes = map_settings(config), wanted.classes or task.outputs
        numbers = tuple(task.outputs.index(name) for name in classes) if task.classes else ()
        return guided(objective, Guidance(wanted.loss, maps.map, maps.stage, maps.weight, numbers))
    if wanted.kind == "distilled":
        binary = family_of(config.model).loss != "cross-entropy"
        return distilled(objective, distillation_of(config), binary)
    if wanted.kind == "readable-gradients":
        if wanted.guided_alone and wanted.uses_maps:
            return guided_alone(objective)
        return readable(objective, wanted.distance, map_settings(config).weight)
    return objective


def distillation_of(config: Config) -> Distillation:
    """How a student is taught, from the settings."""
    maps = map_settings(config)
    wanted = config.objective
    return Distillation(wanted.temperature, maps.weight, maps.map, maps.stage, maps.stage, wanted.mixup)


def context_of(
    config: Config, task: Task, spec: NetworkInput, fold: Fold, scans: Sequence[Scan], device: torch.device,
    layout: RunLayout | None = None,
) -> Context:  # fmt: skip
    """Masks and teacher of the training part of a fold; nothing for other kinds.

    `spec`: what the network sees. `scans`: of the training part, in the order of its volumes. `layout`: where the scans
    lie; needed for masks of people's own anatomy only. Raises UsageError for an unknown region or class, an empty mask,
    an annotated share of nobody, or a teacher that does not fit. Raises BadInputError if the mask or the teacher cannot
    be read.
    """
    wanted = config.objective
    if wanted.kind == "guided":
        unknown = [name for name in wanted.classes if name not in task.outputs]
        if unknown:
            raise UsageError(
                f"objective.classes: {', '.join(unknown)}: no such class; there are {', '.join(task.outputs)}."
            )
        if wanted.own_anatomy:
            return own_masks(config, spec, fold, scans, device, layout)
        masks = (
            torch.from_numpy(mask_of(wanted, config.regions.atlas, spec, config.registration.template))
            .to(device)[None]
            .float()
        )
        people = annotated_people(fold.train, wanted.annotated, config.seed)
        return Context(
            masks=dilated(masks, wanted.dilate_voxels),
            annotated=torch.tensor([scan.participant_id in people for scan in scans], device=device),
        )
    if wanted.kind == "distilled":
        return Context(teacher=_teacher(wanted, task, spec, fold, device))
    return Context()


def mean_control(config: Config, task: Task, training: LabelledVolumes) -> torch.Tensor:
    """Mean of the scans of controls in a training part, (1, C, D, H, W); of everyone for a number."""
    places = torch.arange(len(training))
    if config.cohort.negative in task.outputs:
        places = places[on_host(training.targets) == task.outputs.index(config.cohort.negative)]
    # One scan at a time, in float64: a cohort need not fit into memory.
    total = torch.zeros(tuple(training.volumes.shape[1:]), dtype=torch.float64, device=training.targets.device)
    for place in places.tolist():
        total += training.volumes[place : place + 1][0]
    return (total / len(places)).float()[None]


def _require_same_kind(config: Config) -> None:
    """Refuse unlabelled scans of another kind, or in the space of another template, than those of the run."""
    other = RunLayout(Path(config.objective.scans))
    names = ImageNames(config.cohort.suffix, config.cohort.label, config.cohort.further_suffixes)
    own = (*names, template_name(config.registration.template))
    if other.config.is_file() and (theirs := (*other.image_names, other.space)) != own:
        said = [" ".join(filter(None, (one[0], one[1], *one[2], one[3]))) for one in (theirs, own)]
        raise UsageError(
            f"objective.scans: images of {other.root} are {said[0]}, and those of this run {said[1]}. Name a run on "
            "the same kind of image and template."
        )


def require_explanations(config: Config, split: Split) -> None:
    """Refuse what cannot be trained with explanations, before any work starts: one step on one empty volume.

    Raises UsageError, BadInputError as `context_of`; also for a network whose maps cannot be made at this stage or
    differentiated twice.
    """
    if config.objective.kind == "distilled" and config.cohort.shuffle_labels:
        raise UsageError(
            "objective.teacher: a run on shuffled labels must not learn from networks that know the true ones. Choose "
            'another objective.kind than "distilled".'
        )
    task, spec, device = task_of(config.cohort), configured_input(config), torch.device("cpu")
    if config.objective.scans:
        if not task.classes:
            raise UsageError(f"objective.scans is for classes, and {task.column} is a number; leave it empty.")
        _require_same_kind(config)
        for fold in split.folds:
            unlabelled_scans(config.objective, spec, fold)
    contexts = [context_of(config, task, spec, fold, (), device) for fold in split.folds]
    network = build_network(config.model, spec.shape, len(task.outputs), spec.channels).eval()
    targets = targets_of(task, range(len(task.outputs)) if task.classes else [0.0, 1.0])
    objective = with_explanations(
        objective_of(task, config.training, targets, family_of(config.model).loss), config, task
    )
    batch = Batch(torch.full((1, spec.channels, *spec.shape), 0.5), targets[-1:], torch.zeros(1, dtype=torch.int64))
    for context in contexts[:1]:
        empty = torch.zeros_like(batch.volumes)
        objective.loss(network, batch, dataclasses.replace(context, annotated=None, reference=empty))


def unlabelled_scans(wanted: ObjectiveConfig, spec: NetworkInput, fold: Fold) -> Mapping[str, Sequence[ScanFiles]]:
    """Registered scans of another cohort by participant; of nobody whom the fold knows.

    Raises UsageError if there is none on the grid of the run. Raises BadInputError if the table of scans cannot be
    read.
    """
    layout, known = RunLayout(Path(wanted.scans)), {*fold.train, *fold.validation, *fold.test}
    if not SCANS_TABLE.path(layout).is_file():
        raise UsageError(f"objective.scans: {wanted.scans}: no {SCANS_TABLE.file} there; name the folder of a run.")
    found: dict[str, list[ScanFiles]] = {}
    for scan in ScanTable.read(layout).kept:
        files = layout.scan(scan.participant_id, scan.session_id, spec.resolution_mm)
        if scan.participant_id not in known and all(path.is_file() for path in files.seen):
            found.setdefault(scan.participant_id, []).append(files)
    if not found:
        raise UsageError(
            f"objective.scans: {wanted.scans}: no scan of another person is registered there at "
            f"{spec.resolution_mm:g} mm; finish a run of an unrelated cohort with the same registration.resolution_mm."
        )
    return found


@torch.no_grad()
def answered_by(teacher: nn.Module, volumes: LabelledVolumes, size: int) -> LabelledVolumes:
    """The volumes with the classes that a teacher finds, `size` asked at a time."""
    like = next(teacher.parameters())
    parts = (volumes.volumes[start : start + size] for start in range(0, len(volumes), size))
    return dataclasses.replace(volumes, targets=torch.cat([teacher(part.to(like)).argmax(1) for part in parts]))


def facts_of(config: Config, fold: Fold) -> tuple[object, Mapping[str, str]]:
    """What a training depends on beyond other settings, for its key: settings, and digests of the files they name."""
    wanted = config.objective
    start = config.training.from_run
    begun = {"start": _digest(start_of(start, fold).weights)} if start else {}
    if isinstance(config.model, ProbeConfig):
        begun["backbone"] = backbone_digest(config.model.backbone, fold.index)
    if wanted.kind == "task":
        return None, begun
    files = {"mask": Path(wanted.mask)} if wanted.kind == "guided" and wanted.mask else {}
    if wanted.kind == "distilled":
        files["teacher"] = fold_of_run(wanted.teacher, fold).weights
    if wanted.scans:
        others = unlabelled_scans(wanted, configured_input(config), fold).values()
        paths = [path for own in others for scan in own for path in (scan.image, scan.brain_mask)]
        files |= {f"unlabelled-{number}": path for number, path in enumerate(paths)}
    settings = dataclasses.replace(wanted, mask="", teacher="", scans="", **vars(map_settings(config)))
    of_atlas = wanted.kind == "guided" and not wanted.mask and not wanted.own_anatomy
    atlas = config.regions.atlas if of_atlas else None
    return [settings, atlas], begun | {name: _digest(path) for name, path in files.items()}


def _teacher(wanted: ObjectiveConfig, task: Task, spec: NetworkInput, fold: Fold, device: torch.device) -> nn.Module:
    """The frozen network of the same fold of the teacher's run."""
    files = fold_of_run(wanted.teacher, fold)
    teacher = known_network("objective.teacher", files, task, spec, fold, device).model
    teacher.requires_grad_(False)
    return teacher


def _digest(path: Path) -> str:
    try:
        return file_digest(path)
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read ({error}); finish the run that makes it.") from error
