"""The rescale rule of DeepLIFT (Shrikumar, Greenside & Kundaje 2017) for single operations.

Between a volume x and a reference r, an activation f turns the difference ``x - r`` into ``f(x) - f(r)``. The rule
hands a multiplier back through the slope of that chord, ``(f(x) - f(r)) / (x - r)``, instead of the slope at x; linear
operations keep their own. So multipliers times differences add up to the difference of the output, in one backward
pass and without sampling.

The chord of a smooth activation over a short difference is lost in rounding; there the slope in the middle stands for
it, which differs by a term of third order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.attribution.graph.pooling import AdaptiveMaxPool, MaxPool, scatter

PIECEWISE_LINEAR = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.Hardtanh)
"""Activations whose chord has no slope that rounding could hurt."""
SMOOTH = (nn.ELU, nn.CELU, nn.SELU, nn.SiLU, nn.GELU, nn.Softplus, nn.Tanh, nn.Sigmoid)
ACTIVATIONS = (*PIECEWISE_LINEAR, *SMOOTH)
"""Element-wise activations that the rule is defined for."""


def chord_slope(function: Callable[[Tensor], Tensor], x: Tensor, r: Tensor, shortest: float = 0.0) -> Tensor:
    """Slope of `function` from `r` to `x`, element by element; where ``|x - r| <= shortest``, that in the middle.

    Examples
    --------
    >>> chord_slope(torch.relu, torch.tensor([2.0, -1.0, 3.0]), torch.tensor([-2.0, -2.0, 3.0])).tolist()
    [0.5, 0.0, 1.0]
    """
    return _slope(function, x, r, function(x), function(r), shortest)


def _slope(function: Callable[[Tensor], Tensor], x: Tensor, r: Tensor, y: Tensor, s: Tensor, shortest: float) -> Tensor:
    """As `chord_slope`, with ``y = function(x)`` and ``s = function(r)``."""
    difference = x - r
    short = difference == 0 if shortest == 0 else difference.abs() <= shortest
    if isinstance(function, nn.ReLU) or function is torch.relu:
        middle = (x > 0).to(x.dtype)  # where x and r are the same
    else:
        with torch.inference_mode(False), torch.enable_grad():
            halfway = torch.lerp(x, r.expand_as(x), 0.5).clone().requires_grad_()
            (middle,) = torch.autograd.grad(function(halfway).sum(), halfway)
    return torch.where(short, middle, (y - s).div_(difference))


class Rescaled(torch.autograd.Function):
    """An activation of x, given that of r, ``s``; its backward pass has the slope of the chord from r."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, r: Tensor, s: Tensor, module: nn.Module) -> Tensor:
        shortest = torch.finfo(x.dtype).eps ** 0.5 if isinstance(module, SMOOTH) else 0.0
        y = torch.as_tensor(module(x))
        ctx.save_for_backward(_slope(module, x, r, y, s, shortest))
        return y

    @staticmethod
    def backward(ctx: Any, multiplier: Tensor) -> tuple[Tensor, None, None, None]:
        (slope,) = ctx.saved_tensors
        return multiplier * slope, None, None, None


class RescaledMaxPool(torch.autograd.Function):
    """A max-pooling of x whose backward pass accounts for winners that differ between x and r.

    The output of r, `s`, and its winners, `of_r`, are given.

    With ``top`` the larger of both outputs, ``top - s`` is what x's winner added, and ``y - top``
    (y, the output of x) what r's winner took away; each is divided by the difference of its own voxel, as in captum.
    Both parts have the multiplier of x, so that they add up to ``y - s`` in every window.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, r: Tensor, s: Tensor, of_r: Tensor, pool: MaxPool | AdaptiveMaxPool) -> Tensor:
        y, of_x = pool.apply(x)
        ctx.save_for_backward(x - r, y, s.expand_as(y), of_x, of_r.expand_as(of_x))
        return y

    @staticmethod
    def backward(ctx: Any, multiplier: Tensor) -> tuple[Tensor, None, None, None, None]:
        difference, y, s, of_x, of_r = ctx.saved_tensors
        top = torch.maximum(y, s)
        moved = scatter(multiplier * (top - s), of_x, difference.shape)
        moved += scatter(multiplier * (y - top), of_r, difference.shape)
        plain = scatter(multiplier, of_x, difference.shape)
        return torch.where(difference == 0, plain, moved.div_(difference)), None, None, None, None
