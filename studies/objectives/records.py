"""The kinds of ``[objective]`` that learn with explanations, as records that Heatlas finds by its entry points.

What each does in training is in the module of its objective, which is part of the key of a training; here is what is
refused before any work, and the sentence of the methods text.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from heatlas.pipeline.cohort.people.splits import Split
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.models.families.registry import build_network, family_of
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.run.config.images import template_name
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.layout.run_layout import ImageNames, RunLayout
from heatlas.pipeline.training.objectives.of_task import objective_of, targets_of
from heatlas.pipeline.training.objectives.records import Batch, ObjectiveKind, kind_of
from heatlas.reports.words.numbers import listing, percent
from heatlas.studies.objectives.distillation import (
    facts_of_teacher,
    teacher_of,
    unlabelled_of,
    with_answers,
    with_teacher,
)
from heatlas.studies.objectives.guidance import facts_of_guidance, masks_for, with_guidance, with_reference
from heatlas.studies.objectives.maps_in_training import ATTENTION, map_settings
from heatlas.studies.objectives.readable_gradients import facts_of_gradients, with_readable_gradients


def require_step(config: Config, split: Split) -> None:
    """Refuse what cannot be trained with explanations, before any work starts: one step on one empty volume."""
    kind = kind_of(config)
    task, spec, device = task_of(config.cohort), configured_input(config), torch.device("cpu")
    contexts = [kind.context(config, task, spec, fold, (), device, None) for fold in split.folds]
    network = build_network(config.model, spec.shape, len(task.outputs), spec.channels).eval()
    targets = targets_of(task, range(len(task.outputs)) if task.classes else [0.0, 1.0])
    plain = objective_of(task, config.training, targets, family_of(config.model).loss)
    objective = kind.objective(plain, config, task)
    batch = Batch(torch.full((1, spec.channels, *spec.shape), 0.5), targets[-1:], torch.zeros(1, dtype=torch.int64))
    for context in contexts[:1]:
        empty = torch.zeros_like(batch.volumes)
        objective.loss(network, batch, dataclasses.replace(context, annotated=None, reference=empty))


def require_teacher(config: Config, split: Split) -> None:
    """Refuse a teacher that knows what a control run must not, and scans that no student can learn from."""
    if config.cohort.shuffle_labels:
        raise UsageError(
            "objective.teacher: a run on shuffled labels must not learn from networks that know the true ones. Choose "
            'another objective.kind than "distilled".'
        )
    if config.objective.scans:
        task = task_of(config.cohort)
        if not task.classes:
            raise UsageError(f"objective.scans is for classes, and {task.column} is a number; leave it empty.")
        _require_same_kind(config)
        for fold in split.folds:
            unlabelled_of(config, configured_input(config), fold)
    require_step(config, split)


def _require_same_kind(config: Config) -> None:
    """Refuse unlabelled scans of another kind, or in the space of another template, than those of the run."""
    other = RunLayout(Path(config.objective.scans))
    names = ImageNames(config.cohort.suffix, config.cohort.label, config.cohort.further_suffixes)
    ours = (*names, template_name(config.registration.template))
    if other.config.is_file() and (theirs := (*other.image_names, other.space)) != ours:
        named = [" ".join(filter(None, (kind[0], kind[1], *kind[2], kind[3]))) for kind in (theirs, ours)]
        raise UsageError(
            f"objective.scans: images of {other.root} are {named[0]}, and those of this run {named[1]}. Name a run on "
            "the same kind of image and template."
        )


MAPS_IN_WORDS = {
    "input-x-gradient": "input times gradient",
    "grad-cam": "Grad-CAM",
    "inherent": "contributions of the network's own linear map",
    "dynamic-weights": "the weights of the network's own linear map",
    "evidence": "expected gradients [@expectedgradients] from the mean control",
    ATTENTION: "attention (squared features summed over channels) [@attentiontransfer]",
}


def guidance_in_words(config: Config) -> str:
    objective, maps = config.objective, map_settings(config)
    where = "a given mask" if objective.mask else f"the mask of {listing(list(objective.regions))}"
    people = "all" if objective.annotated == 1 else percent(objective.annotated, 0)
    of = "the training participants"
    if objective.own_anatomy:
        where, of = f"{where} in each person's own segmentation", f"{of} who have one with all of them"
    return (
        f" Maps of {MAPS_IN_WORDS[maps.map]} were guided into {where} ({objective.loss} loss, with weight "
        f"{maps.weight:g}, {people} of {of}) [@guidance]."
    )


def teaching_in_words(config: Config) -> str:
    objective, maps = config.objective, map_settings(config)
    teacher, weight = "a teacher, the network of the same fold of another run", f"with weight {maps.weight:g}"
    if maps.map == ATTENTION:
        return f" Networks learned the labels, and the maps of {teacher}: {MAPS_IN_WORDS[maps.map]}, {weight}."
    text = (
        f" Networks learned the answers of {teacher}, instead of the labels (temperature {objective.temperature:g}), "
    )
    text += f"and its maps of {MAPS_IN_WORDS[maps.map]} {weight} [@e2kd]."
    if objective.mixup:
        text += f" Both saw each scan mixed with another (MixUp, α = {objective.mixup:g}) [@mixup]."
    return text + (" They saw scans of an unrelated cohort, not those of the training part." if objective.scans else "")


def gradients_in_words(config: Config) -> str:
    objective, maps = config.objective, map_settings(config)
    if objective.guided_alone and objective.uses_maps:
        return " Networks learned the task by the gradients of guided backpropagation alone [@readable]."
    return (
        f" The input gradient of the loss was kept like that of guided backpropagation ({objective.distance}, "
        f"with weight {maps.weight:g}) [@readable]."
    )


OBJECTIVES = (
    ObjectiveKind(
        name="guided", objective=with_guidance, context=masks_for, complete=with_reference, facts=facts_of_guidance,
        require=require_step, sentence=guidance_in_words,
    ),
    ObjectiveKind(
        name="distilled", objective=with_teacher, context=teacher_of, complete=with_answers, unlabelled=unlabelled_of,
        facts=facts_of_teacher, require=require_teacher, sentence=teaching_in_words,
    ),
    ObjectiveKind(
        name="readable-gradients", objective=with_readable_gradients, facts=facts_of_gradients, require=require_step,
        sentence=gradients_in_words,
    ),
)  # fmt: skip
