"""What a function or method of a tensor is, as the equivalent module."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from heatlas.pipeline.models.graph.operations import (
    GATES,
    AxesMean,
    Concatenate,
    Gate,
    MatrixProduct,
    Moved,
    Product,
    Reshape,
    Scaled,
    Shifted,
    SpatialMean,
    Sum,
)
from heatlas.pipeline.models.graph.rewriting import part_of

FUNCTIONS: dict[Any, tuple[type[nn.Module], tuple[str, ...]]] = {
    F.relu6: (nn.ReLU6, ()), F.leaky_relu: (nn.LeakyReLU, ("negative_slope",)), F.elu: (nn.ELU, ("alpha",)),
    F.selu: (nn.SELU, ()), F.silu: (nn.SiLU, ()), F.gelu: (nn.GELU, ("approximate",)),
    F.softplus: (nn.Softplus, ("beta", "threshold")), F.tanh: (nn.Tanh, ()), torch.tanh: (nn.Tanh, ()),
    "tanh": (nn.Tanh, ()), F.softmax: (nn.Softmax, ("dim",)), torch.softmax: (nn.Softmax, ("dim",)),
    "softmax": (nn.Softmax, ("dim",)), F.sigmoid: (nn.Sigmoid, ()), torch.sigmoid: (nn.Sigmoid, ()),
    "sigmoid": (nn.Sigmoid, ()),
}  # fmt: skip
"""Activations and softmaxes called as functions, the equivalent modules, and their arguments by place."""
MOVES = (
    "permute", "transpose", "unsqueeze", "expand", "repeat", "select", "narrow", "swapaxes", "movedim",
    "roll", "unflatten", "mT", operator.getitem, torch.permute, torch.transpose, torch.unsqueeze, torch.roll,
    torch.movedim, torch.swapaxes, torch.unflatten,
)  # fmt: skip
PRODUCTS = (operator.matmul, torch.matmul, torch.bmm, torch.einsum, "matmul", "bmm")
SUMS = (operator.add, operator.iadd, torch.add, "add")
TIMES = (operator.mul, operator.imul, torch.mul, "mul")
DIVISIONS = (operator.truediv, operator.itruediv, torch.div, "div")
DIFFERENCES = (operator.sub, operator.isub, torch.sub, "sub")
RESHAPES = ("view", "reshape", "flatten", "contiguous", "squeeze", torch.flatten, torch.reshape, torch.squeeze)


def function_module(node: fx.Node, modules: dict[str, nn.Module], constants: frozenset[str]) -> nn.Module | None:
    """Module equivalent of a function or tensor method; None if unknown, or without any value of the volumes."""
    target = node.target
    if node.name in constants:
        return None
    if target in ("relu", F.relu, torch.relu):
        return nn.ReLU()
    if target in FUNCTIONS:
        return _with_settings(node, *FUNCTIONS[target])
    if target in (torch.cat, torch.concat):
        dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
        return Concatenate() if dim == 1 and set(node.kwargs) <= {"dim", "tensors"} else None
    if target is F.pad:
        return _padding(node)
    if target in ("mean", torch.mean):
        return _mean(node)
    return _arithmetic(node, modules, constants) or _moved(node, constants) or _pooling_function(node)


def _arithmetic(node: fx.Node, modules: dict[str, nn.Module], constants: frozenset[str]) -> nn.Module | None:
    """Sums and products, of two values of the volumes or of one and a constant."""
    target = node.target
    linear = _with_constants(node, constants)
    if linear is not None:
        return linear
    two = len(tensor_arguments(node)) == 2 == len([n for n in tensor_arguments(node) if n.name not in constants])
    if not two:
        return None
    if target in TIMES and gated(node, modules):
        return Gate()
    if target in PRODUCTS:
        return MatrixProduct()
    if node.kwargs:
        return None
    return Sum() if target in SUMS else Product() if target in TIMES else None


def _moved(node: fx.Node, constants: frozenset[str]) -> nn.Module | None:
    if node.target in RESHAPES:
        return Reshape()
    if node.target == "expand_as" or (node.target in (*MOVES, part_of) and len(_changing(node, constants)) == 1):
        return Moved()
    return None


def _padding(node: fx.Node) -> nn.Module | None:
    sides = node.args[1]
    plain = isinstance(sides, Sequence) and len(sides) == 6 and not any(isinstance(side, fx.Node) for side in sides)
    with_zeros = node.args[2:3] in ((), ("constant",)) and not node.kwargs.get("value")
    return nn.ConstantPad3d(tuple(sides), 0.0) if plain and with_zeros else None  # type: ignore[arg-type]


def _mean(node: fx.Node) -> nn.Module | None:
    given = {**dict(zip(("dim", "keepdim"), node.args[1:], strict=False)), **node.kwargs}
    axes = given.get("dim")
    axes = (axes,) if isinstance(axes, int) else axes
    if not isinstance(axes, Sequence) or 0 in axes or not all(isinstance(axis, int) for axis in axes):
        return None
    spatial = {axis % 5 for axis in axes} == {2, 3, 4}  # type: ignore[operator]
    return (SpatialMean if spatial else AxesMean)(tuple(axes), bool(given.get("keepdim")))  # type: ignore[arg-type]


def _with_settings(node: fx.Node, kind: type[nn.Module], names: Sequence[str]) -> nn.Module:
    settings = {**dict(zip(names, node.args[1:], strict=False)), **node.kwargs}
    return kind(**{name: value for name, value in settings.items() if name in names})


def _changing(node: fx.Node, constants: frozenset[str]) -> list[fx.Node]:
    """Inputs of an operation that depend on the volumes."""
    return [one for one in node.all_input_nodes if one.name not in constants]


def _with_constants(node: fx.Node, constants: frozenset[str]) -> nn.Module | None:
    """A value times or plus what does not depend on the volumes; None for any other operation."""
    changing = _changing(node, constants)
    if len(changing) != 1 or tensor_arguments(node).count(changing[0]) != 1 or set(node.kwargs) - {"other"}:
        return None
    first = node.args[:1] == (changing[0],)
    if node.target in TIMES or (node.target in DIVISIONS and first):
        return Scaled()
    return Shifted() if node.target in SUMS or (node.target in DIFFERENCES and first) else None


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
    return _with_settings(node, kind, names)


def tensor_arguments(node: fx.Node) -> list[fx.Node]:
    """Arguments that are values of the graph, in order and with repetitions; for `torch.cat` those in its list."""
    found: list[fx.Node] = []
    for argument in (*node.args, *node.kwargs.values()):
        found += [item for item in (argument if isinstance(argument, Sequence) else [argument])
                  if isinstance(item, fx.Node)]  # fmt: skip
    return found


def gated(node: fx.Node, modules: dict[str, nn.Module]) -> list[fx.Node]:
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
