"""Settings of pre-training without labels: section ``[pretraining]``, of ``heatlas pretrain``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from heatlas.pipeline.run.config.ranges import Fraction, above, at_least, between

Schedule = Literal["fixed", "cosine", "linear", "step", "random"]


@dataclass(frozen=True)
class PretrainingConfig:
    """How a network learns from scans without labels."""

    method: Literal["simclr", "moco", "byol", "dino", "masked"] = "simclr"
    """What is compared: two views of a scan with those of the other scans of the batch (simclr), also with earlier ones
    (moco), or with a slowly moving copy of the network alone (byol, dino); or hidden patches of a scan with what the
    network restores (masked; vit only)."""
    temperature: Annotated[float, above(0)] = 0.1
    """Temperature of the similarities of simclr and moco; the lowest one of a schedule."""
    highest_temperature: Annotated[float, above(0, up_to=100)] = 1.0
    """Highest temperature of a schedule."""
    schedule: Schedule = "cosine"
    """How the temperature changes from epoch to epoch: between its bounds as a cosine, in straight lines or in steps,
    drawn at random, or not at all."""
    period_epochs: Annotated[float, at_least(0)] = 0.0
    """Period of a schedule in epochs; 0 for the one with which the last epoch is at 0.7 of the fifth period, on the way
    up again."""
    dimensions: Annotated[int, between(2, 8192)] = 64
    """Dimensions of the embeddings that are compared; for dino, the number of its prototypes."""
    queue: Annotated[int, at_least(0)] = 0
    """Earlier embeddings that moco compares with, fewer than there are scans; 0 for half as many as scans."""
    momentum: Fraction = 0.99
    """Share of the moving copy that stays at each step; of a schedule, in the first epoch."""
    momentum_schedule: Literal["fixed", "cosine"] = "fixed"
    """Whether `momentum` stays, as is usual for moco, or rises as a cosine towards 1 over the epochs, as published for
    byol and dino."""
    masking_ratio: Annotated[float, above(0, below=1)] = 0.75
    """Share of the patches of a scan that masked hides."""
    without: str = ""
    """Folder of a run whose participants are left out, so that its networks can stand on this one."""

    def checks(self) -> list[tuple[bool, str]]:
        """How settings relate: whether that holds, and the message if it does not."""
        return [
            (
                self.temperature <= self.highest_temperature,
                "pretraining.highest_temperature must lie between pretraining.temperature and 100",
            )
        ]
