"""Gradients gathered on the way to a volume: integrated gradients from a baseline, expected gradients from controls.

Integrated gradients (Sundararajan, Taly & Yan 2017) are
``(x - b) * mean over the path of the gradient at b + alpha (x - b)``, alpha from 0 to 1. The map is *complete*: it sums
to ``score(x) - score(b)``. It therefore explains a difference, and depends on the baseline `b`.

The integral uses the midpoint rule. Along the path the gradient of a network of ReLU and max-pooling is piecewise
constant, so rules of higher order bring nothing: on 24 small random networks like the founding CNN the median error at
50 points, as a share of the score's variation on the path, was 0.35 % (midpoint), 0.38 % (Gauss-Legendre) and 0.88 %
(trapezoid). The midpoint rule also avoids the end points: at a baseline of zeros every ReLU behind a bias-free layer is
at its kink, where the gradient is a convention.

Expected gradients (Erion et al. 2021) are integrated gradients averaged over the baselines of a reference. In
expectation they sum to ``score(x) - mean over r of score(r)``; with few points per reference they miss it by a sampling
error. What they must sum to is known without any point, so the sum of a point's contribution (the slope of the score on
its path) is a control variate of known mean: `PathSample.controlled` weights the points so that their slopes have that
mean, and the map adds up. That takes the sampling error of the sum away, not that of single regions; so the error of
the plain mean is kept beside the map.

Points are spread as evenly as they can be: each reference is used equally often, and the points of all references
together are the midpoints of equal parts of the path, dealt out by a seed. With one reference this *is* the midpoint
rule of integrated gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from heatlas.pipeline.attribution.gradient.gradients import Score, score_and_gradient
from heatlas.pipeline.attribution.method_settings import CheckedSettings
from heatlas.pipeline.attribution.methods import Drawn
from heatlas.pipeline.attribution.network_view import NetworkView
from heatlas.pipeline.attribution.perturbation.masking import Masking, mixed
from heatlas.pipeline.attribution.reference.references import (
    ComparesWithControls,
    features_of,
    fitting,
    mean_value,
    value_of_mean,
)
from heatlas.pipeline.run.config.ranges import Count, Seed, between
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.work.host import on_host
from heatlas.pipeline.run.work.seeds import derived_seed

VOXELS_TOGETHER = 1_000_000
"""Voxels of the volumes that are asked in one pass: one at 2 mm, eight at 4 mm, where one alone takes three times as
long (docs/benchmarks/applied.md)."""


def together(shape: Iterable[int]) -> int:
    """Volumes of a shape that are asked in one pass.

    >>> together((46, 54, 46)), together((91, 109, 91)), together((193, 229, 193))
    (8, 1, 1)
    """
    return max(1, VOXELS_TOGETHER // math.prod(shape))


@dataclass(frozen=True)
class IntegratedGradients(CheckedSettings):
    """Integrated gradients, signed, summed over channels.

    `masking`: the baseline is the volume with everything hidden (air by default), and at a later stage its features, so
    that the map sums to the same difference at every stage and is exactly 0 where the features are those of air.
    ``Masking(inner="zero")`` uses zero features instead, as Rao, Böhle & Schiele (2022) do. `steps`: points on the
    path. `batch`: affects memory, not the map. `tolerance`: largest completeness error accepted, as a share of the
    total variation of the score along the path; ``math.inf`` accepts any.
    """

    name: ClassVar[str] = "integrated-gradients"

    masking: Masking = field(default_factory=Masking)
    steps: Count = 50
    batch: Count = 1
    tolerance: Annotated[float, between(0, math.inf)] = 0.05

    def maps(self, view: NetworkView) -> Tensor:
        """Maps (B, 1, d, h, w) that sum to ``score(features) - score(baseline)``."""
        baseline = self.masking.hidden_features(view)
        path = path_integral(view.score, view.features, baseline, self.steps, self.batch)
        with torch.no_grad():
            ends = [
                torch.cat([view.score(part) for part in torch.split(a, self.batch)]) for a in (view.features, baseline)
            ]
        require_complete(self.name, path, ends[0], ends[1], self.tolerance, f"raise steps (now {self.steps})")
        return path.attributions


@dataclass(frozen=True)
class PathIntegral:
    """Integral of the gradient along the path, (B, C, d, h, w), and the total variation of the score on it, (B,)."""

    attributions: Tensor
    variation: Tensor


def path_integral(score: Score, features: Tensor, baseline: Tensor, steps: int = 50, batch: int = 1) -> PathIntegral:
    """Integrated gradients of features (B, C, d, h, w) from a baseline that broadcasts to them, midpoint rule.

    Source: Sundararajan, Taly & Yan 2017, eq. 1. Memory holds the sum over the path and `batch` of its points.

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

    >>> completeness_delta(torch.tensor([[1.0, 2.5]]), torch.tensor([4.0]), torch.tensor([1.0])).tolist()
    [0.5]
    """
    return attributions.flatten(1).sum(1) - (score - score_of_baseline)


MOST = 4
"""Times as many points as asked for are taken at most."""


def stratified_alphas(references: int, per_reference: int, seed: int) -> Tensor:
    """Points on the path from each reference, (R, A), float64: a Latin hypercube of the midpoints of R A equal parts.

    Each reference has one point in each of A equal parts of the path, and no two points of the table are the same.

    >>> stratified_alphas(2, 2, seed=1).flatten().sort().values.tolist()
    [0.125, 0.375, 0.625, 0.875]
    >>> stratified_alphas(1, 4, seed=1).tolist()
    [[0.125, 0.375, 0.625, 0.875]]
    """
    source = torch.Generator().manual_seed(derived_seed(seed, "expected-gradients"))
    within = torch.stack([torch.randperm(references, generator=source) for _ in range(per_reference)], dim=1)
    parts = torch.arange(per_reference).double()
    return (parts + (within.double() + 0.5) / references) / per_reference


@dataclass(frozen=True)
class PathSample:
    """What points on the paths to one volume contribute: sums over the points, not the points.

    `mean`: (C, d, h, w), the mean contribution of a point, which is the plain map. `leaning`: (C, d, h, w), covariance
    over the points of a voxel's contribution with the slope. `slopes`: (K,), float64: sum of the contribution of each
    point, the slope of the score there along its path.
    """

    mean: Tensor
    leaning: Tensor
    slopes: Tensor

    def controlled(self, wanted: float) -> Tensor:
        """The map that sums to `wanted`, the known mean of the slopes: the regression estimator of a control variate.

        It is the mean of the contributions with the weights ``1 + (wanted - mean slope) (slope - mean slope) / variance
        of the slopes``. If the slopes miss their mean by more than their standard deviation, which few points do only
        if they stand for little of the path, weights would be far from 1 and the plain map is returned.

        Source: Owen 2013, Monte Carlo theory, methods and examples, section 8.9.

        >>> points = torch.tensor([[1.0, 1.0], [2.0, 4.0]])  # two points, slopes 2 and 6
        >>> sample = PathSample(points.mean(0), torch.tensor([1.0, 3.0]), points.sum(1).double())
        >>> sample.controlled(5.0).tolist(), sample.controlled(9.0).tolist()
        ([1.75, 3.25], [1.5, 2.5])
        """
        variance = float(on_host(self.slopes.var(correction=0)))
        if variance == 0 or not self.stands_for(wanted):
            return self.mean
        return self.mean + self.leaning * ((wanted - float(on_host(self.slopes.mean()))) / variance)

    def stands_for(self, wanted: float) -> bool:
        """Whether the slopes miss their known mean by no more than their standard deviation (and rounding)."""
        slopes = self.slopes
        sizes = torch.stack([slopes.std(correction=0), slopes.abs().mean(), slopes.mean()])
        spread, size, mean = on_host(sizes).tolist()
        return bool(abs(wanted - mean) <= spread + 1e-5 * size)

    def path(self, attributions: Tensor) -> PathIntegral:
        """A map (C, d, h, w) of this volume with the variation of the score along the paths, as a batch of one."""
        return PathIntegral(attributions[None], self.slopes.abs().mean().to(attributions.dtype)[None])


def sample_paths(score: Score, volume: Tensor, references: Tensor, alphas: Tensor, batch: int = 1) -> PathSample:
    """Contributions ``(x - r) * gradient`` at points `alphas` (R, A) from references (R, C, d, h, w) to one volume.

    Source: Erion et al. 2021, eq. 5, with the expectation taken over the given points. Memory holds two sums over the
    points and `batch` of them.

    >>> square = lambda a: (a**2).flatten(1).sum(1)
    >>> sample = sample_paths(square, torch.tensor([3.0]), torch.tensor([[1.0], [-1.0]]), torch.full((2, 1), 0.5))
    >>> sample.mean.tolist(), sample.slopes.tolist()
    ([8.0], [8.0, 8.0])
    """
    points = [(place, float(alpha)) for place, row in enumerate(alphas) for alpha in row]
    total, weighted = torch.zeros_like(volume), torch.zeros_like(volume)
    slopes: list[Tensor] = []
    for start in range(0, len(points), batch):
        chunk = points[start : start + batch]
        baselines = references[[place for place, _ in chunk]]
        steps = volume.new_tensor([alpha for _, alpha in chunk]).view(-1, *[1] * volume.dim())
        gradients = score_and_gradient(score, torch.lerp(baselines, volume.expand_as(baselines), steps))[1]
        for baseline, gradient in zip(baselines, gradients, strict=True):  # in an order that no batch changes
            contribution = (volume - baseline) * gradient
            slopes.append(contribution.double().sum())
            total += contribution / len(points)
            # The first is taken off, so that little of the covariance is lost in rounding.
            weighted += contribution * ((slopes[-1] - slopes[0]) / len(points))
    all_slopes = torch.stack(slopes)
    return PathSample(total, weighted - total * (all_slopes.mean() - all_slopes[0]), all_slopes)


@dataclass(frozen=True)
class ExpectedGradients(ComparesWithControls):
    """Expected gradients from controls, signed, summed over channels.

    `alphas`: points on the path from each control. `seed`: deals the points out; the same for every volume. `batch`:
    affects memory, not the map. `control_variate`: whether points are weighted so that the map adds up; if not, it
    misses by the sampling error. `tolerance`: as of `IntegratedGradients`.
    """

    name: ClassVar[str] = "expected-gradients"

    alphas: Count = 1
    seed: Seed = 0
    batch: Count = 1
    control_variate: bool = True
    tolerance: Annotated[float, between(0, math.inf)] = 0.05

    def maps(self, view: NetworkView) -> Tensor:
        return self.drawn(view).values

    def drawn(self, view: NetworkView) -> Drawn:
        """Maps (B, C, d, h, w) that sum to ``score(features)`` less the mean score of the reference.

        Where the points stand for too little of the paths to be weighted, more are taken, up to `MOST` times as many.
        """
        reference = fitting(self.reference, view.volumes, self.name)
        baselines, base = features_of(reference.volumes, view), mean_value(reference, view)
        maps, missed = [], []
        for volume, score, of_reference in zip(view.features, view.own_score, base, strict=True):
            wanted = float(on_host(score.double() - of_reference.double()))
            more = 1
            while True:
                points = stratified_alphas(len(reference.people), more * self.alphas * reference.controls, self.seed)
                sample = sample_paths(view.score, volume, baselines, points, self.batch)
                if not self.control_variate or sample.stands_for(wanted) or more >= MOST:
                    break
                more *= 2
            path = sample.path(sample.controlled(wanted) if self.control_variate else sample.mean)
            remedy = f"raise alphas (now {more * self.alphas} for each control)"
            require_complete(self.name, path, score[None], of_reference[None], self.tolerance, remedy)
            maps.append(path.attributions)
            missed.append((sample.slopes.mean() - wanted).to(score)[None])
        return Drawn(torch.cat(maps), sampling_error=torch.cat(missed))

    def reference_value(self, view: NetworkView) -> Tensor:
        return mean_value(fitting(self.reference, view.volumes, self.name), view)


@dataclass(frozen=True)
class IntegratedGradientsFromMean(ComparesWithControls):
    """Integrated gradients on the straight path from the mean of the controls, signed, summed over channels."""

    name: ClassVar[str] = "integrated-gradients-from-mean"

    steps: Count = 14
    batch: Count = 1
    tolerance: Annotated[float, between(0, math.inf)] = 0.05

    def maps(self, view: NetworkView) -> Tensor:
        """Maps (B, C, d, h, w) that sum to ``score(features)`` less the score of the mean control, about."""
        mean = fitting(self.reference, view.volumes, self.name).mean
        baseline = features_of(mean, view)
        with torch.no_grad():
            of_mean = view.score(baseline).expand(len(view.volumes))
        path = path_integral(view.score, view.features, baseline, self.steps, self.batch)
        require_complete(self.name, path, view.own_score, of_mean, self.tolerance, f"raise steps (now {self.steps})")
        return path.attributions

    def reference_value(self, view: NetworkView) -> Tensor:
        return value_of_mean(fitting(self.reference, view.volumes, self.name), view)
