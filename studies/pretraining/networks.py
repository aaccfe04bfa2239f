"""What learns in pre-training: the backbone, a head that is thrown away, and for some methods a moving copy of both.

Temperatures, and the momentum of the copy, change meanwhile. A low temperature tells scans from one another, a high one
finds groups; passing from one to the other again and again helps rare groups (Kukleva, Böhle, Schiele, Kuehne &
Rupprecht 2023).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from heatlas.pipeline.run.config.networks import PretrainingConfig, Schedule
from heatlas.pipeline.run.work.seeds import generator
from heatlas.studies.bcos.layers import BcosLinear
from heatlas.studies.dynamic import DynamicNorm


class Flat(nn.Module):
    """A normalisation of volumes, of features without voxels."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.norm(x[:, :, None, None, None])
        return found.flatten(1)


def projector(before: int, after: int, dynamic: bool) -> nn.Sequential:
    """Two layers; B-cos layers without ReLU for dynamic linear backbones."""
    if dynamic:
        return nn.Sequential(BcosLinear(before, before), Flat(DynamicNorm("batch", before)), BcosLinear(before, after))
    norm = Flat(nn.BatchNorm3d(before))
    return nn.Sequential(nn.Linear(before, before, bias=False), norm, nn.ReLU(), nn.Linear(before, after))


class Embedding(nn.Module):
    """Backbone, global average pooling, projector: volumes (B, 1, D, H, W) to embeddings (B, d) of norm 1.

    Of dino, to the cosines of an embedding with as many prototypes.
    """

    def __init__(self, stages: Sequence[nn.Module], channels: int, settings: PretrainingConfig, dynamic: bool) -> None:
        super().__init__()
        self.backbone = nn.Sequential(*stages)
        self.projector = projector(channels, settings.dimensions, dynamic)
        size = settings.dimensions
        self.prototypes = nn.Parameter(torch.randn(size, size)) if settings.method == "dino" else None

    def forward(self, volumes: Tensor) -> Tensor:
        features: Tensor = self.projector(self.backbone(volumes).flatten(2).mean(2))
        embeddings = functional.normalize(features.float(), dim=1)
        if self.prototypes is None:
            return embeddings
        return embeddings @ functional.normalize(self.prototypes, dim=1).T


class Pretraining(nn.Module):
    """A network that learns without labels, with the stages of a backbone, which are not copied.

    `channels`: that the backbone gives. `queue`: keys that moco keeps. `dynamic`: whether the backbone is dynamic
    linear.
    """

    queue: Tensor
    queued: Tensor
    centre: Tensor

    def __init__(
        self, stages: Sequence[nn.Module], channels: int, settings: PretrainingConfig, queue: int, dynamic: bool
    ) -> None:
        super().__init__()
        self.method, self.momentum = settings.method, settings.momentum
        self.learner = Embedding(stages, channels, settings, dynamic)
        self.copy: Embedding | None = None
        self.predictor: nn.Module | None = None
        size = settings.dimensions
        if self.method != "simclr":
            self.copy = copy.deepcopy(self.learner).requires_grad_(False)
        if self.method == "byol":
            self.predictor = projector(size, size, dynamic)
        if self.method == "dino":
            self.register_buffer("centre", torch.zeros(size))
        if self.method == "moco":
            self.register_buffer("queue", torch.zeros(queue, size))
            self.register_buffer("queued", torch.full((queue,), -1))

    def forward(self, volumes: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings (B, d) that learn, and those of the moving copy, or again the first where there is none.

        In training the copy first moves towards the network by ``momentum``, which the objective may change.
        """
        learning: Tensor = self.learner(volumes)
        if self.predictor is not None:
            learning = functional.normalize(self.predictor(learning).float(), dim=1)
        if self.copy is None:
            return learning, learning
        with torch.no_grad():
            if self.training:
                self.move()
            return learning, self.copy(volumes)

    @torch.no_grad()
    def move(self) -> None:
        """Move the copy: ``w' = m w' + (1 - m) w`` of all weights; it keeps running statistics of its own."""
        assert self.copy is not None
        for mine, given in zip(self.copy.parameters(), self.learner.parameters(), strict=True):
            mine.lerp_(given, 1 - self.momentum)

    @torch.no_grad()
    def enqueue(self, keys: Tensor, people: Tensor) -> None:
        """Add keys (B, d) and their participants at the end of the queue; as many at its beginning leave."""
        for held, new in ((self.queue, keys), (self.queued, people)):
            held.copy_(torch.cat([held, new.to(held)])[-len(held) :])


PERIODS = 4.7
"""Usual periods of a schedule from the first epoch to the last: it ends where it is best, at 0.7 of a period."""


def temperature_at(schedule: Schedule, lowest: float, highest: float, phase: float) -> float:
    """Temperature at a phase of the period: 0 and 1 are its ends.

    ``cosine``: ``(τ+ - τ-) (1 + cos 2π t/T) / 2 + τ-``; ``linear``: down to τ- in the middle, and up again; ``step``:
    τ+ in the first half, τ- in the second.

    Examples
    --------
    >>> [round(temperature_at("cosine", 0.1, 1.0, t), 3) for t in (0, 0.25, 0.5, 0.7, 1)]
    [1.0, 0.55, 0.1, 0.411, 1.0]
    """
    if schedule == "cosine":
        height = (1 + math.cos(2 * math.pi * phase)) / 2
    elif schedule == "linear":
        height = abs(1 - 2 * (phase % 1))
    else:
        height = float(phase % 1 < 0.5)
    return (highest - lowest) * height + lowest


def temperature_of(settings: PretrainingConfig, epoch: int, epochs: int, seed: int) -> float:
    """Temperature of an epoch, counted from 1; the same throughout it.

    Without a period the first epoch has the highest temperature, and the last, also an only one, that of phase 0.7.
    `seed`: for ``random``: even between the bounds. NaN for ``by-class``, where an epoch has two.
    """
    lowest, highest = settings.temperature, settings.highest_temperature
    if settings.schedule == "by-class":
        return math.nan
    if settings.schedule == "fixed":
        return lowest
    if settings.schedule == "random":
        return float(generator(seed, "temperature", epoch).uniform(lowest, highest))
    if settings.period_epochs:
        phase = (epoch - 1) / settings.period_epochs
    else:
        phase = PERIODS * (epoch - 1) / (epochs - 1) if epochs > 1 else PERIODS
    return temperature_at(settings.schedule, lowest, highest, phase)


def momentum_of(settings: PretrainingConfig, epoch: int, epochs: int) -> float:
    """Momentum of the moving copy in an epoch: ``1 - (1 - m) (1 + cos(π (epoch - 1) / epochs)) / 2``, a cosine up to 1.

    The published schedule changes with each step (Grill et al. 2020; Caron et al. 2021).

    Examples
    --------
    >>> settings = PretrainingConfig(momentum=0.9, momentum_schedule="cosine")
    >>> [round(momentum_of(settings, epoch, 4), 4) for epoch in (1, 3, 4)]
    [0.9, 0.95, 0.9854]
    """
    return 1 - (1 - settings.momentum) * (1 + math.cos(math.pi * (epoch - 1) / epochs)) / 2
