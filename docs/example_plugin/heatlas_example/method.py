"""A method: the settings with their ranges, and the formula."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from heatlas.pipeline.attribution.entry import Entry
from heatlas.pipeline.attribution.gradient.gradients import channel_sum, score_gradient
from heatlas.pipeline.attribution.method_settings import CheckedSettings
from heatlas.pipeline.run.config.ranges import between


@dataclass(frozen=True)
class GradientPower(CheckedSettings):
    """A power of the absolute gradient."""

    name: ClassVar[str] = "gradient-power"
    power: Annotated[float, between(1, 4)] = 2.0

    def maps(self, view):
        return channel_sum(score_gradient(view.score, view.features).abs() ** self.power)


METHOD = Entry(GradientPower, "a power of the absolute gradient")
