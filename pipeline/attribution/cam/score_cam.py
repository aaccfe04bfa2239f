"""Gradient-free class activation maps: channel weights from showing or removing each channel.

Score-CAM shows the volume only where a channel is active and measures the score; Ablation-CAM removes a channel from
the features and measures the drop. Both run the network once per channel and volume, `batch` of them at a time, without
hooks or changes to the model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from heatlas.pipeline.attribution.cam.channel_maps import channel_pairs, require_channels, weighted_sum
from heatlas.pipeline.attribution.cam.map_range import by_range
from heatlas.pipeline.attribution.method_settings import CheckedSettings
from heatlas.pipeline.attribution.network_view import NetworkView
from heatlas.pipeline.attribution.perturbation.masking import Masking, mixed
from heatlas.pipeline.attribution.upsampling import to_input_grid
from heatlas.pipeline.run.config.ranges import Count


@torch.no_grad()
def increase_of_score(view: NetworkView, masking: Masking, batch: int) -> Tensor:
    """Score of the volume shown where channel k is active, minus that of the baseline (Wang et al. 2020, eq. 5).

    ``u_k = f(b + n(up(A^k)) (x - b)) - f(b)``; a constant channel shows nothing and has u = 0.

    `masking`: value of hidden voxels. `batch`: masked volumes evaluated at once. Returns (B, K).
    """
    features, volumes = view.features, view.volumes
    hidden = masking.hidden(volumes).expand_as(volumes)
    base = torch.cat([view.score_of(chunk) for chunk in torch.split(hidden, batch)])
    increases = []
    for volume, channel in channel_pairs(features, batch):
        keep = by_range(to_input_grid(features[volume, channel].unsqueeze(1), view))
        increases.append(view.score_of(mixed(volumes[volume], keep, hidden[volume])) - base[volume])
    return torch.cat(increases).view(features.shape[:2])


@torch.no_grad()
def drop_of_score(view: NetworkView, batch: int) -> Tensor:
    """Relative drop of the score without channel k, ``(y - y^(-k)) / |y|``, (B, K) (Desai & Ramaswamy 2020).

    Divided by the absolute score: the published division by y inverts the map where the logit is negative, as it is for
    the patient class in most controls. The absolute score is at least the numerical precision.

    `batch`: ablated feature volumes evaluated at once.
    """
    features = view.features
    score = view.score(features)
    drops = []
    for volume, channel in channel_pairs(features, batch):
        ablated = features[volume]
        ablated[torch.arange(len(volume), device=features.device), channel] = 0
        drops.append(score[volume] - view.score(ablated))
    size = score.abs().clamp(min=torch.finfo(score.dtype).eps)
    return torch.cat(drops).view(features.shape[:2]) / size[:, None]


@dataclass(frozen=True)
class ScoreCam(CheckedSettings):
    """Score-CAM (Wang et al. 2020): channels weighted by the score of the volume masked with them, then ReLU.

    `channel_softmax`: use the softmax of the increases over channels (as published: all positive, possibly dominated by
    one channel) or the increases themselves. `masking`: value of hidden voxels; air by default. `batch`: volumes
    evaluated at once; affects memory, not the map.
    """

    name: ClassVar[str] = "score-cam"
    channel_softmax: bool = True
    masking: Masking = field(default_factory=Masking)
    batch: Count = 4

    def maps(self, view: NetworkView) -> Tensor:
        require_channels(view, self.name)
        weights = increase_of_score(view, self.masking, self.batch)
        if self.channel_softmax:
            weights = torch.softmax(weights, dim=1)
        return weighted_sum(weights, view.features).relu()


@dataclass(frozen=True)
class AblationCam(CheckedSettings):
    """Ablation-CAM (Desai & Ramaswamy 2020): channels weighted by the relative drop without them, then ReLU.

    The relative drop makes the scale of a map depend on how close its logit is to 0: compare the shapes of maps between
    volumes, not their magnitudes.

    `batch`: ablated feature volumes evaluated at once; affects memory, not the map.
    """

    name: ClassVar[str] = "ablation-cam"
    batch: Count = 16

    def maps(self, view: NetworkView) -> Tensor:
        require_channels(view, self.name)
        return weighted_sum(drop_of_score(view, self.batch), view.features).relu()
