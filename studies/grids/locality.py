"""Networks that can look at a grid: their heads, and which voxels can reach which logit.

Heads are rebuilt around a network's own layers, which are shared and not changed. A network with global average pooling
sees a volume of any size. One that flattens its last map has weights for one size only; slid over a larger map as a
convolution, with its logits averaged over positions, it sees any size and is the same on the size it was trained on.
One that sums over places (CoDA) sees a volume of any size too; its evidence for a grid is the sum over cells, which no
share of a map depends on.

DiPart is local only if no layer mixes distant voxels. Group, instance and layer normalisation, squeeze and excitation
and attention all compute statistics of the whole volume. Nothing is guessed here: only layers that are known to work
within a window are accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from heatlas.pipeline.attribution.cam.weighted_maps import TRANSPARENT
from heatlas.pipeline.attribution.graph.layers import triple
from heatlas.pipeline.attribution.network_view import open_parts
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.graph.operations import Concatenate, Reshape, Sum
from heatlas.pipeline.models.graph.tracing import Program, trace
from heatlas.pipeline.run.errors import UsageError
from heatlas.studies.coda.network import SumPool
from heatlas.studies.grids.layout import Layout, Shape

POOLED = ((1, 1, 1), 1)
MapShape = tuple[int, int, int, int]


def pools_globally(layer: nn.Module) -> bool:
    """Whether a layer is global average pooling for volumes of any size."""
    if not isinstance(layer, nn.AdaptiveAvgPool3d):
        return False
    size = layer.output_size
    return (tuple(size) if isinstance(size, Sequence) else size) in POOLED


def has_global_pooling(model: nn.Module) -> bool:
    return any(pools_globally(layer) for _, layer in open_parts(model))


def stages_of(model: nn.Module) -> list[nn.Module]:
    if isinstance(model, StagedModel):
        return list(model.stages)
    if isinstance(model, nn.Sequential):
        return list(model)
    raise UsageError(f"grids need a StagedModel or an nn.Sequential, and this is a {type(model).__name__}.")


def looking_at_cell(model: nn.Module, layout: Layout, cell: int) -> StagedModel:
    """The network whose global pooling averages one cell of the last map only (DiPart); the same stages otherwise.

    Averaging each cell and keeping one, by a convolution with weights of 0 and 1, is built of layers that all methods
    know, so that relevance and gradients pass through them exactly.
    """
    if not has_global_pooling(model):
        raise UsageError(
            "DiPart needs global average pooling after the last map, and this network flattens it. DiFull is defined "
            "for every network."
        )
    channels = _pooled_channels(model)
    mean_of_cells = nn.AdaptiveAvgPool3d(layout.counts)
    keep = nn.Conv3d(channels, channels, layout.counts, groups=channels, bias=False)
    keep.weight.data.zero_()
    keep.weight.data[:, :, *layout.place(cell)] = 1
    keep.weight.requires_grad_(False)
    weight = next(model.parameters())
    keep.to(weight)
    return _replaced(model, lambda layer: [mean_of_cells, keep] if pools_globally(layer) else [layer])


def convolved(model: nn.Module, cell: Shape) -> StagedModel:
    """The network with its linear layers as convolutions, sliding over a map of any size, logits averaged.

    A network that averages or sums over all places is given back with the same layers. `cell`: voxels of the volumes it
    was trained on.
    """
    if has_global_pooling(model) or any(isinstance(layer, SumPool) for _, layer in open_parts(model)):
        return _staged(stages_of(model))
    sizes = _last_map(model, cell)
    state = {"flat": False, "first": True}

    def convolution(layer: nn.Module) -> list[nn.Module]:
        if isinstance(layer, nn.Flatten):
            state["flat"] = True
            return []
        if not isinstance(layer, nn.Linear):
            return [nn.Dropout3d(layer.p) if isinstance(layer, nn.Dropout) else layer]
        if not state["flat"]:
            raise UsageError("a linear layer before any flattening cannot be slid over a grid; use DiFull.")
        shape = sizes if state["first"] else (layer.in_features, 1, 1, 1)
        state["first"] = False
        return [_as_convolution(layer, shape)]

    stages = list(_replaced(model, convolution).stages)
    stages[-1] = nn.Sequential(stages[-1], nn.AdaptiveAvgPool3d(1), nn.Flatten())
    return _staged(stages)


def _as_convolution(layer: nn.Linear, shape: MapShape) -> nn.Conv3d:
    """A linear layer on a flattened map (C, d, h, w) as a convolution with a window of the whole map."""
    slid = nn.Conv3d(shape[0], layer.out_features, shape[1:], bias=layer.bias is not None)
    slid.weight = nn.Parameter(layer.weight.detach().view(-1, *shape), requires_grad=False)
    if layer.bias is not None:
        slid.bias = nn.Parameter(layer.bias.detach(), requires_grad=False)
    return slid


def _last_map(model: nn.Module, cell: Shape) -> MapShape:
    weight = next(model.parameters())
    features: Tensor = torch.zeros((1, 1, *cell), dtype=weight.dtype, device=weight.device)
    with torch.no_grad():
        for _, layer in open_parts(model):
            if isinstance(layer, nn.Flatten):
                channels, a, b, c = features.shape[1:]
                return channels, a, b, c
            features = layer(features)
    raise UsageError("this network neither pools its last map nor flattens it; a grid cannot be shown to it.")


def _pooled_channels(model: nn.Module) -> int:
    """Channels that go into the global pooling: features of the first linear layer after it."""
    parts = [layer for _, layer in open_parts(model)]
    after = parts[next(n for n, layer in enumerate(parts) if pools_globally(layer)) + 1 :]
    for layer in after:
        if isinstance(layer, nn.Linear):
            return int(layer.in_features)
        if isinstance(layer, nn.Conv3d):
            return int(layer.in_channels)
        if not isinstance(layer, TRANSPARENT):
            break
    raise UsageError("DiPart needs a linear layer right after global average pooling.")


def _replaced(model: nn.Module, change: Callable[[nn.Module], list[nn.Module]]) -> StagedModel:
    """The same stages with some layers changed; numbers of stages stay as they are."""
    return _staged([_changed(stage, change) for stage in stages_of(model)])


def _changed(module: nn.Module, change: Callable[[nn.Module], list[nn.Module]]) -> nn.Module:
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        inner: list[nn.Module] = []
        for child in module:
            sequence = isinstance(child, nn.Sequential)
            inner += [_changed(child, change)] if sequence else change(child)
        return nn.Sequential(*inner)
    layers = change(module)
    return layers[0] if len(layers) == 1 else nn.Sequential(*layers)


def _staged(stages: Sequence[nn.Module]) -> StagedModel:
    return StagedModel(stages).eval()


WINDOWED = (nn.Conv3d, nn.MaxPool3d, nn.AvgPool3d)
POINTWISE = (
    nn.BatchNorm3d, nn.ReLU, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Softplus, nn.Sigmoid, nn.Tanh,
    nn.Hardsigmoid, nn.Dropout, nn.Dropout3d, nn.Identity, nn.ConstantPad3d,
)  # fmt: skip
Triple = tuple[int, int, int]


def local_layers(model: nn.Module) -> tuple[tuple[str, nn.Module], ...]:
    """Layers before the global pooling; refuses a network of which one does not work within a window."""
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
        if module is None or isinstance(module, (Sum, Concatenate, Reshape)):
            found[operation.value] = widest, before[0][1]
        else:
            found[operation.value] = _grown(module, widest, before[0][1])
    return found[program.result]


def require_seen_alike(model: nn.Module, layout: Layout, cells: Tensor) -> None:
    """Refuse a network whose last map of a grid is not put together of those of its cells (n, 1, D, H, W)."""
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
