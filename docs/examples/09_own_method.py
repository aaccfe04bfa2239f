"""
A method of your own
====================

A method is the record of its settings and a formula; the engine does the rest. Installed as a plug-in, it is a
method like any other: of ``heatlas explain``, of a run and of ``heatlas evaluate`` (see the page on plug-ins).
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import matplotlib.pyplot as plt
import torch

import heatlas
from heatlas.pipeline.attribution.gradient.gradients import channel_sum, score_gradient
from heatlas.pipeline.attribution.method_settings import CheckedSettings
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.run.config.ranges import between


@dataclass(frozen=True)
class GradientPower(CheckedSettings):
    """A power of the absolute gradient."""

    name: ClassVar[str] = "gradient-power"
    power: Annotated[float, between(1, 4)] = 2.0

    def maps(self, view):
        return channel_sum(score_gradient(view.score, view.features).abs() ** self.power)


run = heatlas.open("../../demo/run")
patient = run.predictions.query("label == 'AD'")["participant_id"].iloc[0]
volume = torch.from_numpy(run.image(patient).get_fdata(dtype="float32"))[None, None]
found = attribute(run.network(patient), volume, 1, GradientPower(power=1.0))
plt.imshow(found.values[0, 0, :, :, volume.shape[-1] // 3].T, origin="lower", cmap="magma")
plt.axis("off")
