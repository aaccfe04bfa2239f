"""Sums of a map over regions, voxel by voxel: what the sums on the device must be equal to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

REST = 0


@dataclass(frozen=True)
class Index:
    labels: np.ndarray
    numbers: tuple[int, ...]

    @property
    def n_voxels(self) -> np.ndarray:
        return np.array([int((self.labels == number).sum()) for number in self.numbers])


def index_labels(labels: np.ndarray, numbers: Sequence[int]) -> Index:
    return Index(labels, (REST, *numbers))


def region_sums(values: np.ndarray, index: Index) -> np.ndarray:
    wide = values.astype(np.float64)
    return np.array([wide[index.labels == number].sum() for number in index.numbers])
