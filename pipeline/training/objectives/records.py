"""Training objectives, and the context they can use besides the batch.

An objective is a frozen record, and all that the trainer knows of the task. A new one (guidance by masks, distillation
from a teacher, contrastive learning) is a function that makes such a record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

Logged = Mapping[str, torch.Tensor]
"""Values of single scans, each of shape (B, ...), by name; the trainer gathers them over an epoch."""


@dataclass(frozen=True)
class Batch:
    """Some scans of a training or validation part.

    `volumes`: (B, 1, D, H, W), augmented during training; of an objective with two views (2 B, 1, D, H, W), the first
    view of all scans first. `targets`: (B,), class numbers (int64), or numbers (float32). `scans`: (B,), positions in
    the part, which index the context's values per scan. `masks`: (B, D, H, W), the context's masks of these scans,
    moved as their volumes were; None in validation and without masks. `epoch`: from 1.
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
