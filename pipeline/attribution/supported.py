"""Which operations attribution knows, and with which options; the rest is refused by name."""

from __future__ import annotations

from torch import nn

from pipeline.attribution.tracing import KNOWN, Concatenate, Gate, Operation, Reshape, Sum
from pipeline.run.errors import UsageError

MODAL = (nn.Dropout, nn.Dropout3d, nn.BatchNorm3d)
"""Layers that do something else in training mode."""


def labelled(operation: Operation) -> str:
    """Name and kind of an operation."""
    kind = operation.node.target if operation.module is None else type(operation.module).__name__
    return f"{operation.name} ({getattr(kind, '__name__', kind)})"


def require_known(operation: Operation) -> None:
    """Refuse what the steps of LRP would get wrong.

    Raises
    ------
    UsageError
        Naming the operation.
    """
    module = operation.module
    kinds = (*KNOWN, Sum, Concatenate, Gate, Reshape)
    kind = next((kind for kind in kinds if isinstance(module, kind)), None)
    if module is None or kind is None or type(module).forward is not kind.forward:
        raise UsageError(
            f"layer {labelled(operation)} is not supported by attribution; known are "
            f"{', '.join(kind.__name__ for kind in KNOWN)}, sums, concatenation of channels, gates, "
            "and changes of shape."
        )
    problem = _unsupported_option(module)
    if problem:
        raise UsageError(f"layer {labelled(operation)}: {problem}.")


def require_private_in_place(operation: Operation) -> None:
    """Refuse work in place on a value that others read: the model itself then sees the changed value there.

    Raises
    ------
    UsageError
        Naming the operation.
    """
    in_place = getattr(operation.module, "inplace", False) or operation.node.kwargs.get("inplace", False)
    in_place = in_place or str(getattr(operation.node.target, "__name__", "")) == "iadd"
    source = operation.node.all_input_nodes[0]
    if in_place and len(source.users) > 1:
        raise UsageError(
            f"layer {labelled(operation)} works in place on a value that other layers read; create it with "
            "inplace=False."
        )


def _unsupported_option(module: nn.Module) -> str:
    if isinstance(module, nn.Conv3d):
        if module.padding_mode != "zeros":
            return f"padding_mode {module.padding_mode!r} is not supported; use 'zeros'"
        if module.padding == "same" and any(
            dilation * (size - 1) % 2 for dilation, size in zip(module.dilation, module.kernel_size, strict=True)
        ):
            return "padding 'same' of an even kernel is not symmetric and not supported; use an odd kernel"
    if isinstance(module, nn.BatchNorm3d) and module.running_mean is None:
        return "has no running statistics and normalises by the batch; train it with track_running_stats=True"
    if isinstance(module, nn.MaxPool3d | nn.AdaptiveMaxPool3d) and module.return_indices:
        return "return_indices=True is not supported; create it without"
    if isinstance(module, nn.Flatten) and (module.start_dim != 1 or module.end_dim != -1):
        return "must flatten everything but the batch (start_dim=1, end_dim=-1)"
    return ""


def require_evaluation_mode(operation: Operation) -> None:
    """Refuse a layer that would do something else than in prediction.

    Raises
    ------
    UsageError
        Naming the layer.
    """
    if isinstance(operation.module, MODAL) and operation.module.training:
        raise UsageError(f"layer {labelled(operation)} is in training mode; call model.eval() first.")
