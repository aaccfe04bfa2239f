"""Sums of maps over some scans each: what a run keeps that keeps no maps of single scans.

A mean map is put together from such sums, as it is from single maps: a *part* is a file that holds the sum of the maps
of its scans, be it one (a relevance map) or several (a partial sum). Partial sums are float64 and cover the network's
box. Only values other than 0 are written, since most of a box is background, with a bit for each voxel that says where:
as small as compressed values, whose digits are as good as random, in a fortieth of the time.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatlas.atlases.brain_box import Box
from heatlas.atlases.spaces import Grid
from heatlas.pipeline.regions.maps import read_map
from heatlas.pipeline.run.declared import Table, described
from heatlas.pipeline.run.errors import BadInputError

PARTIAL_TABLE = Table(
    "partial_sums",
    {
        "part": "Partial sum that the maps of the scan are in",
        "outcome": "Outcome of the prediction, the same for all scans of a part: TP, FP, TN or FN",
        **described("participant_id", "session_id", "scan_id"),
    },
    "scan in a sum of maps", "Which scan's maps are in which partial sum?", stage="attribution",
    file="partial/scans.tsv", on_pages=False,
)  # fmt: skip


def write_sums(path: Path, sums: Mapping[str, NDArray[np.float64]], box: Box | None) -> None:
    """Write sums by map name.

    `path`: ends in ``.npz``. `box`: part of the template grid that the sums cover; None for all of it.
    """
    place = [] if box is None else [box.start, box.shape]
    arrays: dict[str, Any] = {"box": np.array(place, np.int64)}
    for name, values in sums.items():
        where = values != 0
        arrays |= {name: values[where], f"{name}.shape": values.shape, f"{name}.where": np.packbits(where)}
    with path.open("wb") as handle:
        np.savez(handle, **arrays)


def add_part(into: NDArray[np.float64], path: Path, map_name: str, grid: Grid) -> None:
    """Add a part to a sum on the template grid: a partial sum, or the map of one scan.

    Raises BadInputError if the file is missing, damaged, on another grid, or holds NaN or infinite values.
    """
    if path.suffix != ".npz":
        into += read_map(path, grid)
        return
    try:
        with np.load(path) as stored:
            values, place, shape = stored[map_name], stored["box"].tolist(), stored[f"{map_name}.shape"]
            where = np.unpackbits(stored[f"{map_name}.where"], count=int(shape.prod())).astype(bool).reshape(shape)
        target = into if not place else Box(tuple(place[0]), tuple(place[1])).crop(into)
        if target.shape != where.shape:
            raise ValueError(f"shape {where.shape} on a grid of {target.shape}")
        added = target[where] + values
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, BadInputError) as error:
        raise BadInputError(
            f"{path}: no readable sum of maps ({error}). Remove it and run attribution again."
        ) from error
    target[where] = added
