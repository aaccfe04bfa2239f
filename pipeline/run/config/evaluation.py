"""Settings of the bench: section ``[evaluation]``, of ``heatlas evaluate``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from heatlas.pipeline.run.config.grids import GridsConfig


@dataclass(frozen=True)
class EvaluationConfig:
    """How maps are judged against the network itself."""

    scans: int = 0
    """Positive scans of each fold with curves of insertion and deletion and repeated maps, which are slow; 0 for as
    many as make twelve in all. Average drop, gain and increase are measured in every positive scan."""
    steps: int = 20
    """Of the curves of insertion and deletion."""
    samples: int = 2
    """Changed scans of max-sensitivity; each takes another map of every method."""
    replacement: Literal["controls", "air"] = "controls"
    """What is shown in place of what is taken away: the mean of training controls, or air (0), with which Opti-CAM
    is optimised."""
    grids: GridsConfig = field(default_factory=GridsConfig)

    def checks(self) -> list[tuple[bool, str]]:
        """Checks of values: whether each passes, and the message if it fails."""
        return [
            (self.scans >= 0, "evaluation.scans must be 0 or more"),
            (2 <= self.steps <= 1000, "evaluation.steps must lie between 2 and 1,000"),
            (1 <= self.samples <= 100, "evaluation.samples must lie between 1 and 100"),
            *self.grids.checks(),
        ]
