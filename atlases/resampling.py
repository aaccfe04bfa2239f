"""Labels moved from one grid to another through their affines.

Nearest neighbour is one matrix product and one gather. ``nilearn.image.resample_img`` was considered: it does the same
through the same ``scipy.ndimage.affine_transform``, but through copies in floating point and without saying which
labels fell out. ANTs' ``GenericLabel`` smooths each label, which moves the borders of thin cortex. So the call to
scipy is made here, and what matters here, the label set, is checked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from heatlas.atlases.spaces import Grid
from heatlas.pipeline.run.errors import BadInputError


@dataclass(frozen=True)
class ResampledLabels:
    """Labels on a new grid, and what the new grid could not hold."""

    labels: NDArray[np.int32]  # on the target grid, 0 = unlabelled
    # Labels inside the target's field of view that fell between its voxels: structures thinner than the voxel distance
    lost: tuple[int, ...]


def resample_labels(labels: NDArray[np.integer], source: Grid, target: Grid) -> ResampledLabels:
    """Carry a label image to another grid by nearest neighbour.

    Each target voxel takes the label of the source voxel that holds its centre, so no number arises that was not
    there, and volumes are kept up to sampling error.

    `source`, `target`: any orientation, also oblique; the same world space. Raises BadInputError if the target's field
    of view misses a label altogether, which means that the two are not in one space or the target is cropped too
    tightly.
    """
    if labels.shape != source.shape:
        raise BadInputError(f"labels of shape {labels.shape} cannot lie on the grid {source}.")
    to_source = np.linalg.inv(source.affine) @ target.affine
    moved = ndimage.affine_transform(
        labels.astype(np.int32, copy=False),
        to_source[:3, :3],
        to_source[:3, 3],
        output_shape=target.shape,
        order=0,
        mode="grid-constant",  # "constant" would drop half a voxel at the border
        cval=0,
    )
    missing = set(_present(labels)) - set(_present(moved))
    outside = sorted(missing - _seen(labels, source, target, missing))
    if outside:
        raise BadInputError(
            f"labels {', '.join(map(str, outside))} lie outside the field of view of {target}; labels are on {source}. "
            "Check that both are in one space."
        )
    return ResampledLabels(moved, tuple(sorted(missing)))


def _present(labels: NDArray[np.integer]) -> list[int]:
    return [int(number) for number in np.unique(labels) if number != 0]


def _seen(labels: NDArray[np.integer], source: Grid, target: Grid, numbers: set[int]) -> set[int]:
    """Which of `numbers` have a voxel centre inside the target's outer voxel faces."""
    seen = set()
    for number in numbers:
        voxels = target.to_voxel(source.to_world(np.argwhere(labels == number)))
        if ((voxels >= -0.5) & (voxels <= np.array(target.shape) - 0.5)).all(axis=1).any():
            seen.add(number)
    return seen
