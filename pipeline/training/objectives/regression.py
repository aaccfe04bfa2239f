"""Regression of a standardised target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn import functional

from heatlas.pipeline.training.objectives.records import Batch, Context, Logged, Measures, Objective

LOSSES: Mapping[str, Callable[..., torch.Tensor]] = {"mse": functional.mse_loss, "huber": functional.huber_loss}


@dataclass(frozen=True)
class Scale:
    """Mean and standard deviation of the target over the training part; a network's output is in these units."""

    mean: float
    sd: float

    @classmethod
    def of(cls, targets: torch.Tensor) -> Scale:
        """Scale of a training part; the standard deviation is that of the sample.

        Examples
        --------
        >>> Scale.of(torch.tensor([60.0, 70.0, 80.0]))
        Scale(mean=70.0, sd=10.0)
        """
        values = targets.double()
        return cls(float(values.mean()), float(values.std()))


def regression(kind: Literal["mse", "huber"], scale: Scale) -> Objective:
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
