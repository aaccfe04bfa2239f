"""Training objectives, the context they can use besides the batch, and what networks can learn besides the task.

An objective is a frozen record, and all that the trainer knows of the task. A new one (guidance by masks, distillation
from a teacher, contrastive learning) is a function that makes such a record. What a run may choose by ``[objective]
kind`` is a record too: ``task`` is here, and others come from distributions (docs/plugins.md), as those of
`studies.objectives` do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from heatlas.pipeline.cohort.people.splits import Fold, Split
from heatlas.pipeline.cohort.people.tasks import Task
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.models.inputs import NetworkInput
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.plugins import plugged_in
from heatlas.pipeline.training.volumes import LabelledVolumes

Logged = Mapping[str, torch.Tensor]
"""Values of single scans, each of shape (B, ...), by name; the trainer gathers them over an epoch."""


@dataclass(frozen=True)
class Batch:
    """Some scans of a training or validation part.

    `volumes`: (B, 1, D, H, W), augmented during training; of an objective with two views (2 B, 1, D, H, W), the first
    view of all scans first. `targets`: (B,). `scans`: (B,), positions in the part, which index the context's values per
    scan. `masks`: (B, D, H, W), the context's masks of these scans, moved as their volumes were; None in validation and
    without masks. `epoch`: from 1.
    """

    volumes: torch.Tensor
    targets: torch.Tensor
    scans: torch.Tensor
    masks: torch.Tensor | None = None
    epoch: int = 0


@dataclass(frozen=True)
class Context:
    """What an objective may use besides the network and the batch; None if unused.

    `teacher`: a frozen network, in evaluation mode. `masks`: where maps should be: of each scan, (N, D, H, W), by
    position in the part, or the same for all, (1, D, H, W). Maps of a frozen teacher: of each scan, also with channels,
    (N, C, D, H, W). `annotated`: (N,), scans whose mask counts; None for all. `answers`: (N, K), logits of a frozen
    teacher for the scans of the part as they are; its maps are then the masks. `reference`: (1, 1, D, H, W), mean of
    the controls of the training part, which maps are relative to.
    """

    teacher: nn.Module | None = None
    masks: torch.Tensor | None = None
    annotated: torch.Tensor | None = None
    answers: torch.Tensor | None = None
    reference: torch.Tensor | None = None


@dataclass(frozen=True)
class Measures:
    """Loss of a network over a part, and its score in the unit shown in tables."""

    loss: float
    score: float


@dataclass(frozen=True)
class Objective:
    """A training objective.

    Parameters
    ----------
    name : str
    loss : callable
        ``loss(model, batch, context)`` gives the mean loss of the batch, a scalar to differentiate, and the values of
        its scans to log.
    measures : callable
        From the logged values of all scans of a part, which are on the CPU, to its `Measures`.
    score : str
        Name of the score, as in columns: ``balanced_accuracy`` or ``mae``.
    score_sign : int
        1 if a higher score is better, -1 if a lower one is.
    facts : mapping
        For the description of the network: class weights, or mean and standard deviation of the target.
    views : int
        Times that each scan is augmented and shown at once in training.
    """

    name: str
    loss: Callable[[nn.Module, Batch, Context], tuple[torch.Tensor, Logged]]
    measures: Callable[[Logged], Measures]
    score: str
    score_sign: int
    facts: Mapping[str, object] = field(default_factory=dict)
    views: int = 1


ContextOf = Callable[[Config, Task, NetworkInput, Fold, Sequence[Scan], torch.device, RunLayout | None], Context]
Unlabelled = Mapping[str, Sequence[ScanFiles]]


def _as_it_is(objective: Objective, config: Config, task: Task) -> Objective:
    return objective


@dataclass(frozen=True, kw_only=True)
class ObjectiveKind:
    """What networks learn besides the task; the defaults are those of a kind that learns nothing.

    Parameters
    ----------
    name : str
        As in ``[objective] kind``.
    objective : callable
        From the objective of the task to the one that is trained; its module is part of the key of a training.
    context : callable
        Masks or teacher of the training part of a fold: ``context(config, task, spec, fold, scans, device, layout)``,
        with what the network sees, and the scans of the part in the order of its volumes. Without scans and layout it
        is asked before any work.
    complete : callable
        The context with what is made of the volumes of the training part.
    unlabelled : callable
        Scans of another cohort by participant, from which is learned, as the teacher of the context answers them, in
        place of the training part; may be empty.
    facts : callable
        What a training depends on beyond other settings, for its key: settings, and files by name.
    require : callable
        Refuses what cannot be trained, before any work.
    sentence : callable
        For the methods text, with a space before it.
    """

    name: str
    objective: Callable[[Objective, Config, Task], Objective] = _as_it_is
    context: ContextOf = lambda *_: Context()
    complete: Callable[[Context, Config, Task, LabelledVolumes], Context] = lambda context, *_: context
    unlabelled: Callable[[Config, NetworkInput, Fold], Unlabelled] = lambda *_: {}
    facts: Callable[[Config, Fold], tuple[object, Mapping[str, Path]]] = lambda *_: (None, {})
    require: Callable[[Config, Split], None] = lambda *_: None
    sentence: Callable[[Config], str] = lambda _: ""


TASK = ObjectiveKind(name="task")


@functools.cache
def objective_kinds() -> Mapping[str, ObjectiveKind]:
    return {kind.name: kind for kind in (TASK, *plugged_in("objectives", ObjectiveKind, [TASK.name]))}


def kind_of(config: Config) -> ObjectiveKind:
    """What the networks of a run learn besides the task; UsageError if no installed distribution has it."""
    name = config.objective.kind
    if name not in objective_kinds():
        raise UsageError(
            f'objective.kind = "{name}": no installed distribution has it. Install one that does, or choose one of '
            f"{', '.join(objective_kinds())}."
        )
    return objective_kinds()[name]
