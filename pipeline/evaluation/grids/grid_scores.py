"""Scores of methods on grids: one table for all settings, methods and stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from pipeline.attribution.methods import Method
from pipeline.evaluation.grids.composition import Grid
from pipeline.evaluation.grids.layout import Layout
from pipeline.evaluation.grids.settings import SETTINGS, Setting, grid_map
from pipeline.run.errors import BadInputError, UsageError

GRID_COLUMNS: Mapping[str, str] = {
    "setting": "GridPG, DiFull or DiPart",
    "method": "Name of the method, with its settings",
    "stage": "Stage of the network at which it was asked; 0 is the input",
    "kind": "distinct, needle, pair or corner",
    "grid": "Number of the grid; n/a in the row of a method that is not defined",
    "cells": "Number of cells",
    "target": "Class explained",
    "scan": "Its scan, by its place in the table of scans",
    "cell": "Where it stands",
    "share": "Share of positive attribution in that cell; n/a for an undefined map",
    "chance": "What a map that is even everywhere has there",
    "class_share": "Share of positive attribution in all cells of the class explained",
    "class_chance": "What a map that is even everywhere has there",
    "undefined": "1 where the map holds NaN or infinity or is zero everywhere, else 0",
    "note": "Why the method has no scores in this setting, or why a map is undefined",
}
"""Columns of the table of grids, and what they mean."""

SUMMARY_COLUMNS: Mapping[str, str] = {
    **{name: GRID_COLUMNS[name] for name in ("setting", "method", "stage", "kind")},
    "n_grids": "Number of grids",
    "n_undefined": "Grids whose map is undefined; their share counts as 0",
    "share": "Mean share of positive attribution in the target's cell",
    "chance": GRID_COLUMNS["chance"],
    "class_excess": "Mean share in all cells of the class explained, less what an even map has there",
    "note": GRID_COLUMNS["note"],
}
"""Columns of the summary of grids, and what they mean."""


@dataclass(frozen=True)
class Asked:
    """A method asked at one stage, under the name that it has in tables."""

    name: str
    method: Method
    stage: int | str = 0


Keep = Callable[[Setting, Asked, int, Tensor], None]
"""Called with the map (D, H, W) of each grid, by its number."""


def grid_scores(
    model: nn.Module,
    read: Callable[[int], Tensor],
    layout: Layout,
    grids: Sequence[Grid],
    asked: Sequence[Asked],
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
    asked : sequence of Asked
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
    model: nn.Module, read: Callable[[int], Tensor], layout: Layout, grids: Sequence[Grid], asked: Asked,
    setting: Setting, keep: Keep | None,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    for number, grid in enumerate(grids):
        row = {"setting": setting, "method": asked.name, "stage": asked.stage, "cells": layout.cells}
        cells = torch.stack([read(scan) for scan in grid.scans])
        try:
            values = grid_map(model, layout, cells, grid.target, grid.cell, asked.method, asked.stage, setting)
        except UsageError as error:
            yield {**row, "note": str(error)}
            return
        except BadInputError as error:
            yield {**row, **_scores(grid, number, layout, None), "note": str(error)}
            continue
        if keep is not None:
            keep(setting, asked, number, values)
        yield {**row, **_scores(grid, number, layout, values)}


def _scores(grid: Grid, number: int, layout: Layout, values: Tensor | None) -> dict[str, Any]:
    """Everything that depends on the grid; without a map, it is undefined."""
    alike = list(grid.same_class)
    shares = layout.shares(values) if values is not None else torch.full((layout.cells,), torch.nan)
    undefined = bool(torch.isnan(shares).any())
    return {
        "kind": grid.kind,
        "grid": number,
        "target": grid.target,
        "scan": grid.scans[grid.cell],
        "cell": grid.cell,
        "share": float(shares[grid.cell]),
        "chance": 1 / layout.cells,
        "class_share": float(shares[alike].sum()),
        "class_chance": len(alike) / layout.cells,
        "undefined": int(undefined),
        "note": "the map is zero everywhere, or not finite" if undefined else None,
    }


def summary_of_grids(scores: pd.DataFrame) -> pd.DataFrame:
    """Mean scores per setting, method, stage and kind of grid.

    Undefined maps count as 0, so that a method gains nothing by having none.

    Parameters
    ----------
    scores : pandas.DataFrame
        Of `grid_scores`.

    Returns
    -------
    pandas.DataFrame
        `SUMMARY_COLUMNS`.
    """
    rows = []
    for key, part in scores.groupby(["setting", "method", "stage", "kind"], sort=False, dropna=False):
        made = part[part["grid"].notna()]
        notes = part["note"].dropna()
        excess = made["class_share"].fillna(0) - made["class_chance"]
        rows.append(
            {
                **dict(zip(("setting", "method", "stage", "kind"), key, strict=True)),
                "n_grids": len(made),
                "n_undefined": int(made["undefined"].sum()),
                "share": made["share"].fillna(0).mean(),
                "chance": made["chance"].mean(),
                "class_excess": excess.mean(),
                "note": notes.iloc[0] if len(notes) else None,
            }
        )
    return pd.DataFrame(rows, columns=list(SUMMARY_COLUMNS))
