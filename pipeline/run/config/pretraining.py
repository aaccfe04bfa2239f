"""Settings of pre-training without labels: section ``[pretraining]``, of ``heatlas pretrain``.

They are declared here although the command is a plug-in (`studies.pretraining`), so that every run folder can be read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from heatlas.pipeline.run.config.ranges import Fraction, above, at_least, between, naming

Schedule = Literal["fixed", "cosine", "linear", "step", "random", "by-class"]


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
    drawn at random, or not at all. ``by-class``: the lowest for scans of people of `tail_classes`, the highest for all
    others; a control that reads labels."""
    tail_classes: Annotated[tuple[str, ...], naming(0, once=True)] = ()
    """Classes, such as ``AD``, whose people have the lowest temperature with ``by-class``; a person's class is that of
    the first scan with a label or a diagnosis."""
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
    long_tail: Annotated[tuple[str, ...], naming(0, once=True)] = ()
    """Classes from the most frequent to the rarest: only people of these are learned from, drawn so that their number
    falls exponentially from class to class. Empty for everybody, whatever the class."""
    long_tail_ratio: Annotated[float, between(1, 100_000)] = 1.0
    """People of the first class of `long_tail` over those of the last; 1 for as many of each."""
    without: str = ""
    """Folder of a run whose participants are left out, so that its networks can stand on this one."""

    def checks(self) -> list[tuple[bool, str]]:
        """How settings relate: whether that holds, and the message if it does not."""
        return [
            (
                self.temperature <= self.highest_temperature,
                "pretraining.highest_temperature must lie between pretraining.temperature and 100",
            ),
            (
                (self.schedule == "by-class") == bool(self.tail_classes),
                'pretraining.tail_classes and pretraining.schedule = "by-class" go together: set both or neither',
            ),
            (
                self.schedule != "by-class" or self.method in ("simclr", "moco"),
                'pretraining.schedule = "by-class" needs pretraining.method = "simclr" or "moco": others have no '
                "temperature",
            ),
            (
                len(self.long_tail) != 1 and (len(self.long_tail) > 1 or self.long_tail_ratio == 1),
                "pretraining.long_tail must name two classes or more where pretraining.long_tail_ratio is to count",
            ),
        ]
