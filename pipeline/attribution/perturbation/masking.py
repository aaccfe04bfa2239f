"""Value of hidden voxels: one object for every method and metric that hides part of a volume.

A hidden voxel must have *some* value, and the map depends on it. The default is **air**. Volumes are scaled to [0, 1]
inside the brain with a background of exactly 0, so air is 0, and hiding means "no tissue here", which the network knows
from outside the head. In z-scored volumes 0 is *mean tissue*: multiplication by a mask there inserts grey matter
instead of removing it; set `baseline` to the scaled value of air.

With `keep` between 0 (hidden) and 1 (shown), ``masked = b + keep (x - b)``. This commutes with affine scaling, so
masking scaled volumes with scaled air equals masking raw intensities with air.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import torch
from torch import Tensor

from heatlas.pipeline.attribution.method_settings import CheckedSettings
from heatlas.pipeline.attribution.network_view import NetworkView
from heatlas.pipeline.run.errors import BadInputError
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

    Examples
    --------
    >>> Masking().apply(torch.tensor([0.8, 0.6]), torch.tensor([1.0, 0.5])).tolist()
    [0.800000011920929, 0.30000001192092896]
    >>> Masking(baseline=-1.5).apply(torch.tensor([0.8]), torch.tensor([0.0])).tolist()
    [-1.5]
    """

    baseline: float = AIR
    inner: Literal["baseline", "zero"] = "baseline"

    def apply(self, x: Tensor, keep: Tensor) -> Tensor:
        """Volumes (B, 1, D, H, W) with the hidden part replaced; see `mixed`."""
        return mixed(x, keep, self.hidden(x))

    def hidden(self, volumes: Tensor) -> Tensor:
        """The baseline, in a shape that broadcasts to volumes (B, 1, D, H, W)."""
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
    """``hidden + keep (x - hidden)``, exact at both ends; all three broadcast.

    Raises BadInputError if `keep` leaves [0, 1] or is NaN.
    """
    low, high = on_host(torch.stack(torch.aminmax(keep.detach()))).tolist()
    if not (low >= -ROUNDING and high <= 1 + ROUNDING):
        raise BadInputError(f"a mask must lie in [0, 1], but ranges from {low} to {high}; normalise it first.")
    return torch.lerp(hidden, x, keep.to(x))


def masked_scores(
    view: NetworkView, volume: int, keeps: Iterable[Tensor], hidden: Tensor, batch: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Scores of one volume of a view under many masks, a few at a time.

    `volume`: index of the volume. `keeps`: masks (d, h, w) on the grid of the features; drawn only as needed. `hidden`:
    values of hidden features, (B, C, d, h, w); see `Masking.hidden_features`. `batch`: masked volumes evaluated, and
    held, at once. Yields up to `batch` masks (m, d, h, w) and their scores (m,).
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
