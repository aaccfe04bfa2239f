"""Running statistics of batch normalisation that are usable from the first epoch.

PyTorch starts them at mean 0 and variance 1 and forgets a tenth per step. The variance of a first convolution over
intensities in [0, 1] is a few thousandths, so the 1 outweighs it for some 80 steps: more than ten epochs of a small
cohort in which validation says nothing. Averaging the first batches with equal weight forgets the start at once.
"""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

MOMENTUM = 0.1
"""PyTorch's default: share of the newest batch in the long run."""


def prepare_step(model: nn.Module) -> None:
    """Set the share of the next batch: 1/n for batch n, never less than `MOMENTUM`."""
    for module in model.modules():
        if isinstance(module, _BatchNorm) and module.num_batches_tracked is not None:
            module.momentum = max(MOMENTUM, 1 / (int(module.num_batches_tracked) + 1))
