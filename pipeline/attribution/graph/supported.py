"""Operations and options that attribution supports; all others are refused by name."""

from __future__ import annotations

import operator

import torch
import torch.nn.functional as F
from torch import fx, nn

from heatlas.pipeline.models.graph.operations import KNOWN, Concatenate, Gate, Moved, Reshape, Sum, reads_shape
from heatlas.pipeline.models.graph.tracing import Operation, Program
from heatlas.pipeline.run.errors import UsageError

MODAL = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase)
"""Layers that differ in training mode, in all dimensions, since those of a gate may have any."""
SAME_MEMORY = (Reshape, Moved, nn.Flatten, nn.Identity, nn.Dropout, nn.Dropout3d)
"""Operations whose output may share memory with their input (in evaluation mode)."""
IN_PLACE_OPERATORS = (operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ipow)


def labelled(operation: Operation) -> str:
    """Name and kind of an operation."""
    kind = operation.node.target if operation.module is None else type(operation.module).__name__
    return f"{operation.name} ({getattr(kind, '__name__', kind)})"


LINEAR = (
    "mean", "sum", operator.neg, operator.sub, operator.add, torch.mean, torch.sum, torch.sub, F.interpolate,
)  # fmt: skip
"""Functions and methods of tensors that are linear in all values together."""


def is_linear(operation: Operation) -> bool:
    """Whether a function or a method of tensors is linear in all of them together."""
    node = operation.node
    if operation.module is not None or node.op not in ("call_function", "call_method"):
        return isinstance(operation.module, nn.Upsample) and operation.module.mode in ("nearest", "trilinear")
    return node.target in LINEAR


def require_known(operation: Operation, others: tuple[type[nn.Module], ...] = ()) -> None:
    """Refuse an operation that relevance cannot be propagated through correctly.

    `others`: modules that the method supports besides `KNOWN`. Raises UsageError, naming the operation.
    """
    module = operation.module
    known: tuple[type[nn.Module], ...] = (*KNOWN, *(kind for kind in others if kind not in KNOWN))
    kinds: tuple[type[nn.Module], ...] = (*known, Sum, Concatenate, Gate, Reshape, Moved)
    kind = next((kind for kind in kinds if isinstance(module, kind)), None)
    if module is None or kind is None or type(module).forward is not kind.forward:
        named = ", ".join(kind.__name__ for kind in known if kind.__module__ != Sum.__module__)
        raise UsageError(
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
        raise UsageError(f"layer {labelled(operation)}: {problem}.")


def require_private_in_place(operation: Operation, program: Program) -> None:
    """Refuse in-place operations on values that other layers read, since these then see the changed values.

    `operation`: any, including those without relevance: ``out.add_(x)`` changes `out` for all later readers. Raises
    UsageError, naming the operation.
    """
    if not _works_in_place(operation):
        return
    by_value = {other.value: other for other in program.operations}
    source: fx.Node | None = operation.node.all_input_nodes[0]
    while source is not None:
        if sum(not reads_shape(user) for user in source.users) > 1:
            raise UsageError(
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


def require_evaluation_mode(operation: Operation) -> None:
    """Refuse a layer that behaves differently than in prediction.

    Raises UsageError, naming the layer.
    """
    if isinstance(operation.module, MODAL) and operation.module.training:
        raise UsageError(f"layer {labelled(operation)} is in training mode; call model.eval() first.")
