"""Where a network runs."""

from __future__ import annotations

import torch

from pipeline.run.config import TrainingConfig


def chosen_device(config: TrainingConfig) -> torch.device:
    """The device of a configuration; ``auto`` takes a GPU where there is one.

    To be asked in the process that computes: the one that hands out work may be on another machine, and a process
    that has touched a GPU cannot fork workers that use it.
    """
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(config.device)
