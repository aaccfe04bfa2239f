"""Weighted cross-entropy over two or more classes."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from heatlas.pipeline.training.metrics import balanced_accuracy
from heatlas.pipeline.training.objectives.records import Batch, Context, Logged, Measures, Objective


def class_weights(targets: torch.Tensor, balance: bool, classes: int = 2) -> torch.Tensor:
    """Weight of each class in the loss; with `balance`, classes weigh the same and scans 1 on average.

    Examples
    --------
    >>> class_weights(torch.tensor([0, 0, 0, 1]), balance=True)
    tensor([0.6667, 2.0000])
    """
    if not balance:
        return torch.ones(classes, device=targets.device)
    counts = torch.bincount(targets, minlength=classes)
    return len(targets) / (classes * counts.to(torch.float32))


def weighted_cross_entropy(logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of each scan times the weight of its class, shape (B,)."""
    return functional.cross_entropy(logits.float(), targets, reduction="none") * weights[targets]


def classification(weights: torch.Tensor) -> Objective:
    """Cross-entropy; `weights` (classes,) are those of `class_weights`. The score is the balanced accuracy."""

    def loss(model: nn.Module, batch: Batch, context: Context) -> tuple[torch.Tensor, Logged]:
        logits = model(batch.volumes)
        losses = weighted_cross_entropy(logits, batch.targets, weights)
        return losses.mean(), {"loss": losses, "output": logits.float(), "target": batch.targets}

    def measures(logged: Logged) -> Measures:
        targets = logged["target"]
        mean = logged["loss"].sum() / weights[targets].sum()
        return Measures(float(mean), balanced_accuracy(targets.cpu().numpy(), logged["output"].cpu().numpy()))

    return Objective(
        "cross-entropy", loss, measures, "balanced_accuracy", 1, {"class_weights": [float(one) for one in weights]}
    )
