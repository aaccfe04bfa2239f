"""Distillation: a student learns the answers of a teacher (KD), and where it looks (e²KD)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from heatlas.pipeline.cohort.people.splits import Fold
from heatlas.pipeline.cohort.people.tasks import Task
from heatlas.pipeline.cohort.records import SCANS_TABLE, Scan, ScanTable
from heatlas.pipeline.models.families.registry import family_of
from heatlas.pipeline.models.inputs import NetworkInput, configured_input
from heatlas.pipeline.models.kept_volumes import KeptVolumes
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.training.objectives.known_networks import fold_of_run, known_network
from heatlas.pipeline.training.objectives.records import Batch, Context, Logged, Objective, Unlabelled
from heatlas.pipeline.training.volumes import LabelledVolumes
from heatlas.studies.objectives.guidance import KnownOutput, attention_distance, explanation_distance, masks_of
from heatlas.studies.objectives.maps_in_training import (
    ATTENTION,
    BatchMaps,
    explained_batch,
    map_settings,
    settings_for_key,
)


@dataclass(frozen=True)
class Distillation:
    """How a student is taught.

    `temperature`: softens the answers of both. `weight`: of the explanation loss; 0 is plain distillation, to the bit.
    `map`: as of `studies.objectives.maps_in_training.explained_batch`. `student_stage`, `teacher_stage`: boundaries of
    the maps; -1 the last stage with voxels. `mixup`: alpha of the distribution of `mixed`; 0 shows scans as they are.
    """

    temperature: float = 1.0
    weight: float = 1.0
    map: str = "grad-cam"
    student_stage: int = -1
    teacher_stage: int = -1
    mixup: float = 0.0


def mixed(volumes: Tensor, alpha: float) -> Tensor:
    """Each volume (B, C, D, H, W) with the one before it in the batch, by one share for all of Beta(alpha, alpha).

    The larger of share and 1 - share is that of the own volume: in a batch of random order that changes no
    distribution, and what is logged of a scan is about most of what was seen. Torch's generator draws, which training
    seeds in every epoch. Source: Zhang et al. 2018.
    """
    share = float(torch.distributions.Beta(alpha, alpha).sample())
    share = max(share, 1 - share)
    return share * volumes + (1 - share) * volumes.roll(1, 0)


def distillation_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """``t^2 KL(teacher || student)`` of the softmax of logits (B, K) divided by t, (B,).

    The factor keeps the size of gradients when t changes (Hinton, Vinyals & Dean 2015).

    Examples
    --------
    >>> logits = torch.tensor([[0.0, 2.0]])
    >>> distillation_loss(logits, logits, 5.0).tolist()
    [0.0]
    """
    learned = functional.log_softmax(student / temperature, dim=1)
    other = functional.log_softmax(teacher / temperature, dim=1)
    return temperature**2 * (other.exp() * (other - learned)).sum(1)


def multi_label_distillation_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """``t sum_j KL`` of the sigmoid of every logit (B, K) divided by t, (B,), for networks with a binary loss.

    Source: Yang et al. 2023, as in Parchami-Araghi et al. 2024, eq. E.1.
    """
    learned, other = student / temperature, teacher / temperature
    yes = torch.sigmoid(other) * (functional.logsigmoid(other) - functional.logsigmoid(learned))
    no = torch.sigmoid(-other) * (functional.logsigmoid(-other) - functional.logsigmoid(-learned))
    return temperature * (yes + no).sum(1)


def distilled(task: Objective, distillation: Distillation, binary: bool = False) -> Objective:
    """Answers and maps of ``context.teacher`` in place of labels, which only validation uses.

    Both networks see the same augmented and `mixed` volumes (maps of a `frozen` teacher move with them), and both are
    asked for the class that the teacher finds. Maps are compared inside the brain, where the input is not 0: Grad-CAM
    or, of B-cos networks, W(x) in the source (Parchami-Araghi et al. 2024), which compares them everywhere.

    Attention transfer, which the source compares with, has the loss of the task in place of the teacher's answers.

    `task`: gives the values that are logged, and loss and score in validation. `binary`: whether answers are compared
    output by output, for networks trained with a binary loss.
    """
    of_answers = multi_label_distillation_loss if binary else distillation_loss
    of_labels = distillation.map == ATTENTION
    distance = attention_distance if of_labels else explanation_distance

    def loss(model: nn.Module, batch: Batch, context: Context) -> tuple[Tensor, Logged]:
        if not torch.is_grad_enabled():
            return task.loss(model, batch, context)
        if context.teacher is None and context.answers is None:
            raise UsageError("objective: distillation needs a teacher (objective.teacher, the folder of a run).")
        if distillation.mixup:
            batch = replace(batch, volumes=mixed(batch.volumes, distillation.mixup))
        teacher = _answered(batch, context, distillation)
        if distillation.weight == 0:
            logits, maps = model(batch.volumes), None
        else:
            found = teacher.logits.argmax(1)
            explained = explained_batch(model, batch.volumes, found, distillation.map, distillation.student_stage)
            logits, maps = explained.logits, explained.maps
        if logits.shape != teacher.logits.shape:
            raise UsageError(
                f"objective: the teacher has {teacher.logits.shape[1]} outputs and the student {logits.shape[1]}; take "
                "a teacher of the same task."
            )
        total, logged = task.loss(KnownOutput(logits), batch, context)
        if not of_labels:
            total = of_answers(logits.float(), teacher.logits.float(), distillation.temperature).mean()
        if maps is not None:
            brain = (batch.volumes != 0).to(maps.dtype)
            brain = brain if maps.dim() == brain.dim() else brain[:, 0]  # W(x) has a channel for v and one for 1 - v
            total = total + distillation.weight * distance(maps, teacher.maps, brain).mean()
        return total, logged

    facts = {**task.facts, "distillation": vars(distillation)}
    return replace(task, name=f"distilled from a teacher, {task.name}", loss=loss, facts=facts)


def frozen(context: Context, volumes: Tensor | KeptVolumes, distillation: Distillation, size: int) -> Context:
    """A context with the answers and maps of its teacher for scans as they are, so that no step asks it again.

    Maps take the place of masks, which training flips and shifts with the volumes; each is divided by its largest
    value, which the cosine does not see.

    `volumes`: of the whole part, (N, C, D, H, W). `size`: scans asked at a time.
    """
    if context.teacher is None:
        raise UsageError("objective: distillation needs a teacher (objective.teacher, the folder of a run).")
    like = next(context.teacher.parameters())
    parts = (volumes[start : start + size] for start in range(0, len(volumes), size))
    found = [_taught(context.teacher, part.to(like), distillation) for part in parts]
    answers = torch.cat([one.logits for one in found])
    if distillation.weight == 0:
        return replace(context, answers=answers, teacher=None)
    maps = torch.cat([one.maps for one in found])
    largest = maps.abs().amax(tuple(range(1, maps.dim())), keepdim=True).clamp(min=torch.finfo(maps.dtype).tiny)
    return replace(context, answers=answers, masks=maps / largest, teacher=None)


def with_teacher(objective: Objective, config: Config, task: Task) -> Objective:
    return distilled(objective, distillation_of(config), family_of(config.model).loss != "cross-entropy")


def distillation_of(config: Config) -> Distillation:
    wanted, maps = config.objective, map_settings(config)
    return Distillation(wanted.temperature, maps.weight, maps.map, maps.stage, maps.stage, wanted.mixup)


def teacher_of(
    config: Config, task: Task, spec: NetworkInput, fold: Fold, scans: Sequence[Scan], device: torch.device,
    layout: RunLayout | None = None,
) -> Context:  # fmt: skip
    files = fold_of_run(config.objective.teacher, fold)
    code = getattr(config.model, "network", "")
    teacher = known_network("objective.teacher", files, task, spec, fold, device, code).model
    return Context(teacher=teacher.requires_grad_(False))


def with_answers(context: Context, config: Config, task: Task, training: LabelledVolumes) -> Context:
    """The context with the answers of its teacher, where it is asked only once."""
    if not config.objective.frozen:
        return context
    return frozen(context, training.volumes, distillation_of(config), config.training.batch_size)


def unlabelled_of(config: Config, spec: NetworkInput, fold: Fold) -> Unlabelled:
    """Registered scans of ``objective.scans`` by participant, of nobody whom the fold knows."""
    wanted = config.objective
    if not wanted.scans:
        return {}
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


def facts_of_teacher(config: Config, fold: Fold) -> tuple[object, Mapping[str, Path]]:
    others = unlabelled_of(config, configured_input(config), fold).values()
    paths = [path for scans in others for scan in scans for path in (scan.image, scan.brain_mask)]
    files = {"teacher": fold_of_run(config.objective.teacher, fold).weights}
    return [settings_for_key(config), None], files | {f"unlabelled-{n}": path for n, path in enumerate(paths)}


def _answered(batch: Batch, context: Context, distillation: Distillation) -> BatchMaps:
    """Logits and maps of the teacher for a batch: those it gave once, or of these volumes."""
    if context.answers is None:
        assert context.teacher is not None
        return _taught(context.teacher, batch.volumes, distillation)
    maps = batch.volumes[:, 0] if distillation.weight == 0 else masks_of(batch, context)
    return BatchMaps(context.answers[batch.scans], maps)


def _taught(teacher: nn.Module, volumes: Tensor, distillation: Distillation) -> BatchMaps:
    """Logits and maps of a frozen teacher in evaluation mode, without a graph."""
    with torch.no_grad():
        logits = teacher(volumes)
    if distillation.weight == 0:
        return BatchMaps(logits, volumes[:, 0])
    with torch.enable_grad():
        found, stage = logits.argmax(1), distillation.teacher_stage
        explained = explained_batch(teacher, volumes, found, distillation.map, stage, learning=False)
    return BatchMaps(logits, explained.maps.detach())
