"""Gradients gathered on the way from controls to a volume: expected gradients, and integrated gradients from the mean.

Expected gradients (Erion et al. 2021) are integrated gradients averaged over the baselines of a reference:
``mean over r and alpha of (x - r) * gradient at r + alpha (x - r)``. In expectation they sum to
``score(x) - mean over r of score(r)``; with few points per reference they miss it by a sampling error, which is
measured and written, never spread over the map.

Points are spread as evenly as they can be: each reference is used equally often, and the points of all references
together are the midpoints of equal parts of the path, dealt out by a seed. With one reference this *is* the midpoint
rule of integrated gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pipeline.attribution.entry import Surroundings
from pipeline.attribution.gradient.gradients import Score, channel_sum, score_and_gradient
from pipeline.attribution.gradient.integrated_gradients import path_integral
from pipeline.attribution.network_view import NetworkView
from pipeline.attribution.reference.references import Reference, features_of, fitting, mean_value, value_of_mean
from pipeline.attribution.settings import require_whole
from pipeline.run.work.seeds import derived_seed


def stratified_alphas(references: int, per_reference: int, seed: int) -> Tensor:
    """Points on the path from each reference, (R, A), float64: a Latin hypercube of the midpoints of R A equal parts.

    Each reference has one point in each of A equal parts of the path, and no two points of the table are the same.

    Examples
    --------
    >>> stratified_alphas(2, 2, seed=1).flatten().sort().values.tolist()
    [0.125, 0.375, 0.625, 0.875]
    >>> stratified_alphas(1, 4, seed=1).tolist()
    [[0.125, 0.375, 0.625, 0.875]]
    """
    source = torch.Generator().manual_seed(derived_seed(seed, "expected-gradients"))
    within = torch.stack([torch.randperm(references, generator=source) for _ in range(per_reference)], dim=1)
    parts = torch.arange(per_reference).double()
    return (parts + (within.double() + 0.5) / references) / per_reference


def expected_gradients(score: Score, features: Tensor, references: Tensor, alphas: Tensor, batch: int = 1) -> Tensor:
    """Expected gradients (B, C, d, h, w) of features from references (R, C, d, h, w) at points `alphas` (R, A).

    Source: Erion et al. 2021, eq. 5, with the expectation taken over the given points. Holds one sum, never all points.

    Examples
    --------
    >>> square = lambda a: (a**2).flatten(1).sum(1)
    >>> expected_gradients(square, torch.tensor([[3.0]]), torch.tensor([[1.0], [-1.0]]), torch.full((2, 1), 0.5))
    tensor([[8.]])
    """
    points = [(place, float(alpha)) for place, row in enumerate(alphas) for alpha in row]
    maps = []
    for volume in features:
        total = torch.zeros_like(volume)
        for start in range(0, len(points), batch):
            chunk = points[start : start + batch]
            baselines = references[[place for place, _ in chunk]]
            steps = features.new_tensor([alpha for _, alpha in chunk]).view(-1, *[1] * volume.dim())
            gradients = score_and_gradient(score, torch.lerp(baselines, volume.expand_as(baselines), steps))[1]
            for baseline, gradient in zip(baselines, gradients, strict=True):  # in an order that no batch changes
                total += (volume - baseline) * gradient / len(points)
        maps.append(total)
    return torch.stack(maps)


@dataclass(frozen=True)
class ExpectedGradients:
    """Expected gradients from controls, signed, summed over channels.

    Parameters
    ----------
    reference : Reference or None
        Given by the run.
    alphas : int
        Points on the path from each reference volume.
    seed : int
        Deals the points out; the same for every volume.
    batch : int
        Volumes evaluated at once. Does not change the map; memory grows with it.
    """

    name: ClassVar[str] = "expected-gradients"

    reference: Reference | None = None
    alphas: int = 1
    seed: int = 0
    batch: int = 1

    def __post_init__(self) -> None:
        for setting, least in (("alphas", 1), ("seed", 0), ("batch", 1)):
            require_whole(self.name, setting, getattr(self, setting), least)

    @staticmethod
    def from_run(surroundings: Surroundings) -> dict[str, Reference | None]:
        """The controls of the network."""
        return {"reference": surroundings.reference}

    def maps(self, view: NetworkView) -> Tensor:
        """Maps (B, 1, d, h, w) that sum to ``score(features)`` less the mean score of the reference, about."""
        reference = fitting(self.reference, view.volumes, self.name)
        points = stratified_alphas(len(reference.people), self.alphas, self.seed)
        found = expected_gradients(view.score, view.features, features_of(reference.volumes, view), points, self.batch)
        return channel_sum(found)

    def reference_value(self, view: NetworkView) -> Tensor:
        """Mean score of the reference volumes, (B,)."""
        return mean_value(fitting(self.reference, view.volumes, self.name), view)


@dataclass(frozen=True)
class IntegratedGradientsFromMean:
    """Integrated gradients on the straight path from the mean of the controls, signed, summed over channels.

    Parameters
    ----------
    reference : Reference or None
        Given by the run.
    steps : int
        Points on the path.
    batch : int
        Volumes evaluated at once. Does not change the map; memory grows with it.
    """

    name: ClassVar[str] = "integrated-gradients-from-mean"

    reference: Reference | None = None
    steps: int = 14
    batch: int = 1

    def __post_init__(self) -> None:
        require_whole(self.name, "steps", self.steps, 1)
        require_whole(self.name, "batch", self.batch, 1)

    @staticmethod
    def from_run(surroundings: Surroundings) -> dict[str, Reference | None]:
        """The controls of the network."""
        return {"reference": surroundings.reference}

    def maps(self, view: NetworkView) -> Tensor:
        """Maps (B, 1, d, h, w) that sum to ``score(features)`` less the score of the mean control, about."""
        mean = fitting(self.reference, view.volumes, self.name).mean
        baseline = features_of(mean, view)
        return channel_sum(path_integral(view.score, view.features, baseline, self.steps, self.batch).attributions)

    def reference_value(self, view: NetworkView) -> Tensor:
        """Score of the mean control, (B,)."""
        return value_of_mean(fitting(self.reference, view.volumes, self.name), view)
