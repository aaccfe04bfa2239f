"""GridPG, DiFull and DiPart: three ways for a network to look at a grid, and the map that a method makes of each.

=========  ==================================  ===================================  ==============================
setting    the backbone sees                   the head sees                        what can change the logit
=========  ==================================  ===================================  ==============================
GridPG     the whole grid                      the whole last map                   everything
DiPart     the whole grid                      one cell of the last map             the cell, and a border around it
DiFull     each cell alone                     one cell of the last map             the cell alone
=========  ==================================  ===================================  ==============================

DiFull holds for every network, also those with statistics of the whole volume. At a later stage its features are those
of all cells put together, and the network reads one of them: gradients to the others are exactly 0, but a method may
still mark them (class activation maps do). LRP and guided backpropagation run through the layers that computed the
logit, so their map is that of the cell alone, and exactly 0 elsewhere.

Maps of a later stage are brought to the grid of the input cell by cell in DiFull, so that nothing leaks across a
border.

Source: Rao, Böhle & Schiele 2022.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from heatlas.pipeline.attribution.methods import Method, Propagation, attribute_all
from heatlas.pipeline.attribution.network_view import pooling_before, split_layers
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.attribution.targets import StartValue
from heatlas.pipeline.attribution.upsampling import interpolated
from heatlas.pipeline.evaluation.grids.layout import Layout
from heatlas.pipeline.evaluation.grids.locality import (
    convolved,
    local_layers,
    looking_at_cell,
    reach,
    require_seen_alike,
    stages_of,
)
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.run.errors import UsageError

Setting = Literal["GridPG", "DiFull", "DiPart"]
SETTINGS: tuple[Setting, ...] = ("GridPG", "DiFull", "DiPart")


class Crop(nn.Module):
    """One cell of a grid, of volumes or of features."""

    def __init__(self, layout: Layout, cell: int) -> None:
        super().__init__()
        self._layout, self._cell = layout, cell

    def forward(self, x: Tensor) -> Tensor:
        return self._layout.cell(x, self._cell).contiguous()


class PerCell(nn.Module):
    """Layers applied to each cell alone, their features put together again; one cell at a time, so bitwise local."""

    def __init__(self, layout: Layout, layers: Sequence[tuple[str, nn.Module]]) -> None:
        super().__init__()
        self._layout, self._layers = layout, layers
        self._modules_of = nn.ModuleList([layer for _, layer in layers])

    def forward(self, x: Tensor) -> Tensor:
        cells = []
        for number in range(self._layout.cells):
            features = self._layout.cell(x, number).contiguous()
            for _, layer in self._layers:
                features = layer(features)
            cells.append(features)
        return self._layout.join(cells)

    def to_input(self, maps: Tensor, shape: Sequence[int]) -> Tensor:
        """Maps (B, 1, d, h, w) of the features on the grid of the input, cell by cell."""
        sides = [side // n for side, n in zip(shape, self._layout.counts, strict=True)]
        cells = [self._layout.cell(maps, number) for number in range(self._layout.cells)]
        return self._layout.join([interpolated(cell, self._layers, sides) for cell in cells])


def network_of(model: nn.Module, layout: Layout, cells: Tensor, cell: int, setting: Setting) -> StagedModel:
    """The network that looks at a whole grid, with the model's own layers; its logits are those of one cell.

    Parameters
    ----------
    model : nn.Module
        `StagedModel` or `nn.Sequential` in evaluation mode; not changed.
    layout : Layout
    cells : Tensor
        (n, 1, D, H, W).
    cell : int
        The cell whose class is explained; GridPG has one logit for the whole grid and does not use it.
    setting : {"GridPG", "DiFull", "DiPart"}

    Raises
    ------
    UsageError
        For a network that the setting is not defined for; says why.
    """
    if setting == "GridPG":
        a, b, c = cells.shape[-3:]
        network = convolved(model, (a, b, c))
        _require_any_size(network, layout.compose(cells))
        return network
    if setting == "DiPart":
        require_seen_alike(model, layout, cells)
        return looking_at_cell(model, layout, cell)
    if setting == "DiFull":
        return StagedModel([Crop(layout, cell), *stages_of(model)]).eval()
    raise UsageError(f"grids: setting {setting!r}; known are {', '.join(SETTINGS)}.")


def _require_any_size(network: StagedModel, whole: Tensor) -> None:
    """Refuse a network that cannot take a volume as large as a grid."""
    try:
        with torch.no_grad():
            network(whole)
    except RuntimeError as error:
        raise UsageError(
            f"GridPG shows the whole grid to the network, which cannot take {tuple(whole.shape[-3:])} voxels "
            f"({error}). DiFull is defined for every network."
        ) from error


def grid_maps(
    model: nn.Module, layout: Layout, cells: Tensor, target: int, cell: int, method: Method, stage: int | str = 0,
    setting: Setting = "DiFull", start: StartValue = "logit",
) -> list[Tensor]:  # fmt: skip
    """The maps (D, H, W) that a method makes of a whole grid, on the grid of the input; most make one.

    Parameters
    ----------
    model, layout, cells, cell, setting
        See `network_of`.
    target : int
        Output unit to explain.
    method : Method
        One that compares with controls has those of a cell; a grid is compared with a grid of the same control.
    stage, start
        Boundary of the *model* at which to explain, and the value explained; see
        `pipeline.attribution.methods.attribute`.

    Raises
    ------
    UsageError
        Where setting, method or stage is not defined for the network.
    BadInputError
        For a map that is not finite.
    """
    if setting == "DiFull" and isinstance(method, Propagation):
        alone = [one.speaking_for for one in attribute_all(model, cells[cell : cell + 1], target, method, stage, start)]
        empty = torch.zeros_like(alone[0])
        return [layout.join([one if n == cell else empty for n in range(layout.cells)])[0, 0] for one in alone]
    method, whole = on_grid(method, layout), layout.compose(cells)
    if setting != "DiFull" or stage == 0:
        network = network_of(model, layout, cells, cell, setting)
        return [one.speaking_for[0, 0] for one in attribute_all(network, whole, target, method, stage, start)]
    before, after = split_layers(model, stage)
    if pooling_before(before) is not None:
        raise UsageError("DiFull is not built for the attention of a CA-Stream behind a later stage; use stage 0.")
    network = StagedModel([PerCell(layout, before), nn.Sequential(Crop(layout, cell), *[layer for _, layer in after])])
    return [one.speaking_for[0, 0] for one in attribute_all(network.eval(), whole, target, method, 1, start)]


def on_grid(method: Method, layout: Layout) -> Method:
    """The method with a grid of each of its controls, if it compares with any; else the same."""
    own = getattr(method, "reference", None)
    if own is None:
        return method
    grids = [layout.join([one] * layout.cells) for one in torch.split(own.volumes, 1)]
    # logits of single controls: they give the value of the reference, which shares do not need, without a pass each
    reference = Reference(torch.cat(grids), own.people, own.logits)
    changed: Any = dataclasses.replace(method, reference=reference)  # type: ignore[type-var]
    method = changed
    return method


def is_local(model: nn.Module, layout: Layout, cells: Tensor, cell: int, setting: Setting, seed: int = 0) -> bool:
    """Whether a network keeps the promise of its setting, on these very cells.

    DiFull: the logits stay the same bit by bit when noise takes the place of the other cells, and no gradient reaches
    these. DiPart: no gradient lies farther from the cell than the receptive field reaches.

    Raises
    ------
    UsageError
        Where the setting promises nothing (GridPG), or is not defined for the network.
    """
    if setting == "GridPG":
        raise UsageError("GridPG lets the whole grid change the logit; there is nothing to check.")
    network, whole = network_of(model, layout, cells, cell, setting), layout.compose(cells)
    leaf = whole.clone().requires_grad_()
    logits = network(leaf)
    (gradient,) = torch.autograd.grad(logits.sum(), leaf)
    side = layout.cell_shape(whole)
    margin = (0, 0, 0) if setting == "DiFull" else reach(local_layers(model))
    box = layout.box(cell, side)
    near = tuple(slice(max(0, a.start - wide), a.stop + wide) for a, wide in zip(box, margin, strict=True))
    gradient[:, :, *near] = 0
    if bool(gradient.any()):
        return False
    if setting == "DiPart":
        return True
    noise = torch.rand(cells.shape, generator=torch.Generator().manual_seed(seed)).to(cells)
    noise[cell] = cells[cell]
    with torch.no_grad():
        return torch.equal(network(layout.compose(noise)), network(whole))
