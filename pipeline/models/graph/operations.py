"""Operations of a traced network: the kinds that methods know, as modules that stand for functions of tensors.

Values that are shapes, or made of shapes and weights alone, do not depend on the volumes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from heatlas.pipeline.models.dynamic import DynamicLinear, LogitLayer


class AxesMean(nn.Module):
    """``x.mean(axes)``, with or without the axes that are averaged over; the batch is none of them."""

    def __init__(self, axes: tuple[int, ...], keepdim: bool) -> None:
        super().__init__()
        self.axes, self.keepdim = axes, keepdim

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(self.axes, keepdim=self.keepdim)


class SpatialMean(AxesMean):
    """``x.mean((2, 3, 4))``."""


class Elementwise(nn.Module):
    """A function of each value by itself that is no layer of PyTorch, as ``exp``."""

    def __init__(self, function: Callable[..., Tensor] = torch.exp, *settings: Any) -> None:
        super().__init__()
        self.function, self.settings = function, settings

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.settings)


POOLINGS = (nn.AvgPool3d, nn.AdaptiveAvgPool3d, AxesMean)
PASSED = (nn.ReLU, nn.Dropout, nn.Dropout3d, nn.Identity, nn.Flatten)
"""Modules that relevance passes unchanged (a flattening only changes its shape)."""
GATES = (nn.Sigmoid, nn.Softmax, nn.Hardsigmoid)
"""Modules whose output is a gate when multiplied with features; gates get no relevance (Arras et al. 2017)."""
DYNAMIC = (DynamicLinear, LogitLayer)
"""Layers of dynamic linear networks, which no rule looks into."""
PIECEWISE_LINEAR = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.Hardtanh, nn.Hardsigmoid)
"""Activations whose chord has no slope that rounding could hurt."""
SMOOTH: tuple[type[nn.Module], ...] = (
    nn.ELU, nn.CELU, nn.SELU, nn.SiLU, nn.GELU, nn.Softplus, nn.Tanh, nn.Sigmoid, nn.Hardswish, nn.Mish, Elementwise
)  # fmt: skip
ACTIVATIONS = (*PIECEWISE_LINEAR, *SMOOTH)
"""Activations that change each value by itself."""
NORMALISATIONS = (nn.InstanceNorm3d, nn.GroupNorm, nn.LayerNorm)
"""Divide by the spread of the values themselves, unlike batch normalisation in evaluation mode."""
KNOWN = (nn.Conv3d, nn.Linear, nn.BatchNorm3d, nn.MaxPool3d, nn.AdaptiveMaxPool3d, *POOLINGS, *PASSED)


class Sum(nn.Module):
    """``a + b``."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b


class Concatenate(nn.Module):
    """``torch.cat`` along channels, or along another axis."""

    def __init__(self, axis: int = 1) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, *parts: Tensor) -> Tensor:
        return torch.cat(parts, dim=self.axis)


class Gate(nn.Module):
    """``a * gate``."""

    def forward(self, a: Tensor, gate: Tensor) -> Tensor:
        return a * gate


class Product(nn.Module):
    """``a * b``, neither of which is a gate."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a * b


class AsCalled(nn.Module):
    """An operation that is run by the model's call."""


class Reshape(AsCalled):
    """A change of shape."""


class Moved(AsCalled):
    """Values at other places: permuted, cut out, repeated. Each value of the output is one of the input."""


class Scaled(AsCalled):
    """Times, or divided by, what does not depend on the volumes."""


class Shifted(AsCalled):
    """Plus or minus what does not depend on the volumes, such as the positions of tokens."""


class MatrixProduct(AsCalled):
    """A product of matrices that both depend on the volumes, as of attention weights and values."""


SEVERAL = ("chunk", "split", "unbind", torch.chunk, torch.split, torch.unbind)
"""Give several parts of a value."""


def constants_of(graph: fx.Graph) -> frozenset[str]:
    """Values of a graph that are shapes, or made of shapes and of weights alone."""
    constants: set[str] = set()
    for node in graph.nodes:
        is_constant = node.op != "placeholder" and all(source.name in constants for source in node.all_input_nodes)
        if is_constant or reads_shape(node):
            constants.add(node.name)
    return frozenset(constants)


def reads_shape(node: fx.Node) -> bool:
    """Whether an operation reads only the shape of a value; ``x.data`` has its values."""
    return node.target in ("size", "dim") or (
        node.target is getattr and node.args[1] in ("shape", "ndim", "dtype", "device")
    )


def with_parts(graph: fx.Graph) -> None:
    """Write ``x.chunk(3)[1]`` as one operation, of which the value is a tensor."""
    for node in list(graph.nodes):
        source = node.args[0] if node.target is operator.getitem else None
        if not isinstance(source, fx.Node) or source.target not in SEVERAL or not isinstance(node.args[1], int):
            continue
        with graph.inserting_before(node):
            name = str(getattr(source.target, "__name__", source.target))
            part = graph.call_function(part_of, (name, node.args[1], *source.args), dict(source.kwargs))
        part.meta = dict(node.meta)
        node.replace_all_uses_with(part)
        graph.erase_node(node)
        if not source.users:
            graph.erase_node(source)


def part_of(method: str, number: int, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """One of the parts that a method of a value gives."""
    return getattr(x, method)(*args, **kwargs)[number]  # type: ignore[no-any-return]


FUNCTIONS: dict[Any, tuple[type[nn.Module], tuple[str, ...]]] = {
    **{F.relu6: (nn.ReLU6, ()), F.selu: (nn.SELU, ()), F.silu: (nn.SiLU, ())},
    **{F.leaky_relu: (nn.LeakyReLU, ("negative_slope",)), F.elu: (nn.ELU, ("alpha",))},
    **{F.gelu: (nn.GELU, ("approximate",)), F.softplus: (nn.Softplus, ("beta", "threshold"))},
    **dict.fromkeys((F.tanh, torch.tanh, "tanh"), (nn.Tanh, ())),
    **dict.fromkeys((F.softmax, torch.softmax, "softmax"), (nn.Softmax, ("dim",))),
    **dict.fromkeys((F.sigmoid, torch.sigmoid, "sigmoid"), (nn.Sigmoid, ())),
}
"""Activations and softmaxes called as functions, the equivalent modules, and their arguments by place."""
_MOVES = (torch.permute, torch.transpose, torch.unsqueeze, torch.roll, torch.movedim, torch.swapaxes, torch.unflatten)
_MOVING = "permute transpose unsqueeze expand repeat select narrow swapaxes movedim roll unflatten mT"
_MOVING += " flip index_select gather unfold masked_fill"
MOVES = (*_MOVING.split(), operator.getitem, *_MOVES)
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
    given = {**dict(zip(("pad", "mode", "value"), node.args[1:], strict=False)), **node.kwargs}
    sides, mode = given["pad"], given.get("mode", "constant")
    if not isinstance(sides, Sequence) or any(isinstance(side, fx.Node) for side in sides) or given.get("value"):
        return None
    zeros = mode == "constant" and len(sides) == 6
    return nn.ConstantPad3d(tuple(sides), 0.0) if zeros else Moved()  # type: ignore[arg-type]


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
    return [source for source in node.all_input_nodes if source.name not in constants]


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
    nodes: list[fx.Node] = []
    for argument in (*node.args, *node.kwargs.values()):
        items = argument if isinstance(argument, Sequence) else [argument]
        nodes += [item for item in items if isinstance(item, fx.Node)]
    return nodes


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
