"""Trace a model: the list of its operations and their inputs, without running it.

`torch.fx` records every call of a model's forward, including functional ones, so residual sums, concatenations, shared
modules and nested blocks need no special treatment. Each call becomes an `Operation`. Relevance can be propagated only
through operations that the planner supports; `Sum`, `Concatenate` and `Gate` stand for ``a + b``, ``torch.cat`` and ``a
* gate``. Parts without relevance (the branch that computes a gate) are run unchanged.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from heatlas.pipeline.models.dynamic.explanation_mode import DynamicLinear
from heatlas.pipeline.models.dynamic.logits import LogitLayer
from heatlas.pipeline.run.errors import UsageError


class SpatialMean(nn.Module):
    """``x.mean((2, 3, 4))``, with or without the axes that are averaged over."""

    def __init__(self, axes: tuple[int, ...], keepdim: bool) -> None:
        super().__init__()
        self.axes, self.keepdim = axes, keepdim

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(self.axes, keepdim=self.keepdim)


POOLINGS = (nn.AvgPool3d, nn.AdaptiveAvgPool3d, SpatialMean)
PASSED = (nn.ReLU, nn.Dropout, nn.Dropout3d, nn.Identity, nn.Flatten)
"""Modules that relevance passes unchanged (a flattening only changes its shape)."""
GATES = (nn.Sigmoid, nn.Softmax, nn.Hardsigmoid)
"""Modules whose output is a gate when multiplied with features; gates get no relevance (Arras et al. 2017)."""
DYNAMIC = (DynamicLinear, LogitLayer)
"""Layers of dynamic linear networks, which no rule looks into."""
PIECEWISE_LINEAR = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.Hardtanh)
"""Activations whose chord has no slope that rounding could hurt."""
SMOOTH = (nn.ELU, nn.CELU, nn.SELU, nn.SiLU, nn.GELU, nn.Softplus, nn.Tanh, nn.Sigmoid)
ACTIVATIONS = (*PIECEWISE_LINEAR, *SMOOTH)
"""Activations that change each value by itself."""
NORMALISATIONS = (nn.InstanceNorm3d, nn.GroupNorm, nn.LayerNorm)
"""Divide by the spread of the values themselves, unlike batch normalisation in evaluation mode."""
KNOWN = (nn.Conv3d, nn.Linear, nn.BatchNorm3d, nn.MaxPool3d, nn.AdaptiveMaxPool3d, *POOLINGS, *PASSED)


FUNCTIONS: dict[Any, tuple[type[nn.Module], tuple[str, ...]]] = {
    F.relu6: (nn.ReLU6, ()), F.leaky_relu: (nn.LeakyReLU, ("negative_slope",)), F.elu: (nn.ELU, ("alpha",)),
    F.selu: (nn.SELU, ()), F.silu: (nn.SiLU, ()), F.gelu: (nn.GELU, ("approximate",)),
    F.softplus: (nn.Softplus, ("beta", "threshold")), F.tanh: (nn.Tanh, ()), torch.tanh: (nn.Tanh, ()),
    "tanh": (nn.Tanh, ()), F.sigmoid: (nn.Sigmoid, ()), torch.sigmoid: (nn.Sigmoid, ()), "sigmoid": (nn.Sigmoid, ()),
}  # fmt: skip
"""Activations called as functions, the equivalent modules, and their arguments by place."""


class Sum(nn.Module):
    """``a + b``."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b


class Concatenate(nn.Module):
    """``torch.cat`` along channels."""

    def forward(self, *parts: Tensor) -> Tensor:
        return torch.cat(parts, dim=1)


class Gate(nn.Module):
    """``a * gate``."""

    def forward(self, a: Tensor, gate: Tensor) -> Tensor:
        return a * gate


class Product(nn.Module):
    """``a * b``, neither of which is a gate."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a * b


class Reshape(nn.Module):
    """A change of shape; run by the model's own call."""


@dataclass(frozen=True)
class Operation:
    """One call of the forward pass.

    Parameters
    ----------
    name : str
        Of the module as in the model, or of the function with its module path.
    node : fx.Node
        As traced; its name is the name of the output value.
    module : nn.Module or None
        Equivalent module; None if it cannot carry relevance.
    inputs : tuple of str
        Names of the input values that relevance may be passed to.
    """

    name: str
    node: fx.Node
    module: nn.Module | None
    inputs: tuple[str, ...]

    @property
    def value(self) -> str:
        return str(self.node.name)


@dataclass(frozen=True)
class Program:
    """All operations of a model, in order of computation.

    Parameters
    ----------
    operations : tuple of Operation
    source : str
        Name of the value that holds the volumes.
    result : str
        Name of the value that holds the logits.
    graph : fx.GraphModule
        Keeps the modules that `Operation.node` refers to.
    """

    operations: tuple[Operation, ...]
    source: str
    result: str
    graph: fx.GraphModule


class LayerTracer(fx.Tracer):
    """Traces into everything except single layers."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        whole = isinstance(m, KNOWN + ACTIVATIONS + NORMALISATIONS + GATES + DYNAMIC)
        return whole or getattr(m, "keeps_places", False) or super().is_leaf_module(m, module_qualified_name)


def trace(model: nn.Module) -> Program:
    """Record the operations of a model.

    Parameters
    ----------
    model : nn.Module
        Takes one tensor of volumes and returns logits.

    Raises
    ------
    UsageError
        If its forward depends on values (Python control flow on tensors), takes other arguments, or returns more than
        one tensor.
    """
    if isinstance(model, KNOWN):
        model = nn.Sequential(model)
    try:
        tracer = LayerTracer()
        graph = tracer.trace(model)
    except Exception as error:  # fx passes on any error of the model's code
        raise UsageError(
            f"model ({type(model).__name__}): its operations cannot be traced ({error}); attribution needs a "
            "forward without control flow on tensors."
        ) from error
    module = fx.GraphModule(tracer.root, graph)
    modules = dict(model.named_modules(remove_duplicate=False))
    sources = [node for node in graph.nodes if node.op == "placeholder"]
    results = [node.args[0] for node in graph.nodes if node.op == "output"]
    if len(sources) != 1 or not isinstance(results[0], fx.Node):
        raise UsageError(f"model ({type(model).__name__}): must take one tensor and return one tensor of logits.")
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    operations = tuple(_operation(node, modules) for node in nodes)
    return Program(operations, sources[0].name, results[0].name, module)


def _operation(node: fx.Node, modules: dict[str, nn.Module]) -> Operation:
    tensors = tuple(argument.name for argument in node.all_input_nodes)
    if node.op == "call_module":
        return Operation(shown_name(str(node.target)), node, modules[str(node.target)], tensors[:1])
    module = _function(node, modules)
    name = f"{_place(node)}{node.name}"
    if isinstance(module, Gate):
        tensors = tuple(argument.name for argument in _gated(node, modules))
    elif isinstance(module, Sum | Concatenate | Product):
        tensors = tuple(argument.name for argument in tensor_arguments(node))
    else:
        tensors = tensors[:1]
    return Operation(name, node, module, tensors)


def shown_name(target: str) -> str:
    """Name of a module as known to users: stages of a `StagedModel` without the underscore."""
    return ".".join("stages" if part == "_stages" else part for part in target.split("."))


def _place(node: fx.Node) -> str:
    """Module path in which a function was called, with a dot, or nothing at the top."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next(reversed(stack), "") if stack else ""
    return f"{shown_name(str(path))}." if path else ""


def _function(node: fx.Node, modules: dict[str, nn.Module]) -> nn.Module | None:
    """Module equivalent of a function or tensor method; None if unknown."""
    target = node.target
    if target in ("relu", F.relu, torch.relu):
        return nn.ReLU()
    if target in (operator.add, operator.iadd, torch.add, "add") and len(tensor_arguments(node)) == 2:
        return None if node.kwargs or _has_weights(node) else Sum()
    if target in (torch.cat, torch.concat):
        dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
        return Concatenate() if dim == 1 and set(node.kwargs) <= {"dim", "tensors"} else None
    if target in (operator.mul, torch.mul, "mul") and _gated(node, modules):
        return Gate()
    if target in (operator.mul, torch.mul, "mul") and len(tensor_arguments(node)) == 2:
        return None if node.kwargs or _has_weights(node) else Product()
    if target in FUNCTIONS:
        kind, names = FUNCTIONS[target]
        settings = {**dict(zip(names, node.args[1:], strict=False)), **node.kwargs}
        return kind(**{name: value for name, value in settings.items() if name in names})
    if target is F.pad and node.args[2:3] in ((), ("constant",)) and not node.kwargs.get("value"):
        sides = node.args[1]
        plain = isinstance(sides, Sequence) and len(sides) == 6 and not any(isinstance(n, fx.Node) for n in sides)
        return nn.ConstantPad3d(tuple(sides), 0.0) if plain else None  # type: ignore[arg-type]
    if target in ("view", "reshape", "flatten", "contiguous", "squeeze", torch.flatten, torch.reshape, torch.squeeze):
        return Reshape()
    if target in ("mean", torch.mean):
        axes, *keeps = [*node.args[1:], *(node.kwargs[name] for name in ("dim", "keepdim") if name in node.kwargs)] or [
            0
        ]
        spatial = isinstance(axes, Sequence) and {axis % 5 for axis in axes if isinstance(axis, int)} == {2, 3, 4}
        return SpatialMean(tuple(axes), bool(keeps and keeps[0])) if spatial else None  # type: ignore[arg-type]
    return _pooling_function(node)


def _pooling_function(node: fx.Node) -> nn.Module | None:
    """Module equivalent of a functional pooling; the arguments have the same names."""
    kinds: dict[Any, tuple[type[nn.Module], tuple[str, ...]]] = {
        F.max_pool3d: (nn.MaxPool3d, ("kernel_size", "stride", "padding", "dilation", "ceil_mode")),
        F.avg_pool3d: (
            nn.AvgPool3d,
            ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"),
        ),
        F.adaptive_avg_pool3d: (nn.AdaptiveAvgPool3d, ("output_size",)),
    }
    if node.target not in kinds:
        return None
    kind, names = kinds[node.target]
    settings = {**dict(zip(names, node.args[1:], strict=False)), **node.kwargs}
    if any(isinstance(value, fx.Node) for name, value in settings.items() if name in names):
        return None  # a window as large as the volume is unknown without a volume
    return kind(**{name: value for name, value in settings.items() if name in names})


def _has_weights(node: fx.Node) -> bool:
    """Whether an argument is a parameter or a buffer of the model, which no relevance goes to."""
    return any(argument.op == "get_attr" for argument in node.all_input_nodes)


def tensor_arguments(node: fx.Node) -> list[fx.Node]:
    """Arguments that are values of the graph, in order and with repetitions; for `torch.cat` those in its list."""
    found: list[fx.Node] = []
    for argument in (*node.args, *node.kwargs.values()):
        found += [item for item in (argument if isinstance(argument, Sequence) else [argument])
                  if isinstance(item, fx.Node)]  # fmt: skip
    return found


def _gated(node: fx.Node, modules: dict[str, nn.Module]) -> list[fx.Node]:
    """The features and the gate of a product, in this order; empty if neither factor is a gate."""
    factors = tensor_arguments(node)
    if len(factors) != 2:
        return []
    gates = [_is_gate(factor, modules) for factor in factors]
    if gates.count(True) != 1:
        return []
    return factors if gates[1] else factors[::-1]


def _is_gate(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Whether a value is the output of a gating function, possibly reshaped."""
    while node.op == "call_method" and node.target in ("view", "reshape", "unsqueeze"):
        node = node.all_input_nodes[0]
    if node.op == "call_module":
        return isinstance(modules[str(node.target)], GATES)
    return node.target in (torch.sigmoid, F.sigmoid, "sigmoid", torch.softmax, F.softmax)
