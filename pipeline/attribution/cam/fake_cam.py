"""Fake-CAM (Poppi et al. 2021): a constant map, to expose metrics that reward it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from heatlas.pipeline.attribution.network_view import NetworkView


@dataclass(frozen=True)
class FakeCam:
    """1 everywhere and 0 in the first voxel, whatever the network and the volume.

    A control, not an explanation: a metric that rates it highly cannot distinguish maps. It is made at the boundary
    like any other map, so the zero covers a corner if upsampled from a later stage; use stage 0 for the published map.
    """

    name: ClassVar[str] = "fake-cam"

    def maps(self, view: NetworkView) -> Tensor:
        volumes, _, *grid = view.features.shape
        constant = view.features.new_ones(volumes, 1, *grid)
        constant[:, :, 0, 0, 0] = 0
        return constant
