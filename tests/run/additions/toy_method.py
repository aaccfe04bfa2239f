"""A method in one file: its settings with their range, and its formula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from heatlas.pipeline.attribution.gradient.gradients import channel_sum, score_gradient
from heatlas.pipeline.attribution.method_settings import CheckedSettings
from heatlas.pipeline.attribution.network_view import NetworkView
from heatlas.pipeline.run.config.ranges import between


@dataclass(frozen=True)
class ToyMap(CheckedSettings):
    """A power of the absolute gradient."""

    name: ClassVar[str] = "toy-map"

    power: Annotated[float, between(1, 4)] = 1.0
    """Exponent of the gradient."""

    def maps(self, view: NetworkView) -> Tensor:
        return channel_sum(score_gradient(view.score, view.features).abs() ** self.power)
