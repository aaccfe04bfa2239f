"""Where a network runs."""

from __future__ import annotations

import torch

from heatlas.pipeline.run.config.settings import TrainingConfig
from heatlas.pipeline.run.errors import UsageError


def chosen_device(config: TrainingConfig) -> torch.device:
    """The device of a configuration; ``auto`` takes a GPU where there is one.

    To be asked in the process that computes: the one that hands out work may be on another machine, and a process
    that has touched a GPU cannot fork workers that use it.
    """
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(config.device)


def require_device(config: TrainingConfig) -> None:
    """Refuse a configured GPU that this machine does not have.

    Raises
    ------
    UsageError
    """
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            'training.device = "cuda": no usable GPU on this machine. Set "auto" or "cpu", or give the --executor '
            "whose workers have one."
        )
