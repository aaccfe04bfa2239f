"""B-cos layers (Böhle, Fritz & Schiele 2022): linear layers that answer only to inputs along their weights.

``B-cos(x; w) = ŵᵀx |cos(x, ŵ)|^(B-1)``, with ŵ = w / ‖w‖: a linear map whose rows are scaled down where the input
points elsewhere. The answer is at most ‖x‖, which only an input along w reaches. B = 1 is a linear layer with weights
of norm 1. There is no bias and no activation is needed.

In explanation mode the scale is held, so that gradients are rows of the layer's matrix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from heatlas.pipeline.models.dynamic import DynamicLinear
from heatlas.pipeline.run.errors import UsageError
from heatlas.studies.dynamic import Sides, Sides3, three

NORM_EPS = 1e-6
"""Added to the squared norm of a patch, so that an empty one has a slope."""
LEAST_COSINE = 1e-6
"""Smaller |cos| count as this one: the power has an infinite slope at 0 for B < 2."""

VOXELS_AT_ONCE = 2**14
"""Largest grid whose channels are added at once; on larger ones one by one, without a tensor for all."""


def unit_rows(weight: Tensor) -> Tensor:
    """Filters (N, ...) of norm 1; an empty one stays empty."""
    return functional.normalize(weight.flatten(1), dim=1).view_as(weight)


def patch_sums(x: Tensor, kernel: Sides3, stride: Sides3, padding: Sides3, dilation: Sides3 = (1, 1, 1)) -> Tensor:
    """Sums (B, C, d, h, w) over the patches of a convolution with zero padding.

    One axis after the other, as sums of shifted slices: ten times as fast as pooling on a CPU, and for any dilation.

    Examples
    --------
    >>> patch_sums(torch.ones(1, 1, 3, 3, 3), (3, 3, 1), (2, 1, 1), (1, 1, 0))[0, 0, :, :, 0].tolist()
    [[4.0, 6.0, 4.0], [4.0, 6.0, 4.0]]
    """
    for axis, (k, s, p, d) in enumerate(zip(kernel, stride, padding, dilation, strict=True), 2):
        if (k, s, p) == (1, 1, 0):
            continue
        around = [0] * 2 * (4 - axis) + [p, p]
        wide = functional.pad(x, around) if p else x
        last = (wide.shape[axis] - d * (k - 1) - 1) // s * s + 1
        places = [slice(d * shift, d * shift + last, s) for shift in range(k)]
        slices = [wide[(slice(None),) * axis + (place,)] for place in places]
        x = sum(slices[1:], slices[0])
    return x


def bcos_scale(linear: Tensor, norm: Tensor, b: float) -> Tensor:
    """The dynamic scale ``|linear / norm|^(b - 1)`` of unit-norm linear responses.

    `linear`: responses of unit-norm filters. `norm`: of their inputs, which broadcast. `b`: at least 1.

    Examples
    --------
    >>> bcos_scale(torch.tensor([3.0, -4.0]), torch.tensor(5.0), 2.0)
    tensor([0.6000, 0.8000])
    """
    cosine = linear.abs() / norm
    return cosine if b == 2 else cosine.clamp(min=LEAST_COSINE) ** (b - 1)


class Response(torch.autograd.Function):
    """``linear * bcos_scale(linear, norm, b)`` with its derivatives written out.

    ``d / d linear = b scale`` and ``d / d norm = -(b - 1) linear scale / norm``. Can be differentiated twice. Where no
    graph is kept, values are made in place: at full resolution, new memory takes longer than the arithmetic.
    """

    @staticmethod
    def forward(ctx: Any, linear: Tensor, norm: Tensor, b: float) -> Tensor:
        ctx.save_for_backward(linear, norm)
        ctx.b = b
        return _scale_in_place(linear, norm, b).mul_(linear)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        linear, norm = ctx.saved_tensors
        if torch.is_grad_enabled():
            scaled = gradient * bcos_scale(linear, norm, ctx.b)
            return ctx.b * scaled, (1 - ctx.b) * (scaled * linear).sum_to_size(norm.shape) / norm, None
        scaled = _scale_in_place(linear, norm, ctx.b).mul_(gradient)
        of_norm = None
        if ctx.needs_input_grad[1]:
            of_norm = _sum_of_products(scaled, linear, norm.shape).div_(norm).mul_(1 - ctx.b)
        return scaled.mul_(ctx.b), of_norm, None


def _scale_in_place(linear: Tensor, norm: Tensor, b: float) -> Tensor:
    """`bcos_scale` with one new tensor."""
    cosine = linear.abs().div_(norm)
    return cosine if b == 2 else cosine.clamp_(min=LEAST_COSINE).pow_(b - 1)


def _sum_of_products(first: Tensor, second: Tensor, shape: torch.Size) -> Tensor:
    """``(first * second).sum_to_size(shape)``; over channels, without a tensor for the products."""
    if first.dim() != 5 or shape[1] != 1 or not _by_channel(first):
        return (first * second).sum_to_size(shape)
    total = first.new_zeros(shape)
    for one, other in zip(torch.split(first, 1, 1), torch.split(second, 1, 1), strict=True):
        total.addcmul_(one, other)
    return total


def _by_channel(x: Tensor) -> bool:
    """Whether channels are better added one by one: each lies in one piece, and is long.

    Not in half precision, which would lose digits with every channel.
    """
    return x.is_contiguous() and x[0, 0].numel() > VOXELS_AT_ONCE and x.dtype in (torch.float32, torch.float64)


class ChannelSquares(torch.autograd.Function):
    """Sums of squares (B, groups, ...) over the channels of each group of (B, C, ...); can be differentiated twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: int) -> Tensor:
        ctx.save_for_backward(x)
        parts: Tensor = x.unflatten(1, (groups, -1))  # type: ignore[no-untyped-call]
        if not _by_channel(x):
            return parts.square().sum(2)
        total = parts[:, :, 0].square()
        for channel in range(1, parts.shape[2]):
            total.addcmul_(parts[:, :, channel], parts[:, :, channel])
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        parts: Tensor = x.unflatten(1, (gradient.shape[1], -1))
        return (parts * (2 * gradient)[:, :, None]).flatten(1, 2), None


class _Bcos(DynamicLinear):
    """What B-cos layers share: weights, B, and the largest of several units."""

    def __init__(self, shape: Sequence[int], b: float, max_out: int) -> None:
        super().__init__()
        if not 1 <= b < math.inf:
            raise UsageError(f"b = {b!r}: the exponent of a B-cos layer must be 1 or more.")
        if max_out < 1:
            raise UsageError(f"max_out = {max_out!r}: a B-cos layer needs 1 or more units per output.")
        self.b, self.max_out = float(b), max_out
        self.weight = nn.Parameter(torch.empty(shape))
        nn.init.kaiming_normal_(self.weight, mode="fan_out", nonlinearity="linear")

    def _largest(self, linear: Tensor, axis: int) -> Tensor:
        """The largest linear response of each output's units; the scale, applied later, does not change their order."""
        if self.max_out == 1:
            return linear
        units: Tensor = linear.unflatten(axis, (-1, self.max_out))  # type: ignore[no-untyped-call]
        return units.amax(axis + 1)

    def _scaled(self, linear: Tensor, norm: Tensor) -> Tensor:
        if self.mode == "off":
            return Response.apply(linear, norm, self.b)  # type: ignore[no-any-return, no-untyped-call]
        return linear * self.held(bcos_scale(linear, norm, self.b))


class BcosConv3d(_Bcos):
    """B-cos convolution over volumes (B, C, D, H, W), with zero padding and without a bias.

    Arguments as of `torch.nn.Conv3d`. `b`: exponent, 1 or more. `max_out`: units per output channel, of which the
    largest counts (MaxOut; Goodfellow et al. 2013).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sides = 3,
        stride: Sides = 1,
        padding: Sides = 0,
        dilation: Sides = 1,
        groups: int = 1,
        b: float = 2.0,
        max_out: int = 1,
    ) -> None:
        if in_channels % groups or out_channels % groups:
            raise UsageError(f"groups = {groups}: it must divide {in_channels} and {out_channels} channels.")
        self.kernel_size, self.stride, self.padding = three(kernel_size), three(stride), three(padding)
        self.dilation, self.groups = three(dilation), groups
        self.in_channels, self.out_channels = in_channels, out_channels
        super().__init__((out_channels * max_out, in_channels // groups, *self.kernel_size), b, max_out)

    def forward(self, x: Tensor) -> Tensor:
        linear = functional.conv3d(
            x, unit_rows(self.weight), None, self.stride, self.padding, self.dilation, self.groups
        )
        linear = self._largest(linear, 1)
        return linear if self.b == 1 else self._scaled(linear, self.patch_norm(x))

    def patch_norm(self, x: Tensor) -> Tensor:
        """Norm of the patch below each output voxel, (B, 1 or `out_channels`, ...): the root of pooled squares."""
        wide = x if x.dtype == torch.float64 else x.float()  # squares of half precision overflow
        squares: Tensor = ChannelSquares.apply(wide, self.groups)  # type: ignore[no-untyped-call]
        sums = patch_sums(squares, self.kernel_size, self.stride, self.padding, self.dilation)
        norm = (sums + NORM_EPS).sqrt().to(x.dtype)
        return norm if self.groups == 1 else norm.repeat_interleave(self.out_channels // self.groups, 1)

    def extra_repr(self) -> str:
        shape = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        return f"{shape}, padding={self.padding}, groups={self.groups}, b={self.b:g}, max_out={self.max_out}"


class BcosLinear(_Bcos):
    """B-cos linear layer over the last axis of (..., features); see `BcosConv3d`.

    Examples
    --------
    >>> layer = BcosLinear(2, 1)
    >>> with torch.no_grad():
    ...     _ = layer.weight.copy_(torch.tensor([[2.0, 0.0]]))
    >>> round(layer(torch.tensor([[3.0, 4.0]])).item(), 4)  # 3 times cos = 3 / 5
    1.8
    """

    def __init__(self, in_features: int, out_features: int, b: float = 2.0, max_out: int = 1) -> None:
        self.in_features, self.out_features = in_features, out_features
        super().__init__((out_features * max_out, in_features), b, max_out)

    def forward(self, x: Tensor) -> Tensor:
        linear = self._largest(functional.linear(x, unit_rows(self.weight)), x.dim() - 1)
        return linear if self.b == 1 else self._scaled(linear, (x.square().sum(-1, keepdim=True) + NORM_EPS).sqrt())

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, b={self.b:g}, max_out={self.max_out}"
