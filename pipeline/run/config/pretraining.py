"""Settings of pre-training without labels: section ``[pretraining]``, of ``heatlas pretrain``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Schedule = Literal["fixed", "cosine", "linear", "step", "random"]


@dataclass(frozen=True)
class PretrainingConfig:
    """How a network learns from scans without labels."""

    method: Literal["simclr", "moco", "byol", "dino", "masked"] = "simclr"
    """What is compared: two views of a scan with those of the other scans of the batch (simclr), also with earlier ones
    (moco), or with a slowly moving copy of the network alone (byol, dino); or hidden patches of a scan with what the
    network restores (masked; vit only)."""
    temperature: float = 0.1
    """Of the similarities of simclr and moco; the lowest one of a schedule."""
    highest_temperature: float = 1.0
    """Of a schedule."""
    schedule: Schedule = "cosine"
    """How the temperature changes from epoch to epoch: between its bounds as a cosine, in straight lines or in steps,
    drawn at random, or not at all."""
    period_epochs: float = 0.0
    """Of a schedule; 0 for the one with which the last epoch is at 0.7 of the fifth period, on the way up again."""
    dimensions: int = 64
    """Of the embeddings that are compared; of dino, the number of its prototypes."""
    queue: int = 0
    """Earlier embeddings that moco compares with, fewer than there are scans; 0 for half as many as scans."""
    momentum: float = 0.99
    """Of the moving copy: the share of it that stays at each step."""
    masking_ratio: float = 0.75
    """Of masked: the share of the patches of a scan that are hidden."""
    without: str = ""
    """Folder of a run whose participants are left out, so that its networks can stand on this one."""

    def checks(self) -> list[tuple[bool, str]]:
        """Checks of values: whether each passes, and the message if it fails."""
        return [
            (self.temperature > 0, "pretraining.temperature must be above 0"),
            (
                self.temperature <= self.highest_temperature <= 100,
                "pretraining.highest_temperature must lie between pretraining.temperature and 100",
            ),
            (self.period_epochs >= 0, "pretraining.period_epochs must be 0 or more"),
            (2 <= self.dimensions <= 8192, "pretraining.dimensions must lie between 2 and 8,192"),
            (self.queue >= 0, "pretraining.queue must be 0 or more"),
            (0 <= self.momentum < 1, "pretraining.momentum must lie in [0, 1)"),
            (0 < self.masking_ratio < 1, "pretraining.masking_ratio must lie between 0 and 1"),
        ]
