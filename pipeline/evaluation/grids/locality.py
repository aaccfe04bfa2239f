"""What a network promises about a grid: which voxels can reach which logit.

DiPart is local only if no layer mixes distant voxels. Group, instance and layer normalisation, squeeze and excitation
and attention all compute statistics of the whole volume. Nothing is guessed here: only layers that are known to work
within a window are accepted.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from heatlas.pipeline.attribution.graph.pooling import triple
from heatlas.pipeline.attribution.network_view import open_parts
from heatlas.pipeline.evaluation.grids.heads import pools_globally
from heatlas.pipeline.evaluation.grids.layout import Layout
from heatlas.pipeline.models.graph.operations import Concatenate, Reshape, Sum
from heatlas.pipeline.models.graph.tracing import Program, trace
from heatlas.pipeline.run.errors import UsageError

WINDOWED = (nn.Conv3d, nn.MaxPool3d, nn.AvgPool3d)
POINTWISE = (
    nn.BatchNorm3d, nn.ReLU, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Softplus, nn.Sigmoid, nn.Tanh,
    nn.Hardsigmoid, nn.Dropout, nn.Dropout3d, nn.Identity, nn.ConstantPad3d,
)  # fmt: skip
Triple = tuple[int, int, int]


def local_layers(model: nn.Module) -> tuple[tuple[str, nn.Module], ...]:
    """Layers before the global pooling, after making sure that each works within a window.

    Raises
    ------
    UsageError
        Naming the first layer whose locality cannot be promised.
    """
    layers: list[tuple[str, nn.Module]] = []
    for name, layer in open_parts(model):
        if pools_globally(layer):
            return tuple(layers)
        _require_local(name, layer)
        layers.append((name, layer))
    raise UsageError("DiPart needs global average pooling; use DiFull, which is defined for every network.")


def _require_local(name: str, layer: nn.Module) -> None:
    if isinstance(layer, (*WINDOWED, *POINTWISE)):
        return
    if not any(True for _ in layer.children()):
        raise _not_local(name, layer)
    for operation in trace(layer).operations:
        module = operation.module
        where = f"{name}.{operation.name}"
        if module is None:
            raise _not_local(where, layer)
        if not isinstance(module, (*WINDOWED, *POINTWISE, Sum, Concatenate)):
            raise _not_local(where, module)


def _not_local(name: str, layer: nn.Module) -> UsageError:
    return UsageError(
        f"layer {name} ({type(layer).__name__}) may let voxels of one cell change another, so that DiPart cannot "
        "promise where evidence comes from. Use DiFull, which shows each cell to the network alone."
    )


def reach(layers: Sequence[tuple[str, nn.Module]]) -> Triple:
    """Edge of the receptive field of a feature less one voxel, per axis: evidence reaches no farther.

    Examples
    --------
    >>> reach([("conv", nn.Conv3d(1, 1, 3)), ("pool", nn.MaxPool3d(2)), ("again", nn.Conv3d(1, 1, (3, 1, 1)))])
    (7, 3, 3)
    """
    a, b, c = _window(layers)[0]
    return a - 1, b - 1, c - 1


def _window(layers: Sequence[tuple[str, nn.Module]]) -> tuple[list[int], list[int]]:
    """Edge of the receptive field of a feature, and how far the next feature's lies from it; per axis."""
    size, step = [1, 1, 1], [1, 1, 1]
    for _, layer in layers:
        size, step = _grown(layer, size, step)
    return size, step


def filled_up(volumes: Tensor, model: nn.Module) -> Tensor:
    """Volumes (n, 1, D, H, W) with air at their ends, so that the strides of a network divide them.

    Then the last map of a grid is that of its cells put together, which DiPart needs. Only for networks that pool
    globally after local layers; any other sees its volumes as they are.
    """
    try:
        step = _window(local_layers(model))[1]
    except UsageError:
        return volumes
    c, b, a = (-side % one for side, one in zip(volumes.shape[:-4:-1], step[::-1], strict=True))
    return torch.nn.functional.pad(volumes, (0, c, 0, b, 0, a))


def _grown(layer: nn.Module, size: list[int], step: list[int]) -> tuple[list[int], list[int]]:
    if isinstance(layer, WINDOWED):
        kernel, stride = triple(layer.kernel_size), triple(layer.stride)
        dilation = triple(getattr(layer, "dilation", 1))
        wider = [n + d * (k - 1) * s for n, d, k, s in zip(size, dilation, kernel, step, strict=True)]
        return wider, [a * b for a, b in zip(step, stride, strict=True)]
    if not any(True for _ in layer.children()):
        return size, step
    return _grown_block(trace(layer), size, step)


def _grown_block(program: Program, size: list[int], step: list[int]) -> tuple[list[int], list[int]]:
    """As `_grown`, for a block: where branches meet, the widest counts."""
    found = {program.source: (size, step)}
    for operation in program.operations:
        before = [found[value] for value in operation.inputs if value in found]
        if not before:
            continue
        widest = [max(one[0][axis] for one in before) for axis in range(3)]
        module = operation.module
        found[operation.value] = (
            (widest, before[0][1])
            if module is None or isinstance(module, (Sum, Concatenate, Reshape))
            else _grown(module, widest, before[0][1])
        )
    return found[program.result]


def require_seen_alike(model: nn.Module, layout: Layout, cells: Tensor) -> None:
    """Refuse a network whose last map of a grid is not that of its cells put together.

    Parameters
    ----------
    model : nn.Module
    layout : Layout
    cells : Tensor
        (n, 1, D, H, W).

    Raises
    ------
    UsageError
        With both shapes.
    """
    layers = local_layers(model)
    one, whole = (_shape_after(layers, x) for x in (cells[:1], layout.compose(cells)))
    wanted = tuple(n * side for n, side in zip(layout.counts, one, strict=True))
    if wanted != whole:
        raise UsageError(
            f"the last map of a grid has {whole} voxels, and its cells together have {wanted}: convolutions without "
            "padding, or a cell that the strides do not divide. DiPart is not defined; use DiFull."
        )


def _shape_after(layers: Sequence[tuple[str, nn.Module]], x: Tensor) -> tuple[int, ...]:
    with torch.no_grad():
        for _, layer in layers:
            x = layer(x)
    return tuple(x.shape[-3:])
