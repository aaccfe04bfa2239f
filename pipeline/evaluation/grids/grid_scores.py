"""Scores of methods on grids: one table for all settings, methods and stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from heatlas.pipeline.attribution.gradient.smoothing import gaussian_smooth
from heatlas.pipeline.attribution.methods import Method, Propagation
from heatlas.pipeline.attribution.targets import StartValue
from heatlas.pipeline.evaluation.grids.layout import Grid, Layout
from heatlas.pipeline.evaluation.grids.settings import SETTINGS, Setting, grid_maps
from heatlas.pipeline.run.errors import BadInputError, UsageError

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

    Parameters
    ----------
    name : str
    method : Method
    stage : int or str
    start : {"logit", "probability", "evidence"}
        Value that is explained.
    more : tuple of str
        Names of further maps: those that the method makes beside the first, then those of `kernels`.
    kernels : tuple of int
        Edges of Gaussians that smooth the first map.
    depth : float
        How deep the stage lies, 0 to 1.
    note : str
        Why it is not asked after all; empty if it is.
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

    Parameters
    ----------
    model : nn.Module
        `StagedModel` or `nn.Sequential` in evaluation mode.
    read : callable
        Scan number (as in `Grid.scans`) to its volume (1, D, H, W), as the network sees it.
    layout : Layout
    grids : sequence of Grid
    asked : sequence of GridMethod
    settings : sequence of {"GridPG", "DiFull", "DiPart"}
    keep : callable, optional
        Receives every map, for `pipeline.evaluation.grids.aggregated`.

    Returns
    -------
    pandas.DataFrame
        `GRID_COLUMNS`; a row per setting, method, stage and grid. Where a setting or method is not defined for the
        network, one row that says so.
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
    """All maps of what is asked, in the order of its names."""
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
