"""The operations of one pass of a model, for code that symbolic tracing cannot follow.

`torch.export` runs the code once on an image, so that control flow on shapes, functional and in-place calls, tokens
made by hand and modules of any library arrive as one closed set of operations (ATen). Each is written here as what the
tracer knows: a layer of PyTorch with the model's own weights, an operation on tensors, or several of these. What does
not depend on the image is computed. So there is one set of rules, however the code is written.

Shapes are those of the image: a program serves one grid, one volume at a time.
"""

from __future__ import annotations

import copy
import operator
import traceback
import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from math import inf, prod
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from heatlas.pipeline.models.graph import operations as ops
from heatlas.pipeline.models.graph.tracing import NotFollowed, Program, not_followed, program_of

_LAYERS: dict[str, Callable[..., nn.Module]] = {
    **{"relu": nn.ReLU, "relu6": nn.ReLU6, "leaky_relu": nn.LeakyReLU, "celu": nn.CELU, "selu": nn.SELU},
    **{"silu": nn.SiLU, "mish": nn.Mish, "gelu": nn.GELU, "softplus": nn.Softplus, "tanh": nn.Tanh},
    **{"sigmoid": nn.Sigmoid, "hardswish": nn.Hardswish, "hardsigmoid": nn.Hardsigmoid, "hardtanh": nn.Hardtanh},
    **dict.fromkeys(("softmax", "_softmax", "_safe_softmax"), lambda axis, *_: nn.Softmax(axis)),
}
"""Activations and softmaxes, made from what the operation is given besides the value."""
_BY_ITSELF = frozenset(
    "exp expm1 exp2 log log1p log2 sqrt rsqrt reciprocal square pow abs sin cos tan asinh atan sinh cosh erf elu "
    "softsign log_sigmoid threshold hardshrink softshrink logit".split()
)
_MOVED = frozenset("permute transpose expand repeat select narrow roll flip index_select gather unfold".split())
_PARTS = {"chunk": "chunk", "split": "split", "split_with_sizes": "split", "unbind": "unbind"}
_RESHAPED = frozenset("view _unsafe_view reshape flatten unflatten squeeze unsqueeze".split())
_SAME = frozenset("clone contiguous alias detach lift_fresh_copy dropout feature_dropout to _to_copy".split())
_OF_SHAPES = frozenset("zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty".split())
_INLINED = frozenset(("wrap_with_set_grad_enabled", "wrap_with_autocast"))

_programs: WeakKeyDictionary[nn.Module, tuple[object, Program]] = WeakKeyDictionary()


def exported(model: nn.Module, volume: Tensor) -> Program:
    """The operations of a pass of a model in evaluation mode on one volume (1, C, D, H, W)."""
    weights = (*model.parameters(), *model.buffers())
    versions = tuple((id(one), 0 if one.is_inference() else one._version) for one in weights)
    state = (volume.shape, volume.dtype, volume.device, versions)
    known = _programs.get(model)
    if known is None or known[0] != state:
        known = state, _exported(model, volume)
        _programs[model] = known
    return known[1]


def _exported(model: nn.Module, volume: Tensor) -> Program:
    volume = volume.detach().clone()
    plain = copy.copy(model)  # without hooks that give weights other names
    plain._state_dict_hooks, plain._load_state_dict_pre_hooks = OrderedDict(), OrderedDict()
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # one operation for a whole layer of attention
    try:
        with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings(action="ignore"):
            program = torch.export.export(plain, (volume,), strict=False)
            table = {op: rule for op, rule in torch.export.default_decompositions().items() if not _is_kept(op)}
            program = program.run_decompositions(table)
            written = _Written(volume)
            module = written.module(program)
            found, wanted = module(volume), model(volume)
    except Exception as error:  # export passes on any error of the model's code
        raise not_followed(model, _reason(error)) from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    if found.shape != wanted.shape or not torch.allclose(found, wanted, rtol=1e-3, atol=1e-4):
        raise not_followed(model, "the operations of one pass give another answer than the model")
    return program_of(model, module, dict(module.named_modules(remove_duplicate=False)))


def _is_kept(operation: Any) -> bool:
    """Whether an operation stays whole, as it has a rule of its own."""
    name = _name(operation)
    return hasattr(_Written, f"aten_{name}") or any(name in names for names in (_LAYERS, _BY_ITSELF, _MOVED, _PARTS))


def _name(target: Any) -> str:
    packet = getattr(target, "overloadpacket", target)
    return str(getattr(packet, "__name__", packet))


def _reason(error: BaseException) -> str:
    """What an export says, in one line, and the line of the model's code where it stopped."""
    outside = Path(torch.__file__).parent
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if outside not in Path(frame.filename).parents]
    last = frames[-1] if frames and frames[-1].filename != __file__ else None
    by_values = "data-dependent" in str(error).lower() or "DataDependent" in type(error).__name__
    text = "its code decides by values of the image" if by_values else (str(error).strip() or repr(error)).splitlines()[0]
    return text if last is None else f"{text}, at {Path(last.filename).name}, line {last.lineno}: {last.line}"


def _changing(*values: Any) -> list[fx.Node]:
    """Values that depend on the volume."""
    found: list[fx.Node] = []
    fx.node.map_arg(values, found.append)
    return found


def _weighted(layer: nn.Module, **tensors: Tensor | None) -> nn.Module:
    """A layer with these weights, which are not copied."""
    for name, value in tensors.items():
        is_weight = name in ("weight", "bias") and value is not None and not isinstance(value, nn.Parameter)
        setattr(layer, name, nn.Parameter(value, requires_grad=False) if is_weight else value)  # type: ignore[arg-type]
    return layer


def _sizes(value: Any, axes: int) -> tuple[int, ...]:
    """Sizes of a window along the three axes, 1 for those that the volume lacks."""
    given = [value] * axes if isinstance(value, int) else list(value) * (axes if len(value) == 1 else 1)
    return tuple([1] * (3 - axes) + given)


class _Written:
    """An exported program, written operation by operation as a graph of what the tracer knows.

    A value is a node of that graph where it depends on the volume, and is itself where it does not. The methods
    `aten_X` write the operation X of ATen, with its arguments in the order of its schema.
    """

    def __init__(self, volume: Tensor) -> None:
        self.root, self.graph, self.volume = nn.Module(), fx.Graph(), volume
        self._shapes: dict[fx.Node, tuple[int, ...]] = {}
        self._node: fx.Node

    def module(self, program: torch.export.ExportedProgram) -> fx.GraphModule:
        tensors = {**program.state_dict, **program.constants}
        given: list[Any] = []
        for spec in program.graph_signature.input_specs:
            if spec.target is None:  # the volume
                given.append(self.graph.placeholder("volumes"))
                self._shapes[given[-1]] = tuple(self.volume.shape)
            else:
                given.append(tensors[spec.target])
        specs = program.graph_signature.output_specs
        place = next(n for n, spec in enumerate(specs) if spec.kind is torch.export.graph_signature.OutputKind.USER_OUTPUT)
        answer = self._written(program.graph_module, given)[place]
        self.graph.output(self._held(answer))
        ops.with_parts(self.graph)
        return fx.GraphModule(self.root.eval(), self.graph)

    def _written(self, owner: fx.GraphModule, given: Sequence[Any]) -> Any:
        """Write a graph whose inputs are given; its result."""
        values: dict[fx.Node, Any] = {}
        inputs = iter(given)
        for node in owner.graph.nodes:
            if node.op == "output":
                return fx.node.map_arg(node.args[0], values.__getitem__)
            if node.op == "placeholder":
                values[node] = next(inputs)
            elif node.op == "get_attr":
                values[node] = operator.attrgetter(str(node.target))(owner)
            else:
                values[node] = self._operation(node, values)
        raise NotFollowed("a part without a result")

    def _operation(self, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
        args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
        name, self._node = _name(node.target), node
        if name in _INLINED:
            place = next(number for number, value in enumerate(args) if isinstance(value, fx.GraphModule))
            return self._written(args[place], args[place + 1 :])
        if name in _OF_SHAPES:
            args = fx.node.map_arg(args, lambda n: self.volume.new_empty(self._shapes[n]))
        if not _changing(args, kwargs):
            with torch.no_grad():
                return node.target(*args, **kwargs)  # type: ignore[operator]
        if node.target is operator.getitem:
            result = args[0][args[1]] if isinstance(args[0], tuple) else self.function(operator.getitem, *args)
        else:
            result = self._of(name, *self._arguments(node.target, args, kwargs))
        shown = node.meta.get("val")
        first = result[0] if isinstance(result, tuple) else result
        if isinstance(first, fx.Node) and shown is not None:
            shape = (shown[0] if isinstance(shown, tuple | list) else shown).shape
            self._shapes[first] = tuple(shape)
        return result

    @staticmethod
    def _arguments(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """Arguments of an operation in the order of its schema, with its defaults."""
        if not hasattr(target, "_schema"):
            return [*args, *kwargs.values()]
        named = dict(zip((one.name for one in target._schema.arguments), args, strict=False)) | kwargs
        return [named.get(one.name, one.default_value) for one in target._schema.arguments]

    def _of(self, name: str, *given: Any) -> Any:
        """What the tracer knows in place of an operation; the operation itself if it knows nothing."""
        handler = getattr(self, f"aten_{name}", None)
        shown = self._node.meta.get("val")
        if handler is not None:
            answer = handler(*given)
            if answer is not NotImplemented:
                return answer
        elif not isinstance(given[0], fx.Node) or _changing(given[1:]):
            pass
        elif name in _SAME and isinstance(shown, Tensor) and shown.is_floating_point():
            return given[0]
        elif name in _RESHAPED:
            return self._reshaped(given[0], shown.shape)  # type: ignore[union-attr]
        elif name in _LAYERS:
            return self.layer(_LAYERS[name](*given[1:]), given[0])
        elif name in _BY_ITSELF:
            return self._by_itself(self._node.target, *given)
        elif name in _MOVED:
            return self.method(name, *given)
        elif name in _PARTS:
            return self.method(_PARTS[name], *given)
        return self.function(self._node.target, *self._node_arguments(given))

    def _node_arguments(self, given: Sequence[Any]) -> Sequence[Any]:
        return given

    # Nodes of the graph that is written.

    def method(self, name: str, *args: Any, shape: Sequence[int] = ()) -> fx.Node:
        return self._placed(self.graph.call_method(name, tuple(map(self._held, args))), shape)

    def function(self, function: Any, *args: Any, shape: Sequence[int] = ()) -> fx.Node:
        return self._placed(self.graph.call_function(function, tuple(map(self._held, args))), shape)

    def layer(self, layer: nn.Module, *inputs: Any, shape: Sequence[int] = ()) -> fx.Node:
        """A layer under the name that it has in the model, or under that of the function in its place."""
        path, kind = self._place()
        name = path if kind.startswith("torch.nn.modules.") and path else f"{path}.{_name(self._node.target)}".strip(".")
        number, free = 0, name
        while self._is_taken(free):
            number += 1
            free = f"{name}_{number}"
        owner: nn.Module = self.root
        *parents, last = free.split(".")
        for parent in parents:
            if not hasattr(owner, parent):
                owner.add_module(parent, nn.Module())
            owner = getattr(owner, parent)
        owner.add_module(last, layer)
        node = self.graph.call_module(free, tuple(map(self._held, inputs)))
        return self._placed(node, shape or self._shape(inputs[0]))

    def _is_taken(self, name: str) -> bool:
        owner: Any = self.root
        for part in name.split("."):
            owner = getattr(owner, part, None)
            if owner is None:
                return False
        return True

    def _placed(self, node: fx.Node, shape: Sequence[int]) -> fx.Node:
        path, _ = self._place()
        node.meta["nn_module_stack"] = {path: None} if path else {}
        self._shapes[node] = tuple(shape)
        return node

    def _place(self) -> tuple[str, str]:
        """Path and kind of the module whose code calls the operation."""
        stack = list((self._node.meta.get("nn_module_stack") or {}).values())
        path, kind = stack[-1] if stack else ("", "")
        kind = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
        return str(path), kind

    def _held(self, value: Any) -> Any:
        """A constant as a value of the graph."""
        if isinstance(value, list | tuple):
            return type(value)(map(self._held, value)) if type(value) in (list, tuple) else list(map(self._held, value))
        if not isinstance(value, Tensor):
            return value
        name = f"constant_{sum(1 for _ in self.root.named_buffers(recurse=False))}"
        self.root.register_buffer(name, value.to(self.volume.dtype) if value.is_floating_point() else value)
        return self.graph.get_attr(name)

    def _shape(self, value: Any) -> tuple[int, ...]:
        return self._shapes[value] if isinstance(value, fx.Node) else tuple(getattr(value, "shape", ()))

    def _reshaped(self, x: fx.Node, shape: Sequence[int]) -> fx.Node:
        return x if self._shape(x) == tuple(shape) else self.method("reshape", x, tuple(shape), shape=shape)

    def _expanded(self, value: Any, shape: Sequence[int]) -> Any:
        if not isinstance(value, fx.Node) or self._shape(value) == tuple(shape):
            return value
        return self.method("expand", value, *shape, shape=shape)

    def _by_itself(self, function: Any, x: fx.Node, *settings: Any) -> fx.Node:
        return self.layer(ops.Elementwise(function, *settings), x)

    # Arithmetic.

    def aten_add(self, a: Any, b: Any, alpha: Any = 1) -> Any:
        if not _changing(a, b):
            return a + alpha * b
        b = b if alpha == 1 else self.aten_mul(b, alpha)
        shape = torch.broadcast_shapes(self._shape(a), self._shape(b))
        return self.function(operator.add, self._expanded(a, shape), self._expanded(b, shape), shape=shape)

    def aten_sub(self, a: Any, b: Any, alpha: Any = 1) -> Any:
        return self.aten_add(a, self.aten_mul(b, -alpha))

    def aten_rsub(self, a: Any, b: Any, alpha: Any = 1) -> Any:
        return self.aten_sub(b, a, alpha)

    def aten_neg(self, x: Any) -> Any:
        return self.aten_mul(x, -1.0)

    def aten_mul(self, a: Any, b: Any) -> Any:
        if not _changing(a, b):
            return a * b
        shape = torch.broadcast_shapes(self._shape(a), self._shape(b))
        if len(_changing(a, b)) == 1:
            a, b = self._expanded(a, shape), self._expanded(b, shape)
        return self.function(operator.mul, a, b, shape=shape)

    def aten_div(self, a: Any, b: Any, rounding_mode: Any = None) -> Any:
        if rounding_mode is not None:
            return NotImplemented
        if not _changing(b):
            return self.aten_mul(a, 1 / b)
        inverse = self._by_itself(torch.reciprocal, b)
        if not _changing(a):
            return self.aten_mul(inverse, a)
        shape = torch.broadcast_shapes(self._shape(a), self._shape(b))
        return self.layer(ops.Gate(), self._expanded(a, shape), inverse, shape=shape)

    def aten_pow(self, base: Any, exponent: Any) -> Any:
        return NotImplemented if _changing(exponent) else self._by_itself(torch.pow, base, exponent)

    def aten_where(self, condition: Any, a: Any, b: Any) -> Any:
        if _changing(condition):
            return NotImplemented

        def part(value: Any, there: Tensor) -> Any:
            kept = there.to(self.volume.dtype)
            return self.aten_mul(value, kept) if _changing(value) else torch.where(there, value, 0.0)

        return self.aten_add(part(a, condition), part(b, ~condition))

    def aten_masked_fill(self, x: Any, mask: Any, value: Any) -> Any:
        return NotImplemented if _changing(mask, value) else self.method("masked_fill", x, mask, float(value))

    def aten_clamp(self, x: Any, low: Any = None, high: Any = None) -> Any:
        if isinstance(low, Tensor | fx.Node) or isinstance(high, Tensor | fx.Node):
            return NotImplemented
        return self.layer(nn.Hardtanh(-inf if low is None else low, inf if high is None else high), x)

    def aten_clamp_min(self, x: Any, low: Any) -> Any:
        return self.aten_clamp(x, low)

    def aten_clamp_max(self, x: Any, high: Any) -> Any:
        return self.aten_clamp(x, None, high)

    def aten_prelu(self, x: Any, weight: Any) -> Any:
        return self.layer(_weighted(nn.PReLU(weight.numel(), device="meta"), weight=weight), x)

    # Matrices and attention.

    def aten_linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        shape = (*self._shape(x)[:-1], self._shape(weight)[0])
        if _changing(weight, bias) or not _changing(x):
            turned = self.method("transpose", weight, 0, 1, shape=self._shape(weight)[::-1])
            product = self.function(torch.matmul, x, turned, shape=shape)
            return product if bias is None else self.aten_add(product, bias)
        layer = nn.Linear(*self._shape(weight)[::-1], bias is not None, device="meta")
        return self.layer(_weighted(layer, weight=weight, bias=bias), x, shape=shape)

    def aten_matmul(self, a: Any, b: Any) -> Any:
        shape = (*torch.broadcast_shapes(self._shape(a)[:-2], self._shape(b)[:-2]), self._shape(a)[-2], self._shape(b)[-1])
        if len(_changing(a, b)) == 2:
            return self.function(torch.matmul, a, b, shape=shape)
        matrices = (b if _changing(a) else a).flatten(0, -3)
        if matrices.dim() < 2 or (matrices.dim() == 3 and not bool((matrices == matrices[:1]).all())):
            return NotImplemented  # a matrix for each head
        matrix = matrices[0] if matrices.dim() == 3 else matrices
        if _changing(a):
            return self.aten_linear(a, matrix.T.contiguous())
        turned = self.method("transpose", b, -2, -1, shape=(*shape[:-2], shape[-1], self._shape(b)[-2]))
        return self.method("transpose", self.aten_linear(turned, matrix), -2, -1, shape=shape)

    aten_mm = aten_bmm = aten_matmul

    def aten_addmm(self, added: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Any:
        product = self.aten_matmul(a, b)
        scaled = product if alpha == 1 or product is NotImplemented else self.aten_mul(product, alpha)
        return scaled if scaled is NotImplemented or beta == 0 else self.aten_add(scaled, added, beta)

    aten_baddbmm = aten_addmm

    def aten_scaled_dot_product_attention(
        self, q: Any, k: Any, v: Any, mask: Any = None, dropout: float = 0, causal: bool = False, scale: Any = None, *_: Any
    ) -> Any:
        tokens, others = self._shape(q)[-2], self._shape(k)[-2]
        if causal:
            mask = torch.ones(tokens, others, dtype=torch.bool, device=self.volume.device).tril()
        if isinstance(mask, Tensor) and mask.dtype == torch.bool:
            mask = self.volume.new_zeros(mask.shape).masked_fill(~mask, -inf)
        turned = self.method("transpose", k, -2, -1, shape=(*self._shape(k)[:-2], self._shape(k)[-1], others))
        factor = self._shape(q)[-1] ** -0.5 if scale is None else scale
        scores = self.aten_mul(self.aten_matmul(q, turned), factor)
        scores = scores if mask is None else self.aten_add(scores, mask)
        return self.aten_matmul(self.layer(nn.Softmax(-1), scores), v)

    def aten_cumsum(self, x: Any, axis: int, *_: Any) -> Any:
        shape = list(self._shape(x))
        shape[axis], shape[-1] = shape[-1], shape[axis]
        moved = self.method("transpose", x, axis, -1, shape=shape)
        summed = self.aten_linear(moved, self.volume.new_ones(shape[-1], shape[-1]).tril())
        return self.method("transpose", summed, axis, -1)

    # Convolutions, poolings and normalisations.

    def _in_three(self, x: Any, axes: int, layer: nn.Module) -> Any:
        """A layer on volumes, of lines or slices too, which are volumes of one voxel along the other axes."""
        shown = self._node.meta["val"]
        answer = (shown[0] if isinstance(shown, tuple | list) else shown).shape
        if len(self._shape(x)) != axes + 2:
            return NotImplemented
        thin = (1,) * (3 - axes)
        whole = self._reshaped(x, (*self._shape(x)[:2], *thin, *self._shape(x)[2:]))
        return self._reshaped(self.layer(layer, whole, shape=(*answer[:2], *thin, *answer[2:])), answer)

    def _convolved(
        self, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int, out: Any = None
    ) -> Any:
        if _changing(weight, bias):
            return NotImplemented
        axes = weight.dim() - 2
        whole = weight if axes == 3 else weight.reshape(*weight.shape[:2], *(1,) * (3 - axes), *weight.shape[2:])
        sides = padding if isinstance(padding, str) else _sizes(padding, axes)
        if not isinstance(sides, str):
            sides = (0,) * (3 - axes) + sides[3 - axes :]
        given: list[Any] = [whole.shape[2:], _sizes(stride, axes), sides]
        options: dict[str, Any] = {"groups": groups, "bias": bias is not None, "dilation": _sizes(dilation, axes)}
        channels = (weight.shape[1] * groups, weight.shape[0])
        layer: nn.Module
        if out is None:
            layer = nn.Conv3d(*channels, *given, **options, device="meta")
        else:
            extra = (0,) * (3 - axes) + _sizes(out, axes)[3 - axes :]
            layer = nn.ConvTranspose3d(*channels[::-1], *given, extra, **options, device="meta")
        return self._in_three(x, axes, _weighted(layer, weight=whole, bias=bias))

    def aten_conv3d(self, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
        return self._convolved(x, weight, bias, stride, padding, dilation, groups)

    aten_conv1d = aten_conv2d = aten_conv3d

    def aten_conv_transpose3d(
        self, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, out: Any, groups: int, dilation: Any
    ) -> Any:
        return self._convolved(x, weight, bias, stride, padding, dilation, groups, out)

    aten_conv_transpose1d = aten_conv_transpose2d = aten_conv_transpose3d

    def aten_convolution(
        self, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, turned: bool, out: Any, groups: int
    ) -> Any:
        return self._convolved(x, weight, bias, stride, padding, dilation, groups, out if turned else None)

    def aten_max_pool3d(self, x: Any, size: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> Any:
        return self._pooled(nn.MaxPool3d, x, 3, size, stride, padding, _sizes(dilation, 3), ceil_mode=ceil)

    def aten_max_pool2d(self, x: Any, size: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> Any:
        return self._pooled(nn.MaxPool3d, x, 2, size, stride, padding, _sizes(dilation, 2), ceil_mode=ceil)

    def aten_max_pool1d(self, x: Any, size: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> Any:
        return self._pooled(nn.MaxPool3d, x, 1, size, stride, padding, _sizes(dilation, 1), ceil_mode=ceil)

    def aten_max_pool3d_with_indices(self, *given: Any) -> Any:
        return self.aten_max_pool3d(*given), None

    def aten_max_pool2d_with_indices(self, *given: Any) -> Any:
        return self.aten_max_pool2d(*given), None

    def aten_avg_pool3d(self, x: Any, size: Any, stride: Any, padding: Any, ceil: bool, padded: bool, divisor: Any) -> Any:
        options = {"ceil_mode": ceil, "count_include_pad": padded, "divisor_override": divisor}
        return self._pooled(nn.AvgPool3d, x, 3, size, stride, padding, **options)

    def aten_avg_pool2d(self, x: Any, size: Any, stride: Any, padding: Any, ceil: bool, padded: bool, divisor: Any) -> Any:
        options = {"ceil_mode": ceil, "count_include_pad": padded, "divisor_override": divisor}
        return self._pooled(nn.AvgPool3d, x, 2, size, stride, padding, **options)

    def aten_avg_pool1d(self, x: Any, size: Any, stride: Any, padding: Any, ceil: bool, padded: bool) -> Any:
        return self._pooled(nn.AvgPool3d, x, 1, size, stride, padding, ceil_mode=ceil, count_include_pad=padded)

    def _pooled(
        self, kind: Callable[..., nn.Module], x: Any, axes: int, size: Any, stride: Any, padding: Any, *more: Any, **options: Any
    ) -> Any:
        sides = (0,) * (3 - axes) + _sizes(padding, axes)[3 - axes :]
        window = _sizes(size, axes)
        return self._in_three(x, axes, kind(window, _sizes(stride, axes) if stride else window, sides, *more, **options))

    def aten_adaptive_avg_pool3d(self, x: Any, size: Any) -> Any:
        return self._in_three(x, len(size), nn.AdaptiveAvgPool3d(_sizes(size, len(size))))

    aten__adaptive_avg_pool3d = aten_adaptive_avg_pool2d = aten__adaptive_avg_pool2d = aten_adaptive_avg_pool3d
    aten_adaptive_avg_pool1d = aten_adaptive_avg_pool3d

    def aten_adaptive_max_pool3d(self, x: Any, size: Any) -> Any:
        return self._in_three(x, len(size), nn.AdaptiveMaxPool3d(_sizes(size, len(size)))), None

    aten_adaptive_max_pool2d = aten_adaptive_max_pool1d = aten_adaptive_max_pool3d

    def aten_batch_norm(
        self, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, _: Any, eps: float, *__: Any
    ) -> Any:
        if training or mean is None or _changing(mean, variance, weight, bias):
            return NotImplemented
        channels = len(mean)
        if len(self._shape(x)) == 5:
            layer = nn.BatchNorm3d(channels, eps, device="meta")
            return self.layer(_weighted(layer, weight=weight, bias=bias, running_mean=mean, running_var=variance), x)
        scale = torch.rsqrt(variance + eps) * (1 if weight is None else weight)
        shift = (0 if bias is None else bias) - mean * scale
        along = (1, channels, *(1,) * (len(self._shape(x)) - 2))
        return self.aten_add(self.aten_mul(x, scale.detach().view(along)), shift.detach().view(along))

    def aten__native_batch_norm_legit_no_training(self, *given: Any) -> Any:
        return self.aten_batch_norm(*given[:5], False, *given[5:]), None, None

    def aten_instance_norm(
        self, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, own: bool, momentum: Any, eps: float, *_: Any
    ) -> Any:
        if not own:
            return self.aten_batch_norm(x, weight, bias, mean, variance, False, momentum, eps)
        return self.aten_group_norm(x, self._shape(x)[1], weight, bias, eps)

    def aten_group_norm(self, x: Any, groups: int, weight: Any, bias: Any, eps: float, *_: Any) -> Any:
        layer = nn.GroupNorm(groups, self._shape(x)[1], eps, device="meta")
        return self.layer(_weighted(layer, weight=weight, bias=bias), x)

    def aten_layer_norm(self, x: Any, shape: Any, weight: Any, bias: Any, eps: float, *_: Any) -> Any:
        layer = nn.LayerNorm(list(shape), eps, device="meta")
        return self.layer(_weighted(layer, weight=weight, bias=bias), x)

    def aten_upsample_nearest3d(self, x: Any, size: Any, *scales: Any) -> Any:
        return self._upsampled(x, size, scales, mode="nearest")

    def aten_upsample_trilinear3d(self, x: Any, size: Any, corners: bool, *scales: Any) -> Any:
        return self._upsampled(x, size, scales, mode="trilinear", align_corners=corners)

    def _upsampled(self, x: Any, size: Any, scales: Sequence[Any], **options: Any) -> Any:
        factors = scales[0] if len(scales) == 1 and scales[0] is not None else scales
        by_factor = all(isinstance(factor, float | int) for factor in factors) and len(factors) == 3
        options |= {"scale_factor": tuple(factors)} if by_factor else {"size": tuple(self._node.meta["val"].shape[2:])}
        return self.layer(nn.Upsample(**options), x)

    # Sums, means and winners over axes.

    def _axes(self, x: Any, axes: Any) -> tuple[list[int], list[int]]:
        """Axes that are kept, and those that are not."""
        count = len(self._shape(x))
        out = sorted({axis % count for axis in ([axes] if isinstance(axes, int) else axes or range(count))})
        return [axis for axis in range(count) if axis not in out], out

    def aten_mean(self, x: Any, axes: Any = None, keep: Any = False, *_: Any) -> Any:
        kept, out = self._axes(x, axes)
        shape = self._shape(x)
        answer = [1 if axis in out else length for axis, length in enumerate(shape) if keep or axis in kept]
        if 0 in out:  # which is not the batch here
            ordered = (*kept, *out)
            x = self.method("permute", x, ordered, shape=[shape[axis] for axis in ordered])
            x = x if kept else self._reshaped(x, (1, *shape))
            first = len(kept) or 1
            mean = self.method("mean", x, tuple(range(first, first + len(out))), shape=[shape[axis] for axis in kept] or [1])
            return self._reshaped(mean, answer)
        return self.method("mean", x, tuple(out), bool(keep), shape=answer)

    def aten_sum(self, x: Any, axes: Any = None, keep: Any = False, *_: Any) -> Any:
        count = prod(self._shape(x)[axis] for axis in self._axes(x, axes)[1])
        return self.aten_mul(self.aten_mean(x, axes, keep), float(count))

    def aten_var(self, x: Any, axes: Any = None, correction: Any = 1, keep: Any = False) -> Any:
        count = prod(self._shape(x)[axis] for axis in self._axes(x, axes)[1])
        centred = self.aten_sub(x, self.aten_mean(x, axes, True))
        squares = self.aten_mean(self._by_itself(torch.square, centred), axes, keep)
        return self.aten_mul(squares, count / (count - float(1 if correction is None else correction)))

    def aten_linalg_vector_norm(self, x: Any, order: Any = 2, axes: Any = None, keep: Any = False, *_: Any) -> Any:
        if order != 2:
            return NotImplemented
        return self._by_itself(torch.sqrt, self.aten_sum(self._by_itself(torch.square, x), axes, keep))

    def aten_amax(self, x: Any, axes: Any = None, keep: Any = False) -> Any:
        """The winner along axes, by a max-pooling."""
        kept, out = self._axes(x, axes)
        shape = self._shape(x)
        answer = [1 if axis in out else length for axis, length in enumerate(shape) if keep or axis in kept]
        if (len(shape), out) != (5, [2, 3, 4]):
            ordered = (*kept, *out)
            if ordered != tuple(range(len(shape))):
                x = self.method("permute", x, ordered, shape=[shape[axis] for axis in ordered])
            lengths = [shape[axis] for axis in kept] or [1]
            x = self._reshaped(x, (lengths[0], prod(lengths[1:]), 1, 1, prod(shape[axis] for axis in out)))
        pooled = self.layer(nn.AdaptiveMaxPool3d(1), x, shape=(*self._shape(x)[:2], 1, 1, 1))
        return self._reshaped(pooled, answer)

    def aten_amin(self, x: Any, axes: Any = None, keep: Any = False) -> Any:
        return self.aten_neg(self.aten_amax(self.aten_neg(x), axes, keep))

    def aten_max(self, x: Any, axis: Any = None, keep: Any = False) -> Any:
        if isinstance(axis, int):
            return self.aten_amax(x, axis, keep), None
        return self.aten_amax(x) if axis is None else self.aten_maximum(x, axis)

    def aten_maximum(self, a: Any, b: Any) -> Any:
        shape = torch.broadcast_shapes(self._shape(a), self._shape(b))
        both = [self._expanded(value, shape) if _changing(value) else value.expand(shape) for value in (a, b)]
        return self.aten_amax(self.aten_stack(both, len(shape)), len(shape))

    # Values at other places.

    def aten_cat(self, parts: Any, axis: int = 0) -> Any:
        shapes = [self._shape(part) for part in parts]
        axis %= len(shapes[0])
        whole = (*shapes[0][:axis], sum(shape[axis] for shape in shapes), *shapes[0][axis + 1 :])
        return self.layer(ops.Concatenate(axis), *parts, shape=whole)

    def aten_stack(self, parts: Any, axis: int = 0) -> Any:
        shape = list(self._shape(parts[0]))
        shape.insert(axis % (len(shape) + 1), 1)
        thin = [self._reshaped(part, shape) if _changing(part) else part.reshape(shape) for part in parts]
        return self.aten_cat(thin, axis)

    def aten_index(self, x: Any, places: Any) -> Any:
        if _changing(places) or not _changing(x):
            return NotImplemented
        return self.function(operator.getitem, x, tuple(slice(None) if one is None else one for one in places))

    def aten_slice(self, x: Any, axis: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
        before = (slice(None),) * (axis % len(self._shape(x)))
        shape = list(self._shape(x))
        shape[axis] = len(range(shape[axis])[start:end:step])
        return self.function(operator.getitem, x, (*before, slice(start, end, step)), shape=shape)

    def aten_slice_scatter(self, x: Any, part: Any, axis: int, start: Any, end: Any, step: int) -> Any:
        if step != 1:
            return NotImplemented
        length = self._shape(x)[axis]
        first, last, _ = slice(start, end).indices(length)
        pieces = [(x, 0, first), (part, 0, last - first), (x, last, length)]
        cut = [
            self.aten_slice(value, axis, a, b) if _changing(value) else value.narrow(axis, a, b - a)
            for value, a, b in pieces
            if b > a
        ]
        return cut[0] if len(cut) == 1 else self.aten_cat(cut, axis)

    def aten_select_scatter(self, x: Any, part: Any, axis: int, place: int) -> Any:
        place %= self._shape(x)[axis]
        shape = list(self._shape(x))
        shape[axis] = 1
        thin = self._reshaped(part, shape) if _changing(part) else part.reshape(shape)
        return self.aten_slice_scatter(x, thin, axis, place, place + 1, 1)

    def aten_copy(self, x: Any, source: Any, *_: Any) -> Any:
        return self._expanded(source, self._shape(x))

    def aten_pad(self, x: Any, sides: Any, mode: str = "constant", value: Any = None) -> Any:
        if mode != "constant":
            return self.function(F.pad, x, tuple(sides), mode)
        if value:
            border = F.pad(self.volume.new_zeros(self._shape(x)), tuple(sides), value=float(value))
            return self.aten_add(self.aten_pad(x, sides), border)
        shape = list(self._shape(x))
        for number in range(len(sides) // 2):
            shape[-1 - number] += sides[2 * number] + sides[2 * number + 1]
        if len(shape) == 5 and len(sides) == 6:
            return self.layer(nn.ConstantPad3d(tuple(sides), 0.0), x, shape=shape)
        return self.function(F.pad, x, tuple(sides), shape=shape)

    def aten_constant_pad_nd(self, x: Any, sides: Any, value: Any = 0) -> Any:
        return self.aten_pad(x, sides, "constant", value)

    def aten_reflection_pad3d(self, x: Any, sides: Any) -> Any:
        return self.aten_pad(x, sides, "reflect")

    def aten_replication_pad3d(self, x: Any, sides: Any) -> Any:
        return self.aten_pad(x, sides, "replicate")
