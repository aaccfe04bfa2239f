"""Plan LRP through a model: the role of each operation, with unsupported ones refused before any computation.

A *plan* groups the operations of a model into *steps*. A step begins where relevance is redistributed (a layer with
weights, an average pooling, a sum, a concatenation) and includes the following normalisation, ReLU, dropout and, if one
comes next, max-pooling. Unknown operations and options are refused by name; nothing is approximated.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from heatlas.pipeline.attribution.graph import layers
from heatlas.pipeline.attribution.network_view import split_layers
from heatlas.pipeline.models.graph import operations as ops
from heatlas.pipeline.models.graph.exporting import exported
from heatlas.pipeline.models.graph.tracing import NotFollowed, Operation, Program, is_in, trace
from heatlas.pipeline.run.errors import UsageError

BatchNormMode = Literal["auto", "fold", "identity"]
"""``auto``: folded where every one of the network can be, otherwise all passed as identity."""

UNCHANGED = (*ops.ACTIVATIONS, *ops.NORMALISATIONS, nn.ConstantPad3d, ops.Scaled, ops.Shifted)
"""Layers that relevance passes as it is: activations, each value of which comes from one (Bach et al. 2015), and
normalisations by the spread of the values themselves, by the identity rule of AttnLRP (Achtibat et al. 2024, eq. 14).
What was padded is cut off. A factor that does not depend on the volume changes nothing either, and what is added to a
value (positions of tokens) is left out like a bias."""
CONVOLUTIONS = (nn.Conv3d, nn.ConvTranspose3d)
WEIGHTED = (*CONVOLUTIONS, nn.Linear)
AVERAGES = (*ops.POOLINGS, nn.Upsample)
"""Linear maps with weights of one sign that no training changes: poolings, and an interpolation between voxels."""
PRODUCTS = (ops.MatrixProduct, ops.Product)
"""Both factors get half of the relevance; `pipeline.attribution.lrp.propagation`."""
LOCAL = (*PRODUCTS, nn.Softmax, ops.Moved)
"""Operations whose relevance goes back through their derivative at the values of the volume."""
_SAME_GRID = tuple(kind for kind in ops.PASSED if kind is not nn.Flatten)
FOLLOWERS = (nn.BatchNorm3d, *_SAME_GRID, *ops.ACTIVATIONS, *ops.NORMALISATIONS, nn.MaxPool3d, nn.AdaptiveMaxPool3d)


@dataclass(frozen=True)
class Weights:
    """A layer with weights as used by the rules: batch normalisation folded in if so planned.

    `bias`: broadcastable to the units. `first`: whether its input is the volume.
    """

    linear: layers.LinearMap
    weight: Tensor
    bias: Tensor | None
    first: bool


@dataclass(frozen=True)
class PlannedStep:
    """Part of the network that redistributes relevance once.

    `name`: of the layer that redistributes relevance; otherwise of the last operation. `operations`: before the
    max-pooling `pool` at its end. `inputs`: values that relevance is passed to; empty for operations without relevance.
    `value`: name of the output.
    """

    name: str
    operations: tuple[Operation, ...]
    inputs: tuple[str, ...]
    value: str
    weights: Weights | None = None
    averaging: layers.Averaging | None = None
    pool: layers.MaxPool | layers.AdaptiveMaxPool | None = None

    @property
    def head(self) -> nn.Module | None:
        """First module; None for a max-pooling alone or an operation without relevance."""
        return self.operations[0].module if self.operations and self.inputs else None


@dataclass(frozen=True)
class RelevancePlan:
    """All steps of a model, in order of computation.

    `boundary`: the value at which relevance is wanted: the volumes, or the features of a stage.
    """

    steps: tuple[PlannedStep, ...]
    program: Program
    boundary: str
    batch_norm: BatchNormMode


T = TypeVar("T")


def followed(model: nn.Module, volumes: Tensor, work: Callable[[Program], T]) -> T:
    """What work on the operations of a model gives: as its code calls them, else those of a pass on one volume."""
    try:
        return work(trace(model))
    except NotFollowed:
        if len(volumes) != 1 or any(isinstance(module, ops.DYNAMIC) for module in model.modules()):
            raise  # layers of dynamic linear networks would be opened, whose maps are their own
    return work(exported(model, volumes))


def plan_forward(model: nn.Module, program: Program, others: tuple[type[nn.Module], ...] = ()) -> dict[str, Operation]:
    """Operations that carry relevance or a gradient, each checked to be supported.

    `others`: modules that the method supports besides those that all do.
    """
    carrying = checked(model, program)
    for operation in carrying.values():
        require_known(operation, others)
    return carrying


def checked(model: nn.Module, program: Program) -> dict[str, Operation]:
    """Operations that carry relevance; raises as `plan_forward`, but not for unknown ones."""
    carrying = carried(program)
    if not any(isinstance(operation.module, nn.Conv3d | nn.Linear) for operation in carrying.values()):
        raise UsageError(f"model ({type(model).__name__}) has no layer with weights between volumes and output.")
    for operation in program.operations:
        require_private_in_place(operation, program)
        if isinstance(operation.module, MODAL) and operation.module.training:
            raise UsageError(f"layer {labelled(operation)} is in training mode; call model.eval() first.")
    return carrying


def plan_relevance(
    model: nn.Module, batch_norm: BatchNormMode, stage: int | str = 0, program: Program | None = None
) -> RelevancePlan:
    """Plan LRP through a model with logits as output, down to a stage (see `network_view.explaining`).

    `program`: its operations; by default as its code calls them.
    """
    program = trace(model) if program is None else program
    if batch_norm not in get_args(BatchNormMode):
        raise UsageError(f"batch_norm = {batch_norm!r}: allowed are 'auto', 'fold' and 'identity'.")
    if batch_norm == "auto":
        try:
            return plan_relevance(model, "fold", stage, program)
        except UsageError:  # whatever else it is, is refused again
            return plan_relevance(model, "identity", stage, program)
    carrying = plan_forward(model, program, (*WEIGHTED, *UNCHANGED, *LOCAL, nn.Upsample))
    boundary = boundary_value(model, program, stage)
    if batch_norm == "fold":
        boundary = _past_normalisation(program, boundary)
    if boundary != program.source and boundary not in carrying:
        raise UsageError(f"stage {stage!r} carries no relevance (it leads to a gate only); name another layer.")
    near_input = {program.source}
    steps: list[PlannedStep] = []
    taken: set[str] = set()
    for operation in program.operations:
        if operation.value in taken:
            continue
        if operation.value not in carrying:
            steps.append(PlannedStep(operation.name, (operation,), (), operation.value))
            continue
        chain = _chain(operation, program, boundary)
        taken.update(link.value for link in chain)
        step = _step(chain, batch_norm, operation.inputs[0] in near_input)
        same_places = step.weights is None and not isinstance(step.head, LOCAL)
        if same_places and set(step.inputs) <= near_input:
            near_input.add(step.value)
        steps.append(step)
    return RelevancePlan(tuple(steps), program, boundary, batch_norm)


def carried(program: Program) -> dict[str, Operation]:
    """Operations that carry relevance, by output value: all that lead to the result, except through a gate."""
    by_value = {op.value: op for op in program.operations if op.value not in program.constants}
    carrying: dict[str, Operation] = {}
    waiting = [program.result]
    while waiting:
        operation = by_value.get(waiting.pop())
        if operation is not None and operation.value not in carrying:
            carrying[operation.value] = operation
            waiting += operation.inputs[:1] if isinstance(operation.module, ops.Gate) else operation.inputs
    return carrying


def _chain(head: Operation, program: Program, boundary: str) -> list[Operation]:
    """An operation and those that follow it alone, up to a max-pooling or the boundary."""
    chain = [head]
    by_input = {operation.inputs[0]: operation for operation in program.operations if operation.inputs}
    while True:
        last = chain[-1]
        ends = isinstance(last.module, nn.MaxPool3d | nn.AdaptiveMaxPool3d) or last.value == boundary
        follower = by_input.get(last.value)
        if ends or len(last.node.users) != 1 or follower is None or not isinstance(follower.module, FOLLOWERS):
            return chain
        chain.append(follower)


def _step(chain: Sequence[Operation], batch_norm: BatchNormMode, near_input: bool) -> PlannedStep:
    head, last = chain[0], chain[-1]
    pool = max_pool(last.module) if last.module is not None else None
    operations = tuple(chain if pool is None else chain[:-1])
    norm = _norm_to_fold(chain) if batch_norm == "fold" else None
    inputs = head.inputs[:1] if isinstance(head.module, ops.Gate) else head.inputs
    averages = isinstance(head.module, AVERAGES)
    shares = averages or isinstance(head.module, (*WEIGHTED, ops.Sum, ops.Concatenate, *LOCAL))
    return PlannedStep(
        name=head.name if shares else last.name,
        operations=operations,
        inputs=inputs,
        value=last.value,
        weights=_weights(head.module, norm, near_input),
        averaging=layers.Averaging(head.module) if averages else None,  # type: ignore[arg-type]
        pool=pool,
    )


def _weights(module: nn.Module | None, norm: nn.BatchNorm3d | None, first: bool) -> Weights | None:
    if isinstance(module, nn.Linear):
        added = None if module.bias is None else module.bias.detach()
        return Weights(layers.FullyConnected(), module.weight.detach(), added, first)
    if not isinstance(module, nn.Conv3d | nn.ConvTranspose3d):
        return None
    linear = _convolution(module)
    weight, bias = linear.by_output(module.weight), module.bias
    if norm is not None:
        weight, bias = layers.folded(weight, bias, norm)
    offset = None if bias is None else bias.detach().view(-1, 1, 1, 1)
    return Weights(linear, weight.detach(), offset, first)


def _norm_to_fold(chain: Sequence[Operation]) -> nn.BatchNorm3d | None:
    """The normalisation right after the convolution at the start of a chain; any other is refused."""
    norm = None
    for place, operation in enumerate(chain):
        if isinstance(operation.module, nn.BatchNorm3d):
            if place != 1 or not isinstance(chain[0].module, CONVOLUTIONS):
                raise UsageError(
                    f"layer {labelled(operation)} does not follow a Conv3d directly (and alone) and cannot be folded "
                    "into one; use batch_norm = 'identity', or put the normalisation between convolution and ReLU."
                )
            norm = operation.module
    return norm


def boundary_value(model: nn.Module, program: Program, stage: int | str) -> str:
    """Name of the value that crosses the boundary of a stage."""
    if stage == 0:
        return program.source
    name = stage
    if isinstance(stage, int):
        name = split_layers(model, stage)[0][-1][0]
    values = [operation.value for operation in program.operations if is_in(operation, str(name))]
    if not values:
        names = ", ".join(operation.name for operation in program.operations)
        raise UsageError(f"stage {stage!r}: no such layer; the model has {names}.")
    if values[-1] == program.result:
        raise UsageError(f"stage {stage!r} is the output itself; name an earlier layer.")
    return values[-1]


def _past_normalisation(program: Program, value: str) -> str:
    """The value after the normalisation folded into a layer: for the rules, both are the layer's units."""
    by_value = {operation.value: operation for operation in program.operations}
    users = [o for o in program.operations if o.inputs[:1] == (value,)]
    if value not in by_value or not isinstance(by_value[value].module, CONVOLUTIONS) or len(users) != 1:
        return value
    return users[0].value if isinstance(users[0].module, nn.BatchNorm3d) else value


def _convolution(module: nn.Conv3d | nn.ConvTranspose3d) -> layers.Convolution:
    padding = module.padding
    if isinstance(module, nn.ConvTranspose3d):
        geometry = (module.stride, padding, module.dilation, module.groups, module.output_padding)
        return layers.TransposedConvolution(*geometry)  # type: ignore[arg-type]
    if padding == "same":
        padding = tuple(d * (k - 1) // 2 for d, k in zip(module.dilation, module.kernel_size, strict=True))
    elif isinstance(padding, str):
        padding = (0, 0, 0)
    return layers.Convolution(module.stride, padding, module.dilation, module.groups)


def max_pool(module: nn.Module) -> layers.MaxPool | layers.AdaptiveMaxPool | None:
    if isinstance(module, nn.AdaptiveMaxPool3d):
        return layers.AdaptiveMaxPool(module.output_size)
    if not isinstance(module, nn.MaxPool3d):
        return None
    return layers.MaxPool(
        layers.triple(module.kernel_size),
        layers.triple(module.stride),
        layers.triple(module.padding),
        layers.triple(module.dilation),
        module.ceil_mode,
    )


MODAL = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase)
"""Layers that differ in training mode, in all dimensions, since those of a gate may have any."""
SAME_MEMORY = (ops.Reshape, ops.Moved, nn.Flatten, nn.Identity, nn.Dropout, nn.Dropout3d)
"""Operations whose output may share memory with their input (in evaluation mode)."""
IN_PLACE_OPERATORS = (operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ipow)


WRITTEN: tuple[type[nn.Module], ...] = (
    *WEIGHTED, *ops.ACTIVATIONS, *ops.NORMALISATIONS, nn.ConstantPad3d, nn.Softmax, nn.Upsample, *PRODUCTS, ops.AsCalled
)  # fmt: skip
"""What an export writes no otherwise than the code of a model."""


def labelled(operation: Operation) -> str:
    kind = operation.node.target if operation.module is None else type(operation.module).__name__
    return f"{operation.name} ({getattr(kind, '__name__', kind)})"


_SUMS = ("mean", "sum", torch.mean, torch.sum)
LINEAR = (*_SUMS, operator.neg, operator.sub, operator.add, torch.sub, F.interpolate)
"""Functions and methods of tensors that are linear in all values together."""


def is_linear(operation: Operation) -> bool:
    node = operation.node
    if operation.module is not None or node.op not in ("call_function", "call_method"):
        return isinstance(operation.module, nn.Upsample) and operation.module.mode in ("nearest", "trilinear")
    return node.target in LINEAR


def require_known(operation: Operation, others: tuple[type[nn.Module], ...] = ()) -> None:
    """Refuse an operation that relevance cannot be propagated through correctly, by name.

    `others`: modules that the method supports besides `KNOWN`.
    """
    module = operation.module
    supported: tuple[type[nn.Module], ...] = (*ops.KNOWN, *(kind for kind in others if kind not in ops.KNOWN))
    kinds: tuple[type[nn.Module], ...] = (*supported, ops.Sum, ops.Concatenate, ops.Gate, ops.Reshape, ops.Moved)
    kind: type[nn.Module] | None = next((kind for kind in kinds if isinstance(module, kind)), None)
    if module is None or kind is None or type(module).forward is not kind.forward:
        named = ", ".join(kind.__name__ for kind in supported if kind.__module__ != ops.Sum.__module__)
        known: type[nn.Module] | None = next((kind for kind in WRITTEN if isinstance(module, kind)), None)
        same = module is not None and known is not None and type(module).forward is known.forward
        raise (UsageError if same else NotFollowed)(
            f"layer {labelled(operation)} has no rule in this method; known are {named}, sums, means, concatenation of "
            "channels, gates, and changes of shape. Methods that use only outputs and gradients take any network, such "
            "as expected-gradients and integrated-gradients."
        )
    if module._forward_hooks or module._forward_pre_hooks:
        raise UsageError(
            f"layer {labelled(operation)} has a forward hook, which may change its output; remove it first."
        )
    problem = _unsupported_option(module)
    if problem:
        raise NotFollowed(f"layer {labelled(operation)}: {problem}.")


def require_private_in_place(operation: Operation, program: Program) -> None:
    """Refuse in-place operations on values that other layers read, since these then see the changed values.

    Operations without relevance count too: ``out.add_(x)`` changes `out` for all later readers.
    """
    if not _works_in_place(operation):
        return
    by_value = {other.value: other for other in program.operations}
    source: fx.Node | None = operation.node.all_input_nodes[0]
    while source is not None:
        if sum(not ops.reads_shape(user) for user in source.users) > 1:
            raise NotFollowed(
                f"layer {labelled(operation)} works in place on a value that other layers read; create it with "
                "inplace=False, or write its result to a new value."
            )
        shares_memory = source.name in by_value and isinstance(by_value[source.name].module, SAME_MEMORY)
        source = source.all_input_nodes[0] if shares_memory else None


def _works_in_place(operation: Operation) -> bool:
    node = operation.node
    if not node.all_input_nodes:
        return False
    if node.op == "call_module":
        return bool(getattr(operation.module, "inplace", False))
    if node.target in IN_PLACE_OPERATORS or node.kwargs.get("inplace", False) or "out" in node.kwargs:
        return True
    name = str(getattr(node.target, "__name__", node.target))
    return node.op != "get_attr" and name.endswith("_") and not name.endswith("__")


def _unsupported_option(module: nn.Module) -> str:
    if isinstance(module, nn.Upsample) and module.mode not in ("nearest", "trilinear"):
        return f"mode {module.mode!r} is not supported; use 'nearest' or 'trilinear'"
    if isinstance(module, nn.Conv3d):
        if module.padding_mode != "zeros":
            return f"padding_mode {module.padding_mode!r} is not supported; use 'zeros'"
        if module.padding == "same" and any(
            dilation * (size - 1) % 2 for dilation, size in zip(module.dilation, module.kernel_size, strict=True)
        ):
            return "padding 'same' with an even kernel is asymmetric and not supported; use an odd kernel"
    if isinstance(module, nn.ConstantPad3d) and module.value != 0:
        return "pads with another value than 0, which no relevance goes to; pad with 0"
    if isinstance(module, nn.BatchNorm3d) and module.running_mean is None:
        return "has no running statistics and normalises by the batch; train it with track_running_stats=True"
    if isinstance(module, nn.MaxPool3d | nn.AdaptiveMaxPool3d) and module.return_indices:
        return "return_indices=True is not supported; create it without"
    if isinstance(module, nn.Softmax) and module.dim is None:
        return "does not say its axis; create it with dim="
    if isinstance(module, nn.Flatten) and (module.start_dim != 1 or module.end_dim != -1):
        return "must flatten everything but the batch (start_dim=1, end_dim=-1)"
    return ""
