"""What dynamic linear families have in common besides their layers: how a volume enters, and how values are normalised.

Each intensity v enters as the pair [v, 1 - v] (Böhle, Fritz & Schiele 2021, for colours; here for one sequence, or
several as [v ..., 1 - v ...]). The output of such a network is bounded by the norm of its input, so dark voxels could
say nothing if they entered as v alone. The pair has a norm of at least 0.707 for every intensity, and its direction
says which intensity it was.

Normalisations (Böhle, Singh, Fritz & Schiele 2024) are one module, whose kind says which axes share a mean and a
variance:

=========  ==================  ===========================
kind       axes (of B, C, ...) statistics in evaluation
=========  ==================  ===========================
batch      B and voxels        running, over batches
layer      C and voxels        of the volume itself
instance   voxels              of the volume itself
group      part of C, voxels   of the volume itself
position   C                   of the voxel itself
all        B, C and voxels     running, over batches
=========  ==================  ===========================

``y = weight (x - mean) / sqrt(variance + eps)``. The division is a dynamic factor; the mean is linear in x and stays
so. A map is complete if nothing constant is added: no bias, and no running mean, which is why ``batch`` and ``all``
do not subtract it unless asked to. The variance is about the mean either way.
"""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from heatlas.pipeline.models.dynamic import DynamicLinear
from heatlas.pipeline.run.errors import BadInputError, UsageError

Background = Literal["null", "dark"]
Sides3 = tuple[int, int, int]
Sides = int | Sides3
ENCODED = 2
"""Channels of an encoded volume."""


def three(value: int | tuple[int, ...]) -> Sides3:
    first, second, third = (value,) * 3 if isinstance(value, int) else value
    return first, second, third


class InputEncoding(nn.Module):
    """Encode volumes (B, k, D, H, W) in [0, 1] as pairs (B, 2k, D, H, W); the first stage of a network.

    `background`: what an intensity of exactly 0, as everywhere outside the brain mask, becomes. ``null``: [0, 0], which
    contributes exactly nothing. ``dark``: [0, 1], as in the source, a constant and fully reliable signal.
    """

    keeps_places: ClassVar[bool] = True

    def __init__(self, background: Background = "null") -> None:
        super().__init__()
        if background not in get_args(Background):
            raise UsageError(f"background = {background!r}: allowed are {', '.join(get_args(Background))}.")
        self.background = background

    def forward(self, volumes: Tensor) -> Tensor:
        """The pairs.

        In training mode intensities are clipped to [0, 1], which augmentation by noise or a bias field may leave; in
        evaluation mode others are refused.
        """
        if self.training:
            volumes = volumes.clamp(0, 1)
        elif not volumes.is_meta:  # shapes without values
            _require_unit_range(volumes)
        pairs = torch.cat([volumes, 1 - volumes], dim=1)
        if self.background == "dark":
            return pairs
        inside = (volumes > 0).to(volumes.dtype)
        return pairs * torch.cat([inside, inside], dim=1)

    def extra_repr(self) -> str:
        return f"background={self.background}"


def _require_unit_range(volumes: Tensor) -> None:
    low, high = map(float, torch.aminmax(volumes.detach()))
    if not 0 <= low <= high <= 1:
        raise BadInputError(
            f"the network takes intensities from 0 to 1, and these lie between {low:g} and {high:g}. Scale the volume "
            "inside its brain mask, as heatlas.pipeline.models.inputs does; z-scores and added noise go beyond."
        )


Kind = Literal["batch", "layer", "instance", "group", "position", "all"]
RUNNING: tuple[Kind, ...] = ("batch", "all")
"""Kinds whose statistics are those of the training data."""


class DynamicNorm(DynamicLinear):
    """A normalisation that is linear in its input once its scale is held.

    `kind`: see the module. `centred`: whether the mean is subtracted; by default unless it is a running one. `bias`:
    whether a learned constant is added, which breaks completeness. `groups`: of ``group``. `eps`: added to the
    variance, so that an empty background stays exactly 0.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(
        self,
        kind: Kind,
        channels: int,
        centred: bool | None = None,
        bias: bool = False,
        groups: int = 2,
        eps: float = 1e-5,
        momentum: float = 0.1,
    ) -> None:
        super().__init__()
        if kind not in get_args(Kind):
            raise UsageError(f"norm = {kind!r}: allowed are {', '.join(get_args(Kind))}.")
        if kind == "group" and channels % groups:
            raise UsageError(f'norm = "group": {channels} channels are not divided by {groups} groups.')
        self.kind, self.groups, self.eps, self.momentum = kind, groups, eps, momentum
        self.centred = kind not in RUNNING if centred is None else centred
        size = 1 if kind == "all" else channels
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size)) if bias else None
        if kind in RUNNING:
            self.register_buffer("running_mean", torch.zeros(size))
            self.register_buffer("running_var", torch.ones(size))
            self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "group":
            parts = x.unflatten(1, (self.groups, -1))  # type: ignore[no-untyped-call]
            return self._affine(self._normalised(parts).flatten(1, 2))
        return self._affine(self._normalised(x))

    def why_not_linear(self) -> str | None:
        if self.kind in RUNNING and self.centred and self.training:
            return "it subtracts the mean of the batch, which couples its volumes; call model.eval() first"
        return None

    def extra_repr(self) -> str:
        return f"{self.kind}, centred={self.centred}, bias={self.bias is not None}, eps={self.eps:g}"

    def _axes(self, x: Tensor) -> tuple[int, ...]:
        voxels = tuple(range(2, x.dim()))
        return {
            "batch": (0, *voxels), "layer": (1, *voxels), "instance": voxels, "group": voxels, "position": (1,),
            "all": (0, 1, *voxels),
        }[self.kind]  # fmt: skip

    def _normalised(self, x: Tensor) -> Tensor:
        if self.kind in RUNNING and not self.training:
            mean, variance = _per_channel(self.running_mean, x), _per_channel(self.running_var, x)
        else:
            wide = x if x.dtype == torch.float64 else x.float()  # squares of half precision overflow
            variance, mean = torch.var_mean(wide, self._axes(x), correction=0, keepdim=True)
            if self.kind in RUNNING and self.mode != "replay":
                self._track(mean.detach(), variance.detach(), x.numel() // variance.numel())
        scale = self.held(torch.rsqrt(variance + self.eps)).to(x.dtype)
        return (x - mean.to(x.dtype)) * scale if self.centred else x * scale

    def _affine(self, x: Tensor) -> Tensor:
        x = x * _per_channel(self.weight, x)
        return x if self.bias is None else x + _per_channel(self.bias, x)

    def _track(self, mean: Tensor, variance: Tensor, count: int) -> None:
        """Running statistics as PyTorch keeps them, with the variance of the sample."""
        self.num_batches_tracked += 1
        self.running_mean.lerp_(mean.flatten().to(self.running_mean), self.momentum)
        unbiased = variance.flatten() * (count / max(count - 1, 1))
        self.running_var.lerp_(unbiased.to(self.running_var), self.momentum)


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    """Values (C,) or (1,) as they broadcast over x (B, C, ...)."""
    return values.view(1, -1, *[1] * (x.dim() - 2))
