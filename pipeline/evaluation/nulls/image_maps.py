"""Maps without any network: what a score must tell from an explanation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from heatlas.pipeline.run.work.seeds import generator

Volume = NDArray[np.float32]

UNIFORM, RANDOM, FAKE_CAM, EDGES, DIFFERENCE = "uniform", "random", "fakeCamImage", "edges", "scanDifference"
IMAGE_MAPS: Mapping[str, str] = {
    UNIFORM: "1 everywhere",
    RANDOM: "Gaussian noise, drawn for each scan",
    FAKE_CAM: "1 everywhere, 0 in one corner (Poppi et al. 2021)",
    EDGES: "magnitude of the gradient of the image (Gaussian, 1 voxel)",
    DIFFERENCE: "|scan - mean of the training controls of its fold|, as the network sees them",
}
"""By name of the map, which is that of no method (`fake-cam` makes ``fakeCam``): what it is."""


def image_maps(volume: Volume, mean_control: Volume | None, seed: int, scan: str) -> dict[str, Volume]:
    """All of `IMAGE_MAPS` of one scan.

    Parameters
    ----------
    volume : array, shape (D, H, W)
        What a network sees of the scan.
    mean_control : array of the same shape, or None
        None where a fold has no training control: there is no difference map then.
    seed : int
    scan : str
        Names the stream of random numbers.
    """
    uniform = np.ones_like(volume)
    fake = uniform.copy()
    fake[0, 0, 0] = 0
    maps = {
        UNIFORM: uniform,
        RANDOM: generator(seed, "random-map", scan).standard_normal(volume.shape, dtype=np.float32),
        FAKE_CAM: fake,
        EDGES: ndimage.gaussian_gradient_magnitude(volume, 1.0).astype(np.float32),
    }
    return maps if mean_control is None else maps | {DIFFERENCE: np.abs(volume - mean_control)}
