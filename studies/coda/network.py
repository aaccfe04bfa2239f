"""CoDA networks (Böhle, Fritz & Schiele 2021): stacks of dynamic alignment units, their sum over voxels, and logits.

There are no norms and no activations. The tables of layers of the source are here; the defaults of a run are narrower,
with a first layer that takes whole brains. Dynamic alignment units are linear units that compute their weights from the
input: ``DAU(x) = w(x)ᵀx`` with ``w(x) = g(A B x + b)``, where B (r, d) reduces a patch of d values to rank r, A (d, r)
and the vote b (d) make weights of it, and g bounds their norm:

====  ==============================  ===================  ========================
name  w(x), with u = A B x + b        norm of w            of a layer
====  ==============================  ===================  ========================
l2    u / ‖u‖                         1                    B is shared by all units
sq    u ‖u‖ / (1 + ‖u‖²)              below 1              B is shared by all units
wb    A B x / (‖A‖ ‖B x‖), no vote    at most 1            each unit has its own B
====  ==============================  ===================  ========================

So an output is at most the norm of its patch, and reaches it only if the weights point along the patch: a network that
is trained to give large outputs aligns its weights with what it sees. Weights of every unit at every voxel would take
C k³ values each. They are never made: ``w(x)ᵀx`` is a product of B x and Aᵀx in r dimensions, and the norm of u follows
from B x and the Gram matrix AᵀA.

A learnt embedding of patches, a convolution and batch normalisation, may stand in place of the pair [v, 1 - v]. The
network is then linear in the embedding and not in the volume. What it says of a place of the embedding is about the
patch below it: removing the voxel in the middle does not do what removing the place does (Böhle 2024, section 5.3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.dynamic import DynamicLinear, LogitLayer, bias_of_chance
from heatlas.pipeline.models.families.family import Architecture, Shape
from heatlas.pipeline.run.errors import UsageError
from heatlas.studies.coda.records import CodaConfig
from heatlas.studies.dynamic import ENCODED, InputEncoding, Sides3, three

Bound = Literal["l2", "sq", "wb"]
EPS = 1e-12
"""Added to squared norms, so that the root has a slope at empty patches."""
VALUES_AT_ONCE = 2**25
"""Products B x · Aᵀx that are held at a time; a layer with more is computed in slabs of a volume."""


def bounding_scale(bound: Literal["l2", "sq"], squared_norm: Tensor, eps: float = EPS) -> Tensor:
    """The factor that bounds weights u by their squared norm: ``w = factor u``.

    Examples
    --------
    >>> squared = torch.tensor([0.25, 4.0])
    >>> bounding_scale("l2", squared), bounding_scale("sq", squared)  # times ‖u‖: 1, and ‖u‖² / (1 + ‖u‖²)
    (tensor([2.0000, 0.5000]), tensor([0.4000, 0.4000]))
    """
    norm = (squared_norm + eps).sqrt()
    return 1 / norm if bound == "l2" else norm / (1 + squared_norm)


def squared_weight_norm(reduced: Tensor, expand: Tensor, vote: Tensor) -> Tensor:
    """``‖A B x + b‖²`` without the weights themselves: ``(Bx)ᵀ AᵀA (Bx) + 2 bᵀA Bx + ‖b‖²``.

    `reduced`: B x, (N, r, D, H, W). `expand`: Aᵀ of n units, (n, r, d). `vote`: (n, d). Returns (N, n, D, H, W).
    """
    units, rank = expand.shape[:2]
    gram = (expand @ expand.mT).reshape(units * rank, rank, 1, 1, 1)
    cross = 2 * (expand @ vote[:, :, None]).flatten()
    products = functional.conv3d(reduced, gram, cross)
    products = products.view(len(reduced), units, rank, *reduced.shape[2:])
    constant = vote.square().sum(1).view(-1, 1, 1, 1)
    squared: Tensor = (reduced[:, None] * products).sum(2) + constant
    return squared.clamp(min=0)


class CodaConv3d(DynamicLinear):
    """Convolution of dynamic alignment units over volumes (B, C, D, H, W), with zero padding of half a kernel.

    In explanation mode B x and the bounding factor are held; what is left, ``Aᵀx`` and ``bᵀx``, is linear, and the
    gradient of an output is its w(x).

    `kernel_size`: odd. `rank`: of A B; it bounds how many patterns a unit can hold. `bound`: see the module. `vote`:
    whether b is trained; never with ``wb``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sides3 = 3,
        stride: int | Sides3 = 1,
        rank: int = 8,
        bound: Bound = "wb",
        vote: bool = True,
        eps: float = EPS,
    ) -> None:
        super().__init__()
        if bound not in get_args(Bound):
            raise UsageError(f"bound = {bound!r}: allowed are {', '.join(get_args(Bound))}.")
        if rank < 1:
            raise UsageError(f"rank = {rank}: a dynamic alignment unit needs a rank of 1 or more.")
        self.kernel_size, self.stride = three(kernel_size), three(stride)
        if not all(side % 2 for side in self.kernel_size):
            raise UsageError(f"kernel_size = {kernel_size}: sides must be odd, so that padding keeps the grid.")
        self.padding = (self.kernel_size[0] // 2, self.kernel_size[1] // 2, self.kernel_size[2] // 2)
        self.in_channels, self.out_channels, self.rank, self.bound = in_channels, out_channels, rank, bound
        self.eps, self.values_at_once = eps, VALUES_AT_ONCE
        patch = (in_channels, *self.kernel_size)
        reducing = out_channels if bound == "wb" else 1
        self.reduce_weight = _uniform((reducing * rank, *patch), math.prod(patch))
        self.expand_weight = _uniform((out_channels * rank, *patch), rank)
        self.vote_weight = _uniform((out_channels, *patch), rank) if vote and bound != "wb" else None

    def forward(self, x: Tensor) -> Tensor:
        """Responses (B, `out_channels`, ...), in float32 at least: products of three factors leave half precision."""
        with torch.autocast("cuda" if x.is_cuda else "cpu", enabled=False):
            x = x if x.dtype == torch.float64 else x.float()
            sides = [-(-side // step) for side, step in zip(x.shape[2:], self.stride, strict=True)]
            values = self.out_channels * self.rank * sides[1] * sides[2]  # of one layer of voxels
            if len(x) * sides[0] * values <= self.values_at_once:
                return self._responses(x, self.padding)
            thick = max(1, self.values_at_once // values)
            return torch.cat([self._in_slabs(one, sides[0], thick) for one in torch.split(x, 1)])

    def _in_slabs(self, x: Tensor, side: int, thick: int) -> Tensor:
        """Responses of a volume, so many layers of voxels at a time, each with the border that its patches need."""
        (kernel, step, border), (_, *others) = (self.kernel_size[0], self.stride[0], self.padding[0]), self.padding
        work = partial(self._responses, padding=(0, others[0], others[1]))
        wide = functional.pad(x, (0, 0, 0, 0, border, border))
        ends = [(start * step, (min(start + thick, side) - 1) * step + kernel) for start in range(0, side, thick)]
        return torch.cat([self._again(work, wide[:, :, start:end]) for start, end in ends], 2)

    def _responses(self, x: Tensor, padding: Sides3) -> Tensor:
        conv = partial(self._conv, x, padding=padding)
        reduced = self.held(conv(self.reduce_weight))
        patterns = self.expand_weight.reshape(self.out_channels, self.rank, -1)
        products = self._by_unit(conv(self.expand_weight))
        if self.bound == "wb":
            by_unit = self._by_unit(reduced)
            size = patterns.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
            scale = (by_unit.square().sum(2) + self.eps).rsqrt() / size
            return (by_unit * products).sum(2) * self.held(scale)
        none = patterns.new_zeros(len(patterns), patterns.shape[2])
        vote = none if self.vote_weight is None else self.vote_weight.flatten(1)
        bound: Literal["l2", "sq"] = "l2" if self.bound == "l2" else "sq"
        scale = bounding_scale(bound, squared_weight_norm(reduced, patterns, vote), self.eps)
        answer = (reduced[:, None] * products).sum(2)
        if self.vote_weight is not None:
            answer = answer + conv(self.vote_weight)
        return answer * self.held(scale)

    def _by_unit(self, values: Tensor) -> Tensor:
        """Channels (B, n r, ...) of n units as (B, n, r, ...)."""
        return values.view(values.shape[0], -1, self.rank, *values.shape[2:])

    def _conv(self, x: Tensor, filters: Tensor, padding: Sides3) -> Tensor:
        return functional.conv3d(x, filters, None, self.stride, padding)

    def _again(self, work: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """The work, whose inner values are computed again in the backward pass rather than kept.

        Not while factors are recorded or replayed, which must happen once.
        """
        if self.mode in ("record", "replay") or not torch.is_grad_enabled():
            return work(x)
        answer: Tensor = checkpoint(work, x, use_reentrant=False, preserve_rng_state=False)
        return answer

    def extra_repr(self) -> str:
        shape = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        return f"{shape}, rank={self.rank}, bound={self.bound}, vote={self.vote_weight is not None}"


def _uniform(shape: tuple[int, ...], fan_in: int) -> nn.Parameter:
    """As PyTorch starts convolutions: uniform up to one over the root of the values that are summed."""
    return nn.Parameter(torch.empty(shape).uniform_(-1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in)))


KERNEL = 3


class PatchEmbedding(nn.Sequential):
    """Features (B, F, D, H, W) of the patch around each voxel of volumes (B, 1, D, H, W)."""

    def __init__(self, filters: int) -> None:
        super().__init__(nn.Conv3d(1, filters, KERNEL, padding=KERNEL // 2, bias=False), nn.BatchNorm3d(filters))


def require_voxel_level(model: nn.Module) -> None:
    """Refuse to call a map of contributions one of voxels where the network is linear in an embedding only."""
    if any(isinstance(module, PatchEmbedding) for module in model.modules()):
        raise UsageError(
            "the network is linear in a learnt embedding of patches, not in voxels: its contributions are no map of "
            "voxels. Ask at stage 1 for contributions of the embedding, or train with model.embedding = 0."
        )


@dataclass(frozen=True)
class Layers:
    """The layers of a network, first to last; `units`: of all but the last, which has one per output."""

    units: tuple[int, ...]
    ranks: tuple[int, ...]
    kernels: tuple[int, ...]
    strides: tuple[int, ...]


_SMALL = ((16, 16, 32, 32, 32, 64, 64, 64), (3, 3, 3, 3, 3, 3, 3, 3, 1), (1, 1, 2, 1, 1, 2, 1, 1, 1))
PUBLISHED: Mapping[str, Layers] = MappingProxyType(
    {
        "S": Layers(_SMALL[0], (32, 32, 64, 64, 64, 64, 64, 64, 64), *_SMALL[1:]),
        "S-WB": Layers(_SMALL[0], (16, 16, 16, 16, 32, 32, 32, 32, 32), *_SMALL[1:]),
        "L": Layers(
            (16, 32, 32, 64, 64, 64, 64, 64), (64, 64, 64, 128, 128, 128, 256, 256, 256),
            (7, 3, 3, 3, 3, 3, 3, 3, 3), (3, 1, 1, 2, 1, 1, 2, 1, 1),
        ),
        "XL": Layers(
            (16, 32, 32, 64, 64, 64, 64, 64), (64, 64, 128, 128, 128, 256, 256, 256, 256),
            (5, 3, 3, 3, 3, 3, 3, 3, 3), (1, 1, 2, 1, 1, 2, 1, 1, 2),
        ),
    }
)  # fmt: skip
"""Layers of the source, for natural images; a temperature belongs to each, see the source."""


class SumPool(nn.Module):
    """Sum over voxels: (B, C, D, H, W) to (B, C). A larger grid has a larger sum; the temperature allows for it."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).sum(2)


def stack(layers: Layers, before: int, outputs: int, bound: Bound, flat: bool = False) -> list[CodaConv3d]:
    """The layers of a network; `flat`: with kernels and strides of two dimensions, as in the source, for one slice."""
    made = []
    for units, rank, kernel, stride in zip(
        (*layers.units, outputs), layers.ranks, layers.kernels, layers.strides, strict=True
    ):
        depth = (1, 1) if flat else (kernel, stride)
        sides, steps = (depth[0], kernel, kernel), (depth[1], stride, stride)
        made.append(CodaConv3d(before, units, sides, steps, rank, bound))
        before = units
    return made


def _head(last: nn.Module, outputs: int, settings: CodaConfig, positions: int) -> nn.Sequential:
    """The last layer, the sum over so many voxels, and logits."""
    bias = bias_of_chance(outputs)
    if settings.temperature > 0:
        return nn.Sequential(last, SumPool(), LogitLayer(settings.temperature * positions, bias))
    return nn.Sequential(last, SumPool(), LogitLayer(bias=bias, initial_size=settings.initial_logits))


def build(shape: Shape, settings: CodaConfig, outputs: int) -> StagedModel:
    """The network for a grid. Stages: the encoding or embedding, one per layer, the head with the last layer."""
    layers = Layers(settings.units, settings.ranks, settings.kernels, settings.strides)
    first: nn.Module = PatchEmbedding(settings.embedding) if settings.embedding else InputEncoding(settings.background)
    *body, last = stack(layers, settings.embedding or ENCODED, outputs, settings.bound)
    positions = math.prod(-(-side // math.prod(settings.strides)) for side in shape)
    model = StagedModel([first, *body, _head(last, outputs, settings, positions)])
    model.architecture = Architecture(settings, shape)
    return model
