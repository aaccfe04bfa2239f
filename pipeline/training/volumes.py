"""The volumes of a training part, and how they are augmented.

Registered scans are decompressed once for all folds (`pipeline.models.kept_volumes`), and lie in the memory of a GPU
where they fit; else they are read batch by batch. Volumes have shape (B, C, D, H, W), with D the left-right axis (RAS+:
index grows to the right). Channels move together.

The founding study flips along the left-right axis and shifts. Further augmentation has MONAI's transforms, on the
training device: affine ones, a smooth bias field, gamma, noise and cut-out (the cubes of DeVries & Taylor 2017), in
this order. That of a scan depends on the seed, the epoch and its position in the training part, not on its batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from heatlas.pipeline.models.inputs import NetworkInput
from heatlas.pipeline.models.kept_volumes import STORED, KeptVolumes, keep_volumes
from heatlas.pipeline.run.config.settings import AugmentationConfig, TrainingConfig
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.work.seeds import derived_seed

SHARE_OF_GPU = 0.5
"""Largest share of the free memory of a GPU for volumes; the rest is for the network."""


@dataclass(frozen=True)
class LabelledVolumes:
    """Volumes (N, C, D, H, W) and their targets (N,), on the same device.

    Targets are class numbers (int64; for two classes 0 negative, 1 positive), or numbers (float32).
    """

    volumes: torch.Tensor | KeptVolumes
    targets: torch.Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, indices: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Volumes (B, C, D, H, W), float16, and targets (B,) of these scans."""
        places = torch.as_tensor(indices)  # of files, they are used here
        chosen = places.to(self.targets.device)
        volumes = self.volumes[places if isinstance(self.volumes, KeptVolumes) else chosen]
        return volumes, self.targets[chosen]


def load_volumes(
    files: Sequence[ScanFiles],
    targets: torch.Tensor,
    spec: NetworkInput,
    folder: Path,
    device: torch.device,
    threads: int,
) -> LabelledVolumes:
    """Registered scans for training.

    `folder`: for uncompressed volumes, on the disk of the run. `threads`: files read at a time.
    """
    kept = keep_volumes(files, spec, folder, device, threads)
    if device.type != "cuda" or kept.bytes > SHARE_OF_GPU * torch.cuda.mem_get_info(device)[0]:
        return LabelledVolumes(kept, targets.to(device))
    volumes = torch.empty(kept.shape, dtype=STORED, device=device)
    for place in range(len(kept)):
        volumes[place] = kept[place : place + 1][0]
    return LabelledVolumes(volumes, targets.to(device))


@torch.no_grad()
def answered_by(teacher: nn.Module, volumes: LabelledVolumes, size: int) -> LabelledVolumes:
    """The volumes with the classes that a teacher finds, `size` asked at a time."""
    like = next(teacher.parameters())
    parts = (volumes.volumes[start : start + size] for start in range(0, len(volumes), size))
    return replace(volumes, targets=torch.cat([teacher(part.to(like)).argmax(1) for part in parts]))


LEFT_RIGHT = 1
"""Left-right axis of a single (C, D, H, W) volume."""


def flip_and_shift(volumes: torch.Tensor, flips: Sequence[bool], shifts: Sequence[int]) -> torch.Tensor:
    """Mirror chosen volumes (B, C, D, H, W) left-right, then move each by whole voxels to the right; 0 comes in."""
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


class FurtherAugmentation:
    """The transforms of one epoch."""

    def __init__(self, config: AugmentationConfig, seed: int, epoch: int) -> None:
        self._config, self._seed, self._epoch = config, seed, epoch
        self._moving: Any = None
        self._changing: Any = None

    def __call__(self, volumes: torch.Tensor, scans: np.ndarray, views: np.ndarray | None = None) -> torch.Tensor:
        """Transform volumes (B, C, D, H, W) in [0, 1]; the background is and stays exactly 0.

        `scans`: (B,), positions in the training part. `views`: (B,), which view of the scan each is, from 0.
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
    return volume.as_tensor() if hasattr(volume, "as_tensor") else volume


def transforms_of(config: AugmentationConfig, device: torch.device) -> tuple[Any, Any]:
    """The enabled transforms of a (C, D, H, W) volume, composed: spatial ones, and those of intensity."""
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
