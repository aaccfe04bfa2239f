"""What single layers do to relevance: linear maps forward and transposed, folded normalisation, max-pooling.

Rules use a layer with weights only through two directions of its linear map, without bias. Where nothing is skipped,
the transposed convolution is a convolution with flipped weights: on a CPU that takes half the time of PyTorch's
derivative with respect to the input; for few input channels it is a sum over the kernel (`spread`). Otherwise it is
that derivative, which unlike ``conv_transpose3d`` needs no output padding.

In evaluation mode ``BN(W x + b) = γ/σ (W x + b - μ) + β_BN`` is linear, so convolution and normalisation are one
convolution with weights ``W γ/σ`` and bias ``(b - μ) γ/σ + β_BN``. The β-rule is invariant to positive factors per
channel: folding and passing as identity differ where a γ is negative, since the unit's positive contributions then
*decrease* its activation before the sign change.

Max-pooling gives all relevance to the winner of each window: that of the forward pass that is explained, since a second
pass with different rounding could choose another winner and move relevance by a whole receptive field.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv3d_input


def paired(first: Tensor, second: Tensor, axis: int, groups: int) -> Tensor:
    """Two tensors of one shape side by side along an axis, within each group of that axis.

    >>> paired(torch.tensor([1, 2]), torch.tensor([-1, -2]), 0, groups=1).tolist()
    [1, 2, -1, -2]
    >>> paired(torch.tensor([1, 2]), torch.tensor([-1, -2]), 0, groups=2).tolist()
    [1, -1, 2, -2]
    """
    axis %= first.dim()
    grouped = (*first.shape[:axis], groups, -1, *first.shape[axis + 1 :])
    return torch.cat([first.reshape(grouped), second.reshape(grouped)], dim=axis + 1).flatten(axis, axis + 1)


class LinearMap(Protocol):
    """A linear map of an input, given its weights; `groups` blocks of the channels do not mix."""

    @property
    def channel_axis(self) -> int: ...

    @property
    def groups(self) -> int: ...

    def apply(self, x: Tensor, weight: Tensor) -> Tensor:
        """``W x``."""
        ...

    def transpose(self, y: Tensor, weight: Tensor, input_shape: Sequence[int]) -> Tensor:
        """``W^T y``, of shape `input_shape`."""
        ...


FEW = 8
"""Channels of all volumes of a batch up to which `spread` takes less time than a convolution of PyTorch."""


def spread(
    y: Tensor, weight: Tensor, padding: Sequence[int], dilation: Sequence[int], input_shape: Sequence[int]
) -> Tensor:
    """The transposed convolution of stride 1, one place of the kernel after the other.

    `weight`: (output, input channels, k, k, k). PyTorch's convolution is slow on a CPU where it makes one channel of
    eight: 53 ms for a volume of 39 x 46 x 39, where this takes 4 ms.
    """
    sides = [side + 2 * pad for side, pad in zip(input_shape[2:], padding, strict=True)]
    whole = y.new_zeros(len(y), weight.shape[1], *sides)
    for first in range(weight.shape[2]):  # a plane of the kernel at a time bounds memory
        parts = torch.einsum("ocq,bon->bcqn", weight[:, :, first].flatten(2), y.flatten(2))
        for place, (second, third) in enumerate(product(range(weight.shape[3]), range(weight.shape[4]))):
            starts = [at * step for at, step in zip((first, second, third), dilation, strict=True)]
            a, b, c = (slice(start, start + side) for start, side in zip(starts, y.shape[2:], strict=True))
            whole[:, :, a, b, c] += parts[:, :, place].view(len(y), -1, *y.shape[2:])
    a, b, c = (slice(pad, pad + side) for pad, side in zip(padding, input_shape[2:], strict=True))
    return whole[:, :, a, b, c]


@dataclass(frozen=True)
class Convolution:
    """The linear map of a 3D convolution; input (B, C, D, H, W), zero padding."""

    stride: tuple[int, ...] = (1, 1, 1)
    padding: tuple[int, ...] = (0, 0, 0)
    dilation: tuple[int, ...] = (1, 1, 1)
    groups: int = 1

    channel_axis = 1

    def by_output(self, weight: Tensor) -> Tensor:
        """Weights (output channels, input channels of a group, k, k, k), from those of the layer."""
        return weight

    def apply(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.conv3d(x, weight, None, self.stride, self.padding, self.dilation, self.groups)

    def transpose(self, y: Tensor, weight: Tensor, input_shape: Sequence[int]) -> Tensor:
        if y.device.type == "cpu" and all(stride == 1 for stride in self.stride) and self.groups == 1:
            reach = [step * (size - 1) for step, size in zip(self.dilation, weight.shape[2:], strict=True)]
            padding = [whole - pad for whole, pad in zip(reach, self.padding, strict=True)]
            if min(padding) >= 0 and len(y) * weight.shape[1] <= FEW:
                return spread(y, weight, self.padding, self.dilation, input_shape)
            if min(padding) >= 0:
                turned = weight.transpose(0, 1).flip(2, 3, 4)
                return F.conv3d(y, turned, None, 1, padding, self.dilation)
        answer: Tensor = conv3d_input(  # type: ignore[no-untyped-call]
            torch.Size(input_shape), weight, y, self.stride, self.padding, self.dilation, self.groups
        )
        return answer


@dataclass(frozen=True)
class TransposedConvolution(Convolution):
    """The linear map of a 3D transposed convolution; weights are arranged as those of a convolution."""

    output_padding: tuple[int, ...] = (0, 0, 0)

    def by_output(self, weight: Tensor) -> Tensor:
        grouped = weight.reshape(self.groups, -1, *weight.shape[1:])  # (group, input, output, k, k, k)
        return grouped.transpose(1, 2).flatten(0, 1)

    def apply(self, x: Tensor, weight: Tensor) -> Tensor:
        settings = (self.stride, self.padding, self.output_padding, self.groups, self.dilation)
        return F.conv_transpose3d(x, self.by_output(weight), None, *settings)

    def transpose(self, y: Tensor, weight: Tensor, input_shape: Sequence[int]) -> Tensor:
        x = F.conv3d(y, self.by_output(weight), None, self.stride, self.padding, self.dilation, self.groups)
        return x[:, :, : input_shape[2], : input_shape[3], : input_shape[4]]


@dataclass(frozen=True)
class FullyConnected:
    """The linear map of a fully connected layer; input (..., features)."""

    channel_axis = -1
    groups = 1

    def apply(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x, weight)

    def transpose(self, y: Tensor, weight: Tensor, input_shape: Sequence[int]) -> Tensor:
        return F.linear(y, weight.t())


@dataclass(frozen=True)
class Averaging:
    """An average pooling as a linear map with positive coefficients; input (B, C, D, H, W)."""

    pool: nn.Module

    def apply(self, x: Tensor) -> Tensor:
        answer: Tensor = self.pool(x)
        return answer

    def transpose(self, y: Tensor, input_shape: Sequence[int]) -> Tensor:
        """PyTorch's derivative, which follows all rounding and padding rules of the poolings."""
        probe = torch.zeros(tuple(input_shape), dtype=y.dtype, device=y.device, requires_grad=True)
        with torch.enable_grad():
            pooled = self.pool(probe)
        (answer,) = torch.autograd.grad(pooled, probe, y.reshape(pooled.shape))
        return answer


def run_layer(layer: nn.Module, x: Tensor) -> Tensor:
    """What a layer makes of `x`; a convolution hands back gradients to its input only, and in less time on a CPU."""
    plain = type(layer) is nn.Conv3d and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    if plain and x.requires_grad and torch.is_grad_enabled() and x.device.type == "cpu":
        return InputGradient.apply(x, layer)  # type: ignore[no-any-return, no-untyped-call]
    return layer(x)  # type: ignore[no-any-return]


class InputGradient(torch.autograd.Function):
    """A convolution whose backward pass is `Convolution.transpose`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: nn.Conv3d) -> Tensor:
        ctx.layer, ctx.input_shape = layer, x.shape
        return torch.as_tensor(layer(x))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        layer = ctx.layer
        linear = Convolution(layer.stride, layer.padding, layer.dilation, layer.groups)
        return linear.transpose(gradient, layer.weight, ctx.input_shape), None


def folded(weight: Tensor, bias: Tensor | None, norm: nn.BatchNorm3d) -> tuple[Tensor, Tensor]:
    """Weights and bias of the convolution equivalent to a convolution and the batch normalisation after it."""
    if norm.running_var is None or norm.running_mean is None:
        raise ValueError("batch normalisation without running statistics cannot be folded.")
    scale = torch.rsqrt(norm.running_var + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight
    centred = -norm.running_mean if bias is None else bias - norm.running_mean
    shift = centred * scale if norm.bias is None else centred * scale + norm.bias
    return weight * scale.reshape(-1, *(1,) * (weight.dim() - 1)), shift


def triple(value: int | tuple[int, ...]) -> tuple[int, ...]:
    """Size, stride or padding per axis, from any form that PyTorch accepts."""
    return (value,) * 3 if isinstance(value, int) else tuple(value)


@dataclass(frozen=True)
class MaxPool:
    """Geometry of a 3D max-pooling, one integer per axis; see `torch.nn.MaxPool3d`."""

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] = (0, 0, 0)
    dilation: tuple[int, ...] = (1, 1, 1)
    ceil_mode: bool = False

    def apply(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Pooled values, and winners as flat voxel indices into the spatial axes of `x`. Both (B, C, d, h, w)."""
        pooled, winners = F.max_pool3d(
            x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, return_indices=True
        )
        return pooled, winners


@dataclass(frozen=True)
class AdaptiveMaxPool:
    """Max-pooling to a given size; see `torch.nn.AdaptiveMaxPool3d`."""

    output_size: Any

    def apply(self, x: Tensor) -> tuple[Tensor, Tensor]:
        pooled, winners = F.adaptive_max_pool3d(x, self.output_size, return_indices=True)
        return pooled, winners


def gather(x: Tensor, winners: Tensor) -> Tensor:
    """Values of `x` (B, C, D, H, W) at the winners; shape of `winners`."""
    return x.flatten(2).gather(2, winners.flatten(2)).view_as(winners)


def scatter(values: Tensor, winners: Tensor, shape: Sequence[int]) -> Tensor:
    """Return values to the winning voxels; a voxel that won several overlapping windows gets their sum.

    `values`, `winners`: (B, C, d, h, w). `shape`: of the tensor that was pooled.

    >>> winners = torch.tensor([1, 1]).reshape(1, 1, 1, 1, 2)
    >>> scatter(torch.tensor([2.0, 3.0]).view_as(winners), winners, (1, 1, 1, 1, 3)).flatten().tolist()
    [0.0, 5.0, 0.0]
    """
    empty = torch.zeros(tuple(shape), dtype=values.dtype, device=values.device).flatten(2)
    return empty.scatter_add_(2, winners.flatten(2), values.flatten(2)).view(tuple(shape))
