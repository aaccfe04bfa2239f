"""The losses of plain tasks: weighted cross-entropy for classes, squared error or Huber loss for a number.

Networks that explain themselves have binary cross-entropy. Where a wrong class has the target 0, its logit is pushed
down for ever, and maps fill with what speaks against it. With the off-target 1 / C of C classes, and the logit bias
``log(1 / (C - 1))``, the best answer for a wrong class is no evidence at all (Böhle, Singh, Fritz & Schiele 2024). The
loss then has the floor ``(C - 1) / C H(1 / C)``, H being the binary entropy, so tables hold the plain loss.

For sparse maps, the weights W(x) of a dynamic linear network have a penalty: ``λ mean |W(x)|`` of the true class and
one wrong class of each scan, before the temperature (Böhle, Fritz & Schiele 2021). Each step takes four passes more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import nn
from torch.nn import functional

from heatlas.pipeline.cohort.people.tasks import Task
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.dynamic import LogitLayer, differentiable_weights, dynamic_layers
from heatlas.pipeline.run.config.settings import TrainingConfig
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.work.host import on_host
from heatlas.pipeline.training.answers import balanced_accuracy
from heatlas.pipeline.training.objectives.records import Batch, Context, Logged, Measures, Objective


def binary_cross_entropy(logits: torch.Tensor, targets: torch.Tensor, least: float = 0.0) -> torch.Tensor:
    """Mean over classes of the binary cross-entropy of each scan, (B,).

    `logits`: (B, C). `targets`: class numbers (B,), or probabilities (B, C); lower ones are raised to `least`.

    Examples
    --------
    >>> floor = binary_cross_entropy(torch.tensor([[30.0, 0.0]]), torch.tensor([0]), least=0.5)
    >>> round(float(floor), 4)
    0.3466
    """
    if targets.dim() == 1:
        targets = functional.one_hot(targets, logits.shape[1])
    wanted = targets.to(logits.dtype).clamp(min=least)
    return functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none").mean(1)


def binary(weights: torch.Tensor, off_targets: bool) -> Objective:
    """Binary cross-entropy; `weights` (classes,) are those of `class_weights`. The score is the balanced accuracy."""
    least = 1 / len(weights) if off_targets else 0.0

    def loss(model: nn.Module, batch: Batch, context: Context) -> tuple[torch.Tensor, Logged]:
        logits = model(batch.volumes).float()
        of_scans = weights[batch.targets]
        losses = binary_cross_entropy(logits, batch.targets, least) * of_scans
        plain = binary_cross_entropy(logits.detach(), batch.targets) * of_scans
        return losses.mean(), {"loss": plain, "output": logits, "target": batch.targets}

    facts = {"class_weights": on_host(weights).tolist(), "off_target": least}
    name = "off-target" if off_targets else "binary-cross-entropy"
    return Objective(name, loss, partial(_of_classes, on_host(weights)), "balanced_accuracy", 1, facts)


def _of_classes(weights: torch.Tensor, logged: Logged) -> Measures:
    targets = logged["target"]
    mean = logged["loss"].sum() / weights[targets].sum()
    return Measures(float(mean), balanced_accuracy(targets.numpy(), logged["output"].numpy()))


def wrong_classes(targets: torch.Tensor, classes: int) -> torch.Tensor:
    """A class other than the target for each scan, drawn evenly by torch's generator.

    Examples
    --------
    >>> wrong_classes(torch.tensor([0, 1, 1]), 2).tolist()
    [1, 0, 0]
    """
    return (targets + torch.randint(1, classes, targets.shape, device=targets.device)) % classes


def mean_absolute_weights(model: StagedModel, volumes: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    """Mean absolute weight of a class for each scan (B,), which can be differentiated.

    `model`: dynamic linear behind its first stage, the encoding.
    """
    if not dynamic_layers(model):
        raise UsageError("a penalty on W(x) needs a network that is one linear map for each input (B-cos, CoDA).")
    rest = nn.Sequential(*model.stages[1:])
    temperature: torch.Tensor | float = 1.0
    for module in rest.modules():
        if isinstance(module, LogitLayer):
            temperature = module.temperature

    def of_class(pairs: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(rest(pairs).gather(1, classes[:, None])[:, 0])

    _, weights = differentiable_weights(rest, of_class, model.stages[0](volumes))
    return temperature * weights.abs().flatten(1).mean(1)


def with_weight_penalty(objective: Objective, strength: float) -> Objective:
    """An objective for classes, with `strength` times the mean absolute weights added to its loss."""
    if not strength:
        return objective

    def loss(model: nn.Module, batch: Batch, context: Context) -> tuple[torch.Tensor, Logged]:
        total, logged = objective.loss(model, batch, context)
        if not torch.is_grad_enabled():  # validation, whose loss is the plain one
            return total, logged
        network = model if isinstance(model, StagedModel) else model.module
        if not isinstance(network, StagedModel):
            raise UsageError("a penalty on W(x) needs a network of stages.")
        for classes in (batch.targets, wrong_classes(batch.targets, logged["output"].shape[1])):
            total = total + strength * mean_absolute_weights(network, batch.volumes, classes).mean() / 2
        return total, logged

    return replace(objective, loss=loss, facts={**objective.facts, "weight_penalty": strength})


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


def classification(weights: torch.Tensor) -> Objective:
    """Cross-entropy; `weights` (classes,) are those of `class_weights`. The score is the balanced accuracy."""

    def loss(model: nn.Module, batch: Batch, context: Context) -> tuple[torch.Tensor, Logged]:
        logits = model(batch.volumes).float()
        losses = functional.cross_entropy(logits, batch.targets, reduction="none") * weights[batch.targets]
        return losses.mean(), {"loss": losses, "output": logits, "target": batch.targets}

    known = on_host(weights)
    facts = {"class_weights": known.tolist()}
    return Objective("cross-entropy", loss, partial(_of_classes, known), "balanced_accuracy", 1, facts)


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

    `targets`: of the training part. `usual`: loss for classes where the settings say ``usual``: that of the family.
    """
    if task.is_number:
        if config.weight_penalty:
            raise UsageError(f"training.weight_penalty is for classes, and {task.column} is a number; set it to 0.")
        return regression(config.regression_loss, TargetScale.of(targets))
    weights = class_weights(targets, config.balance_classes, len(task.outputs))
    name = usual if config.loss == "usual" else config.loss
    found = classification(weights) if name == "cross-entropy" else binary(weights, name == "off-target")
    return with_weight_penalty(found, config.weight_penalty)
