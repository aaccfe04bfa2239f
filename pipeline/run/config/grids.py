"""Settings of grids, several scans side by side: section ``[evaluation.grids]``, of ``heatlas evaluate``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from heatlas.pipeline.run.config.ranges import above, at_least, between, naming


@dataclass(frozen=True)
class GridsConfig:
    """How many grids are made, and how finely methods are computed in them; docs/evaluation.md.

    The defaults are those of the literature where it has any.
    """

    kinds: Annotated[tuple[Literal["needle", "corner", "pair"], ...], naming(1, "kind", once=True)] = (
        "needle",
        "corner",
        "pair",
    )
    """Which are made; with ``--quick`` never pairs."""
    per_class: Annotated[int, between(1, 100_000)] = 2
    """Scans of each class and fold that are explained in each kind of grid; with ``--quick`` half as many."""
    top: Annotated[float, above(0, up_to=1)] = 0.5
    """Share of the recognised scans of each class, the most confident, that may stand in a grid."""
    layout: Annotated[tuple[int, int, int], at_least(1)] = (2, 2, 1)
    """Cells along each axis of grids of more than two cells."""
    steps: Annotated[int, between(1, 10_000)] = 20
    """Points on the path of integrated gradients."""
    masks: Annotated[int, between(1, 1_000_000)] = 1000
    """Random masks of RISE, each one pass of the network."""
    boxes: Annotated[int, between(1, 100)] = 3
    """Boxes of occlusion along each edge of a cell."""

    def checks(self) -> list[tuple[bool, str]]:
        """How settings relate: whether that holds, and the message if it does not."""
        cells = math.prod(self.layout)
        return [(3 <= cells <= 64, "evaluation.grids.layout must name three whole numbers, and 3 to 64 cells in all")]
