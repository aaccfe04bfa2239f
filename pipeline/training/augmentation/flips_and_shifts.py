"""Augmentation of the founding study: sagittal flip and shift along the left-right axis.

Volumes have shape (B, C, D, H, W), with D the left-right axis (RAS+: index grows to the right). Channels move together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from heatlas.pipeline.run.config.settings import TrainingConfig

LEFT_RIGHT = 1
"""Left-right axis of a single (C, D, H, W) volume."""


def flip_and_shift(volumes: torch.Tensor, flips: Sequence[bool], shifts: Sequence[int]) -> torch.Tensor:
    """Mirror chosen volumes left-right, then move each by whole voxels to the right.

    `volumes`: (B, C, D, H, W), not changed. `shifts`: in voxels, negative to the left; padded with 0. Returns a new
    tensor, of the same shape and type.
    """
    result = torch.zeros_like(volumes)
    for moved, volume, flip, shift in zip(result, volumes, flips, shifts, strict=True):
        source = volume.flip(LEFT_RIGHT) if flip else volume
        kept = volume.shape[LEFT_RIGHT] - abs(shift)
        if kept > 0:
            moved.narrow(LEFT_RIGHT, max(shift, 0), kept).copy_(source.narrow(LEFT_RIGHT, max(-shift, 0), kept))
    return result


def augment(volumes: torch.Tensor, config: TrainingConfig, random: np.random.Generator) -> torch.Tensor:
    """Flip each volume with probability ``flip_probability`` and shift it uniformly by -max..max voxels.

    Random numbers are drawn on the CPU, so that they are the same on every device.
    """
    count, reach = len(volumes), config.max_shift_voxels
    flips = random.random(count) < config.flip_probability
    shifts = random.integers(-reach, reach, size=count, endpoint=True)
    return flip_and_shift(volumes, flips.tolist(), shifts.tolist())
