"""Running statistics of batch normalisation that are usable from the first epoch.

PyTorch initialises them with mean 0 and variance 1 and updates them with momentum 0.1. The variance of a first
convolution over intensities in [0, 1] is a few thousandths, so the initial 1 dominates for some 80 steps: more than ten
epochs of a small cohort in which validation is meaningless. Averaging the first batches with equal weight avoids this.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from heatlas.pipeline.models.dynamic.calibration import calibrate, needs_calibration
from heatlas.pipeline.models.dynamic.norms import RUNNING, DynamicNorm

MOMENTUM = 0.1
"""PyTorch's default."""


def prepare_step(model: nn.Module) -> None:
    """Set the momentum for the next batch: 1/n for batch n, at least `MOMENTUM`."""
    for module in model.modules():
        tracked = None
        if isinstance(module, _BatchNorm) or (isinstance(module, DynamicNorm) and module.kind in RUNNING):
            tracked = module.num_batches_tracked
        if tracked is not None:
            module.momentum = max(MOMENTUM, 1 / (int(tracked) + 1))  # type: ignore[assignment]


def take_constants(model: nn.Module, volumes: Tensor) -> None:
    """Let the constants that a network with fresh weights takes from data be those of volumes (B, 1, D, H, W)."""
    if needs_calibration(model):
        prepare_step(model)
        calibrate(model.train(), volumes)
