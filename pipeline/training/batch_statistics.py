"""Running statistics of batch normalisation that are usable from the first epoch.

PyTorch initialises them with mean 0 and variance 1 and updates them with momentum 0.1. The variance of a first
convolution over intensities in [0, 1] is a few thousandths, so the initial 1 dominates for some 80 steps: more than ten
epochs of a small cohort in which validation is meaningless. Averaging the first batches with equal weight avoids this.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from heatlas.pipeline.models.dynamic import DynamicLinear, calibrate, needs_calibration
from heatlas.pipeline.run.work.host import on_host

MOMENTUM = 0.1
"""PyTorch's default."""
SETTLED = "momentum_is_settled"
"""Attribute of a module that has seen so many batches."""


def prepare_step(model: nn.Module) -> None:
    """Set the momentum for the next batch: 1/n for batch n, at least `MOMENTUM`."""
    warming = [module for module in model.modules() if _counts(module) and not getattr(module, SETTLED, False)]
    if not warming:
        return
    counts = on_host(torch.stack([torch.as_tensor(module.num_batches_tracked) for module in warming])).tolist()
    for module, count in zip(warming, counts, strict=True):
        module.momentum = max(MOMENTUM, 1 / (count + 1))
        if count + 1 >= 1 / MOMENTUM:  # a count only grows: no need to wait for a GPU to tell it again
            setattr(module, SETTLED, True)


def _counts(module: nn.Module) -> bool:
    """Whether a module has running statistics, and counts its batches."""
    return isinstance(module, _BatchNorm | DynamicLinear) and getattr(module, "num_batches_tracked", None) is not None


def take_constants(model: nn.Module, volumes: Tensor) -> None:
    """Let the constants that a network with fresh weights takes from data be those of volumes (B, 1, D, H, W)."""
    if needs_calibration(model):
        prepare_step(model)
        calibrate(model.train(), volumes)
