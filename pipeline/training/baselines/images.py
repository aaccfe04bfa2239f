"""What baselines see of an image: regions, a coarse smoothed image, and what an untrained network makes of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from heatlas.pipeline.models.inputs import NetworkInput, read_channels
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.training.baselines.untrained import random_features

Floats = NDArray[np.float64]
FWHM_MM = 8.0
COARSE_MM = 4.0
"""Voxels of the smoothed image: half its FWHM, so that sampling loses next to nothing. And of the untrained network."""


@dataclass(frozen=True, eq=False)
class ImageFeatures:
    """What the baselines see of one scan.

    `means`, `spreads`: (kinds of images * regions,), of the regions with voxels on the grid, in the order of their
    numbers; of the first kind of image first. `smoothed`: flat, inside what the network sees. `untrained`: features by
    an untrained network.
    """

    means: Floats
    spreads: Floats
    smoothed: NDArray[np.float32]
    untrained: NDArray[np.float32]


def image_features(files: ScanFiles, spec: NetworkInput, atlas: PackedAtlas) -> ImageFeatures:
    """Read a registered scan as the network sees it, standardise it within the brain, and summarise it.

    Raises BadInputError if the scan cannot be read; see `pipeline.models.inputs.read_channels`.
    """
    volumes, labels = [standardised(one) for one in read_channels(files, spec)], atlas.labels_in(spec.box)
    voxel_mm = min(spec.template_grid.voxel_sizes_mm)
    means, spreads = zip(*(by_region(one, labels) for one in volumes), strict=True)
    coarse = [smoothed(one, voxel_mm) for one in volumes]
    features = random_features(np.stack([coarsened(one, voxel_mm) for one in volumes]))
    return ImageFeatures(np.concatenate(means), np.concatenate(spreads), np.concatenate(coarse), features)


def standardised(volume: NDArray[np.float32]) -> NDArray[np.float32]:
    """Intensities less their mean over the brain, divided by their standard deviation there; 0 outside.

    The scale of a network's input is that of the brightest voxel, which says little of the tissue.
    """
    brain = volume > 0
    scaled = np.zeros_like(volume)
    inside = volume[brain].astype(np.float64)
    scaled[brain] = (inside - inside.mean()) / (inside.std() or 1.0)
    return scaled


def by_region(volume: NDArray[np.float32], labels: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Mean and standard deviation in each label above 0, in the order of their numbers.

    Examples
    --------
    >>> by_region(np.array([1.0, 3.0, 5.0, 9.0], np.float32), np.array([2, 2, 0, 7]))
    (array([2., 9.]), array([1., 0.]))
    """
    _, place = np.unique(labels.ravel(), return_inverse=True)
    values = volume.ravel().astype(np.float64)
    counts = np.bincount(place)
    means = np.bincount(place, values) / counts
    variance = np.bincount(place, values**2) / counts - means**2
    first = int((labels == 0).any())
    return means[first:], np.sqrt(np.clip(variance, 0, None))[first:]


def smoothed(volume: NDArray[np.float32], voxel_mm: float) -> NDArray[np.float32]:
    """The volume smoothed to a full width at half maximum of `FWHM_MM`, every `COARSE_MM`, flat."""
    wide = gaussian_filter(volume, FWHM_MM / voxel_mm / np.sqrt(8 * np.log(2)), mode="constant")
    step = _step(voxel_mm)
    return np.ascontiguousarray(wide[::step, ::step, ::step]).ravel().astype(np.float32)


def coarsened(volume: NDArray[np.float32], voxel_mm: float) -> NDArray[np.float32]:
    """Means over cubes of about `COARSE_MM`; voxels that fill no cube are left out.

    Examples
    --------
    >>> coarsened(np.arange(8, dtype=np.float32).reshape(2, 2, 2), 2.0).tolist()
    [[[3.5]]]
    """
    step = _step(voxel_mm)
    sides = [side // step for side in volume.shape]
    whole = volume[tuple(slice(side * step) for side in sides)]
    cubes: NDArray[np.float32] = whole.reshape(sides[0], step, sides[1], step, sides[2], step).mean(axis=(1, 3, 5))
    return cubes


def _step(voxel_mm: float) -> int:
    return max(round(COARSE_MM / voxel_mm), 1)
