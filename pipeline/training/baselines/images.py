"""What simple predictors see of an image: regions, a smoothed image, and what an untrained network makes of it.

The untrained network is after un-CNN 1.0.0 (bioRxiv 2026.06.07.730652): 3D convolutions with weights drawn once, at
four scales, two full ones at first, then depthwise and pointwise ones in turns; group normalisation, ReLU, mean
pooling; of each scale the means of its channels in the eight octants and the covariances of its first 32. Unlike there:
a quarter of the channels, voxels of 4 mm instead of 2, the image alone without its local median and its edges, and a
ridge instead of a random forest. A trained network that is no better has learned nothing that random filters and a
ridge do not know.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from heatlas.pipeline.models.inputs import NetworkInput, read_channels
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.work.seeds import generator

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float64]
FWHM_MM = 8.0
COARSE_MM = 4.0
"""Voxels of the smoothed image: half its FWHM, so that sampling loses next to nothing. And of the untrained network."""
CHANNELS = (16, 32, 64, 128)
NORM_GROUPS = 8
OF_COVARIANCE = 32
EDGE = 3


@dataclass(frozen=True, eq=False)
class ImageFeatures:
    """What the baselines see of one scan.

    `means`, `spreads`: (kinds of images * regions,), of the regions with voxels on the grid, in the order of their
    numbers. `smoothed`: flat, inside what the network sees.
    """

    means: Floats
    spreads: Floats
    smoothed: NDArray[np.float32]
    untrained: NDArray[np.float32]


def image_features(files: ScanFiles, spec: NetworkInput, atlas: PackedAtlas) -> ImageFeatures:
    """Read a registered scan as the network sees it, standardise it within the brain, and summarise it."""
    volumes, labels = [standardised(image) for image in read_channels(files, spec)], atlas.labels_in(spec.box)
    voxel_mm = min(spec.template_grid.voxel_sizes_mm)
    means, spreads = zip(*(by_region(volume, labels) for volume in volumes), strict=True)
    coarse = [smoothed(volume, voxel_mm) for volume in volumes]
    features = random_features(np.stack([coarsened(volume, voxel_mm) for volume in volumes]))
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


@lru_cache(maxsize=2)
def random_weights(images: int) -> tuple[tuple[Tensor, ...], ...]:
    """Weights of each scale, the same in every run: full, or depthwise and pointwise in turns.

    Normal, with a variance of 2 / inputs of a filter (He et al. 2015), so that no scale fades.
    """
    import torch

    rng, before, scales = generator(0, "untrained network"), images, []

    def drawn(*shape: int) -> Tensor:
        values = rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))
        return torch.from_numpy(values.astype(np.float32))

    for place, width in enumerate(CHANNELS):
        filters = []
        for inputs in (before, width):
            if place == 0:
                filters.append(drawn(width, inputs, EDGE, EDGE, EDGE))
            else:
                filters += [drawn(inputs, 1, EDGE, EDGE, EDGE), drawn(width, inputs, 1, 1, 1)]
        scales.append(tuple(filters))
        before = width
    return tuple(scales)


def random_features(volumes: NDArray[np.float32]) -> NDArray[np.float32]:
    """Features (3528,) of one scan (images, X, Y, Z), standardised, with voxels of about 4 mm.

    Of each scale the means of its channels in octants, then covariances of its first 32 channels, 16 of the first.
    """
    import torch

    with torch.inference_mode():
        values = torch.from_numpy(np.ascontiguousarray(volumes))[None]
        return torch.cat(list(_scales(values))).numpy()


def _scales(values: Tensor) -> Iterator[Tensor]:
    from torch.nn import functional

    for filters in random_weights(values.shape[1]):
        for weights in filters:
            depthwise = len(filters) == 4 and weights.shape[1] == 1
            groups = len(weights) if depthwise else 1
            values = functional.conv3d(values, weights, padding=weights.shape[2] // 2, groups=groups)
            if not depthwise:
                values = functional.relu(functional.group_norm(values, NORM_GROUPS))
        halved = [min(side, 2) for side in values.shape[2:]]  # a side of one voxel stays
        values = functional.avg_pool3d(values, halved, ceil_mode=True)
        yield functional.adaptive_avg_pool3d(values, 2).flatten()
        yield covariances(values[0, :OF_COVARIANCE].flatten(1))


def covariances(values: Tensor) -> Tensor:
    """Mean products of the deviations of rows (channels, voxels), each pair once, row by row; 0 of one voxel.

    Examples
    --------
    >>> import torch
    >>> covariances(torch.tensor([[1.0, 3.0], [2.0, 6.0], [1.0, -1.0]])).tolist()
    [2.0, -1.0, -2.0]
    """
    import torch

    first, second = torch.triu_indices(len(values), len(values), offset=1)
    return torch.cov(values, correction=0)[first, second]
