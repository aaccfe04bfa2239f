"""How large labels are, to see what resampling does to them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heatlas.atlases.spaces import Grid


def label_volumes_mm3(labels: NDArray[np.integer], grid: Grid) -> dict[int, float]:
    """Volume of each label that has a voxel, by number."""
    numbers, counts = np.unique(labels[labels > 0], return_counts=True)
    return {int(n): int(c) * grid.voxel_volume_mm3 for n, c in zip(numbers, counts, strict=True)}
