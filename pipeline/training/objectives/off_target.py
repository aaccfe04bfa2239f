"""Binary cross-entropy per class, and the same with off-targets, for networks that explain themselves.

Each class has a sigmoid of its own. Where a wrong class has the target 0, its logit is pushed down for ever, and maps
fill with what speaks against it. With the off-target 1 / C of C classes, and the logit bias ``log(1 / (C - 1))``, the
best answer for a wrong class is the bias: no evidence at all. Source: Böhle, Singh, Fritz & Schiele 2024.

With off-targets the loss cannot reach 0: its floor is ``(C - 1) / C H(1 / C)``, H being the binary entropy; 0.347 for
two classes. So tables hold the plain loss.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from heatlas.pipeline.run.work.host import on_host
from heatlas.pipeline.training.answers import balanced_accuracy
from heatlas.pipeline.training.objectives.records import Batch, Context, Logged, Measures, Objective


def binary_cross_entropy(logits: torch.Tensor, targets: torch.Tensor, least: float = 0.0) -> torch.Tensor:
    """Mean over classes of the binary cross-entropy of each scan, (B,).

    `logits`: (B, C). `targets`: class numbers (B,), or probabilities (B, C). `least`: lower targets are raised to it: 1
    / C for off-targets.

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
        own = weights[batch.targets]
        losses = binary_cross_entropy(logits, batch.targets, least) * own
        plain = binary_cross_entropy(logits.detach(), batch.targets) * own
        return losses.mean(), {"loss": plain, "output": logits, "target": batch.targets}

    known = on_host(weights)

    def measures(logged: Logged) -> Measures:
        targets = logged["target"]
        mean = logged["loss"].sum() / known[targets].sum()
        return Measures(float(mean), balanced_accuracy(targets.numpy(), logged["output"].numpy()))

    facts = {"class_weights": known.tolist(), "off_target": least}
    name = "off-target" if off_targets else "binary-cross-entropy"
    return Objective(name, loss, measures, "balanced_accuracy", 1, facts)
