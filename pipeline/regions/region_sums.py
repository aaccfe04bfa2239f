"""Sums of maps over the regions of an atlas, where the maps are made: on the device, before anything is written.

A label volume travels with jobs, packed. Regions are keyed by label number, never by position: every region of the
table keeps its row, one without a voxel has a sum of 0 over 0 voxels, and what lies in no region has a row too
(`REST`), so that the rows add to the total of a map.

nilearn's `NiftiLabelsMasker` gives the same sums (it is the oracle of the tests) but drops empty labels. Maps cover the
network's box; everything outside it is 0. Scatter-adds (`Tensor.index_add`, `torch.bincount`) are no use: on a GPU
their order of addition changes from call to call. Here the labelled voxels are gathered region by region into rows of
fixed length, rows are added, then the rows of a region: two dense sums, of one order on any call, in float64.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heatlas.atlases.spaces import Box
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.work.host import on_host

REST = 0
"""Number that stands for the unlabelled rest; no atlas uses it for a region."""


@dataclass(frozen=True)
class PackedLabels:
    """A label volume small enough to travel with a job: about 0.3 MB for 1 mm, against 34 MB."""

    shape: tuple[int, ...]
    numbers: tuple[int, ...]
    compressed: bytes


def pack_labels(labels: NDArray[np.integer], numbers: Sequence[int]) -> PackedLabels:
    """Compress a label volume, 0 = unlabelled.

    `numbers`: all regions of the table, in the order wanted, whether they have voxels or not.
    """
    listed = np.array([REST, *numbers])
    unknown = np.setdiff1d(np.unique(labels), listed)
    if unknown.size:
        raise BadInputError(
            f"the atlas has label {', '.join(map(str, unknown[:5]))} without a row in its region table. Add the row."
        )
    if len(set(listed.tolist())) != len(listed):
        raise BadInputError("the region table names a label number twice, or uses 0, which means unlabelled.")
    lookup = np.zeros(listed.max() + 1, np.uint16)
    lookup[listed] = np.arange(len(listed))
    rows = lookup[labels].ravel(order="F")
    return PackedLabels(tuple(labels.shape), tuple(listed.tolist()), zlib.compress(rows.tobytes(), 1))


def unpack_rows(packed: PackedLabels) -> NDArray[np.uint16]:
    """The label volume with each voxel's place in ``packed.numbers`` for its label."""
    return np.frombuffer(zlib.decompress(packed.compressed), np.uint16).reshape(packed.shape, order="F")


def labels_in(packed: PackedLabels, box: Box | None) -> NDArray[np.int64]:
    """Label numbers in a part of the grid; None for all of it."""
    rows = unpack_rows(packed)
    inside = rows if box is None else box.crop(rows)
    return np.ascontiguousarray(np.asarray(packed.numbers, np.int64)[inside])


ROW = 512
"""Voxels per row: with 136 regions padding adds few per cent, and a whole brain is a few thousand rows."""


@dataclass(frozen=True, eq=False)
class DeviceLabels:
    """A label volume cut to a box, laid out for summing on a device.

    `numbers`: label number of each sum: the unlabelled rest, then the regions in the order of their table. `n_voxels`:
    on the whole grid: voxels outside the box count, with a relevance of 0. `voxels`: (rows, `ROW`), positions in the
    flattened box, the voxels of one region in each row. `filled`: False where a row is padded. `rows`: (numbers, most
    rows of a region), rows of each region; the number of rows stands for "none".
    """

    shape: tuple[int, int, int]
    numbers: tuple[int, ...]
    n_voxels: NDArray[np.int64]
    voxels: Tensor
    filled: Tensor
    rows: Tensor


def lay_out_labels(packed: PackedLabels, box: Box | None, device: torch.device) -> DeviceLabels:
    """Labels on the template grid, cut to the box that maps cover (None for all of it), on a device."""
    whole = unpack_rows(packed)
    inside = whole if box is None else box.crop(whole)
    flat = inside.ravel(order="C")
    order = np.argsort(flat, kind="stable")
    counts = np.bincount(flat, minlength=len(packed.numbers))
    order = order[counts[0] :]  # the unlabelled rest comes first
    counts[0] = 0
    n_rows = -(-counts // ROW)
    ends = np.cumsum(counts)
    voxels = np.zeros((n_rows.sum(), ROW), np.int64)
    filled = np.zeros(voxels.shape, bool)
    rows = np.full((len(counts), max(int(n_rows.max(initial=0)), 1)), len(voxels), np.int64)
    first = 0
    for region in np.flatnonzero(counts):
        places, last = order[ends[region] - counts[region] : ends[region]], first + n_rows[region]
        voxels[first:last].reshape(-1)[: len(places)] = places
        filled[first:last].reshape(-1)[: len(places)] = True
        rows[region, : n_rows[region]] = np.arange(first, last)
        first = last
    on_device = (torch.from_numpy(array).to(device) for array in (voxels, filled, rows))
    shape = (inside.shape[0], inside.shape[1], inside.shape[2])
    return DeviceLabels(shape, packed.numbers, np.bincount(whole.ravel(), minlength=len(counts)), *on_device)


@functools.lru_cache(maxsize=1)
def device_labels(packed: PackedLabels, box: Box | None, device: torch.device) -> DeviceLabels:
    """As `lay_out_labels`; the last one is kept, since all jobs of a worker share an atlas, a box and a device."""
    return lay_out_labels(packed, box, device)


def device_region_sums(maps: Tensor, labels: DeviceLabels) -> Tensor:
    """Sum of each map over each region, (M, numbers), as ``labels.numbers``, float64; the same on every call.

    `maps`: (M, D, H, W) or (M, V), finite, on the device and the box of `labels`; V counts in C order. The sums of a
    map add to its total.

    >>> from heatlas.pipeline.regions.region_sums import pack_labels
    >>> packed = pack_labels(np.array([[[0, 7, 7, 2]]]), [2, 5, 7])
    >>> labels = lay_out_labels(packed, None, torch.device("cpu"))
    >>> sums = device_region_sums(torch.tensor([[[[1.0, 2.0, 3.0, 4.0]]]]), labels)
    >>> dict(zip(labels.numbers, sums[0].tolist()))
    {0: 1.0, 2: 4.0, 5: 0.0, 7: 5.0}
    """
    expected = labels.shape if maps.dim() == 4 else (int(np.prod(labels.shape)),)
    if tuple(maps.shape[1:]) != expected:
        raise ValueError(f"maps of shape {tuple(maps.shape[1:])}, labels of shape {labels.shape}")
    sums = []
    for number, volume in enumerate(maps):  # one at a time: what is gathered is as large as a map
        flat = volume.reshape(-1)
        total = ordered_total(flat)
        if not bool(on_host(torch.isfinite(total))):
            raise BadInputError(
                f"map {number + 1} of {len(maps)} holds NaN or infinite relevance; check the network's weights."
            )
        gathered = flat.index_select(0, labels.voxels.view(-1))
        in_rows = torch.where(labels.filled, gathered.view(labels.voxels.shape), 0).sum(1, dtype=torch.float64)
        of_regions = torch.cat([in_rows, in_rows.new_zeros(1)])[labels.rows].sum(1)
        of_regions[0] = total - of_regions.sum()  # cheaper than gathering the background
        sums.append(of_regions)
    return torch.stack(sums) if sums else maps.new_zeros((0, len(labels.numbers)), dtype=torch.float64)


def ordered_total(flat: Tensor) -> Tensor:
    """Sum of a flat tensor in float64, in an order that does not depend on how many threads there are."""
    whole = flat.numel() // ROW * ROW
    rows = flat[:whole].view(-1, ROW).sum(1, dtype=torch.float64)
    return torch.cat([rows, flat[whole:].double()]).sum()
