"""What an exported run gives of its controls in place of their scans: means, and spreads by region."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import nn

from heatlas.pipeline.models.inputs import NetworkInput, read_network_volume
from heatlas.pipeline.run.declared import Table, described
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.bundle_layout import EXPORT_AGAIN, Bundle
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.tables import require_filled, require_numbers
from heatlas.pipeline.run.work.digests import file_digest

STEPS = 2**16
"""Steps between 0 and 1 that a mean image is rounded to: finer than its noise, and the file is half as large."""


def mean_volume(scans: Sequence[ScanFiles], spec: NetworkInput) -> NDArray[np.float32]:
    """Mean of what networks see of some scans, float32 in `STEPS`, shape of the network's input."""
    total = np.zeros(spec.shape)
    for scan in scans:
        total += read_network_volume(scan, spec)
    return (np.round(total / len(scans) * STEPS) / STEPS).astype(np.float32)


def mean_logits(network: nn.Module, scans: Sequence[ScanFiles], spec: NetworkInput) -> list[float]:
    """Mean over some scans of each output of a network, rounded."""
    with torch.no_grad():
        rows = [network(torch.from_numpy(read_network_volume(scan, spec))[None, None])[0].double() for scan in scans]
    return [round(float(value), 5) for value in torch.stack(rows).mean(0)]


PEOPLE_TABLE = Table(
    "people", {"participant_id": "Digest of a participant of the run and a salt, which cannot be read back"}, "person",
    "Who took part in the run, and is left out of what its networks are applied to?", stage="export",
    file="models/people.tsv",
)  # fmt: skip
NORMS_TABLE = Table(
    "norms",
    {
        **described("map", "group"), "n_controls": "Controls with a value", "mean": "Mean of their densities",
        "sd": "Standard deviation of their densities",
    },
    "map and bilateral group", "What is usual in controls?", stage="export", file="reference/norms.tsv",
)  # fmt: skip


def norms_of_controls(bilateral: pd.DataFrame, controls: Sequence[str], fewest: int) -> pd.DataFrame:
    """Mean and spread over controls of the density of each map in each bilateral group, by map and group.

    `bilateral`: ``relevance_bilateral.tsv``. `controls`: each counts once, by the mean of their scans. `fewest`: groups
    with fewer of them have no row.

    Examples
    --------
    >>> rows = [("sub-1", 1.0), ("sub-1", 3.0), ("sub-2", 4.0), ("sub-3", 9.0)]
    >>> table = pd.DataFrame([(who, "lrp", "Amygdala", value) for who, value in rows],
    ...                      columns=["participant_id", "map", "group", "density"])
    >>> norms_of_controls(table, ["sub-1", "sub-2"], 2).values.tolist()
    [['lrp', 'Amygdala', 2, 3.0, 1.4142135623730951]]
    """
    rows = bilateral[bilateral["participant_id"].isin(list(controls))]
    people = rows.groupby(["map", "group", "participant_id"], sort=False)["density"].mean()
    table = people.groupby(["map", "group"], sort=False).agg(["count", "mean", "std"]).reset_index()
    table.columns = list(NORMS_TABLE.meanings)
    return table[table["n_controls"] >= fewest].reset_index(drop=True)


def read_norms(bundle: Bundle) -> pd.DataFrame | None:
    """The norms of an exported run; None if it had no regions.

    Raises BadInputError if the table is missing or altered, has no row, or a cell of it is no number.
    """
    path = bundle.layout.norms
    if bundle.norms_digest and (not path.is_file() or file_digest(path) != bundle.norms_digest):
        raise BadInputError(f"{path}: missing, or not the one that was exported (SHA-256 differs). {EXPORT_AGAIN}")
    if not path.is_file():
        return None
    table = NORMS_TABLE.read(path)
    if table.empty:
        raise BadInputError(f"{path}: has no row. {EXPORT_AGAIN}")
    require_filled(path, table, list(NORMS_TABLE.meanings))
    require_numbers(path, table, ["n_controls"], whole=True)
    require_numbers(path, table, ["mean", "sd"])
    return table
