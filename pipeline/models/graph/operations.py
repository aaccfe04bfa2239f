"""Kinds of operations: modules that stand for functions and methods of tensors, and the kinds that methods know."""

from __future__ import annotations

import torch
from torch import Tensor, nn

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


POOLINGS = (nn.AvgPool3d, nn.AdaptiveAvgPool3d, AxesMean)
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


class AsCalled(nn.Module):
    """An operation that is run by the model's own call."""


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
