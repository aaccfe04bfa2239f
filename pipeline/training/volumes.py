"""The volumes of a training part: in the memory of a GPU where they fit, else read batch by batch.

Registered scans are decompressed once for all folds (`pipeline.models.kept_volumes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from heatlas.pipeline.models.inputs import NetworkInput
from heatlas.pipeline.models.kept_volumes import STORED, KeptVolumes, keep_volumes
from heatlas.pipeline.run.layout.scan_files import ScanFiles

SHARE_OF_GPU = 0.5
"""Largest share of the free memory of a GPU for volumes; the rest is for the network."""


@dataclass(frozen=True)
class LabelledVolumes:
    """Volumes and their targets.

    `volumes`: (N, C, D, H, W). `targets`: (N,), class numbers (int64; for two classes 0 negative, 1 positive) or
    numbers (float32); on the same device.
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

    `targets`: class or number of each scan. `folder`: for uncompressed volumes, on the disk of the run. `threads`:
    files read at a time. Raises BadInputError if a scan cannot be read; the message names the file. Raises OSError if
    the disk is full.
    """
    kept = keep_volumes(files, spec, folder, device, threads)
    if device.type != "cuda" or kept.bytes > SHARE_OF_GPU * torch.cuda.mem_get_info(device)[0]:
        return LabelledVolumes(kept, targets.to(device))
    volumes = torch.empty(kept.shape, dtype=STORED, device=device)
    for place in range(len(kept)):
        volumes[place] = kept[place : place + 1][0]
    return LabelledVolumes(volumes, targets.to(device))
