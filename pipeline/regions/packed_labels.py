"""A label volume packed to travel with jobs. Regions are keyed by label number, never by position.

Every region of the table keeps its row, one without a voxel has a sum of 0 over 0 voxels, and what lies in no region is
a row of its own (`REST`), so that the rows add to the total of a map.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heatlas.atlases.brain_box import Box
from heatlas.pipeline.run.errors import BadInputError

REST = 0
"""Number that stands for the unlabelled rest; no atlas uses it for a region."""


@dataclass(frozen=True)
class PackedLabels:
    """A label volume small enough to travel with a job: about 0.3 MB for 1 mm, against 34 MB."""

    shape: tuple[int, ...]
    numbers: tuple[int, ...]
    compressed: bytes


def pack_labels(labels: NDArray[np.integer], numbers: Sequence[int]) -> PackedLabels:
    """Compress a label volume.

    `labels`: 0 = unlabelled. `numbers`: all regions of the table, in the order wanted, whether they have voxels or not.
    Raises BadInputError if a voxel has a label that no region of the table has.
    """
    known = np.array([REST, *numbers])
    unknown = np.setdiff1d(np.unique(labels), known)
    if unknown.size:
        raise BadInputError(
            f"the atlas has label {', '.join(map(str, unknown[:5]))} without a row in its region table. Add the row."
        )
    if len(set(known.tolist())) != len(known):
        raise BadInputError("the region table names a label number twice, or uses 0, which means unlabelled.")
    lookup = np.zeros(known.max() + 1, np.uint16)
    lookup[known] = np.arange(len(known))
    rows = lookup[labels].ravel(order="F")
    return PackedLabels(tuple(labels.shape), tuple(known.tolist()), zlib.compress(rows.tobytes(), 1))


def unpack_rows(packed: PackedLabels) -> NDArray[np.uint16]:
    """The label volume with each voxel's place in ``packed.numbers`` for its label."""
    return np.frombuffer(zlib.decompress(packed.compressed), np.uint16).reshape(packed.shape, order="F")


def labels_in(packed: PackedLabels, box: Box | None) -> NDArray[np.int64]:
    """Label numbers in a part of the grid; None for all of it."""
    rows = unpack_rows(packed)
    inside = rows if box is None else box.crop(rows)
    return np.ascontiguousarray(np.asarray(packed.numbers, np.int64)[inside])
