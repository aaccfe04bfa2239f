"""A small problem with a known answer: the positive class has a brighter blob."""

from __future__ import annotations

import numpy as np
import torch

from heatlas.pipeline.models.families.founding import FoundingCNN
from heatlas.pipeline.run.config.settings import TrainingConfig
from heatlas.pipeline.training.volumes import STORED, LabelledVolumes

SHAPE = (22, 26, 24)
QUICK = TrainingConfig(
    learning_rate=1e-2, max_epochs=10, min_epochs=2, patience=8, flip_probability=0.5, max_shift_voxels=1
)


def planted_volumes(count: int, seed: int, shuffled: bool = False) -> LabelledVolumes:
    """Noise, brighter in one place for the second half of the scans; labels shuffled on request."""
    random = np.random.default_rng(seed)
    targets = np.repeat([0, 1], [count // 2, count - count // 2])
    values = random.normal(0.4, 0.08, (count, *SHAPE))
    values[targets == 1, 8:14, 9:16, 10:16] += 0.25
    if shuffled:
        random.shuffle(targets)
    return LabelledVolumes(torch.from_numpy(values.clip(0, 1)[:, None]).to(STORED), torch.from_numpy(targets))


def small_network(seed: int = 0) -> FoundingCNN:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return FoundingCNN(SHAPE, channels=(4, 6, 8), pools=(2, 2, 2), hidden_units=16, dropout=0.2)
