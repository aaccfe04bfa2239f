"""Evidence of an atlas region: what the score loses when the region takes the controls' mean tissue.

`RegionSwap` replaces one region at a time, so where two regions stand in for each other each alone seems idle.
`RegionShapley` shares the whole difference fairly (Shapley 1953): a region's evidence is its mean contribution over
random orders in which regions go from the mean control to the person, drawn in antithetic pairs, each with its reverse
(Mitchell et al. 2022), which cancels much of the noise that interactions of two regions make.

Voxels of no region that differ from the mean control form one more region, the *rest*, so that nothing the network sees
is left out. A region in which a volume equals the mean control has no evidence, and costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from heatlas.pipeline.attribution.entry import RunContext
from heatlas.pipeline.attribution.methods import Drawn
from heatlas.pipeline.attribution.network_view import NetworkView
from heatlas.pipeline.attribution.perturbation.masking import RegionLabels, masked_scores, painted
from heatlas.pipeline.attribution.reference.references import ComparesWithControls, fitting, value_of_mean
from heatlas.pipeline.run.config.ranges import Count, Seed
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.work.host import on_host
from heatlas.pipeline.run.work.seeds import derived_seed

REST = -1
"""Number of the region that holds what differs from the mean control and lies in no region."""


@dataclass(frozen=True, eq=False)
class RegionEvidence:
    """Evidence of the regions of one volume, (N,), in units of the score, and its standard error over random orders.

    `numbers`: labels in which the volume differs from the mean control, ascending; `REST` first where there is a rest.
    `voxels`: (N,). `standard_error`: 0 where nothing is drawn, NaN for a single pair of orders. `labels`: (D, H, W),
    the regions of this volume, `REST` included.
    """

    numbers: tuple[int, ...]
    voxels: Tensor
    evidence: Tensor
    standard_error: Tensor
    labels: Tensor


def players(labels: Tensor, volume: Tensor, mean: Tensor) -> Tensor:
    """Labels (D, H, W) of the regions in which a volume (1, D, H, W) differs from the mean control; 0 elsewhere."""
    differs = (volume != mean[0]).any(dim=0)
    changed = torch.unique(labels[differs & (labels != 0)])
    in_regions = torch.where(torch.isin(labels, changed), labels, torch.zeros_like(labels))
    return torch.where(differs & (labels == 0), torch.full_like(labels, REST), in_regions)


def shapley_orders(count: int, pairs: int, seed: int) -> Tensor:
    """Random orders of `count` regions, (pairs, 2, count): each beside its reverse.

    >>> orders = shapley_orders(4, 3, seed=0)
    >>> bool((orders[:, 0].flip(1) == orders[:, 1]).all()), orders.sort(2).values.unique().tolist()
    (True, [0, 1, 2, 3])
    """
    source = torch.Generator().manual_seed(derived_seed(seed, "region-shapley"))
    forward = torch.stack([torch.randperm(count, generator=source) for _ in range(pairs)])
    return torch.stack([forward, forward.flip(1)], dim=1)


@dataclass(frozen=True)
class OfRegions(ComparesWithControls):
    """What both methods share: regions, a reference, and maps painted from the evidence of regions."""

    regions: RegionLabels | None = None

    @staticmethod
    def from_run(surroundings: RunContext) -> dict[str, object]:
        return {**ComparesWithControls.from_run(surroundings), "regions": RegionLabels.of_run(surroundings)}

    def evidence(self, view: NetworkView) -> tuple[RegionEvidence, ...]:
        if not view.at_input:
            raise UsageError(f"{self.name} replaces regions of the volume; explain at stage 0.")
        if self.regions is None:
            raise UsageError(f"{self.name} replaces atlas regions and was given none; set its regions.")
        labels = self.regions.beside(view.volumes).long()
        mean = fitting(self.reference, view.volumes, self.name).mean
        return tuple(
            self._of(view, place, players(labels, view.features[place], mean), mean)
            for place in range(len(view.features))
        )

    def maps(self, view: NetworkView) -> Tensor:
        return torch.cat([_painted(evidence, evidence.evidence) for evidence in self.evidence(view)]).to(view.features)

    def reference_value(self, view: NetworkView) -> Tensor:
        return value_of_mean(fitting(self.reference, view.volumes, self.name), view)

    def _of(self, view: NetworkView, place: int, labels: Tensor, mean: Tensor) -> RegionEvidence:
        raise NotImplementedError


@dataclass(frozen=True)
class RegionSwap(OfRegions):
    """What the score loses when a region takes the controls' mean tissue, shared out evenly over its voxels.

    At the input only. Positive where the person's tissue speaks for the target.
    """

    name: ClassVar[str] = "region-swap"

    batch: Count = 8

    def _of(self, view: NetworkView, place: int, labels: Tensor, mean: Tensor) -> RegionEvidence:
        numbers, voxels = torch.unique(labels[labels != 0], return_counts=True)
        keeps = (labels != number for number in numbers)
        without = _scores(view, place, keeps, mean, self.batch)
        with torch.no_grad():
            whole = view.score(view.features[place : place + 1])
        evidence = (whole - without).double()
        return RegionEvidence(tuple(on_host(numbers).tolist()), voxels, evidence, torch.zeros_like(evidence), labels)


@dataclass(frozen=True)
class RegionShapley(OfRegions):
    """Shapley value of each region between the mean control and the person, shared out evenly over its voxels.

    At the input only. Sums to the score less that of the mean control, whatever the number of orders.

    `pairs`: antithetic pairs of orders; each costs two forward passes per region. `seed`: draws the orders; the same
    for every volume.
    """

    name: ClassVar[str] = "region-shapley"

    pairs: Count = 4
    seed: Seed = 0
    batch: Count = 8

    def drawn(self, view: NetworkView) -> Drawn:
        """Maps, and the standard errors shared out over the same voxels; None with a single pair of orders."""
        regions = self.evidence(view)
        maps, errors = (
            torch.cat([_painted(evidence, of) for evidence, of in zip(regions, values, strict=True)]).to(view.features)
            for values in (
                [evidence.evidence for evidence in regions],
                [evidence.standard_error for evidence in regions],
            )
        )
        return Drawn(maps, errors if self.pairs > 1 else None)

    def _of(self, view: NetworkView, place: int, labels: Tensor, mean: Tensor) -> RegionEvidence:
        numbers, voxels = torch.unique(labels[labels != 0], return_counts=True)
        count = len(numbers)
        index = torch.searchsorted(numbers, labels).clamp(max=max(count - 1, 0))
        orders = shapley_orders(count, self.pairs, self.seed).to(labels.device)
        with torch.no_grad():
            ends = view.score(torch.cat([mean, view.features[place : place + 1]])).double()
        of_pairs = torch.zeros(self.pairs, 2, count, dtype=torch.float64, device=labels.device)
        for pair, way in ((pair, way) for pair in range(self.pairs) for way in range(2)):
            order = orders[pair, way]
            keeps = _growing(labels, index, order)
            between = _scores(view, place, keeps, mean, self.batch).double()
            of_pairs[pair, way, order] = torch.cat([ends[:1], between, ends[1:]]).diff()[:count]
        pair_means = of_pairs.mean(1)
        error = pair_means.std(0) / math.sqrt(self.pairs) if self.pairs > 1 else pair_means[0] * math.nan
        return RegionEvidence(tuple(on_host(numbers).tolist()), voxels, pair_means.mean(0), error, labels)


def _growing(labels: Tensor, index: Tensor, order: Tensor) -> Iterator[Tensor]:
    """Masks (D, H, W) that keep the first 1, 2, ... regions of an order as they are in the volume; not all of them."""
    if len(order) < 2:
        return
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    placed = torch.where(labels != 0, rank[index], torch.zeros_like(index))
    for shown in range(1, len(order)):
        yield placed < shown


def _scores(view: NetworkView, place: int, keeps: Iterator[Tensor], mean: Tensor, batch: int) -> Tensor:
    """Scores (M,) of one volume with what each mask does not keep taken from the mean control."""
    hidden = mean.expand_as(view.features)
    chunks = [scores for _, scores in masked_scores(view, place, keeps, hidden, batch)]
    return torch.cat(chunks) if chunks else view.features.new_zeros(0)


def _painted(evidence: RegionEvidence, of_regions: Tensor) -> Tensor:
    """A number of each region, shared out evenly over its voxels."""
    if not evidence.numbers:
        return torch.zeros_like(evidence.labels, dtype=of_regions.dtype)[None, None]
    return painted(evidence.labels, evidence.numbers, (of_regions / evidence.voxels)[None])
