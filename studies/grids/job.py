"""Score one grid: every method at its stages in every setting of the kind; the worker of ``--parts grids``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from heatlas.pipeline.attribution.entry import RunContext, last_spatial_stage
from heatlas.pipeline.attribution.network_view import exact_float32
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.explaining.explained_scan import Explanation
from heatlas.pipeline.explaining.networks import Network
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.device import chosen_device
from heatlas.pipeline.models.inputs import read_network_volume
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.run.config.settings import TrainingConfig
from heatlas.pipeline.run.config.statistics import GridsConfig
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.tables import write_table
from heatlas.pipeline.run.work.host import kept_memory
from heatlas.pipeline.run.work.unit import Unit, keyed, unkeyed
from heatlas.studies.grids.directions import KIND_OF
from heatlas.studies.grids.grid_scores import GRID_COLUMNS, GridMethod, Setting, grid_scores, is_local
from heatlas.studies.grids.layout import Grid, Kind, Layout, Shape
from heatlas.studies.grids.locality import filled_up
from heatlas.studies.grids.studies import (
    INVARIANCE_ROW,
    Depth,
    asked_in_grids,
    fitted,
    invariance_rows,
    lrp_study,
    regional,
)

PAIR: Shape = (2, 1, 1)
SETTINGS_OF: Mapping[Kind, tuple[Setting, ...]] = {
    "needle": ("GridPG",),
    "corner": ("DiFull", "DiPart"),
    "pair": ("GridPG",),
}
"""In a grid that the network sees as a whole, a second scan of the class is a right answer too, so none is in it."""
JOB_COLUMNS = (*GRID_COLUMNS, "local")
FOCUS = "lrp focus"


class GridToScore(Unit):
    """All that a worker needs to score one grid.

    `number`: number of the grid among all. `files`: files of the scan in each cell. `every`: every stage, instead of
    the input and the last. `network`: has seen none of the scans, with the controls of its fold.
    """

    number: int
    grid: Grid = keyed(dataclasses.astuple)
    files: tuple[ScanFiles, ...] = keyed(
        lambda cells: [files.name for files in cells],
        inputs=lambda cells, digests: {f"cell {n}": digests.joined(files.seen) for n, files in enumerate(cells)},
    )
    every: bool
    seed: int
    settings: GridsConfig = keyed(dataclasses.astuple)
    explanations: tuple[Explanation, ...] = keyed(lambda explanations: [asked.version for asked in explanations])
    network: Network = keyed(
        inputs=lambda network, _: {
            "network": network.version,
            **{f"control {place}": control.digest for place, control in enumerate(network.controls)},
        }
    )
    training: TrainingConfig = unkeyed("for the device")
    atlas: PackedAtlas = unkeyed("no grid is made for methods that need its regions")


def layout_of(kind: Kind, settings: GridsConfig) -> Layout:
    return Layout(PAIR if kind == "pair" else settings.layout)


@kept_memory()
def score_grid(outputs: Mapping[str, Path], task: GridToScore) -> Mapping[str, Any]:
    """Write ``scores`` and ``invariance`` (TSV) and ``pictures`` (NPZ) of a grid; the function of a `Job`."""
    device, grid = chosen_device(task.training), task.grid
    loaded, layout = task.network.load(device), layout_of(grid.kind, task.settings)
    read = [torch.from_numpy(read_network_volume(files, loaded.input))[None] for files in task.files]
    volumes = dict(zip(grid.scans, filled_up(torch.stack(read).to(device), loaded.model), strict=True))
    cells = torch.stack([volumes[scan] for scan in grid.scans])
    reference = task.network.reference(device)
    if reference is not None and reference.volumes.shape[1:] != cells.shape[1:]:  # the logits are of other volumes then
        reference = Reference(filled_up(reference.volumes, loaded.model), reference.people)
    surroundings = RunContext(task.atlas, loaded.input.box, reference)
    usable = [one for one in task.explanations if not regional(one)]
    a, b, c = cells.shape[-3:]
    asked = asked_in_grids(usable, surroundings, loaded.model, (a, b, c), grid.kind, task.every, task.settings)
    wanted = _pictured(usable, loaded.model)
    pictures: dict[str, NDArray[np.float32]] = {}

    def keep(setting: Setting, name: str, stage: int, _: int, values: Tensor) -> None:
        if KIND_OF[setting] == grid.kind and wanted.get(name) == stage:
            pictures[f"{setting}|{name}|{stage}"] = picture(values, layout, grid.cell)

    frames = []
    for setting in SETTINGS_OF[grid.kind]:
        with exact_float32(device):
            local = _kept_promise(loaded.model, layout, cells, grid.cell, setting, task.seed)
        scores = grid_scores(loaded.model, volumes.__getitem__, layout, [grid], asked, [setting], keep)
        row = {"setting": setting, "kind": grid.kind, "cells": layout.cells, "note": REGIONAL}
        refused = [{**row, "method": one.entry.name} for one in task.explanations if regional(one)]
        scores = pd.concat([scores, pd.DataFrame(refused, columns=list(GRID_COLUMNS))]) if refused else scores
        frames.append(scores.assign(grid=scores["grid"].where(scores["grid"].isna(), task.number), local=local))
    write_table(outputs["scores"], pd.concat(frames)[list(JOB_COLUMNS)])
    rows = _invariance(loaded.model, layout, cells, surroundings, usable, grid, task.settings)
    write_table(outputs["invariance"], pd.DataFrame(rows, columns=list(INVARIANCE_ROW)))
    with outputs["pictures"].open("wb") as handle:
        np.savez_compressed(handle, **pictures)  # type: ignore[arg-type]
    return {"maps": len(asked)}


REGIONAL = "hides atlas regions of one brain, and a grid holds several; judge it by the other parts of the evaluation"


def _kept_promise(
    model: StagedModel, layout: Layout, cells: Tensor, cell: int, setting: Setting, seed: int
) -> str | None:
    """``yes`` or ``no``; None where there is no promise or the setting is not defined, which the rows say."""
    try:
        return "yes" if is_local(model, layout, cells, cell, setting, seed) else "no"
    except UsageError:
        return None


def _pictured(explanations: Sequence[Explanation], model: StagedModel) -> dict[str, int]:
    """Maps that are drawn, and at which stage: each method where it is usually asked."""
    usual = {one.entry.name: one.entry.stage_of(model) for one in explanations}
    found = {name: stage if isinstance(stage, int) else 0 for name, stage in usual.items()}
    if found.pop("lrp", None) is not None:
        found |= {"lrp beta=0": 0, FOCUS: 0}
    return found


def picture(values: Tensor, layout: Layout, cell: int) -> NDArray[np.float32]:
    """Positive part of a map (D, H, W) summed along the last axis, the explained cell first."""
    cells = layout.split(values.clamp(min=0)[None, None])
    order = [cell, *(number for number in range(layout.cells) if number != cell)]
    return np.asarray(layout.compose(cells[order])[0, 0].sum(dim=2).float().cpu().numpy())


def _invariance(
    model: StagedModel, layout: Layout, cells: Tensor, surroundings: RunContext,
    explanations: Sequence[Explanation], grid: Grid, settings: GridsConfig,
) -> list[dict[str, object]]:  # fmt: skip
    """The construction of A.8 on the last features of a grid, summed over channels.

    The head is linear; its weights are the network's own mean slopes over channels at these features.
    """
    stage, reference = last_spatial_stage(model), surroundings.reference

    def last(volumes: Tensor) -> Tensor:
        for one in model.stages[:stage]:
            volumes = one(volumes)
        return volumes

    with torch.no_grad():
        each = last(cells)
        controls = None if reference is None else torch.cat([last(one) for one in torch.split(reference.volumes, 1)])
    leaf = each[grid.cell : grid.cell + 1].clone().requires_grad_()
    logits = leaf
    for one in model.stages[stage:]:
        logits = one(logits)
    slopes = [torch.autograd.grad(logits[0, unit], leaf, retain_graph=True)[0] for unit in range(logits.shape[1])]
    places = each.double().sum(1, keepdim=True)
    whole = layout.compose(places)
    weights = [layout.compose(torch.stack([one.double().mean(1)] * layout.cells)).flatten() for one in slopes]
    connected = torch.zeros(whole.shape[-3:], dtype=torch.bool, device=whole.device)
    connected[layout.box(grid.cell, layout.cell_shape(whole))] = True
    if reference is not None and controls is not None:
        sums = torch.split(controls.double().sum(1, keepdim=True), 1)
        reference = Reference(torch.cat([layout.join([one] * layout.cells) for one in sums]), reference.people)
    surroundings = dataclasses.replace(surroundings, reference=reference)
    asked: list[GridMethod] = []
    sides = tuple(places.shape[-3:])
    for explanation in explanations:
        if explanation.entry.name == "lrp":
            asked += [dataclasses.replace(one, more=()) for one in lrp_study(Depth(0, 0.0), gammas=())]
            continue
        method = fitted(explanation.build(surroundings), sides, settings=settings)
        asked.append(GridMethod(explanation.entry.name, method, start=explanation.start))
    return invariance_rows(whole, torch.stack(weights), connected.flatten(), grid.target, asked)
