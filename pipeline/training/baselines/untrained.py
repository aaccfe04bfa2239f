"""What a network that was never trained makes of an image: means and covariances of its channels.

After un-CNN 1.0.0 (bioRxiv 2026.06.07.730652), which is set against foundation models: 3D convolutions with weights
drawn once, frozen, at four scales, and a simple model on what they give. A trained network that is no better has
learned nothing that random filters and a ridge do not know. As there: the first scale has two full convolutions, each
later one two depthwise ones with pointwise ones behind, twice as many channels as before; group normalisation, ReLU,
mean pooling; of each scale the means of its channels in the eight octants and the covariances of its first 32. Unlike
there: a quarter of the channels, voxels of 4 mm instead of 2, and the image alone without its local median and its
edges, so that a scan costs a tenth of a second instead of many; a ridge instead of a random forest.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from heatlas.pipeline.run.work.seeds import generator

if TYPE_CHECKING:
    from torch import Tensor

CHANNELS = (16, 32, 64, 128)
NORM_GROUPS = 8
OF_COVARIANCE = 32
EDGE = 3


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
    """Features of one scan.

    `volumes`: (images, X, Y, Z), standardised, voxels of about 4 mm. Returns (3528,). Of each scale the means of its
    channels in octants, then covariances of its first 32 channels, 16 of the first.
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
