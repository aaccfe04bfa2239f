"""Class activation maps whose channel weights come from what the network says of changed volumes.

Score-CAM shows the volume only where a channel is active and measures the score; Ablation-CAM removes a channel from
the features and measures the drop. Both run the network once per channel and volume, `batch` of them at a time, without
hooks or changes to the model.

Opti-CAM (Zhang, Torres et al. 2024) finds the mixture of feature maps that, used as a mask, maximises the score. For
each volume, Adam maximises the score of the volume masked with ``S(u) = sum_k softmax(u)_k A^k`` over one weight per
channel. The features are those of the unmasked volume and stay fixed; the gradient passes through softmax, upsampling,
normalisation, mask and the whole network. Objectives of a batch are summed, not averaged, and Adam works element by
element, so the result for a volume does not depend on its batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from heatlas.pipeline.attribution.cam import channel_maps
from heatlas.pipeline.attribution.method_settings import CheckedSettings
from heatlas.pipeline.attribution.methods import to_input_grid
from heatlas.pipeline.attribution.network_view import NetworkView
from heatlas.pipeline.attribution.perturbation.masking import Masking, mixed
from heatlas.pipeline.run.config.ranges import Count, above, at_least


@torch.no_grad()
def increase_of_score(view: NetworkView, masking: Masking, batch: int) -> Tensor:
    """Score of the volume shown where channel k is active, less that of the baseline, (B, K) (Wang et al. 2020, eq. 5).

    ``u_k = f(b + n(up(A^k)) (x - b)) - f(b)``; a constant channel shows nothing and has u = 0.
    """
    features, volumes = view.features, view.volumes
    hidden = masking.hidden(volumes).expand_as(volumes)
    base = torch.cat([view.score_of(chunk) for chunk in torch.split(hidden, batch)])
    increases = []
    for volume, channel in channel_maps.channel_pairs(features, batch):
        keep = channel_maps.by_range(to_input_grid(features[volume, channel].unsqueeze(1), view))
        increases.append(view.score_of(mixed(volumes[volume], keep, hidden[volume])) - base[volume])
    return torch.cat(increases).view(features.shape[:2])


@torch.no_grad()
def drop_of_score(view: NetworkView, batch: int) -> Tensor:
    """Relative drop of the score without channel k, ``(y - y^(-k)) / |y|``, (B, K) (Desai & Ramaswamy 2020).

    Divided by the absolute score, at least the numerical precision: the published division by y inverts the map where
    the logit is negative, as it is for the patient class in most controls.
    """
    features = view.features
    score = view.score(features)
    drops = []
    for volume, channel in channel_maps.channel_pairs(features, batch):
        ablated = features[volume]
        ablated[torch.arange(len(volume), device=features.device), channel] = 0
        drops.append(score[volume] - view.score(ablated))
    size = score.abs().clamp(min=torch.finfo(score.dtype).eps)
    return torch.cat(drops).view(features.shape[:2]) / size[:, None]


@dataclass(frozen=True)
class ScoreCam(CheckedSettings):
    """Score-CAM (Wang et al. 2020): channels weighted by the score of the volume masked with them, then ReLU.

    `channel_softmax`: use the softmax of the increases over channels (as published: all positive, possibly dominated by
    one channel) or the increases themselves. `batch`: affects memory, not the map.
    """

    name: ClassVar[str] = "score-cam"
    channel_softmax: bool = True
    masking: Masking = field(default_factory=Masking)
    batch: Count = 4

    def maps(self, view: NetworkView) -> Tensor:
        channel_maps.require_channels(view, self.name)
        weights = increase_of_score(view, self.masking, self.batch)
        if self.channel_softmax:
            weights = torch.softmax(weights, dim=1)
        return channel_maps.weighted_sum(weights, view.features).relu()


@dataclass(frozen=True)
class AblationCam(CheckedSettings):
    """Ablation-CAM (Desai & Ramaswamy 2020): channels weighted by the relative drop without them, then ReLU.

    The relative drop makes the scale of a map depend on how close its logit is to 0: compare the shapes of maps between
    volumes, not their magnitudes. `batch`: affects memory, not the map.
    """

    name: ClassVar[str] = "ablation-cam"
    batch: Count = 16

    def maps(self, view: NetworkView) -> Tensor:
        channel_maps.require_channels(view, self.name)
        return channel_maps.weighted_sum(drop_of_score(view, self.batch), view.features).relu()


Objective = Literal["mask", "diff"]
Keep = Literal["best", "last"]
Function = Callable[[Tensor, Tensor], Tensor]
DECAY, DECAY_SQUARED, ADAM_EPS = 0.9, 0.999, 1e-8


def mixture(u: Tensor, features: Tensor) -> Tensor:
    """``S(u) = sum_k softmax(u)_k A^k``; u (B, K), features (B, K, d, h, w), result (B, 1, d, h, w)."""
    return channel_maps.weighted_sum(torch.softmax(u, dim=1), features)


def objective_of(score: Tensor, masked_score: Tensor, objective: Objective) -> Tensor:
    """The score of the masked volume (``mask``), or minus its distance to the full score (``diff``).

    >>> objective_of(torch.tensor([3.0]), torch.tensor([5.0]), "mask").tolist()
    [5.0]
    >>> objective_of(torch.tensor([3.0]), torch.tensor([5.0]), "diff").tolist()
    [-2.0]
    """
    return masked_score if objective == "mask" else -(score - masked_score).abs()


@dataclass(frozen=True)
class OptiCam(CheckedSettings):
    """Opti-CAM (see the module).

    Maps are the mixtures of features; the mask that is optimised is their upsampled, normalised form.

    `normalisation`: how a map becomes a mask; `sigmoid` hides little, since all values are above 0.5. `iterations`:
    most steps of Adam. `tolerance`: a volume stops when its objective changes by less than this in one step. `keep`:
    the best weights found, or the last (as published). `batch`: affects memory, not the map.
    """

    name: ClassVar[str] = "opti-cam"
    normalisation: channel_maps.Normalisation = "range"
    objective: Objective = "mask"
    learning_rate: Annotated[float, above(0)] = 0.1
    iterations: Count = 100
    tolerance: Annotated[float, at_least(0)] = 1e-10
    keep: Keep = "best"
    masking: Masking = field(default_factory=Masking)
    batch: Count = 1

    def maps(self, view: NetworkView) -> Tensor:
        channel_maps.require_channels(view, self.name)
        channel_maps.require_nonnegative(view, self.name)
        return mixture(self.weights(view), view.features)

    def weights(self, view: NetworkView) -> Tensor:
        """Final weights u of each volume, (B, K)."""
        features, function = view.features, self.ascent_objective(view)
        chunks = torch.split(torch.arange(len(features), device=features.device), self.batch)
        return torch.cat(
            [optimised_weights(function, rows, features.shape[1], features.dtype, self) for rows in chunks]
        )

    def ascent_objective(self, view: NetworkView) -> Function:
        """Objective as a function of weights u (n, K) and the indices (n,) of the volumes they belong to."""
        features, volumes = view.features, view.volumes
        hidden = self.masking.hidden(volumes).expand_as(volumes)
        with torch.no_grad():
            score = view.score(features)

        def of(u: Tensor, rows: Tensor) -> Tensor:
            mask = channel_maps.normalised(to_input_grid(mixture(u, features[rows]), view), self.normalisation)
            masked_score = view.score_of(mixed(volumes[rows], mask, hidden[rows]))
            return objective_of(score[rows], masked_score, self.objective)

        return of


def optimised_weights(function: Function, rows: Tensor, channels: int, dtype: torch.dtype, settings: OptiCam) -> Tensor:
    """Weights (B, K) of the volumes with indices `rows` (B,) after gradient ascent from u = 0, independently.

    `function` is the differentiable objective (n,) of weights (n, K) for volumes with given indices (n,).
    """
    u = torch.zeros(len(rows), channels, dtype=dtype, device=rows.device)
    mean, square = torch.zeros_like(u), torch.zeros_like(u)
    best_u, best = u.clone(), torch.full_like(u[:, 0], -math.inf)
    before = torch.full_like(best, math.nan)
    active = torch.arange(len(rows), device=rows.device)
    for step in range(1, settings.iterations + 1):
        with torch.enable_grad():
            leaf = u[active].requires_grad_()
            values = function(leaf, rows[active])
            (gradient,) = torch.autograd.grad(values.sum(), leaf)
        values = values.detach()
        _remember(best_u, best, u, values, active)
        moving = ~((values - before[active]).abs() < settings.tolerance)
        before[active] = values
        active, gradient = active[moving], gradient[moving]
        if not len(active):
            break
        change, mean[active], square[active] = adam_change(gradient, mean[active], square[active], step)
        u[active] += settings.learning_rate * change
    if settings.keep == "last":
        return u
    if len(active):
        with torch.no_grad():
            _remember(best_u, best, u, function(u[active], rows[active]), active)
    return best_u


def adam_change(gradient: Tensor, mean: Tensor, square: Tensor, step: int) -> tuple[Tensor, Tensor, Tensor]:
    """Adam's direction and updated moments (Kingma & Ba 2015, algorithm 1).

    `torch.optim.Adam` updates all rows of a tensor together; here rows stop individually.
    """
    mean = DECAY * mean + (1 - DECAY) * gradient
    square = DECAY_SQUARED * square + (1 - DECAY_SQUARED) * gradient**2
    unbiased, unbiased_square = mean / (1 - DECAY**step), square / (1 - DECAY_SQUARED**step)
    return unbiased / (unbiased_square.sqrt() + ADAM_EPS), mean, square


def _remember(best_u: Tensor, best: Tensor, u: Tensor, values: Tensor, active: Tensor) -> None:
    better = values > best[active]
    rows = active[better]
    best[rows], best_u[rows] = values[better], u[rows]
