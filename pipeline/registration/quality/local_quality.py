"""Registration quality of a scan in each region of an atlas.

A registration can be good overall and wrong in one place. Each region has three measures: the correlation of scan and
template in and around the region, to include its borders; the inconsistency of warp and inverse warp; and the extremes
of the Jacobian determinant. docs/registration.md compares them with the Dice of manual labels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import scipy.ndimage


@dataclass(frozen=True)
class RegionVoxels:
    """Voxels of each region of a label image, in one array."""

    numbers: tuple[int, ...]  # regions that have a voxel
    counts: np.ndarray  # voxels of each
    voxels: np.ndarray  # indices into the flattened image, region after region; regions may share voxels

    @property
    def starts(self) -> np.ndarray:
        """Where each region begins in `voxels`."""
        return np.concatenate([[0], np.cumsum(self.counts)[:-1]]).astype(int)

    def by_number(self, values: np.ndarray) -> dict[int, float]:
        """Map one value per region to its number."""
        return dict(zip(self.numbers, values.tolist(), strict=True))


def region_voxels(labels: np.ndarray, numbers: Iterable[int], margin: int = 0) -> RegionVoxels:
    """Voxels of each region, dilated by `margin` steps of one voxel along an axis; regions without one are left out.

    >>> line = np.array([0, 0, 7, 0, 5]).reshape(5, 1, 1)
    >>> found = region_voxels(line, [5, 6, 7], margin=1)
    >>> found.numbers, found.counts.tolist(), found.voxels.tolist()
    ((5, 7), [2, 3], [3, 4, 1, 2, 3])
    """
    boxes = scipy.ndimage.find_objects(labels)
    places = np.arange(labels.size, dtype=np.int32).reshape(labels.shape)
    found: dict[int, np.ndarray] = {}
    for number in map(int, numbers):
        box = boxes[number - 1] if 0 < number <= len(boxes) else None
        if box is None:
            continue
        around = tuple(slice(max(part.start - margin, 0), part.stop + margin) for part in box)
        inside = labels[around] == number
        if margin:
            inside = scipy.ndimage.binary_dilation(inside, iterations=margin)
        found[number] = places[around][inside]
    voxels = np.concatenate([*found.values()]) if found else np.zeros(0, dtype=np.int32)
    return RegionVoxels(tuple(found), np.array([len(part) for part in found.values()], dtype=int), voxels)


def local_correlation(first: np.ndarray, second: np.ndarray, regions: RegionVoxels) -> dict[int, float]:
    """Pearson correlation of two images over the voxels of each region; 0 where one of them is constant."""
    if not regions.numbers:
        return {}
    a, b = (_centred(image.ravel()[regions.voxels].astype(np.float64), regions) for image in (first, second))
    products = [np.add.reduceat(product, regions.starts) for product in (a * b, a * a, b * b)]
    scale = np.sqrt(products[1] * products[2])
    known = scale > 1e-9 * regions.counts
    return regions.by_number(np.where(known, np.clip(products[0] / np.where(known, scale, 1), -1, 1), 0.0))


def _centred(values: np.ndarray, regions: RegionVoxels) -> np.ndarray:
    means = np.add.reduceat(values, regions.starts) / regions.counts
    return np.asarray(values - np.repeat(means, regions.counts))


def inverse_error(
    displacement: np.ndarray, inverse: np.ndarray, affine: np.ndarray, regions: RegionVoxels
) -> np.ndarray:
    r"""Distance in mm from a point to its image under the warp and then the inverse warp, one per region voxel.

    .. math:: e(x) = | u(x) + w(x + u(x)) |

    with the displacements u and w, (X, Y, Z, 3), in mm on one grid of `affine`, world RAS+ components; 0 outside it.
    """
    start = np.unravel_index(regions.voxels, displacement.shape[:3])
    forward = displacement[start].astype(np.float64)
    reached = np.stack(start) + np.linalg.solve(affine[:3, :3], forward.T)
    back = [scipy.ndimage.map_coordinates(inverse[..., axis], reached, order=1, cval=0.0) for axis in range(3)]
    return np.asarray(np.linalg.norm(forward + np.stack(back, axis=-1), axis=-1))


def region_means(values: np.ndarray, regions: RegionVoxels) -> dict[int, float]:
    """Mean over each region of values given for `RegionVoxels.voxels`."""
    return regions.by_number(np.add.reduceat(values, regions.starts) / regions.counts) if regions.numbers else {}


def region_percentiles(values: np.ndarray, regions: RegionVoxels, percent: float) -> dict[int, float]:
    """Percentile over each region of values given for `RegionVoxels.voxels`; 0 is the smallest, 100 the largest.

    >>> line = RegionVoxels((4, 9), np.array([3, 2]), np.arange(5))
    >>> region_percentiles(np.array([1.0, 3.0, 2.0, 10.0, 20.0]), line, 50)
    {4: 2.0, 9: 15.0}
    """
    parts = np.split(values, regions.starts[1:])
    return regions.by_number(np.array([np.percentile(part, percent) for part in parts])) if regions.numbers else {}
