"""Guided backpropagation (Springenberg et al. 2015): the gradient, clipped to its positive part at every ReLU.

The traced operations of the model are run with a custom ReLU, so the model needs no hooks and is not changed. The map
is the absolute value, called susceptibility: it shows where the output is sensitive, not what the evidence is, and is
not conservative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from heatlas.pipeline.attribution import network_view
from heatlas.pipeline.attribution.graph.planner import boundary_value, followed, plan_forward
from heatlas.pipeline.attribution.graph.tape import Values
from heatlas.pipeline.attribution.methods import described
from heatlas.pipeline.attribution.records import Attribution
from heatlas.pipeline.models.graph.tracing import Program


def _supported(model: nn.Module, program: Program) -> Program:
    plan_forward(model, program)
    return program


class GuidedReLU(torch.autograd.Function):
    """ReLU whose backward pass keeps only positive gradients of active units."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.relu(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        y: Tensor = ctx.saved_tensors[0]
        return gradient.clamp(min=0) * (y > 0)


def guided_backprop(
    model: nn.Module, volumes: Tensor, target: int, start: network_view.StartValue = "logit", stage: int | str = 0
) -> Attribution:
    """Absolute guided gradient of one output with respect to the input, or to the features of a stage.

    `model`: in evaluation mode; not changed. `volumes`: (B, 1, D, H, W), in its precision and on its device. `start`:
    value that is differentiated. `stage`: see `pipeline.attribution.network_view.explaining`. The map is not negative;
    without a ReLU in the network it is the absolute gradient.
    """
    program = followed(model, volumes, partial(_supported, model))
    network_view.require_explainable(model, volumes)
    boundary = boundary_value(model, program, stage)
    with torch.enable_grad(), network_view.exact_float32(volumes.device):
        leaf = volumes.detach().requires_grad_(boundary == program.source)
        values = Values(program, leaf, relu=GuidedReLU.apply)
        for operation in program.operations:
            with torch.set_grad_enabled(leaf.requires_grad):
                value = values.run(operation)
            if operation.value == boundary:
                leaf = value.detach().requires_grad_()
                values.give(boundary, leaf)
        explained = network_view.start_values(values[program.result], target, start)
        (gradient,) = torch.autograd.grad(explained.sum(), leaf)
    return Attribution(
        gradient.abs(), "guided-backpropagation", target, explained.detach(), {"start": start, "stage": stage}
    )


@dataclass(frozen=True)
class GuidedBackprop:
    """Guided backpropagation: the absolute guided gradient, summed over the channels of the stage."""

    name: ClassVar[str] = "guided-backpropagation"

    def answers(
        self, model: nn.Module, volumes: Tensor, target: int, start: network_view.StartValue, stage: int | str
    ) -> Sequence[Attribution]:
        answer = guided_backprop(model, volumes, target, start, stage)
        return [replace(answer, parameters=described(self, stage, start))]

    def maps(self, view: network_view.NetworkView) -> Tensor:
        return self.answers(view.model, view.volumes, view.target, view.start, view.stage)[0].values
