"""What all statistics share: types of arrays, and how a test or an interval draws at random."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heatlas.pipeline.run.config.statistics import StatisticsConfig

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Indices = NDArray[np.intp]


@dataclass(frozen=True)
class Resampling:
    """How often and from what is drawn: `m` orders, flips or bootstrap draws; `confidence`: of the intervals."""

    m: int
    rng: np.random.Generator
    confidence: float = 0.95

    @classmethod
    def orders(cls, settings: StatisticsConfig, rng: np.random.Generator) -> Resampling:
        """As many permutations, or flips, as the settings say."""
        return cls(settings.permutations, rng, settings.confidence)

    @classmethod
    def draws(cls, settings: StatisticsConfig, rng: np.random.Generator) -> Resampling:
        """As many bootstrap draws as the settings say."""
        return cls(settings.bootstrap_samples, rng, settings.confidence)
