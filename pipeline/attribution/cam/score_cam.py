"""Class activation maps without gradients: channels weighted by what the network does when they are shown or removed.

Score-CAM shows the volume only where a channel is active and looks at the score; Ablation-CAM removes a channel from
the features and looks at what is lost. Both run the network once per channel and volume, `batch` of them at a time;
the model is only called, never hooked or rebuilt.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from pipeline.attribution.cam.channel_maps import channel_pairs, require_channels, weighted_sum
from pipeline.attribution.cam.map_range import by_range
from pipeline.attribution.network_view import NetworkView
from pipeline.attribution.perturbation.masking import Masking, mixed
from pipeline.attribution.settings import require_whole
from pipeline.attribution.upsampling import to_input_grid


@torch.no_grad()
def increase_of_score(view: NetworkView, masking: Masking, batch: int) -> Tensor:
    """Score of the volume shown where channel k is active, less that of the baseline (Wang et al. 2020, eq. 5).

    ``u_k = f(b + n(up(A^k)) (x - b)) - f(b)``; a constant channel shows nothing and has u = 0.

    Parameters
    ----------
    view : NetworkView
    masking : Masking
        What a hidden voxel becomes.
    batch : int
        Masked volumes evaluated at once.

    Returns
    -------
    Tensor
        (B, K).
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
    """Share of the score that is lost without channel k, ``(y - y^(-k)) / |y|``, (B, K) (Desai & Ramaswamy 2020).

    Divided by the absolute score: the published division by y turns the map round where the logit is negative, as
    that of the patient class is in most controls. A score closer to 0 than the precision counts as that precision.

    Parameters
    ----------
    view : NetworkView
    batch : int
        Ablated feature volumes evaluated at once.
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
class ScoreCam:
    """Score-CAM (Wang et al. 2020): channels weighted by the score they alone can bring about, then ReLU.

    Parameters
    ----------
    channel_softmax : bool
        Weights are the softmax over channels (as published: all positive, and one channel may take all), or the
        increases themselves.
    masking : Masking
        What a hidden voxel becomes: air unless said otherwise.
    batch : int
        Volumes evaluated at once; changes memory, not the map.
    """

    name: ClassVar[str] = "score-cam"
    channel_softmax: bool = True
    masking: Masking = field(default_factory=Masking)
    batch: int = 4

    def __post_init__(self) -> None:
        require_whole(self.name, "batch", self.batch, least=1)

    def maps(self, view: NetworkView) -> Tensor:
        require_channels(view, self.name)
        weights = increase_of_score(view, self.masking, self.batch)
        if self.channel_softmax:
            weights = torch.softmax(weights, dim=1)
        return weighted_sum(weights, view.features).relu()


@dataclass(frozen=True)
class AblationCam:
    """Ablation-CAM (Desai & Ramaswamy 2020): channels weighted by the share of the score lost without them, then ReLU.

    The share makes the scale of a map depend on how near 0 its logit is: compare shapes between volumes, not heights.

    Parameters
    ----------
    batch : int
        Ablated feature volumes evaluated at once; changes memory, not the map.
    """

    name: ClassVar[str] = "ablation-cam"
    batch: int = 16

    def __post_init__(self) -> None:
        require_whole(self.name, "batch", self.batch, least=1)

    def maps(self, view: NetworkView) -> Tensor:
        require_channels(view, self.name)
        return weighted_sum(drop_of_score(view, self.batch), view.features).relu()
