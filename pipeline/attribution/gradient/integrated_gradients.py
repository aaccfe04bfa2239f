"""Integrated gradients (Sundararajan, Taly & Yan 2017): the gradient integrated from a baseline to the volume.

The map is ``(x - b) * mean over the path of the gradient at b + alpha (x - b)``, alpha from 0 to 1. It is *complete*:
it sums to ``score(x) - score(b)``. It therefore explains a difference, and depends on the baseline `b`.

The integral uses the midpoint rule. Along the path the gradient of a network of ReLU and max-pooling is piecewise
constant, so rules of higher order bring nothing: on 24 small random networks like the founding CNN the median error at
50 points, as a share of the score's variation on the path, was 0.35 % (midpoint), 0.38 % (Gauss-Legendre) and 0.88 %
(trapezoid). The midpoint rule also avoids the end points: at a baseline of zeros every ReLU behind a bias-free layer is
at its kink, where the gradient is a convention.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from heatlas.pipeline.attribution.gradient.gradients import Score, score_and_gradient
from heatlas.pipeline.attribution.method_settings import CheckedSettings
from heatlas.pipeline.attribution.network_view import NetworkView
from heatlas.pipeline.attribution.perturbation.masking import Masking, mixed
from heatlas.pipeline.run.config.ranges import Count, between
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.work.host import on_host


@dataclass(frozen=True)
class IntegratedGradients(CheckedSettings):
    """Integrated gradients, signed, summed over channels.

    `masking`: baseline: the volume with everything hidden (air by default). At a later stage the baseline is the
    features of the baseline volume, so that the map sums to the same difference at every stage and is exactly 0 where
    the features are those of air. ``Masking(inner="zero")`` uses zero features instead, as Rao, Böhle & Schiele (2022)
    do. `steps`: points on the path. `batch`: volumes evaluated at once; affects memory, not the map. `tolerance`:
    largest completeness error accepted, as a share of the total variation of the score along the path; ``math.inf``
    accepts any.
    """

    name: ClassVar[str] = "integrated-gradients"

    masking: Masking = field(default_factory=Masking)
    steps: Count = 50
    batch: Count = 1
    tolerance: Annotated[float, between(0, math.inf)] = 0.05

    def maps(self, view: NetworkView) -> Tensor:
        """Maps (B, 1, d, h, w) that sum to ``score(features) - score(baseline)``.

        Raises UsageError if the completeness error of a volume exceeds `tolerance`.
        """
        baseline = self.masking.hidden_features(view)
        path = path_integral(view.score, view.features, baseline, self.steps, self.batch)
        with torch.no_grad():
            ends = [in_batches(view.score, a, self.batch) for a in (view.features, baseline)]
        require_complete(self.name, path, ends[0], ends[1], self.tolerance, f"raise steps (now {self.steps})")
        return path.attributions


@dataclass(frozen=True)
class PathIntegral:
    """Integral of the gradient along the path.

    `attributions`: (B, C, d, h, w). `variation`: (B,), total variation of the score along the path; at least the
    absolute difference between its ends.
    """

    attributions: Tensor
    variation: Tensor


def path_integral(score: Score, features: Tensor, baseline: Tensor, steps: int = 50, batch: int = 1) -> PathIntegral:
    """Integrated gradients of features (B, C, d, h, w) from a baseline that broadcasts to them, midpoint rule.

    Source: Sundararajan, Taly & Yan 2017, eq. 1. Memory holds the sum over the path and `batch` of its points.

    Examples
    --------
    >>> square = lambda a: (a**2).flatten(1).sum(1)
    >>> path_integral(square, torch.tensor([[3.0, -1.0]]), torch.tensor(0.0), steps=2).attributions.tolist()
    [[9.0, 1.0]]
    """
    baseline = baseline.expand_as(features)
    change = features - baseline
    mean = torch.zeros_like(features)
    variation = features.new_zeros(len(features))
    points = [(step, volume) for step in range(steps) for volume in range(len(features))]
    for start in range(0, len(points), batch):
        chunk = points[start : start + batch]
        volumes = [volume for _, volume in chunk]
        alphas = features.new_tensor([(step + 0.5) / steps for step, _ in chunk])
        place = mixed(features[volumes], alphas.view(-1, *[1] * (features.dim() - 1)), baseline[volumes])
        gradients = score_and_gradient(score, place)[1]
        # one by one, so that the order of summation, and thus rounding, does not depend on the batch size
        for volume, gradient in zip(volumes, gradients, strict=True):
            mean[volume] += gradient / steps
            variation[volume] += (gradient * change[volume]).sum().abs() / steps
    return PathIntegral(change * mean, variation)


def require_complete(
    method: str, path: PathIntegral, score: Tensor, score_of_baseline: Tensor, tolerance: float, remedy: str
) -> None:
    """Refuse maps whose completeness error exceeds `tolerance`, as a share of the score's variation on the path.

    The variation is at least the difference between the ends of the path, and does not vanish with it.

    Raises UsageError with the error of the first such volume and the remedy.
    """
    error = completeness_delta(path.attributions, score, score_of_baseline).abs()
    # allow for rounding of the scores, which is the only error if the score does not change
    rounding = 100 * torch.finfo(error.dtype).eps * (score.abs() + score_of_baseline.abs())
    missed = on_host(error > tolerance * path.variation + rounding)
    for volume in torch.nonzero(missed).flatten().tolist():
        share = float(on_host(error[volume] / path.variation[volume]))
        raise UsageError(
            f"{method}: the map of volume {volume} of the batch has a completeness error of "
            f"{float(on_host(error[volume])):.3g}, {100 * share:.1f} % of the score's variation (tolerance "
            f"{100 * tolerance:g} %); {remedy}."
        )


def completeness_delta(attributions: Tensor, score: Tensor, score_of_baseline: Tensor) -> Tensor:
    """Difference between the sum of each map (B, ...) and ``score - score_of_baseline``; (B,).

    Examples
    --------
    >>> completeness_delta(torch.tensor([[1.0, 2.5]]), torch.tensor([4.0]), torch.tensor([1.0])).tolist()
    [0.5]
    """
    return attributions.flatten(1).sum(1) - (score - score_of_baseline)


def in_batches(score: Score, features: Tensor, batch: int) -> Tensor:
    """Score, (B,), of features, `batch` of them evaluated at once."""
    return torch.cat([score(part) for part in torch.split(features, batch)])
