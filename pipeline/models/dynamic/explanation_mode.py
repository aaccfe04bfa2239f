"""Explanation mode: a dynamic linear network with its input-dependent factors held, which makes it linear.

A dynamic linear network computes ``f(x) = W(x) x``: each layer multiplies its input by a matrix that depends on the
input. With that dependence held fixed, the gradient of an output is its row of ``W(x)``. Each layer names what is held
by passing it through `DynamicLinear.held`; everything else follows from this one call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from heatlas.pipeline.run.errors import UsageError

Mode = Literal["off", "detached", "record", "replay"]


class DynamicLinear(nn.Module):
    """A module that is linear in its input once its dynamic factors are held.

    ``held(factor)`` gives, by the mode of the module:

    - ``off``: the factor, as in training and prediction;
    - ``detached``: the factor as a constant, so that a gradient is a row of W(x);
    - ``record``: the factor, which is kept with its graph;
    - ``replay``: the factor kept at the same place of the pass that was recorded. Gradients with respect to the input
      of this second pass are rows of W(x), and are differentiable with respect to parameters; see
      `studies.dynamic.linear_map`.

    A module must call `held` in the same order in every pass. Modes are set by `explanation_mode`, not by hand.
    """

    mode: Mode = "off"

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[Tensor] = []
        self._next = 0

    @property
    def explaining(self) -> bool:
        """Whether factors are constants of the input."""
        return self.mode in ("detached", "replay")

    def held(self, factor: Tensor) -> Tensor:
        """A factor that depends on the input, held as the mode says."""
        if self.mode == "detached":
            return factor.detach()
        if self.mode == "record":
            self._kept.append(factor)
        elif self.mode == "replay":
            factor = self._kept[self._next]
            self._next += 1
        return factor

    def why_not_linear(self) -> str | None:
        """Why the module, as it is now, is not linear even with its factors held; None if it is."""
        return None


def dynamic_layers(model: nn.Module) -> tuple[tuple[str, DynamicLinear], ...]:
    """The dynamic linear modules of a network, by name."""
    return tuple((name, module) for name, module in model.named_modules() if isinstance(module, DynamicLinear))


@contextmanager
def explanation_mode(model: nn.Module, mode: Mode = "detached") -> Iterator[None]:
    """Set the mode of all dynamic linear modules of a network; restored afterwards, also after an exception.

    It must be open during the backward pass too where activations are computed again there (checkpointing).

    Raises UsageError if a module is not linear as it is: dropout while training, or a norm that subtracts batch means.
    """
    if mode != "off":
        _require_linear(model)
    layers = [layer for _, layer in dynamic_layers(model)]
    before = [layer.mode for layer in layers]
    try:
        for layer in layers:
            layer.mode = mode
            layer._next = 0
        yield
    finally:
        for layer, earlier in zip(layers, before, strict=True):
            layer.mode = earlier


def forget(model: nn.Module) -> None:
    """Drop the factors that a recorded pass kept, and with them its graph."""
    for _, layer in dynamic_layers(model):
        layer._kept.clear()


def _require_linear(model: nn.Module) -> None:
    for name, module in model.named_modules():
        reason = module.why_not_linear() if isinstance(module, DynamicLinear) else None
        if isinstance(module, _DropoutNd) and module.training and module.p > 0:
            reason = "it drops units at random while training; call model.eval() first"
        if reason:
            raise UsageError(f"layer {name or 'model'} ({type(module).__name__}) cannot be explained: {reason}.")
