"""Settings of the bench: section ``[evaluation]``, of ``heatlas evaluate``, with that of its grids."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class EvaluationConfig:
    """How maps are judged against the network itself."""

    scans: Annotated[int, at_least(0)] = 0
    """Positive scans of each fold with curves of insertion and deletion and repeated maps, which are slow; 0 for as
    many as make twelve in all. Average drop, gain and increase are measured in every positive scan."""
    steps: Annotated[int, between(2, 1000)] = 20
    """Steps of the curves of insertion and deletion."""
    samples: Annotated[int, between(1, 100)] = 2
    """Changed scans of max-sensitivity; each takes another map of every method."""
    shift: Annotated[int, between(0, 32)] = 0
    """Voxels by which the same scans are moved along the diagonal, forward and back, to ask whether maps move with
    them; 0 does not ask. Each method makes two more maps."""
    shifts: Annotated[tuple[int, ...], naming(0, once=True), between(0, 32)] = ()
    """The same for several shifts, such as 0 to 8, in a table of their own (``shift_curve.tsv``): how far maps depend
    on where the scan lies. Each shift makes two more maps by each method."""
    replacement: Literal["controls", "air"] = "controls"
    """What is shown in place of what is taken away: the mean of training controls, or air (0), with which Opti-CAM
    is optimised."""
    pairs: Annotated[tuple[str, ...], naming(0, once=True)] = ()
    """Pairs of bilateral groups of the atlas, such as ``Hippocampus + Entorhinal area``, that the interactions take
    away alone and together, beside the two sides of each group."""
    objective_weights: Annotated[tuple[float, ...], naming(0, once=True), between(0, 1_000_000)] = ()
    """Weights in place of `objective.weight` that ``--parts objective`` also trains networks with, as long as those of
    the run; one of all is chosen on the validation parts. None compares the networks of the run with weight 0 alone."""
    grids: GridsConfig = field(default_factory=GridsConfig)
