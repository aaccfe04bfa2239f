"""Whether the voxels of an image can be those of a scan: what is no scan is told by its values alone.

A scan has noise, so neighbours differ; it is a magnitude, so it has no sign; and few of its voxels are as bright as the
brightest. Label maps, tissue probabilities and statistical maps lack one of these. Limits were set before an image that
is none was tried, far from what 35 scans of heads and brains have (0.9 to 2 mm, 8 and 16 bits): at most 0.13 of
neighbours alike, 0.007 of voxels as bright as the brightest, nothing negative, and no second body.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.ndimage

from heatlas.pipeline.run.errors import BadInputError

AGAIN = "Download or convert the scan again."
MIN_GREY_VALUES = 16
"""With fewer values the file is a mask or a label image, not a scan."""
MOST_ALIKE = 0.6
"""Share of neighbours with the same value; a scan of which each voxel was doubled has 0.5."""
MOST_BRIGHTEST = 0.1
"""Share of the voxels of the body, which are those above 2 % of the largest value, within 1 % of that value."""
MOST_NEGATIVE = 0.05
"""Sum below 0 as a share of that above: interpolation undershoots by less."""
MOST_OF_ANOTHER = 0.25
"""Voxels of the second of several separate bodies, as a share of the largest; a cerebellum has 0.12 of a brain."""
_LEAST_OUTSIDE = 0.15
"""Share of voxels of the background in an image whose background was removed."""


def require_grey_values(data: np.ndarray, path: Path) -> None:
    """Refuse voxels that are not finite, all alike, or of a few values only."""
    finite = np.isfinite(data)
    if not finite.all():
        raise BadInputError(
            f"{path}: {data.size - int(finite.sum())} voxels are NaN or infinite. Set them to 0 or export again."
        )
    low, high = data.min(), data.max()
    if low == high:
        raise BadInputError(f"{path}: every voxel is {low:g}; the image is empty. {AGAIN}")
    # A sparse sample suffices for nearly every scan; all values are counted only if it has few.
    if np.unique(data.ravel()[::97]).size < MIN_GREY_VALUES and np.unique(data).size < MIN_GREY_VALUES:
        raise BadInputError(
            f"{path}: holds fewer than {MIN_GREY_VALUES} different values, so it is a label map or a mask. Give the "
            "scan itself."
        )


def require_scan(data: np.ndarray, path: Path) -> None:
    """Refuse also what no scan of one head or brain holds (`content_problem`)."""
    require_grey_values(data, path)
    problem = content_problem(data)
    if problem is not None:
        raise BadInputError(f"{path}: {problem}. Give one scan of a head, or of a brain that is 0 around it.")


def content_problem(values: np.ndarray) -> str | None:
    """Why an image cannot be a scan of one head or brain; None if it may be.

    `values` (I, J, K) are as scaled, all of them finite and not all alike. The background is what its corners hold.
    """
    inside = values != np.median(values[:: values.shape[0] - 1, :: values.shape[1] - 1, :: values.shape[2] - 1])
    below, above = -float(values[values < 0].sum(dtype=np.float64)), float(values[values > 0].sum(dtype=np.float64))
    if below > MOST_NEGATIVE * above:
        return (
            "voxels are negative as no scan's are: a statistical map, a scan less its mean, a wrong scale factor, or "
            "numbers too large for their type"
        )
    if share_alike(values, inside) > MOST_ALIKE:
        return "neighbouring voxels have the same value, as in a label map or a mask"
    body = values[values > 0.02 * values.max()]
    if np.mean(body >= 0.99 * values.max()) > MOST_BRIGHTEST:
        return "many voxels have its highest value: a tissue probability, a mask, or a saturated scan"
    if np.mean(~inside) > _LEAST_OUTSIDE and _second_body(inside) > MOST_OF_ANOTHER:
        return "two separate bodies of similar size, where one head or brain is needed"
    return None


def share_alike(values: np.ndarray, inside: np.ndarray) -> float:
    """Share of neighbours with the same value, of those that are not both background.

    >>> line = np.array([0, 0, 1, 1, 2]).reshape(5, 1, 1)
    >>> round(share_alike(line, line != 0), 3)
    0.333
    """
    alike = counted = 0
    for axis in range(3):
        first, second = np.moveaxis(values, axis, 0)[:-1], np.moveaxis(values, axis, 0)[1:]
        there = np.moveaxis(inside, axis, 0)[:-1] | np.moveaxis(inside, axis, 0)[1:]
        alike += int(np.count_nonzero((first == second) & there))
        counted += int(np.count_nonzero(there))
    return alike / max(counted, 1)


def _second_body(inside: np.ndarray) -> float:
    """Voxels of the second largest connected part as a share of the largest; thin bridges between them are cut."""
    parts, count = scipy.ndimage.label(scipy.ndimage.binary_erosion(inside))
    sizes = np.sort(np.bincount(parts.ravel())[1:])
    return float(sizes[-2] / sizes[-1]) if count > 1 else 0.0
