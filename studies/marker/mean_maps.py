"""Mean maps of trainings that are compared: where their positive attribution lies, over the same people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heatlas.atlases.images import write_template_image
from heatlas.pipeline.evaluation.scores.localisation import energy
from heatlas.pipeline.models.inputs import NetworkInput, from_network
from heatlas.pipeline.regions.maps import read_map


class MeanEnergyMap:
    """Mean of the `energy` of maps that have positive values: its sum over a mask is the mean EPG.

    `spec`: input of the networks, whose maps have its shape.
    """

    def __init__(self, spec: NetworkInput) -> None:
        self._spec, self._sum, self._count = spec, np.zeros(spec.shape), 0

    def add(self, values: NDArray[np.floating]) -> None:
        """Add one map, of shape ``spec.shape``."""
        share = energy(values)
        self._sum += share
        self._count += bool(share.any())

    def write(self, path: Path, title: str) -> None:
        """Write the mean on the template grid."""
        mean = from_network(self._sum / max(self._count, 1), self._spec)
        write_template_image(path, mean, self._spec.template_grid, title)


def write_pooled(path: Path, folds: Sequence[tuple[Path, int]], spec: NetworkInput, title: str) -> None:
    """Write the mean over people of several folds, each a mean map and its number of people.

    Raises BadInputError if a map cannot be read.
    """
    grid, people = spec.template_grid, max(sum(count for _, count in folds), 1)
    mean = np.zeros(grid.shape)
    for file, count in folds:
        mean += read_map(file, grid).astype(np.float64) * count / people
    path.parent.mkdir(parents=True, exist_ok=True)
    write_template_image(path, mean, grid, title)
