"""Layers that are fast to differentiate twice, for losses that depend on maps.

torch differentiates the gradient of a convolution by another with a kernel as large as the volume, and that of batch
normalisation in some twenty passes over the features; that of ReLUs and max-pooling is a volume of zeros, which it
makes and adds. Together they take several times the rest of a training step. Here all these gradients are made of
layers that torch differentiates once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

RELUS = (torch.relu, functional.relu, torch.Tensor.relu)


class _Pass:
    """What the running backward pass asks for; not of a thread, since on a GPU others run the backward functions."""

    of_features_alone = False
    guided = False


@contextmanager
def gradients_of_features(guided: bool = False) -> Iterator[None]:
    """Within this context, backward passes leave out the weights of `TwiceConv3d`, whose gradients nobody asks for.

    ``guided``: each `TwiceReLU` passes on what is above 0 alone (guided backpropagation), so that one forward pass
    serves both gradients.
    """
    _Pass.of_features_alone, _Pass.guided = True, guided
    try:
        yield
    finally:
        _Pass.of_features_alone = _Pass.guided = False


class TwiceConv3d(torch.autograd.Function):
    """`torch.conv3d`, with a gradient of the features that is itself made of layers.

    Exact; the gradient of the weights cannot be differentiated again, which maps do not need.
    """

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int],
        dilation: Sequence[int], groups: int,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(features, weight)
        ctx.bias_sizes = None if bias is None else list(bias.shape)
        ctx.settings = list(stride), list(padding), list(dilation), groups
        return torch.conv3d(features, weight, bias, stride, padding, dilation, groups)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        features, weight = ctx.saved_tensors
        kinds, weight = (features.dtype, weight.dtype), weight.to(gradient.dtype)  # which autocast may have changed
        stride, padding, dilation, groups = ctx.settings
        of_features = of_weight = of_bias = None
        # A leaf is the volume, of which the pass for the weights needs no gradient.
        if _Pass.of_features_alone or not features.is_leaf:
            of_features = _Transposed.apply(gradient, weight, features.shape[2:], *ctx.settings).to(kinds[0])  # type: ignore[no-untyped-call]
        if not _Pass.of_features_alone and (ctx.needs_input_grad[1] or ctx.needs_input_grad[2]):
            _, of_weight, of_bias = torch.ops.aten.convolution_backward(
                gradient, features.to(gradient.dtype), weight, ctx.bias_sizes, stride, padding, dilation, False,
                [0] * 3, groups, (False, ctx.needs_input_grad[1], ctx.needs_input_grad[2]),
            )  # fmt: skip
            of_weight, of_bias = (None if one is None else one.to(kinds[1]) for one in (of_weight, of_bias))
        return of_features, of_weight, of_bias, None, None, None, None


class _Transposed(torch.autograd.Function):
    """`_of_features`, with gradients by the convolution that it transposes, which are faster than through its own."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, weight: Tensor, shape: Sequence[int], *settings: Any) -> Tensor:
        ctx.save_for_backward(gradient, weight)
        ctx.settings = settings
        return _of_features(gradient, weight, shape, *settings)

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> Any:
        gradient, weight = ctx.saved_tensors
        stride, padding, dilation, groups = ctx.settings
        if outer.shape[1] == 1 and gradient.is_contiguous(memory_format=torch.channels_last_3d):
            # Both layouts hold for one channel; torch takes the other, and is slower by a factor of four.
            depth, height, width = outer.shape[2:]
            strides = (depth * height * width, 1, height * width, width, 1)
            outer = outer.contiguous().as_strided(outer.shape, strides)
        of_gradient = torch.conv3d(outer, weight, None, stride, padding, dilation, groups)
        _, of_weight, _ = torch.ops.aten.convolution_backward(
            gradient, outer, weight, None, stride, padding, dilation, False, [0] * 3, groups, (False, True, False)
        )
        return of_gradient, of_weight, *[None] * 5


class TwiceReLU(torch.autograd.Function):
    """`torch.relu`. Its second derivative is 0, for which torch makes and adds a volume of zeros."""

    @staticmethod
    def forward(ctx: Any, features: Tensor) -> Tensor:
        found = torch.relu(features)
        ctx.save_for_backward(found)
        ctx.set_materialize_grads(False)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> Tensor | None:
        if gradient is None:  # max-pooling has handed it to what is before
            return None
        (found,) = ctx.saved_tensors
        if _Pass.guided:  # in place, since a new volume takes longer than what is computed
            gradient = gradient.clamp(min=0)
            return torch.ops.aten.threshold_backward.grad_input(gradient, found, 0, grad_input=gradient)  # type: ignore[no-any-return]
        return torch.ops.aten.threshold_backward(gradient, found.detach(), 0)  # type: ignore[no-any-return]


class TwiceMaxPool3d(torch.autograd.Function):
    """`torch.max_pool3d` of features; its second derivative is 0 too.

    If they are the ReLU of others, `before`, the gradient goes to these, by the ReLU's rule for the few voxels that are
    left. A guided gradient goes through the ReLU, which cuts the sum of all that use it.
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor, before: Tensor | None, *settings: Any) -> Tensor:
        found, places = torch.ops.aten.max_pool3d_with_indices(features, *settings)
        ctx.save_for_backward(features, places, found)
        ctx.settings = settings
        return found  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        features, places, found = ctx.saved_tensors
        skips_relu = ctx.needs_input_grad[1] and not _Pass.guided
        if skips_relu:
            gradient = torch.ops.aten.threshold_backward(gradient, found.detach(), 0)
        given = gradient, features.detach(), *ctx.settings, places
        of_features = torch.ops.aten.max_pool3d_with_indices_backward(*given)
        return *((None, of_features) if skips_relu else (of_features, None)), *[None] * 5


class _Scaled(torch.autograd.Function):
    """``g w s`` of a gradient g, the weight w and the scale s = 1 / standard deviation of each channel.

    The scale is a function of the features, known already: ``ds/dx = -s^3 (x - mean) / n``. From the features anew it
    would take torch five more passes over them.
    """

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, features: Tensor, weight: Tensor, centre: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(gradient, features, weight, centre, scale)
        return (gradient * _by_channel(weight * scale, features)).to(features.dtype)

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> Any:
        gradient, features, weight, centre, scale = ctx.saved_tensors
        together = _sum_of_product(outer, gradient)
        slope = -together * weight * scale**3 * (features.shape[1] / features.numel())
        of_features = torch.addcmul(_by_channel(-slope * centre, features), _by_channel(slope, features), features)
        of_gradient = outer * _by_channel(weight * scale, features)
        return of_gradient.to(gradient.dtype), of_features.to(features.dtype), together * scale, None, None


def _sum_of_product(first: Tensor, second: Tensor) -> Tensor:
    if first.device.type != "cpu" or first.dtype != second.dtype:
        return (first * second).sum([axis for axis in range(first.ndim) if axis != 1])
    # In one pass: what the weight of a batch norm is given that neither shifts nor scales.
    none, one = (first.new_full((first.shape[1],), value) for value in (0.0, 1.0))
    _, found, _ = torch.ops.aten.native_batch_norm_backward(
        first, second, None, None, None, none, one, True, 0.0, (False, True, False)
    )
    return found  # type: ignore[no-any-return]


def _by_channel(values: Tensor, features: Tensor) -> Tensor:
    return values.view([-1] + [1] * (features.ndim - 2))


class TwiceBatchNorm(torch.autograd.Function):
    """`torch.batch_norm` with the statistics of the batch; while a map is taken, it is an affine layer.

    A map then is that of its own scan: it does not go through the other scans of the batch. The scale still depends on
    the features, so the gradient of a loss of the map is exact.
    """

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor, mean: Tensor | None, variance: Tensor | None,
        momentum: float, eps: float,
    ) -> Tensor:  # fmt: skip
        found, centre, scale = torch.native_batch_norm(features, weight, bias, mean, variance, True, momentum, eps)
        ctx.save_for_backward(features, weight, centre, scale)
        ctx.eps = eps
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        features, weight, centre, scale = ctx.saved_tensors
        if _Pass.of_features_alone:
            return _Scaled.apply(gradient, features, weight, centre, scale), *[None] * 6  # type: ignore[no-untyped-call]
        asked = [bool(one) for one in ctx.needs_input_grad[:3]]
        return *torch.ops.aten.native_batch_norm_backward(
            gradient, features, weight, None, None, centre, scale, True, ctx.eps, asked
        ), *[None] * 4


def _of_features(
    gradient: Tensor, weight: Tensor, shape: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], groups: int,
) -> Tensor:  # fmt: skip
    """Transposed convolution to features of a shape; as a convolution where that is the same, since torch's is slow."""
    sides = list(zip(shape, gradient.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True))
    room = [k - 1 - p for _, _, k, _, p, _ in sides]
    if {*stride, *dilation, groups} == {1} and min(room) >= 0:
        if weight.shape[1] == 1 and gradient.device.type == "cpu":
            return _by_planes(gradient, weight, padding[0], room)
        return torch.conv3d(gradient, weight.flip(2, 3, 4).transpose(0, 1), None, 1, room)
    left = [size - ((out - 1) * s - 2 * p + d * (k - 1) + 1) for size, out, k, s, p, d in sides]
    return torch.conv_transpose3d(gradient, weight, None, stride, padding, left, groups, dilation)


def _by_planes(gradient: Tensor, weight: Tensor, padding: int, room: Sequence[int]) -> Tensor:
    """Transposed convolution to one channel, for which torch takes as long as to sixteen.

    So each plane of the kernel has a channel of its own, which takes a third, and these are added.
    """
    kernel = weight[:, 0].flip(2, 3).transpose(0, 1)[:, :, None]
    planes = torch.conv3d(gradient, kernel, None, 1, (0, *room[1:]))
    depth, more = planes.shape[2], len(kernel) - 1
    found = functional.pad(planes[:, :1], (0, 0, 0, 0, 0, more))
    for place in range(1, more + 1):
        found[:, 0, place : place + depth] += planes[:, place]
    return found[:, :, padding : depth + more - padding]


class TwiceDifferentiable(TorchFunctionMode):
    """Within this context, convolutions, batch normalisation in training, ReLUs and max-pooling are those from here."""

    def __init__(self) -> None:
        super().__init__()
        self._relu: tuple[Tensor, Tensor, int] | None = None  # the last: what came in and went out, and their versions

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.conv3d:
            return _convolved(*args, **(kwargs or {}))
        if func is functional.batch_norm:
            return _normalised(*args, **(kwargs or {}))
        if func in RELUS:
            found = TwiceReLU.apply(args[0])  # type: ignore[no-untyped-call]
            if found.requires_grad:  # else it hands nothing on
                self._relu = args[0], found, args[0]._version + found._version
            return found
        if func is functional.max_pool3d:
            return self._pooled(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _pooled(
        self, input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False, return_indices: bool = False,
    ) -> Any:  # fmt: skip
        if return_indices:
            return functional.max_pool3d_with_indices(input, kernel_size, stride, padding, dilation, ceil_mode)
        given = (kernel_size, kernel_size if stride is None else stride, padding, dilation)
        sides = [[one] * 3 if isinstance(one, int) else list(one) for one in given]
        before, found, versions = self._relu or (input, None, 0)
        known = found is input and input.requires_grad and before._version + input._version == versions
        return TwiceMaxPool3d.apply(input, before if known else None, *sides, ceil_mode)  # type: ignore[no-untyped-call]


def _normalised(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
    bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    if not training or weight is None or bias is None:
        return functional.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    found: Tensor = TwiceBatchNorm.apply(input, weight, bias, running_mean, running_var, momentum, eps)  # type: ignore[no-untyped-call]
    return found


def _convolved(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Tensor:  # fmt: skip
    if isinstance(padding, str):  # "same", "valid": torch's own
        return torch.conv3d(input, weight, bias, stride, padding, dilation, groups)
    sides = [[one] * 3 if isinstance(one, int) else list(one) for one in (stride, padding, dilation)]
    found: Tensor = TwiceConv3d.apply(input, weight, bias, *sides, groups)  # type: ignore[no-untyped-call]
    return found
