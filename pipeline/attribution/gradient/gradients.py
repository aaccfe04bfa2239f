"""Gradient, and input times gradient.

The gradient shows where a small change of a voxel would change the score: sensitivity, not evidence. Input times
gradient (IxG) is signed and gives the contribution of each voxel to the score of the network's local linear map; for a
piecewise linear network without biases it sums to the score and equals LRP-0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from heatlas.pipeline.attribution.network_view import NetworkView
from heatlas.pipeline.run.errors import UsageError

Score = Callable[[Tensor], Tensor]
"""Value of the target, (B,), of features (B, C, d, h, w); volumes of a batch do not influence each other."""


@dataclass(frozen=True)
class Gradient:
    """Absolute gradient, summed over channels (Simonyan, Vedaldi & Zisserman 2014)."""

    name: ClassVar[str] = "gradient"

    def maps(self, view: NetworkView) -> Tensor:
        return score_gradient(view.score, view.features).abs()


@dataclass(frozen=True)
class InputTimesGradient:
    """Input times gradient, signed, summed over channels (Shrikumar et al. 2016).

    The input is the features of the boundary, relative to 0, so that air (0 in volumes scaled inside the brain) gets
    exactly 0.
    """

    name: ClassVar[str] = "input-x-gradient"

    def maps(self, view: NetworkView) -> Tensor:
        return input_times_gradient(view.score, view.features)


def score_gradient(score: Score, features: Tensor) -> Tensor:
    """Gradient of the score with respect to the features, (B, C, d, h, w).

    Works within `torch.no_grad` and `torch.inference_mode`, and leaves no ``.grad`` behind.

    >>> score_gradient(lambda a: (a**2).flatten(1).sum(1), torch.tensor([[3.0, -1.0]])).tolist()
    [[6.0, -2.0]]
    """
    return score_and_gradient(score, features)[1]


def score_and_gradient(score: Score, features: Tensor) -> tuple[Tensor, Tensor]:
    """Score, (B,), and its gradient, (B, C, d, h, w), of one forward and backward pass; see `score_gradient`."""
    with torch.inference_mode(False), torch.enable_grad():
        # tensors made in inference mode cannot be differentiated; copies can
        leaf = (features.clone() if features.is_inference() else features).detach().requires_grad_()
        value = score(leaf)
        (gradient,) = torch.autograd.grad(value.sum(), leaf, allow_unused=True) if value.requires_grad else (None,)
    if gradient is None:
        raise UsageError(
            "the score has no gradient: a layer after the boundary detaches or rounds its values. Explain at a "
            "later stage, or with a method that needs no gradient, such as occlusion."
        )
    return value.detach(), gradient


def input_times_gradient(score: Score, features: Tensor) -> Tensor:
    """Features times the gradient of the score, (B, C, d, h, w).

    >>> input_times_gradient(lambda a: (a**2).flatten(1).sum(1), torch.tensor([[3.0, -1.0]])).tolist()
    [[18.0, 2.0]]
    """
    return features * score_gradient(score, features)


def channel_sum(values: Tensor) -> Tensor:
    """Sum (B, C, d, h, w) over channels to a map (B, 1, d, h, w)."""
    return values.sum(1, keepdim=True)
