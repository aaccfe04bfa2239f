"""Augmentation beyond flips and shifts, with MONAI's transforms, on the training device.

Affine transforms, a smooth bias field, gamma, noise and cut-out (the cubes of DeVries & Taylor 2017), in this order.
The augmentation of a scan depends on the seed, the epoch and its position in the training part, not on its batch.
"""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import numpy as np
import torch

from heatlas.pipeline.run.config.settings import AugmentationConfig
from heatlas.pipeline.run.work.seeds import derived_seed


class FurtherAugmentation:
    """The transforms of one epoch."""

    def __init__(self, config: AugmentationConfig, seed: int, epoch: int) -> None:
        self._config, self._seed, self._epoch = config, seed, epoch
        self._moving: Any = None
        self._changing: Any = None

    def __call__(self, volumes: torch.Tensor, scans: np.ndarray, views: np.ndarray | None = None) -> torch.Tensor:
        """Transform volumes.

        `volumes`: (B, C, D, H, W), intensities in [0, 1]; the background is and stays exactly 0. `scans`: (B,),
        positions in the training part. `views`: (B,), which view of the scan each is, from 0.
        """
        if not self._config.is_on:
            return volumes
        if self._moving is None:
            self._moving, self._changing = transforms_of(self._config, volumes.device)
        results = []
        numbers = np.zeros(len(volumes), int) if views is None else views
        for volume, scan, view in zip(volumes, scans, numbers, strict=True):
            names: tuple[str | int, ...] = ("view", int(view)) if view else ()
            seed = derived_seed(self._seed, "augmentation", self._epoch, int(scan), *names)
            moved = self._moving.set_random_state(seed)(volume.clone())  # cut-out works in place
            changed = self._changing.set_random_state(seed + 1)(moved)
            shown, here = (_plain(one).to(volume) for one in (changed, moved))  # some transforms leave the device
            results.append(torch.where(here == 0, 0.0, shown))
        return torch.stack(results)


def _plain(volume: torch.Tensor) -> torch.Tensor:
    """Remove MONAI's metadata."""
    return volume.as_tensor() if hasattr(volume, "as_tensor") else volume


def transforms_of(config: AugmentationConfig, device: torch.device) -> tuple[Any, Any]:
    """The enabled transforms of a (C, D, H, W) volume: spatial ones, and those of intensity.

    Both are a `monai.transforms.Compose`.
    """
    transforms: Any = import_module("monai.transforms")  # takes seconds, so imported only when needed

    angle = math.radians(config.rotation_degrees)
    known: dict[str, Any] = {
        "affine": lambda p: transforms.RandAffine(
            prob=p, rotate_range=[angle] * 3, scale_range=[config.scaling] * 3, padding_mode="zeros",
            mode="bilinear", device=device,
        ),
        "bias_field": lambda p: transforms.RandBiasField(
            prob=p, coeff_range=(-config.bias_field_strength, config.bias_field_strength)
        ),
        "contrast": lambda p: transforms.RandAdjustContrast(prob=p, gamma=config.gamma),
        "noise": lambda p: transforms.RandGaussianNoise(prob=p, std=config.noise_sd),
        "cutout": lambda p: transforms.RandCoarseDropout(
            prob=p, holes=config.cutout_count, spatial_size=config.cutout_voxels, fill_value=0.0
        ),
    }  # fmt: skip
    made = {name: make(p) for name, make in known.items() if (p := getattr(config, f"{name}_probability")) > 0}
    moving = [made.pop("affine")] if "affine" in made else []
    return transforms.Compose(moving), transforms.Compose(list(made.values()))
