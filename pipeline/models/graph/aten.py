"""Operations of ATen, as `torch.export` gives them, in terms of those that the tracer knows.

A method `aten_X` stands for the operation X, and takes its arguments in the order of its schema.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import inf, prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from heatlas.pipeline.models.graph import operations as ops
from heatlas.pipeline.models.graph.writer import GraphWriter, changing, name_of

_LAYERS: dict[str, Callable[..., nn.Module]] = {
    **{"relu": nn.ReLU, "relu6": nn.ReLU6, "leaky_relu": nn.LeakyReLU, "celu": nn.CELU, "selu": nn.SELU},
    **{"silu": nn.SiLU, "mish": nn.Mish, "gelu": nn.GELU, "softplus": nn.Softplus, "tanh": nn.Tanh},
    **{"sigmoid": nn.Sigmoid, "hardswish": nn.Hardswish, "hardsigmoid": nn.Hardsigmoid, "hardtanh": nn.Hardtanh},
    **dict.fromkeys(("softmax", "_softmax", "_safe_softmax"), lambda axis, *_: nn.Softmax(axis)),
}
"""Activations and softmaxes, made from what the operation is given besides the value."""
_FUNCTIONS = "exp expm1 exp2 log log1p log2 sqrt rsqrt reciprocal square abs sin cos tan asinh atan sinh cosh erf elu"
_FUNCTIONS += " softsign log_sigmoid threshold hardshrink softshrink logit"
_MOVES = "permute transpose expand repeat select narrow roll flip index_select gather unfold"
_SHAPES = "view _unsafe_view reshape flatten unflatten squeeze unsqueeze"
_COPIES = "clone contiguous alias detach lift_fresh_copy dropout feature_dropout to _to_copy"
_BY_ITSELF, _MOVED, _RESHAPED, _SAME = (frozenset(names.split()) for names in (_FUNCTIONS, _MOVES, _SHAPES, _COPIES))
_PARTS = {"chunk": "chunk", "split": "split", "split_with_sizes": "split", "unbind": "unbind"}


def is_whole(operation: Any) -> bool:
    """Whether an operation is not taken apart into others, since something stands for it here."""
    name = name_of(operation)
    return hasattr(Written, f"aten_{name}") or any(name in names for names in (_LAYERS, _BY_ITSELF, _MOVED, _PARTS))


def _weighted(layer: nn.Module, **tensors: Tensor | None) -> nn.Module:
    """A layer with these weights, which are not copied."""
    for name, value in tensors.items():
        is_weight = name in ("weight", "bias") and value is not None and not isinstance(value, nn.Parameter)
        setattr(layer, name, nn.Parameter(value, requires_grad=False) if is_weight else value)  # type: ignore[arg-type]
    return layer


def common(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """Shape of the sum of values of two shapes."""
    return tuple(torch.broadcast_shapes(a, b))  # type: ignore[no-untyped-call]


def _three(value: Any, axes: int, filled: int = 1) -> tuple[int, ...]:
    """One number for each of three axes, `filled` for those that are missing."""
    given = [value] * axes if isinstance(value, int) else list(value) * (axes if len(value) == 1 else 1)
    return tuple([filled] * (3 - axes) + given)


class Written(GraphWriter):
    """An exported program in the operations that the tracer knows."""

    def written(self, name: str, given: Sequence[Any]) -> Any:
        handler = getattr(self, f"aten_{name}", None)
        if handler is not None:
            return handler(*given)
        x, rest = given[0], given[1:]
        if not isinstance(x, fx.Node) or changing(rest):
            return NotImplemented
        if name in _SAME:
            return x if self._read.meta["val"].is_floating_point() else NotImplemented
        if name in _RESHAPED:
            return self.reshaped(x, self.answer_shape)
        if name in _LAYERS:
            return self.layer(_LAYERS[name](*rest), x)
        if name in _BY_ITSELF:
            return self.by_itself(self._read.target, x, *rest)
        if name in _MOVED:
            return self.method(name, x, *rest[: len(self._read.args) - 1])
        return self.method(_PARTS[name], x, *rest) if name in _PARTS else NotImplemented

    def by_itself(self, function: Any, x: fx.Node, *settings: Any) -> fx.Node:
        return self.layer(ops.Elementwise(function, *settings), x)

    # Arithmetic. A value that is added to a larger one is repeated first, so that the shapes are one.

    def aten_add(self, a: Any, b: Any, alpha: Any = 1) -> Any:
        b = b if alpha == 1 else self.aten_mul(b, alpha)
        shape = common(self.shape(a), self.shape(b))
        return self.function(operator.add, self.expanded(a, shape), self.expanded(b, shape), shape=shape)

    def aten_sub(self, a: Any, b: Any, alpha: Any = 1) -> Any:
        return self.aten_add(a, self.aten_mul(b, -alpha))

    def aten_rsub(self, a: Any, b: Any, alpha: Any = 1) -> Any:
        return self.aten_sub(b, a, alpha)

    def aten_neg(self, x: Any) -> Any:
        return self.aten_mul(x, -1.0)

    def aten_mul(self, a: Any, b: Any) -> Any:
        if not changing(a, b):
            return a * b
        shape = common(self.shape(a), self.shape(b))
        if len(changing(a, b)) == 1:
            a, b = self.expanded(a, shape), self.expanded(b, shape)
        return self.function(operator.mul, a, b, shape=shape)

    def aten_div(self, a: Any, b: Any, rounding: Any = None) -> Any:
        """A divisor of the volume's own is a gate, as the spread is in a normalisation."""
        if rounding is not None:
            return NotImplemented
        if not changing(b):
            return self.aten_mul(a, 1 / b)
        inverse = self.by_itself(torch.reciprocal, b)
        if not changing(a):
            return self.aten_mul(inverse, a)
        shape = common(self.shape(a), self.shape(b))
        return self.layer(ops.Gate(), self.expanded(a, shape), inverse, shape=shape)

    def aten_pow(self, base: Any, exponent: Any) -> Any:
        return NotImplemented if changing(exponent) else self.by_itself(torch.pow, base, exponent)

    def aten_where(self, condition: Any, a: Any, b: Any) -> Any:
        if changing(condition):
            return NotImplemented

        def part(value: Any, there: Tensor) -> Any:
            kept = there.to(self.volume.dtype)
            return self.aten_mul(value, kept) if changing(value) else torch.where(there, value, 0.0)

        return self.aten_add(part(a, condition), part(b, ~condition))

    def aten_masked_fill(self, x: Any, mask: Any, value: Any) -> Any:
        return NotImplemented if changing(mask, value) else self.method("masked_fill", x, mask, float(value))

    def aten_clamp(self, x: Any, low: Any = None, high: Any = None) -> Any:
        if isinstance(low, Tensor | fx.Node) or isinstance(high, Tensor | fx.Node):
            return NotImplemented
        return self.layer(nn.Hardtanh(-inf if low is None else low, inf if high is None else high), x)

    aten_clamp_min = aten_clamp

    def aten_clamp_max(self, x: Any, high: Any) -> Any:
        return self.aten_clamp(x, None, high)

    def aten_prelu(self, x: Any, weight: Any) -> Any:
        return self.layer(_weighted(nn.PReLU(weight.numel(), device="meta"), weight=weight), x)

    # Matrices and attention.

    def aten_linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        outputs, inputs = self.shape(weight)
        shape = (*self.shape(x)[:-1], outputs)
        if changing(weight, bias):
            turned = self.method("transpose", weight, 0, 1, shape=(inputs, outputs))
            product = self.function(torch.matmul, x, turned, shape=shape)
            return product if bias is None else self.aten_add(product, bias)
        layer = nn.Linear(inputs, outputs, bias is not None, device="meta")
        return self.layer(_weighted(layer, weight=weight, bias=bias), x, shape=shape)

    def aten_matmul(self, a: Any, b: Any) -> Any:
        first, second = self.shape(a), self.shape(b)
        if min(len(first), len(second)) < 2:
            return NotImplemented
        shape = (*common(first[:-2], second[:-2]), first[-2], second[-1])
        if len(changing(a, b)) == 2:
            return self.function(torch.matmul, a, b, shape=shape)
        constant = b if changing(a) else a
        matrices = constant.reshape(-1, *constant.shape[-2:])
        if not bool((matrices == matrices[:1]).all()):
            return NotImplemented  # one for each head
        if changing(a):
            return self.aten_linear(self.expanded(a, (*shape[:-1], first[-1])), matrices[0].T.contiguous())
        turned = self.method("transpose", b, -2, -1, shape=(*second[:-2], second[-1], second[-2]))
        whole = self.expanded(turned, (*shape[:-2], second[-1], second[-2]))
        return self.method("transpose", self.aten_linear(whole, matrices[0]), -2, -1, shape=shape)

    aten_mm = aten_bmm = aten_matmul

    def aten_addmm(self, added: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Any:
        product = self.aten_matmul(a, b)
        if product is NotImplemented:
            return product
        return self.aten_add(self.aten_mul(product, alpha) if alpha != 1 else product, added, beta)

    aten_baddbmm = aten_addmm

    def aten_scaled_dot_product_attention(
        self, q: Any, k: Any, v: Any, mask: Any, _: float, causal: bool, scale: Any, *__: Any
    ) -> Any:
        tokens, others = self.shape(q)[-2], self.shape(k)[-2]
        if causal:
            mask = torch.ones(tokens, others, dtype=torch.bool, device=self.volume.device).tril()
        if isinstance(mask, Tensor) and mask.dtype == torch.bool:
            mask = self.volume.new_zeros(mask.shape).masked_fill(~mask, -inf)
        turned = self.method("transpose", k, -2, -1, shape=(*self.shape(k)[:-2], self.shape(k)[-1], others))
        scores = self.aten_mul(self.aten_matmul(q, turned), self.shape(q)[-1] ** -0.5 if scale is None else scale)
        scores = scores if mask is None else self.aten_add(scores, mask)
        return self.aten_matmul(self.layer(nn.Softmax(-1), scores), v)

    def aten_cumsum(self, x: Any, axis: int, *_: Any) -> Any:
        shape = list(self.shape(x))
        shape[axis], shape[-1] = shape[-1], shape[axis]
        moved = self.method("transpose", x, axis, -1, shape=shape)
        return self.method(
            "transpose", self.aten_linear(moved, self.volume.new_ones(shape[-1], shape[-1]).tril()), axis, -1
        )

    # Convolutions, poolings and normalisations; lines and slices are volumes of one voxel along the other axes.

    def _on_grid(self, layer: nn.Module, x: Any, axes: int) -> Any:
        shape, answer, thin = self.shape(x), self.answer_shape, (1,) * (3 - axes)
        if len(shape) != axes + 2:
            return NotImplemented
        whole = self.reshaped(x, (*shape[:2], *thin, *shape[2:]))
        return self.reshaped(self.layer(layer, whole, shape=(*answer[:2], *thin, *answer[2:])), answer)

    def aten_convolution(
        self,
        x: Any,
        weight: Any,
        bias: Any,
        stride: Any,
        padding: Any,
        dilation: Any,
        turned: Any,
        extra: Any,
        groups: int,
    ) -> Any:
        if changing(weight, bias):
            return NotImplemented
        axes = weight.dim() - 2
        whole = weight if axes == 3 else weight.reshape(*weight.shape[:2], *(1,) * (3 - axes), *weight.shape[2:])
        sides = padding if isinstance(padding, str) else _three(padding, axes, 0)
        options: dict[str, Any] = {
            "groups": groups,
            "bias": bias is not None,
            "dilation": _three(dilation, axes),
            "device": "meta",
        }
        geometry: Any = (whole.shape[2:], _three(stride, axes), sides)
        layer: nn.Module
        if turned:
            given: Any = (weight.shape[0], weight.shape[1] * groups, *geometry, _three(extra, axes, 0))
            layer = nn.ConvTranspose3d(*given, **options)
        else:
            layer = nn.Conv3d(weight.shape[1] * groups, weight.shape[0], *geometry, **options)
        return self._on_grid(_weighted(layer, weight=whole, bias=bias), x, axes)

    def aten_conv3d(self, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
        return self.aten_convolution(x, weight, bias, stride, padding, dilation, False, 0, groups)

    aten_conv1d = aten_conv2d = aten_conv3d

    def aten_conv_transpose3d(
        self, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, extra: Any, groups: int, dilation: Any
    ) -> Any:
        return self.aten_convolution(x, weight, bias, stride, padding, dilation, True, extra, groups)

    aten_conv_transpose1d = aten_conv_transpose2d = aten_conv_transpose3d

    def _pooled(
        self, kind: Callable[..., nn.Module], x: Any, size: Any, stride: Any, padding: Any, **options: Any
    ) -> Any:
        axes = int(name_of(self._read.target).partition("pool")[2][0])
        window = _three(size, axes)
        layer = kind(window, _three(stride, axes) if stride else window, _three(padding, axes, 0), **options)
        return self._on_grid(layer, x, axes)

    def aten_max_pool3d(self, x: Any, size: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> Any:
        spread = _three(dilation, 3 if len(dilation) == 1 else len(dilation))
        return self._pooled(nn.MaxPool3d, x, size, stride, padding, dilation=spread, ceil_mode=ceil)

    aten_max_pool1d = aten_max_pool2d = aten_max_pool3d

    def aten_max_pool3d_with_indices(self, *given: Any) -> Any:
        return self.aten_max_pool3d(*given), None

    aten_max_pool2d_with_indices = aten_max_pool3d_with_indices

    def aten_avg_pool3d(
        self, x: Any, size: Any, stride: Any, padding: Any, ceil: bool, padded: bool, divisor: Any = None
    ) -> Any:
        options = {"ceil_mode": ceil, "count_include_pad": padded, "divisor_override": divisor}
        return self._pooled(nn.AvgPool3d, x, size, stride, padding, **options)

    aten_avg_pool1d = aten_avg_pool2d = aten_avg_pool3d

    def aten_adaptive_avg_pool3d(self, x: Any, size: Any) -> Any:
        return self._on_grid(nn.AdaptiveAvgPool3d(_three(size, len(size))), x, len(size))

    aten_adaptive_avg_pool1d = aten_adaptive_avg_pool2d = aten_adaptive_avg_pool3d

    aten__adaptive_avg_pool2d = aten__adaptive_avg_pool3d = aten_adaptive_avg_pool3d

    def aten_adaptive_max_pool3d(self, x: Any, size: Any) -> Any:
        return self._on_grid(nn.AdaptiveMaxPool3d(_three(size, len(size))), x, len(size)), None

    aten_adaptive_max_pool1d = aten_adaptive_max_pool2d = aten_adaptive_max_pool3d

    def aten_batch_norm(
        self, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, _: Any, eps: float, *__: Any
    ) -> Any:
        if training or mean is None or changing(mean, variance, weight, bias):
            return NotImplemented
        if len(self.shape(x)) == 5:
            layer = nn.BatchNorm3d(len(mean), eps, device="meta")
            return self.layer(_weighted(layer, weight=weight, bias=bias, running_mean=mean, running_var=variance), x)
        scale = torch.rsqrt(variance + eps) * (1 if weight is None else weight)
        shift = (0 if bias is None else bias) - mean * scale
        along = (1, len(mean), *(1,) * (len(self.shape(x)) - 2))
        return self.aten_add(self.aten_mul(x, scale.view(along)), shift.view(along))

    def aten__native_batch_norm_legit_no_training(self, *given: Any) -> Any:
        return self.aten_batch_norm(*given[:5], False, *given[5:]), None, None

    def aten_instance_norm(
        self, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, own: bool, momentum: Any, eps: float, *_: Any
    ) -> Any:
        if not own:
            return self.aten_batch_norm(x, weight, bias, mean, variance, False, momentum, eps)
        return self.aten_group_norm(x, self.shape(x)[1], weight, bias, eps)

    def aten_group_norm(self, x: Any, groups: int, weight: Any, bias: Any, eps: float, *_: Any) -> Any:
        layer = nn.GroupNorm(groups, self.shape(x)[1], eps, device="meta")
        return self.layer(_weighted(layer, weight=weight, bias=bias), x)

    def aten_layer_norm(self, x: Any, shape: Any, weight: Any, bias: Any, eps: float, *_: Any) -> Any:
        return self.layer(_weighted(nn.LayerNorm(list(shape), eps, device="meta"), weight=weight, bias=bias), x)

    def aten_upsample_nearest3d(self, x: Any, _: Any, *scales: Any) -> Any:
        return self._upsampled(x, scales, mode="nearest")

    def aten_upsample_trilinear3d(self, x: Any, _: Any, corners: bool, *scales: Any) -> Any:
        return self._upsampled(x, scales, mode="trilinear", align_corners=corners)

    def _upsampled(self, x: Any, scales: Sequence[Any], **options: Any) -> Any:
        factors = scales[0] if len(scales) == 1 else scales
        known = factors is not None and all(isinstance(factor, float) for factor in factors)
        size = {"scale_factor": tuple(factors)} if known else {"size": self.answer_shape[2:]}
        return self.layer(nn.Upsample(**size, **options), x)

    # Sums, means and winners over axes, of which the first need not be the batch.

    def _axes(self, x: Any, axes: Any, keep: bool) -> tuple[list[int], list[int], list[int]]:
        """Axes that are kept, those that are not, and the shape of the answer."""
        shape = self.shape(x)
        given = range(len(shape)) if axes is None or axes == [] else [axes] if isinstance(axes, int) else axes
        out = sorted({axis % len(shape) for axis in given})
        kept = [axis for axis in range(len(shape)) if axis not in out]
        return kept, out, [1 if axis in out else shape[axis] for axis in range(len(shape)) if keep or axis in kept]

    def _permuted(self, x: Any, axes: Sequence[int]) -> Any:
        if list(axes) == sorted(axes):
            return x
        return self.method("permute", x, tuple(axes), shape=[self.shape(x)[axis] for axis in axes])

    def aten_mean(self, x: Any, axes: Any = None, keep: Any = False, *_: Any) -> Any:
        kept, out, answer = self._axes(x, axes, bool(keep))
        if 0 not in out:
            return self.method("mean", x, tuple(out), bool(keep), shape=answer)
        lengths = [self.shape(x)[axis] for axis in kept] or [1]
        flat = self.reshaped(self._permuted(x, [*kept, *out]), (*lengths, prod(self.shape(x)[axis] for axis in out)))
        return self.reshaped(self.method("mean", flat, (len(lengths),), False, shape=lengths), answer)

    def aten_sum(self, x: Any, axes: Any = None, keep: Any = False, *_: Any) -> Any:
        count = prod(self.shape(x)[axis] for axis in self._axes(x, axes, False)[1])
        return self.aten_mul(self.aten_mean(x, axes, keep), float(count))

    def aten_var(self, x: Any, axes: Any = None, correction: Any = 1, keep: Any = False) -> Any:
        count = prod(self.shape(x)[axis] for axis in self._axes(x, axes, False)[1])
        centred = self.aten_sub(x, self.aten_mean(x, axes, True))
        squares = self.aten_mean(self.by_itself(torch.square, centred), axes, keep)
        return self.aten_mul(squares, count / (count - float(1 if correction is None else correction)))

    def aten_linalg_vector_norm(self, x: Any, order: Any = 2, axes: Any = None, keep: Any = False, *_: Any) -> Any:
        if order != 2:
            return NotImplemented
        return self.by_itself(torch.sqrt, self.aten_sum(self.by_itself(torch.square, x), axes, keep))

    def aten_amax(self, x: Any, axes: Any = None, keep: Any = False) -> Any:
        """The winner along axes, by a max-pooling."""
        kept, out, answer = self._axes(x, axes, keep)
        if len(self.shape(x)) != 5 or out != [2, 3, 4]:
            lengths = [self.shape(x)[axis] for axis in kept] or [1]
            competing = prod(self.shape(x)[axis] for axis in out)
            x = self.reshaped(self._permuted(x, [*kept, *out]), (lengths[0], prod(lengths[1:]), 1, 1, competing))
        pooled = self.layer(nn.AdaptiveMaxPool3d(1), x, shape=(*self.shape(x)[:2], 1, 1, 1))
        return self.reshaped(pooled, answer)

    def aten_amin(self, x: Any, axes: Any = None, keep: Any = False) -> Any:
        return self.aten_neg(self.aten_amax(self.aten_neg(x), axes, keep))

    def aten_max(self, x: Any, axis: Any = None, keep: Any = False) -> Any:
        if isinstance(axis, int):
            return self.aten_amax(x, axis, keep), None
        return self.aten_amax(x) if axis is None else self.aten_maximum(x, axis)

    def aten_maximum(self, a: Any, b: Any) -> Any:
        shape = common(self.shape(a), self.shape(b))
        both = [self.expanded(value, shape) if changing(value) else value.expand(shape) for value in (a, b)]
        return self.aten_amax(self.aten_stack(both, len(shape)), len(shape))

    # Values at other places.

    def aten_cat(self, parts: Any, axis: int = 0) -> Any:
        whole = list(self.shape(parts[0]))
        whole[axis] = sum(self.shape(part)[axis] for part in parts)
        return self.layer(ops.Concatenate(axis % len(whole)), *parts, shape=whole)

    def aten_stack(self, parts: Any, axis: int = 0) -> Any:
        shape = list(self.shape(parts[0]))
        shape.insert(axis % (len(shape) + 1), 1)
        return self.aten_cat([self.reshaped(part, shape) for part in parts], axis)

    def aten_index(self, x: Any, places: Any) -> Any:
        if changing(places):
            return NotImplemented
        return self.function(operator.getitem, x, tuple(slice(None) if one is None else one for one in places))

    def aten_slice(self, x: Any, axis: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
        place = (*(slice(None),) * (axis % len(self.shape(x))), slice(start, end, step))
        if not changing(x):
            return x[place]
        shape = list(self.shape(x))
        shape[axis] = len(range(shape[axis])[start:end:step])
        return self.function(operator.getitem, x, place, shape=shape)

    def aten_slice_scatter(self, x: Any, part: Any, axis: int, start: Any, end: Any, step: int) -> Any:
        length = self.shape(x)[axis]
        first, last, _ = slice(start, end).indices(length)
        if step != 1:
            return NotImplemented
        if (first, last) == (0, length):
            return part
        around = [self.aten_slice(x, axis, a, b) for a, b in ((0, first), (last, length)) if b > a]
        return self.aten_cat([*around[:1], part, *around[1:]] if first else [part, *around], axis)

    def aten_select_scatter(self, x: Any, part: Any, axis: int, place: int) -> Any:
        place %= self.shape(x)[axis]
        shape = list(self.shape(x))
        shape[axis] = 1
        return self.aten_slice_scatter(x, self.reshaped(part, shape), axis, place, place + 1, 1)

    def aten_copy(self, x: Any, source: Any, *_: Any) -> Any:
        return self.expanded(source, self.shape(x))

    def aten_pad(self, x: Any, sides: Any, mode: str = "constant", value: Any = None) -> Any:
        if mode != "constant":
            return self.function(F.pad, x, tuple(sides), mode)
        if value:
            border = F.pad(self.volume.new_zeros(self.shape(x)), tuple(sides), value=float(value))
            return self.aten_add(self.aten_pad(x, sides), border)
        shape = list(self.shape(x))
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
