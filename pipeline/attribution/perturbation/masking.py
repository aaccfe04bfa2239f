"""What a hidden voxel becomes: one object for every method and metric that hides part of a volume.

A voxel that is hidden must take *some* value, and the map depends on which. Here it becomes **air** unless said
otherwise. Volumes are scaled to [0, 1] inside the brain with a background of exactly 0, so air is 0, and hiding means
"no tissue here", which the network knows from everywhere outside the head. In z-scored volumes 0 is *mean tissue*:
multiplying by a mask there paints grey matter instead of removing it; give the scaled value of air as `baseline`.

With `keep` between 0 (hidden) and 1 (shown), ``masked = b + keep (x - b)``. Affine scaling and this mix commute, so
masking scaled volumes with scaled air is masking raw intensities with air.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.attribution.network_view import NetworkView
from pipeline.run.errors import BadInputError, UsageError

AIR = 0.0
"""Value of air in volumes scaled by ``minmax-brain``."""

ROUNDING = 1e-5
"""Interpolated masks leave [0, 1] by rounding; more than this is a mistake."""


@dataclass(frozen=True)
class Blurred:
    """Baseline: the volume itself, blurred until detail is gone; what lies beyond its border counts as 0.

    Parameters
    ----------
    sigma : float
        Standard deviation of the Gaussian, in voxels.
    """

    sigma: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.sigma) and self.sigma > 0):
            raise UsageError(f"blurred baseline: sigma = {self.sigma} voxels; it must be positive.")


@dataclass(frozen=True, eq=False)
class Reference:
    """Baseline: one given volume, such as the mean of the training controls on the template grid.

    Parameters
    ----------
    name : str
        What it is; goes into sidecars with a digest of the values.
    volume : Tensor
        (D, H, W), scaled as the volumes that are masked.
    """

    name: str
    volume: Tensor

    def __post_init__(self) -> None:
        if self.volume.dim() != 3 or not bool(torch.isfinite(self.volume).all()):
            raise BadInputError(f"baseline {self.name!r} must be one finite volume (D, H, W).")

    def __repr__(self) -> str:
        return f"Reference({self.name!r}, sha256={digest(self.volume.double())})"


@dataclass(frozen=True)
class Masking:
    """How voxels are hidden.

    Parameters
    ----------
    baseline : float, Blurred or Reference
        What a hidden voxel becomes; the value of air by default.
    inner : {"baseline", "zero"}
        What a hidden feature becomes at a later stage: the feature that the baseline volume has at that place
        (default; means the same at every stage), or 0 (as in the literature; "nothing detected" after a ReLU only).

    Examples
    --------
    >>> Masking().apply(torch.tensor([0.8, 0.6]), torch.tensor([1.0, 0.5])).tolist()
    [0.800000011920929, 0.30000001192092896]
    >>> Masking(baseline=-1.5).apply(torch.tensor([0.8]), torch.tensor([0.0])).tolist()
    [-1.5]
    """

    baseline: float | Blurred | Reference = AIR
    inner: Literal["baseline", "zero"] = "baseline"

    def __post_init__(self) -> None:
        if self.inner not in ("baseline", "zero"):
            raise UsageError(f"masking: inner = {self.inner!r}; allowed are 'baseline' and 'zero'.")
        if not isinstance(self.baseline, Blurred | Reference) and not math.isfinite(self.baseline):
            raise UsageError(f"masking: baseline = {self.baseline}; it must be a finite intensity.")

    def apply(self, x: Tensor, keep: Tensor) -> Tensor:
        """Volumes with the hidden part replaced; differentiable in both arguments.

        Parameters
        ----------
        x : Tensor
            Volumes (B, 1, D, H, W).
        keep : Tensor
            Values in [0, 1] that broadcast to `x`: 1 shows a voxel, 0 hides it.

        Returns
        -------
        Tensor
            Exactly `x` where `keep` is 1 and exactly the baseline where it is 0.

        Raises
        ------
        BadInputError
            If `keep` leaves [0, 1] or is NaN.
        """
        return mixed(x, keep, self.hidden(x))

    def hidden(self, volumes: Tensor) -> Tensor:
        """The baseline of volumes (B, 1, D, H, W), in a shape that broadcasts to them.

        Raises
        ------
        BadInputError
            For a reference on another grid.
        """
        if isinstance(self.baseline, Blurred):
            return blurred(volumes, self.baseline.sigma)
        if isinstance(self.baseline, Reference):
            reference = self.baseline.volume.to(volumes)
            if reference.shape != volumes.shape[-3:]:
                raise BadInputError(
                    f"baseline {self.baseline.name!r} has the grid {tuple(reference.shape)}, "
                    f"the volumes {tuple(volumes.shape[-3:])}; resample it."
                )
            return reference
        return torch.full((), self.baseline, dtype=volumes.dtype, device=volumes.device)

    def hidden_features(self, view: NetworkView) -> Tensor:
        """What hidden features of a view become, expanded to the shape of its features, (B, C, d, h, w)."""
        if view.at_input:
            return self.hidden(view.volumes).expand_as(view.features)
        if self.inner == "zero":
            return torch.zeros((), dtype=view.features.dtype, device=view.features.device).expand_as(view.features)
        one_for_all = not isinstance(self.baseline, Blurred)
        like = view.volumes[:1] if one_for_all else view.volumes
        with torch.no_grad():
            return view.pre(self.hidden(like).expand_as(like)).expand_as(view.features)


def mixed(x: Tensor, keep: Tensor, hidden: Tensor) -> Tensor:
    """``hidden + keep (x - hidden)``, exact at both ends; all three broadcast.

    Raises
    ------
    BadInputError
        If `keep` leaves [0, 1] or is NaN.
    """
    low, high = torch.aminmax(keep.detach())
    if not (bool(low >= -ROUNDING) and bool(high <= 1 + ROUNDING)):
        raise BadInputError(
            f"a mask must lie in [0, 1] and runs from {float(low)} to {float(high)}; normalise it first."
        )
    return torch.lerp(hidden, x, keep.to(x))


def blurred(volumes: Tensor, sigma: float) -> Tensor:
    """Gaussian blur of volumes (B, C, D, H, W), cut at 4 sigma (in voxels), zero beyond the border."""
    radius = int(4 * sigma + 0.5)
    offsets = torch.arange(-radius, radius + 1, dtype=volumes.dtype, device=volumes.device)
    kernel = torch.exp(-0.5 * (offsets / sigma) ** 2)
    kernel = kernel / kernel.sum()
    flat = volumes.reshape(-1, 1, *volumes.shape[-3:])
    for axis in range(3):
        shape, padding = [1, 1, 1, 1, 1], [0, 0, 0]
        shape[axis + 2], padding[axis] = -1, radius
        flat = functional.conv3d(flat, kernel.view(shape), padding=padding)
    return flat.reshape(volumes.shape)


def masked_scores(
    view: NetworkView, volume: int, keeps: Iterable[Tensor], hidden: Tensor, batch: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Scores of one volume of a view under many masks, a few at a time.

    Parameters
    ----------
    view : NetworkView
    volume : int
        Which of the view's volumes.
    keeps : iterable of Tensor
        Masks (d, h, w) on the grid of the features; drawn only as they are needed.
    hidden : Tensor
        What hidden features become, (B, C, d, h, w); see `Masking.hidden_features`.
    batch : int
        Masked volumes evaluated, and held, at once.

    Yields
    ------
    Tensor, Tensor
        Up to `batch` masks (m, d, h, w) and their scores (m,).
    """
    remaining = iter(keeps)
    while chunk := list(islice(remaining, batch)):
        keep = torch.stack(chunk).to(view.features)
        with torch.no_grad():
            scores = view.score(mixed(view.features[volume], keep[:, None], hidden[volume]))
        yield keep, scores


def digest(values: Tensor) -> str:
    """Short digest of the values of a tensor, for sidecars."""
    return hashlib.sha256(values.detach().cpu().contiguous().numpy().tobytes()).hexdigest()[:12]
