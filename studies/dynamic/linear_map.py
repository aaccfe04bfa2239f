"""The linear map that a dynamic linear network is for one input: rows of W(x).

``value = W(a) a``, where `a` are the features at a boundary between layers and `value` is one number per volume: a
logit less its bias, a unit of an inner layer, a difference of logits. The row is the gradient in explanation mode.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from heatlas.pipeline.models.dynamic.explanation_mode import explanation_mode, forget

Value = Callable[[Tensor], Tensor]
"""What is explained, (B,), of features (B, ...) at a boundary."""


def dynamic_weights(model: nn.Module, value: Value, features: Tensor) -> Tensor:
    """Rows of W(a), one per volume, of the shape of the features; detached.

    Works within `torch.no_grad` and `torch.inference_mode`.

    `model`: holds all dynamic linear modules that `value` runs through. `features`: (B, ...).
    """
    with torch.inference_mode(False), torch.enable_grad(), explanation_mode(model):
        leaf = _leaf(features)
        (weights,) = torch.autograd.grad(value(leaf).sum(), leaf)
    return weights


def differentiable_weights(model: nn.Module, value: Value, features: Tensor) -> tuple[Tensor, Tensor]:
    """The value (B,), and rows of W(a) that can be differentiated with respect to the parameters.

    Detached factors would lose the dependence of W on the parameters. So a first pass keeps every factor with its
    graph, which may reach beyond the features, and a second one, on a leaf of its own, uses those factors: it is linear
    in the leaf, its gradient is W.

    `model`, `value`, `features`: as of `dynamic_weights`.
    """
    with torch.inference_mode(False), torch.enable_grad():
        leaf = _leaf(features)
        try:
            with explanation_mode(model, "record"):
                recorded = value(leaf.detach() if features.is_inference() else features)
            with explanation_mode(model, "replay"):
                again = value(leaf)
        finally:
            forget(model)
        (weights,) = torch.autograd.grad(again.sum(), leaf, create_graph=True)
    return recorded, weights


def _leaf(features: Tensor) -> Tensor:
    """A leaf of the same values; a tensor made in inference mode cannot be differentiated, a copy can."""
    return (features.clone() if features.is_inference() else features).detach().requires_grad_()
