"""Voxels of a scan that are replaced whenever a network reads it, by the same tissue in every scan.

Networks that are trained and tested without some regions (`studies.retraining`) read the scans of the run
through this file; no copy of a scan is written.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heatlas.pipeline.run.errors import BadInputError


def write_tissue(path: Path, replaced: NDArray[np.bool_], tissue: NDArray[np.floating]) -> None:
    """Write the voxels to be replaced and what replaces them.

    `path`: NPZ. `replaced`: (D, H, W), on the grid that the network sees. `tissue`: (D, H, W), intensities as the
    network sees them.
    """
    with path.open("wb") as handle:
        np.savez(
            handle, shape=replaced.shape, voxels=np.flatnonzero(replaced), values=tissue[replaced].astype(np.float32)
        )


def with_tissue(volume: NDArray[np.float32], path: Path) -> NDArray[np.float32]:
    """A volume in which the voxels of a file from `write_tissue` are replaced.

    Raises BadInputError if the file is of another grid.
    """
    with np.load(path, allow_pickle=False) as file:
        shape = tuple(file["shape"].tolist())
        if shape != volume.shape:
            raise BadInputError(f"{path.name}: tissue on the grid {shape}, the network sees {volume.shape}.")
        changed = volume.copy()
        changed.reshape(-1)[file["voxels"]] = file["values"]
    return changed
