"""The tape: what each step of the network did in the forward pass that is explained.

One forward pass serves any number of β: inputs of the layers with weights, winners of the max-poolings and the sums
of contributions depend on the model and the volume only. Sums are kept at the winners alone, since no other unit
ever receives relevance; that is 1/8 or 1/27 of the memory and leaves the division to the small grid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pipeline.attribution.linear_maps import LinearMap
from pipeline.attribution.planner import Layer, Step
from pipeline.attribution.pooling import MaxPool, gather
from pipeline.attribution.rules import Contributions, mirrored_weight, negative_sums, positive_sums, split_signs
from pipeline.run.errors import BadInputError


@dataclass(frozen=True)
class Shared:
    """What a layer with weights did, as the β-rule needs it.

    Parameters
    ----------
    linear : LinearMap
    x : Tensor
        Input of the layer; non-negative, doubled where it was signed (`split_signs`).
    weight : Tensor
        Weights that go with `x`.
    signed : bool
        Whether `x` and `weight` are the doubled form.
    contributions : Contributions
        Sums at the winners of the max-pooling that follows, or at every unit where none does.
    """

    linear: LinearMap
    x: Tensor
    weight: Tensor
    signed: bool
    contributions: Contributions


@dataclass(frozen=True)
class Record:
    """One step of the forward pass.

    Parameters
    ----------
    step : Step
    input_shape : torch.Size
        Of what came into the step.
    pooled_shape : torch.Size
        Of what the step's max-pooling took, or of its output where there is none.
    winners : Tensor or None
        Winners of the max-pooling.
    shared : Shared or None
        None where the step has no layer with weights.
    """

    step: Step
    input_shape: torch.Size
    pooled_shape: torch.Size
    winners: Tensor | None
    shared: Shared | None


@dataclass(frozen=True)
class Tape:
    """The forward pass: one record per step, first to last, and the logits (B, K)."""

    records: tuple[Record, ...]
    logits: Tensor


def record_forward(steps: Sequence[Step], volumes: Tensor, with_negative: bool) -> Tape:
    """Run the model's own forward pass and keep what LRP needs.

    Parameters
    ----------
    steps : sequence of Step
        From `plan_relevance`.
    volumes : Tensor
        (B, C, D, H, W).
    with_negative : bool
        False leaves out the sums that only β other than 0 uses.

    Raises
    ------
    BadInputError
        If the volumes do not fit a layer; the message names it.
    """
    records = []
    a = volumes
    for step in steps:
        record, a = _record_step(step, a, with_negative)
        records.append(record)
    return Tape(tuple(records), a)


def _record_step(step: Step, a: Tensor, with_negative: bool) -> tuple[Record, Tensor]:
    x, input_shape = a, a.shape
    for layer in step.layers:
        a = run_layer(layer, a)
    shape, winners = a.shape, None
    if step.pool is not None:
        _require_voxels(f"the max-pooling after layer {step.name}", a, step.pool)
        a, winners = step.pool.apply(a)
    if step.linear is None or step.weight is None:
        return Record(step, input_shape, shape, winners, None), a
    weight = step.weight
    signed = bool((x < 0).any())
    if signed:
        x, weight = split_signs(x, step.linear), mirrored_weight(weight)
    positive = _at(winners, positive_sums(x, weight, step.linear))
    negative = _at(winners, negative_sums(x, weight, step.linear)) if with_negative else None
    shared = Shared(step.linear, x, weight, signed, Contributions(positive, negative))
    return Record(step, input_shape, shape, winners, shared), a


def _at(winners: Tensor | None, sums: Tensor) -> Tensor:
    return sums if winners is None else gather(sums, winners)


def run_layer(layer: Layer, a: Tensor, relu: Callable[[Tensor], Tensor] = torch.relu) -> Tensor:
    """Output of one layer in evaluation mode, never in place.

    Parameters
    ----------
    layer : Layer
    a : Tensor
    relu : callable
        What a ReLU does; guided backpropagation has its own.

    Raises
    ------
    BadInputError
        If `a` does not fit the layer.
    """
    module = layer.module
    if isinstance(module, nn.ReLU):
        return relu(a)
    if isinstance(module, nn.Linear) and a.shape[-1] != module.in_features:
        raise BadInputError(
            f"layer {layer.name} (Linear) takes {module.in_features} features and would get {a.shape[-1]}: the volumes "
            "are not on the grid the model was trained on."
        )
    if isinstance(module, nn.Conv3d):
        if a.dim() != 5 or a.shape[1] != module.in_channels:
            raise BadInputError(
                f"layer {layer.name} (Conv3d) takes (batch, {module.in_channels}, D, H, W) and would get "
                f"{tuple(a.shape)}."
            )
        _require_voxels(f"layer {layer.name} (Conv3d)", a, module)
    answer: Tensor = module(a)
    return answer


def _require_voxels(name: str, a: Tensor, window: nn.Conv3d | MaxPool) -> None:
    """Refuse a grid smaller than the window that is to be moved over it."""
    reach = [dilation * (size - 1) + 1 for dilation, size in zip(window.dilation, window.kernel_size, strict=True)]
    padding = (0, 0, 0) if window.padding == "valid" else window.padding
    if isinstance(padding, str):  # "same" fits any grid
        return
    if a.dim() != 5 or any(n + 2 * pad < need for n, pad, need in zip(a.shape[2:], padding, reach, strict=True)):
        raise BadInputError(
            f"{name} needs at least {tuple(reach)} voxels and would get {tuple(a.shape[2:])}: the volumes are smaller "
            "than the model can take."
        )
