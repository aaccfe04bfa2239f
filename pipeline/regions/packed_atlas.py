"""An atlas as it travels with jobs, and the region table of one scan."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heatlas.atlases.brain_box import Box
from heatlas.atlases.labels import Atlas
from heatlas.atlases.regions import RegionTable
from heatlas.atlases.spaces import Grid, require_same_grid
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.regions.region_sums import PackedLabels, device_labels, device_region_sums, labels_in, pack_labels
from heatlas.pipeline.regions.tables import RELEVANCE_TABLE, scan_rows
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.work.digests import canonical_json, text_digest
from heatlas.pipeline.run.work.host import on_host


@dataclass(frozen=True)
class PackedAtlas:
    """An atlas, under 1 MB pickled.

    `version`: digest of the other three.
    """

    labels: PackedLabels
    regions: RegionTable
    grid: Grid
    version: str

    @classmethod
    def of(cls, atlas: Atlas) -> PackedAtlas:
        labels = pack_labels(atlas.labels, atlas.regions.numbers)
        grid = [list(atlas.grid.shape), atlas.grid.affine.tolist()]
        facts = [labels.compressed.hex(), labels.numbers, atlas.regions, grid]
        return cls(labels, atlas.regions, atlas.grid, text_digest(canonical_json(facts)))

    def labels_in(self, box: Box | None) -> NDArray[np.int64]:
        """Label numbers in a part of the grid; None for all of it."""
        return labels_in(self.labels, box)


def write_region_table(
    path: Path,
    scan: Scan,
    maps: Mapping[str, Tensor],
    atlas: PackedAtlas,
    grid: Grid,
    box: Box | None,
    evidence: Collection[str] = (),
    errors: Mapping[str, Tensor] | None = None,
    members: Mapping[str, Tensor] | None = None,
) -> None:
    """Sum the maps of one scan over all regions, on the device they are on, and write the table and its dictionary.

    Maps (D, H, W, by name) are on the grid of `box`, the part of the template grid `grid` that they cover (None for all
    of it). Sums of those named in `evidence` are evidence; sums of `errors` are the standard errors of a map.
    The standard deviation of sums is written for `members`, the maps (M, D, H, W) of the members of an ensemble.

    Raises BadInputError if the grids differ or a map holds NaN or infinite values.
    """
    require_same_grid(grid, atlas.grid, "the network's template grid and the atlas")
    errors = errors or {}
    stacked = torch.stack([*maps.values(), *errors.values()])
    labels = device_labels(atlas.labels, box, stacked.device)
    try:
        sums = on_host(device_region_sums(stacked, labels)).numpy()
    except BadInputError as error:
        raise BadInputError(f"{scan.name}: {error} (maps: {', '.join(maps)})") from error
    identity = {"participant_id": scan.participant_id, "session_id": scan.session_id, "scan_id": scan.scan_id}
    of_maps, of_errors = (
        dict(zip(*one, strict=True)) for one in ((maps, sums[: len(maps)]), (errors, sums[len(maps) :]))
    )
    of_members = {name: on_host(device_region_sums(own, labels)).numpy() for name, own in (members or {}).items()}
    rows = scan_rows(identity, of_maps, labels, atlas.regions, evidence, of_errors, of_members)
    RELEVANCE_TABLE.write(path, rows)
