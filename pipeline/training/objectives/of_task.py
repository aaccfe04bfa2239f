"""The losses of plain tasks: weighted cross-entropy for classes, squared error or Huber loss for a number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn import functional

from heatlas.pipeline.cohort.people.tasks import Task
from heatlas.pipeline.run.config.settings import TrainingConfig
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.work.host import on_host
from heatlas.pipeline.training.metrics import balanced_accuracy
from heatlas.pipeline.training.objectives.off_target import binary
from heatlas.pipeline.training.objectives.records import Batch, Context, Logged, Measures, Objective
from heatlas.pipeline.training.objectives.weight_penalty import with_weight_penalty


def class_weights(targets: torch.Tensor, balance: bool, classes: int = 2) -> torch.Tensor:
    """Weight of each class in the loss; with `balance`, classes weigh the same and scans 1 on average.

    Examples
    --------
    >>> class_weights(torch.tensor([0, 0, 0, 1]), balance=True)
    tensor([0.6667, 2.0000])
    """
    if not balance:
        return torch.ones(classes, device=targets.device)
    counts = torch.bincount(on_host(targets), minlength=classes)
    return (len(targets) / (classes * counts.to(torch.float32))).to(targets.device)


def weighted_cross_entropy(logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of each scan times the weight of its class, shape (B,)."""
    return functional.cross_entropy(logits.float(), targets, reduction="none") * weights[targets]


def classification(weights: torch.Tensor) -> Objective:
    """Cross-entropy; `weights` (classes,) are those of `class_weights`. The score is the balanced accuracy."""

    def loss(model: nn.Module, batch: Batch, context: Context) -> tuple[torch.Tensor, Logged]:
        logits = model(batch.volumes)
        losses = weighted_cross_entropy(logits, batch.targets, weights)
        return losses.mean(), {"loss": losses, "output": logits.float(), "target": batch.targets}

    known = on_host(weights)

    def measures(logged: Logged) -> Measures:
        targets = logged["target"]
        mean = logged["loss"].sum() / known[targets].sum()
        return Measures(float(mean), balanced_accuracy(targets.numpy(), logged["output"].numpy()))

    return Objective("cross-entropy", loss, measures, "balanced_accuracy", 1, {"class_weights": known.tolist()})


LOSSES: Mapping[str, Callable[..., torch.Tensor]] = {"mse": functional.mse_loss, "huber": functional.huber_loss}


@dataclass(frozen=True)
class TargetScale:
    """Mean and standard deviation of the target over the training part; a network's output is in these units."""

    mean: float
    sd: float

    @classmethod
    def of(cls, targets: torch.Tensor) -> TargetScale:
        """Scale of a training part; the standard deviation is that of the sample.

        Examples
        --------
        >>> TargetScale.of(torch.tensor([60.0, 70.0, 80.0]))
        TargetScale(mean=70.0, sd=10.0)
        """
        values = on_host(targets).double()
        return cls(float(values.mean()), float(values.std()))


def regression(kind: Literal["mse", "huber"], scale: TargetScale) -> Objective:
    """Squared error, or Huber loss with its transition at one standard deviation; the score is the MAE.

    With z the standardised target and e = output - z: ``e^2``, or ``e^2 / 2`` for |e| <= 1 and |e| - 1/2 beyond (Huber
    1964). The MAE is in units of the target.
    """
    per_scan = LOSSES[kind]

    def loss(model: nn.Module, batch: Batch, context: Context) -> tuple[torch.Tensor, Logged]:
        output = model(batch.volumes).float()[:, 0]
        target = (batch.targets - scale.mean) / scale.sd
        losses = per_scan(output, target, reduction="none")
        return losses.mean(), {"loss": losses, "output": output, "target": target}

    def measures(logged: Logged) -> Measures:
        errors = (logged["output"].double() - logged["target"].double()).abs()
        return Measures(float(logged["loss"].mean()), float(errors.mean()) * scale.sd)

    return Objective(kind, loss, measures, "mae", -1, {"target_mean": scale.mean, "target_sd": scale.sd})


def targets_of(task: Task, values: Sequence[float]) -> torch.Tensor:
    """Target values of scans as a loss wants them: classes as whole numbers."""
    return torch.as_tensor(values, dtype=torch.float32 if task.is_number else torch.int64)


def objective_of(task: Task, config: TrainingConfig, targets: torch.Tensor, usual: str = "cross-entropy") -> Objective:
    """The loss of the settings for classes, squared error or Huber loss for regression.

    `targets`: of the training part. `usual`: loss for classes where the settings say ``usual``: that of the family of
    networks.
    """
    if task.is_number:
        if config.weight_penalty:
            raise UsageError(f"training.weight_penalty is for classes, and {task.column} is a number; set it to 0.")
        return regression(config.regression_loss, TargetScale.of(targets))
    weights = class_weights(targets, config.balance_classes, len(task.outputs))
    name = usual if config.loss == "usual" else config.loss
    found = classification(weights) if name == "cross-entropy" else binary(weights, name == "off-target")
    return with_weight_penalty(found, config.weight_penalty)
