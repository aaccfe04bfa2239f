"""What learns in pre-training: the backbone, a head that is thrown away, and for some methods a moving copy of both."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from heatlas.pipeline.run.config.networks import PretrainingConfig
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
    """A network that learns without labels.

    `stages`: of the backbone; they are not copied. `channels`: that the backbone gives. `queue`: keys that moco keeps.
    `dynamic`: whether the backbone is dynamic linear.
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
