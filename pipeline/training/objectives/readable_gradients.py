"""Interpretable-gradient training: the input gradient of the loss learns to look like the guided one.

Source: Torres Figueroa 2024 (thesis), ch. 4: ``L = L_C + lambda L_R``. Both gradients are of the loss of the
task, by the same weights; the guided one is a constant for the step. A second forward pass makes it, since the rule of
a ReLU cannot be exchanged within one graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from heatlas.pipeline.attribution.gradient.guided_backprop import GuidedReLU
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.training.objectives.maps_in_training import unmoved
from heatlas.pipeline.training.objectives.records import Batch, Context, Logged, Objective

RELUS = (torch.relu, functional.relu, torch.Tensor.relu)
OTHERS = (functional.leaky_relu, functional.prelu, functional.gelu, functional.silu, functional.elu, functional.selu)
"""Activations for which guided backpropagation has no rule."""


def mean_absolute(own: Tensor, guided: Tensor) -> Tensor:
    """Mean absolute difference over voxels, (B,)."""
    return (own - guided).abs().flatten(1).mean(1)


def mean_squared(own: Tensor, guided: Tensor) -> Tensor:
    """Mean squared difference over voxels, (B,)."""
    return ((own - guided) ** 2).flatten(1).mean(1)


def negative_cosine(own: Tensor, guided: Tensor) -> Tensor:
    """-cosine, (B,), which does not depend on how sure the network is; 0 where either gradient is 0 everywhere.

    Examples
    --------
    >>> negative_cosine(torch.tensor([[1e-20, 0.0], [0.0, 0.0]]), torch.tensor([[3.0, 0.0], [1.0, 0.0]])).tolist()
    [-1.0, 0.0]
    """
    own, guided = own.flatten(1), guided.flatten(1)
    sizes = [values.detach().abs().amax(1, keepdim=True) for values in (own, guided)]
    known = ((sizes[0] > 0) & (sizes[1] > 0))[:, 0]
    own, guided = (
        torch.where(known[:, None], values / size, torch.ones_like(values))
        for values, size in zip((own, guided), sizes, strict=True)
    )
    return torch.where(known, -functional.cosine_similarity(own, guided, dim=1), own.new_zeros(()))


def negative_intersection(own: Tensor, guided: Tensor) -> Tensor:
    """-intersection of the two absolute gradients, each divided by its sum, (B,): -1 if they are proportional.

    The source divides by the product of the sums, which does not give -1 for equal gradients; blind to signs.
    """
    parts = [values.flatten(1).abs() for values in (own, guided)]
    sums = [values.sum(1, keepdim=True) for values in parts]
    tiny = torch.finfo(own.dtype).tiny
    return -torch.minimum(*(values / total.clamp(min=tiny) for values, total in zip(parts, sums, strict=True))).sum(1)


DISTANCES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cosine": negative_cosine, "mae": mean_absolute, "mse": mean_squared, "intersection": negative_intersection,
}  # fmt: skip
"""By the name in ``[objective] loss``."""


def readable(task: Objective, distance: str, weight: float) -> Objective:
    """The objective of a task, plus `weight` times the mean distance of its input gradient from the guided one.

    A weight of 0 trains as without, to the bit. Statistics of batch normalisation move once per step, and both passes
    drop the same units.
    """

    def loss(model: nn.Module, batch: Batch, context: Context) -> tuple[Tensor, Logged]:
        if weight == 0 or not torch.is_grad_enabled():
            return task.loss(model, batch, context)
        device = batch.volumes.device
        state = _random_state(device)
        leaf = batch.volumes.detach().requires_grad_()
        of_task, logged = task.loss(model, replace(batch, volumes=leaf), context)
        (own,) = torch.autograd.grad(of_task, leaf, create_graph=True)
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), unmoved(model), GuidedReLUs():
            _set_random_state(state, device)
            again = batch.volumes.detach().requires_grad_()
            (guided,) = torch.autograd.grad(task.loss(model, replace(batch, volumes=again), context)[0], again)
        return of_task + weight * DISTANCES[distance](own.float(), guided.float()).mean(), logged

    facts = {**task.facts, "readable_gradients": {"distance": distance, "weight": weight}}
    return replace(task, name=f"{task.name} with readable gradients", loss=loss, facts=facts)


class GuidedReLUs(TorchFunctionMode):
    """Within this context every ReLU has the backward rule of guided backpropagation; no network is changed."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Exchange ReLUs, refuse activations that have no such rule, leave all else."""
        if func in RELUS:
            return GuidedReLU.apply(args[0])  # type: ignore[no-untyped-call]
        if func in OTHERS:
            raise UsageError(
                f"objective: guided gradients are defined for ReLU only, and this network has {func.__name__}; choose "
                "the founding network, a ResNet or a DenseNet."
            )
        return func(*args, **(kwargs or {}))


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_random_state(state: Tensor, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
