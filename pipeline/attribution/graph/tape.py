"""The tape: inputs and winners of each step in the forward pass that is explained.

One forward pass serves any number of rules, since inputs of layers and winners of max-poolings depend only on the model
and the volume. Sums of contributions are computed in the backward pass, only at the winners, to save memory.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from heatlas.pipeline.attribution.graph.layers import MaxPool, run_layer
from heatlas.pipeline.attribution.graph.planner import LOCAL, PlannedStep, RelevancePlan
from heatlas.pipeline.models.graph.operations import AsCalled, Concatenate, Gate, Product, Scaled, Shifted, Sum
from heatlas.pipeline.models.graph.tracing import NotFollowed, Operation, Program
from heatlas.pipeline.run.errors import BadInputError

NOT_IN_PLACE: Mapping[Any, Callable[..., Any]] = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
    operator.ipow: operator.pow,
}

PLANEWISE = (nn.BatchNorm3d, nn.ReLU, nn.Dropout, nn.Dropout3d, nn.Identity)
"""What makes of each plane what it makes of all (in evaluation mode)."""


@dataclass(frozen=True)
class Record:
    """One step of the forward pass.

    `inputs`: tensors without memory replace those whose values no rule needs. `unit_shape`: of the step's output before
    its max-pooling, which has the `winners`. `local`: output of an operation whose relevance goes back through its
    derivative; `inputs` are its leaves.
    """

    step: PlannedStep
    inputs: tuple[Tensor, ...]
    unit_shape: torch.Size
    winners: Tensor | None
    local: Tensor | None = None


@dataclass(frozen=True)
class Tape:
    """The forward pass: one record per step that carries relevance, first to last, and the logits (B, K)."""

    records: tuple[Record, ...]
    logits: Tensor


def record_forward(plan: RelevancePlan, volumes: Tensor) -> Tape:
    """Run the model's forward pass on volumes (B, C, D, H, W) and keep what LRP needs."""
    if volumes.device.type == "cpu":  # channels last: convolutions of PyTorch take half the time, and the same sums
        volumes = volumes.movedim(1, -1).contiguous().movedim(-1, 1)
    values = Values(plan.program, volumes)
    records = []
    for step in plan.steps:
        inputs = tuple(values[name] for name in step.inputs)
        local = None
        if isinstance(step.head, LOCAL):
            inputs, local = values.local(step.operations[0])
        elif step.weights is None and step.averaging is None and not isinstance(step.head, Sum):
            inputs = tuple(a.new_empty(()).expand(a.shape) for a in inputs)  # only the shape is needed
        a: Any = None
        planewise = _is_planewise(step, volumes)
        for operation in step.operations[:1] if planewise else step.operations:
            a = values.run(operation)
            if isinstance(operation.module, Sum | Gate | Scaled | Shifted):
                _require_one_shape(operation.name, inputs, a)
        if step.pool is not None:
            a = values[step.inputs[0]] if not step.operations else a
            records.append(_pooled(step, inputs, a, values, planewise))
        elif step.inputs:
            records.append(Record(step, inputs, a.shape, None, local))
        del a
    return Tape(tuple(records), values[plan.program.result])


def _is_planewise(step: PlannedStep, volumes: Tensor) -> bool:
    """Whether what comes between a layer and its max-pooling may be done plane by plane, on a CPU in less time."""
    pool, between = step.pool, step.operations[1:]
    return (
        isinstance(pool, MaxPool)
        and (pool.padding, pool.dilation, pool.ceil_mode) == ((0, 0, 0), (1, 1, 1), False)
        and len(between) > 0
        and all(isinstance(operation.module, PLANEWISE) for operation in between)
        and volumes.device.type == "cpu"
        and len(volumes) == 1
    )


def _pooled(step: PlannedStep, inputs: tuple[Tensor, ...], a: Tensor, values: Values, planewise: bool) -> Record:
    pool = step.pool
    assert pool is not None
    if isinstance(pool, MaxPool):
        _require_voxels(f"the max-pooling after layer {step.name}", a, pool)
    pooled, winners = _plane_by_plane(step, a) if planewise else pool.apply(a)
    values.give(step.value, pooled)
    if step.operations:
        values.used(step.operations[0 if planewise else -1].value)
    else:
        values.used(step.inputs[0])
    return Record(step, inputs, a.shape, winners)


def _plane_by_plane(step: PlannedStep, a: Tensor) -> tuple[Tensor, Tensor]:
    """Values and winners of the max-pooling; what comes before it stays in the processor's cache."""
    pool, parts = step.pool, []
    assert isinstance(pool, MaxPool)
    for first in range(0, a.shape[2] - pool.kernel_size[0] + 1, pool.stride[0]):
        part = a[:, :, first : first + pool.kernel_size[0]]
        for operation in step.operations[1:]:
            rectifies = isinstance(operation.module, nn.ReLU)  # never in place
            part = torch.relu(part) if rectifies else operation.module(part)  # type: ignore[misc]
        pooled, winners = pool.apply(part)
        parts.append((pooled, winners.add_(first * a[0, 0, 0].numel())))
    return torch.cat([pooled for pooled, _ in parts], 2), torch.cat([winners for _, winners in parts], 2)


class Values:
    """Values of a forward pass by name, each dropped after its last use; with another ReLU if wanted."""

    def __init__(self, program: Program, volumes: Tensor, relu: Callable[[Tensor], Tensor] = torch.relu) -> None:
        self._values: dict[str, Any] = {program.source: volumes}
        self._relu = relu
        self._left: Counter[str] = Counter()
        for operation in program.operations:
            self._left.update({node.name: 1 for node in operation.node.all_input_nodes})
        self._left[program.result] += 1
        self._modules = program.graph

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def give(self, name: str, value: Any) -> None:
        self._values[name] = value

    def used(self, name: str) -> None:
        self._left[name] -= 1
        if not self._left[name]:
            self._values.pop(name, None)

    def run(self, operation: Operation) -> Any:
        """Run one operation, never in place, and return its value."""
        value = self._result(operation)
        self.give(operation.value, value)
        for node in operation.node.all_input_nodes:
            self.used(node.name)
        return value

    def local(self, operation: Operation) -> tuple[tuple[Tensor, ...], Tensor]:
        """Copies of the inputs of an operation and what it makes of them, with the graph between."""
        with torch.inference_mode(False), torch.enable_grad():
            leaves = tuple(self._as_traced(name).detach().clone().requires_grad_() for name in operation.inputs)
            return leaves, self.called(operation, leaves)

    def called(self, operation: Operation, inputs: Sequence[Tensor]) -> Any:
        """What the model's call makes of other inputs, of which two may be the same value of the model."""
        left = list(zip(operation.inputs, inputs, strict=True))

        def given(name: str) -> Any:
            return left.pop(0)[1] if left and left[0][0] == name else self._as_traced(name)

        return _call(operation.node, given, self._modules)

    def _as_traced(self, name: str) -> Any:
        """A value with its channels where the code of a model expects them in memory."""
        value = self._values[name]
        return value.contiguous() if isinstance(value, Tensor) else value

    def _result(self, operation: Operation) -> Any:
        module, node = operation.module, operation.node
        if module is None or isinstance(module, AsCalled):
            return _call(node, self._as_traced, self._modules)
        inputs = [self._values[name] for name in operation.inputs]
        if isinstance(module, nn.ReLU):
            return self._relu(inputs[0])
        if isinstance(module, Sum | Gate | Product | Concatenate):
            return module(*inputs)
        _require_fit(operation.name, module, inputs[0])
        return run_layer(module, inputs[0])


def _call(node: fx.Node, value_of: Callable[[str], Any], modules: fx.GraphModule) -> Any:
    """Run a node as it was traced, though not in place."""
    args = fx.node.map_arg(node.args, lambda n: value_of(n.name))
    kwargs = fx.node.map_arg(node.kwargs, lambda n: value_of(n.name))
    if node.op == "call_module":
        return modules.get_submodule(str(node.target))(*args, **kwargs)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    if node.op == "get_attr":
        owner, _, name = str(node.target).rpartition(".")
        return getattr(modules.get_submodule(owner), name)
    assert callable(node.target)
    return NOT_IN_PLACE.get(node.target, node.target)(*args, **kwargs)


def _require_one_shape(name: str, inputs: Sequence[Tensor], result: Tensor) -> None:
    """Refuse a sum or a gate that broadcasts a relevance-carrying value to a larger shape."""
    if any(a.shape != result.shape for a in inputs):
        shapes = " and ".join(str(tuple(a.shape)) for a in inputs)
        raise NotFollowed(
            f"layer {name} makes {tuple(result.shape)} of {shapes}: broadcasting is not supported by attribution."
        )


def _require_fit(name: str, module: nn.Module, a: Tensor) -> None:
    if isinstance(module, nn.Linear) and a.shape[-1] != module.in_features:
        raise BadInputError(
            f"layer {name} (Linear) takes {module.in_features} features but gets {a.shape[-1]}: the volumes "
            "are not on the grid the model was trained on."
        )
    if isinstance(module, nn.Conv3d):
        if a.dim() != 5 or a.shape[1] != module.in_channels:
            raise BadInputError(
                f"layer {name} (Conv3d) takes (batch, {module.in_channels}, D, H, W) but gets {tuple(a.shape)}."
            )
        _require_voxels(f"layer {name} (Conv3d)", a, module)


def _require_voxels(name: str, a: Tensor, window: nn.Conv3d | MaxPool) -> None:
    reach = [dilation * (size - 1) + 1 for dilation, size in zip(window.dilation, window.kernel_size, strict=True)]
    padding = (0, 0, 0) if window.padding == "valid" else window.padding
    if isinstance(padding, str):  # "same" fits any grid
        return
    if a.dim() != 5 or any(n + 2 * pad < need for n, pad, need in zip(a.shape[2:], padding, reach, strict=True)):
        raise BadInputError(
            f"{name} needs at least {tuple(reach)} voxels but gets {tuple(a.shape[2:])}: the volumes are too small "
            "for the model."
        )
