"""Settings of grids, several scans side by side: section ``[evaluation.grids]``, of ``heatlas evaluate``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class GridsConfig:
    """How many grids are made, and how finely methods are computed in them; docs/evaluation.md.

    The defaults are those of the literature where it has any.
    """

    kinds: tuple[Literal["needle", "corner", "pair"], ...] = ("needle", "corner", "pair")
    """Which are made; with ``--quick`` never pairs."""
    per_class: int = 2
    """Scans of each class and fold that are explained in each kind of grid; with ``--quick`` half as many."""
    top: float = 0.5
    """Share of the recognised scans of each class, the most confident, that may stand in a grid."""
    layout: tuple[int, int, int] = (2, 2, 1)
    """Cells along each axis of grids of more than two cells."""
    steps: int = 20
    """Points on the path of integrated gradients."""
    masks: int = 1000
    """Random masks of RISE, each one pass of the network."""
    boxes: int = 3
    """Boxes of occlusion along each edge of a cell."""

    def checks(self) -> list[tuple[bool, str]]:
        """Checks of values: whether each passes, and the message if it fails."""
        return [
            (
                0 < len(set(self.kinds)) == len(self.kinds),
                'evaluation.grids.kinds may hold "needle", "corner" and "pair", each once, and at least one of them',
            ),
            (1 <= self.per_class <= 100_000, "evaluation.grids.per_class must lie between 1 and 100,000"),
            (0 < self.top <= 1, "evaluation.grids.top must lie above 0 and up to 1"),
            (
                min(self.layout) >= 1 and 3 <= math.prod(self.layout) <= 64,
                "evaluation.grids.layout must name three whole numbers, and 3 to 64 cells in all",
            ),
            (1 <= self.steps <= 10_000, "evaluation.grids.steps must lie between 1 and 10,000"),
            (1 <= self.masks <= 1_000_000, "evaluation.grids.masks must lie between 1 and 1,000,000"),
            (1 <= self.boxes <= 100, "evaluation.grids.boxes must lie between 1 and 100"),
        ]
