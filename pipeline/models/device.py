"""Where a network runs."""

from __future__ import annotations

import warnings

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
    """Refuse a configured GPU that this machine does not have, or that PyTorch cannot use."""
    if config.device != "cuda":
        return
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            return
    if torch.version.cuda is None:
        reason = "this PyTorch was built without CUDA. Install requirements-cuda.lock (make install TORCH=cuda), or set"
    elif warned:  # which names the version of the driver, in several sentences
        message = str(warned[0].message).partition(". ")[0].removeprefix("CUDA initialization: ")
        reason = f"{message}. Update the NVIDIA driver to one for CUDA {torch.version.cuda}, or set"
    else:
        reason = "no usable GPU on this machine. Set"
    raise UsageError(
        f'training.device = "cuda": {reason} "auto" or "cpu", or give the --executor whose workers have a GPU.'
    )
