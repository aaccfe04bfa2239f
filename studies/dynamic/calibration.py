"""Constants that keep signals alive in networks without normalisation: gains of layers, and the temperature.

A B-cos layer gives less than it gets, the less the larger B and the patch; over nine layers nothing is left that
float32 could hold. So each output is multiplied by a constant. It is measured on a batch of training volumes with
fresh weights and stored with the network; a constant is linear, so maps stay complete. The sources print constants
for two dimensions (Böhle, Fritz & Schiele 2022); patches of three dimensions hold more, and those constants would not
fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from heatlas.pipeline.models.dynamic.logits import LogitLayer
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.work.host import on_host


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
        """The factor."""
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
    for own, child in module.named_children():
        yield from _fresh(child, f"{name}.{own}" if name else own)


def _is_open(module: nn.Module) -> bool:
    return isinstance(module, LogitLayer) and module.initial_size is not None


@torch.no_grad()
def calibrate(model: nn.Module, volumes: Tensor) -> None:
    """Set gains so that a layer gives the root mean square it gets, and the temperature for logits of `initial_size`.

    One pass; each layer sees the signals of layers that are already calibrated.

    `model`: with fresh weights. `volumes`: (B, 1, D, H, W), of the training part. Raises UsageError, naming the layer
    that gives nothing, or nothing finite.
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
