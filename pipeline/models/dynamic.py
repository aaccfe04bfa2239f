"""What networks have in common that are one linear map of each input, ``f(x) = W(x) x`` (B-cos, CoDA).

Each layer multiplies its input by a matrix that depends on the input. In *explanation mode* that dependence is held
fixed, so that the gradient of an output is its row of ``W(x)``: each layer names what is held by passing it through
`DynamicLinear.held`, and everything else follows from this one call. With ``value = W(a) a``, `a` are the features at a
boundary between layers and `value` is one number per volume: a logit less its bias, a unit of an inner layer, a
difference of logits.

The last layer makes ``logits = x / T + b``, with a temperature T and a bias b that are not trained. Without biases a
network gives 0 to an empty input; ``b = log(1 / (C - 1))`` says that each of C classes has the probability 1 / C where
nothing speaks for or against it. The temperature lowers the bound of the logits, so that a network has to align its
weights with the input to be sure. Contributions add up to ``logit - b``. After training, b may become one constant for
each class, fitted to scans (`pipeline.training.exact`).

Constants keep signals alive where there is no normalisation. A B-cos layer gives less than it gets, the less the larger
B and the patch; over nine layers nothing is left that float32 could hold. So each output is multiplied by a constant.
It is measured on a batch of training volumes with fresh weights and stored with the network; a constant is linear, so
maps stay complete. The sources print constants for two dimensions (Böhle, Fritz & Schiele 2022); patches of three
dimensions hold more, and those constants would not fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.work.host import on_host

Mode = Literal["off", "detached", "record", "replay"]


class DynamicLinear(nn.Module):
    """A module that is linear in its input once its dynamic factors are held.

    ``held(factor)`` gives, by the mode of the module:

    - ``off``: the factor, as in training and prediction;
    - ``detached``: the factor as a constant, so that a gradient is a row of W(x);
    - ``record``: the factor, which is kept with its graph;
    - ``replay``: the factor kept at the same place of the pass that was recorded. Gradients with respect to the input
      of this second pass are rows of W(x), and are differentiable with respect to parameters; see
      `differentiable_weights`.

    A module must call `held` in the same order in every pass. Modes are set by `explanation_mode`, not by hand.
    One with running statistics has a ``momentum`` and counts batches in ``num_batches_tracked``, as norms of torch do.
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
    return tuple((name, module) for name, module in model.named_modules() if isinstance(module, DynamicLinear))


@contextmanager
def explanation_mode(model: nn.Module, mode: Mode = "detached") -> Iterator[None]:
    """Set the mode of all dynamic linear modules of a network; restored afterwards, also after an exception.

    It must be open during the backward pass too where activations are computed again there (checkpointing).
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


def bias_of_chance(outputs: int) -> float:
    """Logit bias of C classes, ``log(1 / (C - 1))``, which for two is 0; also 0 of one output, a number.

    >>> bias_of_chance(2), round(bias_of_chance(10), 4), bias_of_chance(1)
    (0.0, -2.1972, 0.0)
    """
    return math.log(1 / (outputs - 1)) if outputs > 1 else 0.0


class LogitLayer(nn.Module):
    """``x / temperature + bias``; both are buffers, so that they are stored with the weights.

    `bias`: from `bias_of_chance`. `initial_size`: root mean square that ``x / temperature``
    is to have before training: `calibrate` then sets the temperature from data. None: it stays as given.

    >>> LogitLayer(4.0, bias=1.0)(torch.tensor([[8.0, 0.0]])).tolist()
    [[3.0, 1.0]]
    """

    temperature: Tensor
    bias: Tensor

    def __init__(self, temperature: float = 1.0, bias: float = 0.0, initial_size: float | None = None) -> None:
        super().__init__()
        self.initial_size = initial_size
        if not 0 < temperature < math.inf:
            raise UsageError(f"temperature = {temperature!r}: it must be above 0.")
        self.register_buffer("temperature", torch.tensor(float(temperature)))
        self.register_buffer("bias", torch.tensor(float(bias)))

    def forward(self, x: Tensor) -> Tensor:
        return x / self.temperature + self.bias

    def _load_from_state_dict(self, state_dict: Mapping[str, Tensor], prefix: str, *others: Any) -> None:
        """Take one bias, or one for each class, as it was stored."""
        stored = state_dict.get(f"{prefix}bias")
        if stored is not None and stored.dim() <= 1:
            self.bias = self.bias.new_empty(stored.shape)
        super()._load_from_state_dict(state_dict, prefix, *others)

    def extra_repr(self) -> str:
        biases = ", ".join(f"{bias:g}" for bias in self.bias.reshape(-1).tolist())
        return f"temperature={float(self.temperature):g}, bias={biases}"


Value = Callable[[Tensor], Tensor]
"""What is explained, (B,), of features (B, ...) at a boundary."""


def dynamic_weights(model: nn.Module, value: Value, features: Tensor) -> Tensor:
    """Rows of W(a), one per volume, of the shape of the features (B, ...); detached, also in inference mode.

    `model`: holds all dynamic linear modules that `value` runs through.
    """
    with torch.inference_mode(False), torch.enable_grad(), explanation_mode(model):
        leaf = _leaf(features)
        (weights,) = torch.autograd.grad(value(leaf).sum(), leaf)
    return weights


def differentiable_weights(model: nn.Module, value: Value, features: Tensor) -> tuple[Tensor, Tensor]:
    """The value (B,), and rows of W(a) that can be differentiated with respect to the parameters.

    Detached factors would lose the dependence of W on the parameters. So a first pass keeps every factor with its
    graph, which may reach beyond the features, and a second one, on another leaf, uses those factors: it is linear
    in the leaf, its gradient is W.
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


class Gain(nn.Module):
    """A constant factor, stored as a buffer."""

    keeps_places: ClassVar[bool] = True
    """For attribution: values stay at their places in the volume, and no rule looks inside."""
    gain: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("gain", torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain


class Scaled(nn.Sequential):
    """A layer, and a gain on its output."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__(layer, Gain())

    @property
    def gain(self) -> Tensor:
        return torch.as_tensor(self[1].gain)


def root_mean_square(x: Tensor) -> float:
    """Root mean square of all values, in float64."""
    return float(on_host(x.detach().double().square().mean().sqrt()))


def needs_calibration(model: nn.Module) -> bool:
    """Whether a network has gains, or a temperature that is set from data."""
    return any(isinstance(module, Scaled) or _is_open(module) for _, module in _fresh(model))


def _fresh(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """All modules by name, but for parts that were trained before and have their constants."""
    if getattr(module, "was_trained", False):
        return
    yield name, module
    for key, child in module.named_children():
        yield from _fresh(child, f"{name}.{key}" if name else key)


def _is_open(module: nn.Module) -> bool:
    return isinstance(module, LogitLayer) and module.initial_size is not None


@torch.no_grad()
def calibrate(model: nn.Module, volumes: Tensor) -> None:
    """Set gains so that a layer gives the root mean square it gets, and the temperature for logits of `initial_size`.

    One pass of training volumes (B, 1, D, H, W) through fresh weights; each layer sees the signals of layers that are
    already calibrated.
    """
    with ExitStack() as hooks:
        for name, module in _fresh(model):
            if isinstance(module, Scaled):
                hooks.callback(module.register_forward_hook(_set_gain(name)).remove)
            elif _is_open(module):
                hooks.callback(module.register_forward_hook(_set_temperature(name)).remove)
        model(volumes)


def _set_gain(name: str) -> Callable[[Any, Any, Tensor], Tensor]:
    def hook(module: Scaled, given: tuple[Tensor], answer: Tensor) -> Tensor:
        factor = _positive(root_mean_square(given[0]) / max(root_mean_square(answer), 1e-300), name)
        module.gain.mul_(factor)
        return answer * factor

    return hook


def _set_temperature(name: str) -> Callable[[Any, Any, Tensor], Tensor]:
    def hook(module: LogitLayer, given: tuple[Tensor], answer: Tensor) -> Tensor:
        assert module.initial_size is not None
        module.temperature.fill_(_positive(root_mean_square(given[0]) / module.initial_size, name))
        return given[0] / module.temperature + module.bias

    return hook


def _positive(value: float, name: str) -> float:
    if not 1e-30 < value < 1e30:
        raise UsageError(
            f"layer {name}: its signals cannot be brought to a useful size (factor {value:g}): the volumes are empty, "
            "or B is too large for the patches. Lower model.b or choose a norm (model.norm)."
        )
    return value
