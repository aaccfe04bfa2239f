"""Scores of methods on grids, in three settings: GridPG, DiFull and DiPart.

A setting is a way for a network to look at a grid, and the map that a method makes of it. One table holds the scores of
all settings, methods and stages.

=========  ==================================  ===================================  ==============================
setting    the backbone sees                   the head sees                        what can change the logit
=========  ==================================  ===================================  ==============================
GridPG     the whole grid                      the whole last map                   everything
DiPart     the whole grid                      one cell of the last map             the cell, and a border around it
DiFull     each cell alone                     one cell of the last map             the cell alone
=========  ==================================  ===================================  ==============================

DiFull holds for every network. At a later stage its features are those of all cells put together, of which the network
reads one: gradients to the others are exactly 0, but a method may still mark them (class activation maps do). Maps of a
later stage are brought to the grid of the input cell by cell. Source: Rao, Böhle & Schiele 2022.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
import torch
from torch import Tensor, nn

from heatlas.pipeline.attribution.gradient.smoothing import gaussian_smooth
from heatlas.pipeline.attribution.methods import Method, Propagation, attribute_all, interpolated
from heatlas.pipeline.attribution.network_view import StartValue, pooling_before, split_layers
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.studies.grids.layout import Grid, Layout
from heatlas.studies.grids.locality import (
    convolved,
    local_layers,
    looking_at_cell,
    reach,
    require_seen_alike,
    stages_of,
)

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

    `model`: in evaluation mode; not changed. `cells`: (n, 1, D, H, W). `cell`: the cell whose class is explained;
    GridPG has one logit for the whole grid and does not use it.
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

    `method`: one that compares with controls has those of a cell; a grid is compared with a grid of the same control.
    `stage`, `start`: boundary of the *model* at which to explain, and the value explained; see
    `pipeline.attribution.methods.attribute`.
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
    controls = getattr(method, "reference", None)
    if controls is None:
        return method
    grids = [layout.join([one] * layout.cells) for one in torch.split(controls.volumes, 1)]
    # logits of single controls: they give the value of the reference, which shares do not need, without a pass each
    reference = Reference(torch.cat(grids), controls.people, controls.logits)
    return dataclasses.replace(method, reference=reference)  # type: ignore[type-var]


def is_local(model: nn.Module, layout: Layout, cells: Tensor, cell: int, setting: Setting, seed: int = 0) -> bool:
    """Whether a network keeps the promise of its setting, on these very cells.

    DiFull: the logits stay the same bit by bit when noise takes the place of the other cells, and no gradient reaches
    these. DiPart: no gradient lies farther from the cell than the receptive field reaches. GridPG promises nothing.
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


CONSTRUCTED = (
    "no measurement: by construction a map with anything positive has the share 1, as the method's own pass runs "
    "through the layers of the explained cell alone, and the other cells are filled with 0"
)
LARGEST = 0.025
"""Part of the voxels of a grid whose values count in `top_share` (Böhle et al. 2022)."""
GRID_COLUMNS: Mapping[str, str] = {
    "setting": "GridPG, DiFull or DiPart",
    "method": "Name of the method, with its settings",
    "stage": "Stage of the network at which it was asked. 0 is the input or a layer inside of the first stage: the "
    "tokens, or the stage of the stem that the method names (stem=1)",
    "depth": "How deep the stage lies, from 0 (the input) to 1 (the last stage with places)",
    "kind": "needle, pair or corner",
    "grid": "Number of the grid; n/a in the row of a method that is not defined",
    "cells": "Number of cells",
    "target": "Class explained",
    "scan": "Its scan, by its place in the table of scans",
    "cell": "Where it stands",
    "share": "Share of positive attribution in that cell; n/a for an undefined map",
    "chance": "What a map that is even everywhere has there",
    "class_share": "Share of positive attribution in all cells of the class explained",
    "class_chance": "What a map that is even everywhere has there",
    "top_share": f"Share in that cell where only the largest {LARGEST:.1%} of the values of the grid count",
    "undefined": "1 where the map holds NaN or infinity or is zero everywhere, else 0",
    "note": "Why the method has no scores, why a map is undefined, or that the share is 1 by construction",
}
"""Columns of the table of grids, and what they mean."""


@dataclass(frozen=True)
class GridMethod:
    """A method asked at one stage, under the names that its maps have in tables.

    `more`: names of further maps: those that the method makes beside the first, then those of `kernels`. `kernels`:
    edges of Gaussians that smooth the first map. `depth`: how deep the stage lies, 0 to 1. `note`: why it is not asked
    after all; empty if it is.
    """

    name: str
    method: Method
    stage: int | str = 0
    start: StartValue = "logit"
    more: tuple[str, ...] = ()
    kernels: tuple[int, ...] = ()
    depth: float = 0.0
    note: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.more)

    @property
    def number(self) -> int:
        """Its stage in tables: 0 for a layer inside of the first."""
        return self.stage if isinstance(self.stage, int) else 0


Keep = Callable[[Setting, str, int, int, Tensor], None]
"""Called with setting, name and stage, the number of the grid, and the map (D, H, W)."""


def grid_scores(
    model: nn.Module,
    read: Callable[[int], Tensor],
    layout: Layout,
    grids: Sequence[Grid],
    asked: Sequence[GridMethod],
    settings: Sequence[Setting] = SETTINGS,
    keep: Keep | None = None,
) -> pd.DataFrame:
    """Scores of all methods on all grids.

    `read`: scan number (as in `Grid.scans`) to its volume (1, D, H, W), as the network sees it. `keep`: receives every
    map. A row per setting, method, stage and grid; where a setting or method is not defined for the network, one row
    that says so.
    """
    rows: list[dict[str, Any]] = []
    for setting in settings:
        for one in asked:
            rows += _rows(model, read, layout, grids, one, setting, keep)
    return pd.DataFrame(rows, columns=list(GRID_COLUMNS))


def _rows(
    model: nn.Module, read: Callable[[int], Tensor], layout: Layout, grids: Sequence[Grid], asked: GridMethod,
    setting: Setting, keep: Keep | None,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    for number, grid in enumerate(grids):
        row: dict[str, Any] = {"setting": setting, "stage": asked.number, "depth": asked.depth}
        row |= {"kind": grid.kind, "cells": layout.cells}
        if asked.note:
            yield from ({**row, "method": name, "note": asked.note} for name in asked.names)
            return
        cells = torch.stack([read(scan) for scan in grid.scans])
        note = CONSTRUCTED if setting == "DiFull" and isinstance(asked.method, Propagation) else None
        try:
            maps: Sequence[Tensor | None] = _maps(model, layout, cells, grid, asked, setting)
        except UsageError as error:
            yield from ({**row, "method": name, "note": str(error)} for name in asked.names)
            return
        except BadInputError as error:
            maps, note = [None] * len(asked.names), str(error)
        for name, values in zip(asked.names, maps, strict=True):
            if keep is not None and values is not None:
                keep(setting, name, asked.number, number, values)
            scores = _scores(grid, number, layout, values)
            yield {**row, "method": name, **scores, "note": (scores["note"] or note) if values is not None else note}


def _maps(
    model: nn.Module, layout: Layout, cells: Tensor, grid: Grid, asked: GridMethod, setting: Setting
) -> list[Tensor]:
    maps = grid_maps(model, layout, cells, grid.target, grid.cell, asked.method, asked.stage, setting, asked.start)
    return [*maps, *(gaussian_smooth(maps[0][None, None], kernel)[0, 0] for kernel in asked.kernels)]


def _scores(grid: Grid, number: int, layout: Layout, values: Tensor | None) -> dict[str, Any]:
    """Everything that depends on the grid; without a map, it is undefined."""
    alike = list(grid.same_class)
    shares = layout.shares(values) if values is not None else torch.full((layout.cells,), torch.nan)
    top = layout.shares(values, LARGEST) if values is not None else shares
    undefined = bool(torch.isnan(shares).any())
    return {
        "grid": number,
        "target": grid.target,
        "scan": grid.scans[grid.cell],
        "cell": grid.cell,
        "share": float(shares[grid.cell]),
        "chance": 1 / layout.cells,
        "class_share": float(shares[alike].sum()),
        "class_chance": len(alike) / layout.cells,
        "top_share": float(top[grid.cell]),
        "undefined": int(undefined),
        "note": "the map is zero everywhere, or not finite" if undefined else None,
    }
