"""ViT-CX (Xie, Li, Cao & Zhang 2023): what the score loses or keeps under masks that the tokens themselves make.

Each channel of the tokens, scaled to [0, 1], is a mask. Masks that are nearly alike are added up, so that what many
channels show does not count many times. A mask is worth the score of what it shows, corrected for the noise that fills
the rest; a place is worth the mean over the masks that show it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from torch import Tensor

from heatlas.pipeline.attribution.cam.channel_maps import by_range, ratio
from heatlas.pipeline.attribution.method_settings import CheckedSettings
from heatlas.pipeline.attribution.network_view import NetworkView
from heatlas.pipeline.attribution.perturbation.masking import Masking, mixed
from heatlas.pipeline.attribution.upsampling import to_input_grid
from heatlas.pipeline.models.attention import attention_layers
from heatlas.pipeline.run.config.ranges import Count, Probability, Seed, at_least
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.work.host import on_host


def cosine_distances(masks: Tensor) -> Tensor:
    """``1 - cosine`` of all pairs of masks (K, ...), (K, K); an empty mask has distance 1 to all others."""
    rows = torch.nn.functional.normalize(masks.flatten(1).double(), dim=1)
    distances = 1 - rows @ rows.T
    return ((distances + distances.T) / 2).clamp(min=0).fill_diagonal_(0)


def merged_masks(features: Tensor, threshold: float) -> Tensor:
    """Masks of one volume: its channels in [0, 1], those within `threshold` of each other summed and scaled again.

    `features`: (K, d, h, w). `threshold`: largest cosine distance of two channels in one mask (complete linkage).
    Returns (M, d, h, w), M at most K.
    """
    masks = by_range(features.unsqueeze(1))
    if len(masks) == 1:
        return masks[:, 0]
    distances = squareform(on_host(cosine_distances(masks)).numpy(), checks=False)
    groups = fcluster(linkage(distances, "complete"), threshold, "distance")
    sums = [
        masks[torch.from_numpy(np.flatnonzero(groups == group)).to(masks.device)].sum(0) for group in np.unique(groups)
    ]
    return by_range(torch.stack(sums))[:, 0]


def causal_scores(
    view: NetworkView, volume: int, masks: Tensor, masking: Masking, noise: float, seed: int, batch: int
) -> Tensor:
    """Worth of each mask M, ``f(M x + (1 - M)(b + e)) - f(x + (1 - M) e) + f(x)``, (M,) (Xie et al. 2023).

    The second and third term take away what the noise e alone does to the score; without noise they cancel.

    `volume`: index of the volume. `masks`: (M, d, h, w) on the grid of the boundary. `masking`: the value b of hidden
    voxels. `noise`: standard deviation of e, drawn per mask, in units of intensity. `seed`, `batch`: of the noise;
    volumes evaluated at once.
    """
    generator = torch.Generator().manual_seed(seed)
    x = view.volumes[volume : volume + 1]
    own = view.own_score[volume]
    found = []
    for chunk in torch.split(masks, batch):
        keep = to_input_grid(chunk.unsqueeze(1), view)
        shown = mixed(x, keep, masking.hidden(x))
        if not noise:
            found.append(view.score_of(shown))
            continue
        drawn = [torch.randn(x.shape[1:], generator=generator, dtype=x.dtype) for _ in range(len(chunk))]
        added = noise * torch.stack(drawn).to(x) * (1 - keep)
        found.append(view.score_of(shown + added) - view.score_of(x + added) + own)
    return torch.cat(found)


@dataclass(frozen=True)
class ViTCX(CheckedSettings):
    """Mean worth of the masks that show a place; see `causal_scores`.

    `threshold`: largest cosine distance of channels that make one mask, as published. `noise`: standard deviation of
    the noise in hidden voxels. Published is a tenth of the spread of intensities, and scans scaled to [0, 1] have a
    spread of about 0.2. 0 for none. `score`: softmax probability of the target, as published, or the value explained by
    `attribute`. `masking`: value of hidden voxels. `batch`: volumes evaluated at once; affects memory, not the map.
    """

    name: ClassVar[str] = "vit-cx"
    threshold: Probability = 0.1
    noise: Annotated[float, at_least(0)] = 0.02
    score: Literal["probability", "start"] = "probability"
    seed: Seed = 0
    masking: Masking = field(default_factory=Masking)
    batch: Count = 4

    def require(self, view: NetworkView) -> None:
        if not attention_layers(view.model):
            raise UsageError(
                f"{self.name} makes masks of the tokens of a vision transformer, and this network has none. Use "
                "score-cam."
            )

    @torch.no_grad()
    def maps(self, view: NetworkView) -> Tensor:
        self.require(view)
        if view.at_input:
            raise UsageError(f"{self.name} makes masks of tokens, which the input does not have; choose a later stage.")
        if self.score == "probability":
            view = replace(view, start="probability")
            view = replace(view, own_score=view.score(view.features))
        return torch.stack(list(self._each(view)))

    def _each(self, view: NetworkView) -> Iterator[Tensor]:
        for volume, features in enumerate(view.features):
            masks = merged_masks(features, self.threshold)
            worth = causal_scores(view, volume, masks, self.masking, self.noise, self.seed, self.batch)
            yield ratio(torch.einsum("m,mdhw->dhw", worth, masks), masks.sum(0)).unsqueeze(0)
