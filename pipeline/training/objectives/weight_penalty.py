"""A penalty on the weights W(x) that a dynamic linear network gives a volume, for sparse maps.

``λ mean |W(x)|`` of the true class and one wrong class of each scan, drawn at random. W is that of the evidence before
the temperature, so that λ means the same at every temperature. Source: Böhle, Fritz & Schiele 2021. Each step
takes four passes more.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.dynamic import LogitLayer, differentiable_weights, dynamic_layers
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.training.objectives.records import Batch, Context, Logged, Objective


def wrong_classes(targets: torch.Tensor, classes: int) -> torch.Tensor:
    """A class other than the target for each scan, drawn evenly by torch's generator.

    Examples
    --------
    >>> wrong_classes(torch.tensor([0, 1, 1]), 2).tolist()
    [1, 0, 0]
    """
    return (targets + torch.randint(1, classes, targets.shape, device=targets.device)) % classes


def mean_absolute_weights(model: StagedModel, volumes: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    """Mean absolute weight of a class for each scan, (B,), which can be differentiated.

    `model`: dynamic linear behind its first stage, the encoding. `volumes`: (B, 1, D, H, W). `classes`: (B,). Raises
    UsageError for a network without dynamic linear layers.
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
