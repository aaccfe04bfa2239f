"""Upsampling of maps from a later layer to the grid of the input, aligned with receptive fields.

A value of a feature map belongs to the centre of its receptive field. With unpadded convolutions and pooling that
rounds down, these centres are not spread evenly over the volume: resizing the map to the volume (as usual for CAM)
shifts it, by up to 23 voxels at the last block of the founding CNN. Here each axis is interpolated linearly between the
true centres, and constant beyond the outermost ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from heatlas.pipeline.attribution.graph.layers import triple
from heatlas.pipeline.attribution.graph.planner import carried
from heatlas.pipeline.attribution.network_view import NetworkView
from heatlas.pipeline.models.dynamic.explanation_mode import DynamicLinear
from heatlas.pipeline.models.graph.operations import Concatenate, Gate, Sum
from heatlas.pipeline.models.graph.tracing import trace
from heatlas.pipeline.run.errors import UsageError

POINTWISE = (
    nn.ReLU, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Softplus, nn.Sigmoid, nn.Tanh,
    nn.BatchNorm3d, nn.InstanceNorm3d, nn.GroupNorm, nn.Dropout, nn.Dropout3d, nn.Identity,
)  # fmt: skip
"""Layers that preserve the position of values."""


Centres = tuple[tuple[float, float], ...]


def receptive_centres(layers: Sequence[tuple[str, nn.Module]]) -> Centres:
    """Offset and step, per axis, so that feature i has its receptive field's centre at voxel ``offset + step i``.

    Raises UsageError for a layer with unknown geometry; the message names it.

    Examples
    --------
    >>> receptive_centres([("conv", nn.Conv3d(1, 1, 3)), ("pool", nn.MaxPool3d(2))])
    ((1.5, 2.0), (1.5, 2.0), (1.5, 2.0))
    """
    centres: Centres = ((0.0, 1.0),) * 3
    for name, layer in layers:
        centres = _after(name, layer, centres)
    return centres


def _after(name: str, layer: nn.Module, centres: Centres) -> Centres:
    """Centres of the outputs of a layer, given those of its inputs."""
    dynamic = isinstance(layer, DynamicLinear)  # a convolution, or a norm or attention, which move no value
    stays = isinstance(layer, POINTWISE) or getattr(layer, "keeps_places", False)
    if stays or (dynamic and not hasattr(layer, "kernel_size")):
        return centres
    if isinstance(layer, nn.ConstantPad3d):
        before = layer.padding[-2::-2]  # torch starts with the last axis
        return tuple((offset - pad * step, step) for (offset, step), pad in zip(centres, before, strict=True))
    if dynamic or isinstance(layer, nn.Conv3d | nn.MaxPool3d | nn.AvgPool3d):
        return tuple(
            (offset + shift * step, step * stride)
            for (offset, step), (shift, stride) in zip(centres, _window(layer), strict=True)
        )
    if any(True for _ in layer.children()):
        return _after_block(name, layer, centres)
    raise _unknown(name, layer)


def _after_block(name: str, block: nn.Module, centres: Centres) -> Centres:
    """Like `_after`, for a block with branches, whose outputs must have the same centres."""
    program = trace(block)
    found, features = {program.source: centres}, carried(program)
    for operation in program.operations:
        if operation.value not in features:
            continue
        module, before = operation.module, [found[value] for value in operation.inputs if value in found]
        where = f"{name}.{operation.name}"
        if module is None or (isinstance(module, Sum | Concatenate) and len(set(before)) != 1):
            raise _unknown(where, module or block)
        joins = isinstance(module, Sum | Concatenate | Gate)
        found[operation.value] = before[0] if joins else _after(where, module, before[0])
    return found[program.result]


def _unknown(name: str, layer: nn.Module) -> UsageError:
    return UsageError(
        f"layer {name} ({type(layer).__name__}): the position of its outputs in the volume is unknown, so its map "
        "cannot be upsampled to the input; request the map on the layer's grid."
    )


def _window(layer: Any) -> list[tuple[float, int]]:
    """Per axis: the centre of the first window relative to the first voxel, and the stride."""
    kernel, stride = triple(layer.kernel_size), triple(layer.stride)
    dilation = triple(getattr(layer, "dilation", 1))
    if layer.padding == "same":
        # an even window has one voxel more after its position than before it
        return [(d * (k - 1) % 2 / 2, 1) for k, d in zip(kernel, dilation, strict=True)]
    padding = (0, 0, 0) if isinstance(layer.padding, str) else triple(layer.padding)
    return [(d * (k - 1) / 2 - p, s) for k, s, d, p in zip(kernel, stride, dilation, padding, strict=True)]


@runtime_checkable
class OwnGeometry(Protocol):
    """A module that upsamples its outputs to the grid of the input itself."""

    def to_input(self, maps: Tensor, shape: Sequence[int]) -> Tensor:
        """Maps (B, 1, d, h, w) on a grid of `shape`."""
        ...


def to_input_grid(maps: Tensor, view: NetworkView) -> Tensor:
    """Bring maps (B, 1, d, h, w) of a boundary to the grid of the volumes, (B, 1, D, H, W).

    Raises UsageError as `receptive_centres`.
    """
    return interpolated(maps, view.before, view.volumes.shape[-3:])


def interpolated(maps: Tensor, layers: Sequence[tuple[str, nn.Module]], shape: Sequence[int]) -> Tensor:
    """Bring maps (B, 1, d, h, w) of the output of some layers to a grid of `shape`; see `to_input_grid`."""
    if len(layers) == 1 and isinstance(layers[0][1], OwnGeometry):
        return layers[0][1].to_input(maps, shape)
    for axis, (offset, step) in enumerate(receptive_centres(layers)):
        maps = _interpolate_axis(maps, axis + 2, shape[axis], offset, step)
    return maps


def _interpolate_axis(maps: Tensor, axis: int, size: int, offset: float, step: float) -> Tensor:
    last = maps.shape[axis] - 1
    place = ((torch.arange(size, device=maps.device, dtype=torch.float64) - offset) / step).clamp(0, last)
    low = place.floor().long().clamp(max=max(last - 1, 0))
    weight = (place - low).to(maps.dtype).view(*(-1 if dim == axis else 1 for dim in range(maps.dim())))
    return maps.index_select(axis, low) * (1 - weight) + maps.index_select(axis, (low + 1).clamp(max=last)) * weight
