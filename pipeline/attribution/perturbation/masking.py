"""Hiding a part of a volume: the value of hidden voxels, and occlusion, the drop of the score that it causes.

A hidden voxel must have *some* value, and the map depends on it; `Masking` is one object for every method and metric.
The default is **air**. Volumes are scaled to [0, 1] inside the brain with a background of exactly 0, so air is 0, and
hiding means "no tissue here", which the network knows from outside the head. In z-scored volumes 0 is *mean tissue*:
multiplication by a mask there inserts grey matter instead of removing it; set `baseline` to the scaled value of air.
With `keep` between 0 (hidden) and 1 (shown), ``masked = b + keep (x - b)``. This commutes with affine scaling, so
masking scaled volumes with scaled air equals masking raw intensities with air.

Occlusion (Zeiler & Fergus 2014): a *drop* is the score of the volume minus its score with one part hidden, in units of
the score. Parts are boxes that slide over the grid (`Occlusion`) or the regions of an atlas (`RegionOcclusion`). Both
maps are drops **per voxel**: the drop of a part is divided evenly among its voxels, so that parts of different size are
comparable and, where parts do not overlap, the sum of the map over a part is its drop. For a linear score that is the
mean (the sum) of ``w (x - baseline)`` over the part. A part in which the volume equals the baseline cannot change the
score; its drop is 0 and needs no evaluation.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from heatlas.pipeline.attribution.entry import RunContext
from heatlas.pipeline.attribution.graph.layers import triple
from heatlas.pipeline.attribution.method_settings import CheckedSettings
from heatlas.pipeline.attribution.network_view import NetworkView
from heatlas.pipeline.run.config.ranges import Count, at_least
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.work.host import on_host

AIR = 0.0
"""Value of air in volumes scaled by ``minmax-brain``."""

ROUNDING = 1e-5
"""Tolerance of the range [0, 1], for rounding of interpolated masks."""


@dataclass(frozen=True)
class Masking(CheckedSettings):
    """How voxels are hidden.

    `baseline`: value of a hidden voxel; air by default. `inner`: value of a hidden feature at a later stage: the
    feature of the baseline volume at that place (default; has the same meaning at every stage), or 0 (as in the
    literature; means "nothing detected" only after a ReLU).

    >>> Masking().apply(torch.tensor([0.8, 0.6]), torch.tensor([1.0, 0.5])).tolist()
    [0.800000011920929, 0.30000001192092896]
    >>> Masking(baseline=-1.5).apply(torch.tensor([0.8]), torch.tensor([0.0])).tolist()
    [-1.5]
    """

    baseline: float = AIR
    inner: Literal["baseline", "zero"] = "baseline"

    def apply(self, x: Tensor, keep: Tensor) -> Tensor:
        return mixed(x, keep, self.hidden(x))

    def hidden(self, volumes: Tensor) -> Tensor:
        """The baseline, as a scalar on the device of the volumes."""
        return torch.full((), self.baseline, dtype=volumes.dtype, device=volumes.device)

    def hidden_features(self, view: NetworkView) -> Tensor:
        """Values of hidden features of a view, expanded to the shape of its features, (B, C, d, h, w)."""
        if view.at_input:
            return self.hidden(view.volumes).expand_as(view.features)
        if self.inner == "zero":
            return torch.zeros((), dtype=view.features.dtype, device=view.features.device).expand_as(view.features)
        like = view.volumes[:1]
        with torch.no_grad():
            return view.pre(self.hidden(like).expand_as(like)).expand_as(view.features)


def mixed(x: Tensor, keep: Tensor, hidden: Tensor) -> Tensor:
    """``hidden + keep (x - hidden)``, exact at both ends; all three broadcast."""
    low, high = on_host(torch.stack(torch.aminmax(keep.detach()))).tolist()
    if not (low >= -ROUNDING and high <= 1 + ROUNDING):
        raise BadInputError(f"a mask must lie in [0, 1], but ranges from {low} to {high}; normalise it first.")
    return torch.lerp(hidden, x, keep.to(x))


def masked_scores(
    view: NetworkView, volume: int, keeps: Iterable[Tensor], hidden: Tensor, batch: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Scores (m,) of one volume of a view under masks (m, d, h, w) on the grid of its features, `batch` at a time.

    `keeps`: drawn only as needed. `hidden`: (B, C, d, h, w); see `Masking.hidden_features`.
    """
    remaining = iter(keeps)
    while chunk := list(islice(remaining, batch)):
        keep = torch.stack(chunk).to(view.features)
        with torch.no_grad():
            scores = view.score(mixed(view.features[volume], keep[:, None], hidden[volume]))
        yield keep, scores


def digest(values: Tensor) -> str:
    """Short digest of the values of a tensor, for sidecars."""
    return hashlib.sha256(on_host(values).contiguous().numpy().tobytes()).hexdigest()[:12]


Box = tuple[slice, slice, slice]
Edges = Annotated[int | tuple[int, int, int], at_least(1)]


def boxes(grid: tuple[int, ...], size: tuple[int, ...], stride: tuple[int, ...]) -> list[Box]:
    """Boxes that cover a grid: from the first voxel of each axis in steps of the stride until the last is covered.

    The last box of an axis is cropped at the border if the steps do not fit, as in captum.

    >>> [(box[0].start, box[0].stop) for box in boxes((7, 3, 3), (3, 3, 3), (2, 3, 3))]
    [(0, 3), (2, 5), (4, 7)]
    >>> [(box[0].start, box[0].stop) for box in boxes((8, 3, 3), (3, 3, 3), (3, 3, 3))]
    [(0, 3), (3, 6), (6, 8)]
    """
    axes = [
        [slice(first, min(first + width, length)) for first in range(0, length - width + step, step)]
        for length, width, step in zip(grid, size, stride, strict=True)
    ]
    return [(a, b, c) for a, b, c in itertools.product(*axes)]


def occlusion(
    view: NetworkView, size: tuple[int, ...], stride: tuple[int, ...], masking: Masking, batch: int
) -> Tensor:
    """Mean drop per voxel of the boxes that cover a voxel, (B, 1, d, h, w) on the grid of the features.

    ``map(v) = 1 / n(v) sum over the n(v) boxes b that contain v of (score - score without b) / |b|``, with |b| the
    number of voxels of b on the grid (all channels of a feature are hidden together). captum's `Occlusion` is the same
    without the division by |b|.
    """
    grid = view.features.shape[-3:]
    cover = boxes(tuple(grid), size, stride)
    hidden = masking.hidden_features(view)
    total, covered = torch.zeros_like(view.features[:, :1]), torch.zeros_like(view.features[0, 0])
    for box in cover:
        covered[box] += 1
    for volume in range(len(total)):
        changes = (view.features[volume] != hidden[volume]).any(dim=0)
        changed = on_host(torch.stack([changes[box].any() for box in cover])).tolist()
        telling = [box for box, is_changed in zip(cover, changed, strict=True) if is_changed]
        keeps = (_without_box(total[volume, 0], box) for box in telling)
        for box, drop in zip(telling, _drops(view, volume, keeps, hidden, batch), strict=True):
            total[volume, 0][box] += drop / covered[box].numel()
    return total / covered


@dataclass(frozen=True)
class Occlusion(CheckedSettings):
    """Drop of the score, per voxel, when a box is hidden; see `occlusion`.

    `size`, `stride`: edge of the boxes and distance between them, in voxels of the explained grid. 16 and 8 suit the
    input at 1 mm; at an inner stage take 3 to 5, and 1 or 2.
    """

    name: ClassVar[str] = "occlusion"
    size: Edges = 16
    stride: Edges = 8
    masking: Masking = field(default_factory=Masking)
    batch: Count = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        size, stride = triple(self.size), triple(self.stride)
        if any(step > width for step, width in zip(stride, size, strict=True)):
            raise UsageError(f"occlusion: stride {stride} above size {size} would leave voxels uncovered; lower it.")

    def maps(self, view: NetworkView) -> Tensor:
        size, grid = triple(self.size), tuple(view.features.shape[-3:])
        if any(width > length for width, length in zip(size, grid, strict=True)):
            raise UsageError(f"occlusion: boxes of {size} voxels do not fit into the grid {grid}; lower size.")
        return occlusion(view, size, triple(self.stride), self.masking, self.batch)


@dataclass(frozen=True, eq=False)
class RegionLabels:
    """Regions to hide, (D, H, W) on the grid of the volumes, 0 for no region; sidecars name the atlas and a digest."""

    name: str
    labels: Tensor

    def __post_init__(self) -> None:
        if self.labels.dim() != 3 or self.labels.is_floating_point() or self.labels.dtype == torch.bool:
            raise BadInputError(f"labels of {self.name!r} must be one volume (D, H, W) of integers.")
        if not bool((self.labels != 0).any()):
            raise BadInputError(f"labels of {self.name!r} have no region on this grid.")

    def __repr__(self) -> str:
        return f"RegionLabels({self.name!r}, sha256={digest(self.labels.long())})"

    @classmethod
    def of_run(cls, surroundings: RunContext) -> RegionLabels:
        """The atlas of the run, in the part of the template that the network sees."""
        return cls("regions of the run", torch.from_numpy(surroundings.atlas.labels_in(surroundings.box)))

    def beside(self, volumes: Tensor) -> Tensor:
        """The labels on the device of volumes (B, C, D, H, W), which must lie on their grid."""
        label_grid, grid = tuple(self.labels.shape), tuple(volumes.shape[-3:])
        if label_grid != grid:
            raise BadInputError(
                f"labels of {self.name!r} have the grid {label_grid}, the volumes {grid}; "
                "load the atlas on the grid of the volumes."
            )
        return self.labels.to(volumes.device)


@dataclass(frozen=True, eq=False)
class RegionDrops:
    """Drop of the score for each hidden region, score minus score without it: positive if it supports the target.

    `numbers`: labels with at least one voxel on the grid, ascending; other atlas regions are ``n/a``. `voxels`: (R,) of
    each region. `drops`: (B, R).
    """

    numbers: tuple[int, ...]
    voxels: Tensor
    drops: Tensor

    def of(self, number: int) -> Tensor:
        return self.drops[:, self.numbers.index(number)]


def region_drops(view: NetworkView, labels: Tensor, masking: Masking, batch: int) -> RegionDrops:
    """Drop of the score at the input for every region of `labels` (D, H, W), the whole region hidden at once."""
    hidden = masking.hidden_features(view)
    numbers, counts = torch.unique(labels[labels != 0], return_counts=True)
    drops = torch.zeros(len(view.features), len(numbers), dtype=hidden.dtype, device=hidden.device)
    for volume in range(len(drops)):
        changed = torch.unique(labels[(view.features[volume] != hidden[volume]).any(dim=0)])
        telling = on_host(torch.isin(numbers, changed)).nonzero()[:, 0].tolist()
        keeps = (labels != numbers[place] for place in telling)
        for place, drop in zip(telling, _drops(view, volume, keeps, hidden, batch), strict=True):
            drops[volume, place] = drop
    return RegionDrops(tuple(on_host(numbers).tolist()), counts, drops)


@dataclass(frozen=True)
class RegionOcclusion(CheckedSettings):
    """Drop of the score when an atlas region is hidden, divided evenly among its voxels; at the input only."""

    name: ClassVar[str] = "region-occlusion"
    regions: RegionLabels
    masking: Masking = field(default_factory=Masking)
    batch: Count = 8

    @staticmethod
    def from_run(surroundings: RunContext) -> dict[str, RegionLabels]:
        return {"regions": RegionLabels.of_run(surroundings)}

    def drops(self, view: NetworkView) -> RegionDrops:
        if not view.at_input:
            raise UsageError("region-occlusion hides regions of the volume; explain at stage 0.")
        return region_drops(view, self.regions.beside(view.volumes), self.masking, self.batch)

    def maps(self, view: NetworkView) -> Tensor:
        drops = self.drops(view)
        return painted(self.regions.labels.to(drops.drops.device), drops.numbers, drops.drops / drops.voxels)


def painted(labels: Tensor, numbers: tuple[int, ...], values: Tensor) -> Tensor:
    """Maps (B, 1, D, H, W) with values (B, R) of R labels (ascending) in the voxels of labels (D, H, W)."""
    ascending = torch.tensor(numbers, dtype=torch.long, device=labels.device)
    labels = labels.long()
    place = torch.searchsorted(ascending, labels).clamp(max=len(numbers) - 1)
    return torch.where(ascending[place] == labels, values[:, place], torch.zeros_like(values[:, :1, None, None]))[
        :, None
    ]


def _drops(view: NetworkView, volume: int, keeps: Iterator[Tensor], hidden: Tensor, batch: int) -> Iterator[Tensor]:
    """Score minus masked score, mask by mask."""
    with torch.no_grad():
        whole = view.score(view.features[volume : volume + 1])[0]
    for _, scores in masked_scores(view, volume, keeps, hidden, batch):
        yield from whole - scores


def _without_box(like: Tensor, box: Box) -> Tensor:
    keep = torch.ones_like(like)
    keep[box] = 0
    return keep
