"""Mean maps over both classes and over the four outcomes, or over all scans where a number is predicted.

As in the founding study, a mean is over scans, so that it is the map whose regions one would sum; the tables, which
carry the inference, weigh participants equally. Maps are added one by one in float64, never held together: each part
(the map of one scan, or a sum over several) is read once per map and enters the sum of its outcome, and the classes are
put together from the outcomes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatlas.atlases.images import write_template_image
from heatlas.atlases.spaces import Grid
from heatlas.pipeline.regions.partial_sums import add_part
from heatlas.pipeline.regions.tables import ALL, OUTCOMES
from heatlas.pipeline.run.layout.scan_files import sidecar
from heatlas.pipeline.run.tables import write_json


@dataclass(frozen=True)
class MapSum:
    """A file that holds the sum of the maps of its scans.

    `path`: the map of one scan, or a partial sum of several. `outcome`: outcome of the predictions of its scans.
    `sources`: for sidecars: one file of the run per scan. `participants`: one per scan.
    """

    path: Path
    outcome: str
    sources: tuple[str, ...]
    participants: tuple[str, ...]


@dataclass(frozen=True)
class MapsToAverage:
    """All maps of one method.

    `groups`: outcomes that make up each group, e.g. ``{"AD": ("TP", "FN"), "TP": ("TP",)}``; only groups with scans.
    """

    map_name: str
    parts: tuple[MapSum, ...]
    groups: Mapping[str, tuple[str, ...]]
    grid: Grid


def groups_of(outcomes: Sequence[str], negative: str, positive: str) -> dict[str, tuple[str, ...]]:
    """Groups that have at least one scan, and the outcomes each is made of.

    Examples
    --------
    >>> groups_of(["TP", "TN", "TP"], "CN", "AD")
    {'AD': ('TP', 'FN'), 'CN': ('TN', 'FP'), 'TP': ('TP',), 'TN': ('TN',)}
    """
    parts = {positive: ("TP", "FN"), negative: ("TN", "FP")} | {name: (name,) for name in (*OUTCOMES, ALL)}
    return {name: part for name, part in parts.items() if set(part) & set(outcomes)}


def average_maps(outputs: Mapping[str, Path], task: MapsToAverage) -> Mapping[str, Any]:
    """Write the mean map of each group and its sidecar; the function of a job.

    `outputs`: ``GROUP`` and ``GROUP_sidecar`` of every group.
    """
    sums: dict[str, NDArray[np.float64]] = {}
    for part in task.parts:
        if part.outcome not in sums:
            sums[part.outcome] = np.zeros(task.grid.shape, np.float64, order="F")
        add_part(sums[part.outcome], part.path, task.map_name, task.grid)
    counts = {}
    for group, outcomes in task.groups.items():
        members = [part for part in task.parts if part.outcome in outcomes]
        total = sum((sums[outcome] for outcome in outcomes if outcome in sums), start=np.zeros(task.grid.shape))
        counts[f"scans_{group}"] = sum(len(part.sources) for part in members)
        write_template_image(outputs[group], total / counts[f"scans_{group}"], task.grid, "mean relevance map")
        write_json(outputs[f"{group}_sidecar"], _facts(group, task.map_name, members))
    return counts


def outputs_of(groups: Mapping[str, Any], paths: Mapping[str, Path]) -> dict[str, Path]:
    """Outputs of `average_maps`, by short name."""
    outputs = {}
    for group in groups:
        outputs[group] = paths[group]
        outputs[f"{group}_sidecar"] = sidecar(paths[group])
    return outputs


def _facts(group: str, map_name: str, members: Sequence[MapSum]) -> dict[str, Any]:
    sources = [source for part in members for source in part.sources]
    return {
        "Description": f"Mean over scans of {map_name} relevance, group {group}",
        "Group": group,
        "NumberOfScans": len(sources),
        "NumberOfParticipants": len({person for part in members for person in part.participants}),
        "Sources": [f"bids::{source}" for source in sources],
    }
