"""Interpretable-gradient training: the input gradient of the loss learns to look like the guided one.

Source: Torres Figueroa 2024 (thesis), ch. 4: ``L = L_C + lambda L_R``. Both gradients are of the loss of the
task, by the same weights; the guided one is a constant for the step. The source takes a second forward pass for it;
here ReLUs have both rules, and one pass serves both. Batch normalisation is an affine layer for both gradients, as for
all maps in training: the gradient of a scan is that of its own loss, not of the others in its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from heatlas.pipeline.attribution.gradient.guided_backprop import GuidedReLU
from heatlas.pipeline.cohort.people.splits import Fold
from heatlas.pipeline.cohort.people.tasks import Task
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.training.objectives.records import Batch, Context, Logged, Objective
from heatlas.studies.objectives.maps_in_training import map_settings, settings_for_key
from heatlas.studies.objectives.twice import RELUS, TwiceDifferentiable, gradients_of_features

OTHERS = (functional.leaky_relu, functional.prelu, functional.gelu, functional.silu, functional.elu, functional.selu)
"""Activations for which guided backpropagation has no rule."""


def mean_absolute(gradient: Tensor, guided: Tensor) -> Tensor:
    return (gradient - guided).abs().flatten(1).mean(1)


def mean_squared(gradient: Tensor, guided: Tensor) -> Tensor:
    return ((gradient - guided) ** 2).flatten(1).mean(1)


def negative_cosine(gradient: Tensor, guided: Tensor) -> Tensor:
    """-cosine, (B,), which does not depend on how sure the network is; 0 where either gradient is 0 everywhere.

    Examples
    --------
    >>> negative_cosine(torch.tensor([[1e-20, 0.0], [0.0, 0.0]]), torch.tensor([[3.0, 0.0], [1.0, 0.0]])).tolist()
    [-1.0, 0.0]
    """
    gradient, guided = gradient.flatten(1), guided.flatten(1)
    sizes = [values.detach().abs().amax(1, keepdim=True) for values in (gradient, guided)]
    known = ((sizes[0] > 0) & (sizes[1] > 0))[:, 0]
    gradient, guided = (  # the quotient of a map of zeros must be finite too, since its gradient counts before `where`
        torch.where(known[:, None], values / torch.where(size > 0, size, 1), torch.ones_like(values))
        for values, size in zip((gradient, guided), sizes, strict=True)
    )
    return torch.where(known, -functional.cosine_similarity(gradient, guided, dim=1), gradient.new_zeros(()))


def negative_intersection(gradient: Tensor, guided: Tensor) -> Tensor:
    """-sum of the smaller absolute value of each voxel, over the product of both sums, (B,): eq. 4.8 of the source.

    Blind to signs. Not the same for all equal gradients: -1 over their sum of absolute values; 0 where either is 0
    everywhere.

    Examples
    --------
    >>> negative_intersection(torch.tensor([[1.0, -1.0], [0.0, 0.0]]), torch.tensor([[2.0, 0.0], [1.0, 0.0]])).tolist()
    [-0.25, -0.0]
    """
    parts, sums, tiny = _absolute(gradient, guided)
    return -torch.minimum(*parts).sum(1) / (sums[0] * sums[1]).clamp(min=tiny)[:, 0]


def negative_intersection_of_shares(gradient: Tensor, guided: Tensor) -> Tensor:
    """-intersection of the two absolute gradients, each divided by its own sum, (B,): -1 if they are proportional.

    In place of eq. 4.8 of the source, which depends on the unit of the loss; blind to signs.
    """
    parts, sums, tiny = _absolute(gradient, guided)
    return -torch.minimum(*(values / total.clamp(min=tiny) for values, total in zip(parts, sums, strict=True))).sum(1)


def _absolute(gradient: Tensor, guided: Tensor) -> tuple[list[Tensor], list[Tensor], float]:
    """Absolute values (B, voxels), their sums (B, 1), and the least number to divide by."""
    parts = [values.flatten(1).abs() for values in (gradient, guided)]
    return parts, [values.sum(1, keepdim=True) for values in parts], torch.finfo(gradient.dtype).tiny


DISTANCES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cosine": negative_cosine,
    "mae": mean_absolute,
    "mse": mean_squared,
    "intersection": negative_intersection,
    "intersection_of_shares": negative_intersection_of_shares,
}
"""By the name in ``[objective] loss``."""


def readable(task: Objective, distance: str, weight: float) -> Objective:
    """The objective of a task, plus `weight` times the mean distance of its input gradient from the guided one.

    A weight of 0 trains as without, to the bit.
    """

    def loss(model: nn.Module, batch: Batch, context: Context) -> tuple[Tensor, Logged]:
        if weight == 0 or not torch.is_grad_enabled():
            return task.loss(model, batch, context)
        leaf = batch.volumes.detach().requires_grad_()
        with GuidedReLUs() as relus:
            of_task, logged = task.loss(model, replace(batch, volumes=leaf), context)
        _require_relu(relus)
        gradient, guided = both_gradients(of_task, leaf, learning=True)
        return of_task + weight * DISTANCES[distance](gradient.float(), guided.float()).mean(), logged

    facts = {**task.facts, "readable_gradients": {"distance": distance, "weight": weight}}
    return replace(task, name=f"{task.name} with readable gradients", loss=loss, facts=facts)


def with_readable_gradients(objective: Objective, config: Config, task: Task) -> Objective:
    wanted = config.objective
    if wanted.guided_alone and wanted.uses_maps:
        return guided_alone(objective)
    return readable(objective, wanted.distance, map_settings(config).weight)


def facts_of_gradients(config: Config, fold: Fold) -> tuple[object, Mapping[str, Path]]:
    return [settings_for_key(config), None], {}


def guided_alone(task: Objective) -> Objective:
    """The objective of a task, learned by guided gradients: backward, each ReLU hands on only what is above 0.

    The negative result of the source, which found that gradients then grow without bound.
    """

    def loss(model: nn.Module, batch: Batch, context: Context) -> tuple[Tensor, Logged]:
        if not torch.is_grad_enabled():
            return task.loss(model, batch, context)
        with AlwaysGuided() as relus:
            found = task.loss(model, batch, context)
        _require_relu(relus)
        return found

    facts = {**task.facts, "readable_gradients": {"guided_alone": True}}
    return replace(task, name=f"{task.name} by guided gradients alone", loss=loss, facts=facts)


def both_gradients(loss: Tensor, volumes: Tensor, learning: bool = False) -> tuple[Tensor, Tensor]:
    """The gradient of a loss by the volumes, and the guided one; of a forward pass within `GuidedReLUs`.

    `volumes`: (B, 1, D, H, W), a leaf. `learning`: whether the first is to be differentiated again; the guided one
    never is.
    """
    with gradients_of_features(guided=True):
        (guided,) = torch.autograd.grad(loss, volumes, retain_graph=True)
    with gradients_of_features():
        (gradient,) = torch.autograd.grad(loss, volumes, create_graph=learning)
    return gradient, guided


class GuidedReLUs(TwiceDifferentiable):
    """Layers whose gradients can be those of guided backpropagation (`gradients_of_features`)."""

    found = False
    """Whether there was a ReLU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        _require_rule(func)
        self.found = self.found or func in RELUS
        return super().__torch_function__(func, types, args, kwargs)


class AlwaysGuided(TorchFunctionMode):
    """ReLUs of this context hand back what is above 0 alone, whoever asks for gradients."""

    found = False
    """As of `GuidedReLUs`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        _require_rule(func)
        if func in RELUS:
            self.found = True
            return GuidedReLU.apply(args[0])  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


def _require_rule(func: Callable[..., Any]) -> None:
    if func in OTHERS:
        raise _undefined(func.__name__)


def _require_relu(relus: GuidedReLUs | AlwaysGuided) -> None:
    """Refuse a network without a ReLU, whose guided gradient is its gradient."""
    if not relus.found:
        raise _undefined("none")


def _undefined(there: str) -> UsageError:
    return UsageError(
        f"objective: guided gradients are defined for ReLU only, and this network has {there}; choose the founding "
        "network, a ResNet or a DenseNet."
    )
