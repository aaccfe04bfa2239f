"""An atlas as it travels with jobs, and what is written of one scan: sums over regions, and by kind of image."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from heatlas.atlases.labels import Atlas
from heatlas.atlases.regions import RegionTable
from heatlas.atlases.spaces import Box, Grid, require_same_grid
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.regions.region_sums import PackedLabels, device_labels, device_region_sums, labels_in, pack_labels
from heatlas.pipeline.regions.tables import RELEVANCE_TABLE, scan_rows
from heatlas.pipeline.run.declared import declared
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.work.digests import canonical_json, text_digest
from heatlas.pipeline.run.work.host import on_host


@dataclass(frozen=True)
class PackedAtlas:
    """An atlas, under 1 MB pickled. `version`: digest of the other three."""

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
    of it). Sums of those named in `evidence` are evidence; sums of `errors` are the standard errors of a map. The
    standard deviation of sums is written for `members`, the maps (M, D, H, W) of the members of an ensemble.
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
        dict(zip(*pair, strict=True)) for pair in ((maps, sums[: len(maps)]), (errors, sums[len(maps) :]))
    )
    of_members = {
        name: on_host(device_region_sums(maps_of_members, labels)).numpy()
        for name, maps_of_members in (members or {}).items()
    }
    rows = scan_rows(identity, of_maps, labels, atlas.regions, evidence, of_errors, of_members)
    RELEVANCE_TABLE.write(path, rows)


RELEVANCE_CHANNELS_TABLE = declared("relevance_channels", __file__)

SHARES = {
    "map": "Relevance map",
    "image": "Kind of image, by the suffix of its BIDS name",
    "label": "Class of the scans",
    "n": "Participants, each by the mean of their scans",
    "sum": "Mean sum of the map of this kind of image, over participants",
    "share": "Mean share of the magnitude of the sums over regions, over participants",
}
"""Columns of `shares_of_kinds`."""


def write_channel_table(
    path: Path,
    scan: Scan,
    maps: Mapping[str, Tensor],
    images: Sequence[str],
    atlas: PackedAtlas,
    grid: Grid,
    box: Box | None,
) -> None:
    """Sum the map of each kind of image of one scan over all regions, and write the table and its dictionary.

    `maps`: (C, D, H, W) by name, on the grid of `box`, the part of the template grid that they cover. `images`: suffix
    of each channel.
    """
    require_same_grid(grid, atlas.grid, "the network's template grid and the atlas")
    identity = {"participant_id": scan.participant_id, "session_id": scan.session_id, "scan_id": scan.scan_id}
    blocks = []
    for name, channels in maps.items():
        labels = device_labels(atlas.labels, box, channels.device)
        sums = on_host(device_region_sums(channels, labels)).numpy()
        for image, sums_of_image in zip(images, sums, strict=True):
            blocks.append(scan_rows(identity, {name: sums_of_image}, labels, atlas.regions).assign(image=image))
    columns = list(RELEVANCE_CHANNELS_TABLE.meanings)
    rows = pd.concat(blocks, ignore_index=True)[columns] if blocks else pd.DataFrame(columns=columns)
    RELEVANCE_CHANNELS_TABLE.write(path, rows)


def shares_of_kinds(table: pd.DataFrame, labels: Mapping[str, str]) -> pd.DataFrame:
    """Sums of the maps of each kind of image, and its share of the magnitude of all, by class.

    The share of a scan is the sum over regions of the absolute sums of one kind, divided by that of all kinds, so that
    relevance for and against does not cancel between regions. `labels`: class by ``scan_id``; other scans are left out.

    >>> rows = [("sub-1", "1", "m", "T1w", 1.0), ("sub-1", "1", "m", "FLAIR", -3.0)]
    >>> table = pd.DataFrame(rows, columns=["participant_id", "scan_id", "map", "image", "sum"])
    >>> shares_of_kinds(table, {"1": "AD"})[["image", "sum", "share"]].values.tolist()
    [['T1w', 1.0, 0.25], ['FLAIR', -3.0, 0.75]]
    """
    rows = table[table["scan_id"].isin(list(labels))]
    rows = rows.assign(label=rows["scan_id"].map(labels), size=rows["sum"].abs())
    keys = ["map", "image", "label", "participant_id", "scan_id"]
    scans = rows.groupby(keys, sort=False)[["sum", "size"]].sum().reset_index()
    whole = scans.groupby(["map", "scan_id"])["size"].transform("sum")
    scans["share"] = np.divide(scans["size"], whole, out=np.full(len(scans), np.nan), where=whole.to_numpy() > 0)
    people = scans.groupby(keys[:4], sort=False)[["sum", "share"]].mean().reset_index()
    groups = people.groupby(keys[:3], sort=False)
    means = groups[["sum", "share"]].mean().assign(n=groups.size()).reset_index()
    return means[list(SHARES)]
