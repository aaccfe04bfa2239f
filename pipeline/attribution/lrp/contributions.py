"""Building blocks of LRP rules: contributions, and the messages that redistribute relevance.

Words: a *unit* j of a layer sums the *contributions* ``z_ij = x_i w_ij`` of its inputs i, and a bias ``b_j``. ``z+_j``
is the sum of its positive contributions, ``z-_j`` (<= 0) of its negative ones. Every rule gives each positive
contribution the same *message* ``s+_j`` per unit of contribution, and each negative one ``s-_j``::

    R_ij = z_ij s+_j  where z_ij > 0,    z_ij s-_j  where z_ij < 0

A rule is therefore defined by its contributions and the two messages. Relevance that is not passed on is accounted for:
absorbed by the bias, taken by the stabiliser, or lost in units without a usable contribution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from heatlas.pipeline.attribution.graph.linear_maps import LinearMap, paired
from heatlas.pipeline.run.work.host import on_host


@dataclass(frozen=True)
class Contributors:
    """Inputs of a layer arranged so that its contributions are the products of `x` and `weight`.

    `x`: non-negative. Has `copies` times the channels of the layer's input, side by side within each group. `weight`:
    weights that go with `x`. `copies`: 1 or 2; the relevance of the copies of an input is added (`merge_copies`).
    """

    x: Tensor
    weight: Tensor
    copies: int = 1


@dataclass(frozen=True)
class Messages:
    """Relevance per unit of contribution, and relevance not passed on; all with the shape of the units.

    `positive`: ``s+``. `negative`: ``s-``; None if it is all zero. The same tensor as `positive` if both signs are
    treated alike. `lost`: relevance of units without a contribution that the rule uses; None if there can be none.
    `bias`, `stabiliser`: relevance absorbed by them; None if there can be none.
    """

    positive: Tensor
    negative: Tensor | None
    lost: Tensor | None = None
    bias: Tensor | None = None
    stabiliser: Tensor | None = None


class Rule(Protocol):
    """One LRP rule for one kind of layer."""

    @property
    def uses_negative(self) -> bool:
        """Whether `messages` needs the sums of negative contributions."""
        ...

    def contributors(self, x: Tensor, weight: Tensor, linear: LinearMap) -> Contributors:
        """Contributions of the inputs `x` (any sign) of a layer with weights."""
        ...

    def messages(self, positive: Tensor, negative: Tensor | None, bias: Tensor | None, relevance: Tensor) -> Messages:
        """Divide the relevance of each unit.

        `positive`, `negative`: ``z+`` >= 0 and ``z-`` <= 0 of each unit; `negative` may be None if the rule does not
        use it. `bias`: ``b``, broadcastable to the units; None for layers without. `relevance`: of each unit. Returns
        ``z+ s+ + z- s- + lost + bias + stabiliser = relevance`` for each unit, up to rounding.
        """
        ...


def contribution_floor(dtype: torch.dtype) -> float:
    """Sums of contributions up to this count as zero (about 1e-31 in float32, 1e-292 in float64).

    Far below any real sum of contributions, but large enough that relevance divided by it stays finite.
    """
    info = torch.finfo(dtype)
    return info.tiny / info.eps


def products(x: Tensor, weight: Tensor, linear: LinearMap) -> Contributors:
    """The plain contributions ``x_i w_ij``; a signed input is doubled: ``[x+, -x-]`` with ``[W, -W]``.

    Examples
    --------
    >>> from heatlas.pipeline.attribution.graph.linear_maps import FullyConnected
    >>> products(torch.tensor([[1.0, -2.0]]), torch.eye(2), FullyConnected()).x.tolist()
    [[1.0, 0.0, 0.0, 2.0]]
    """
    if not bool(on_host((x < 0).any())):
        return Contributors(x, weight)
    doubled = paired(x.clamp(min=0), x.neg().clamp_(min=0), linear.channel_axis, linear.groups)
    return Contributors(doubled, torch.cat([weight, -weight], dim=1), copies=2)


def merge_copies(relevance: Tensor, copies: int, linear: LinearMap) -> Tensor:
    """Relevance of each input: the sum over its copies (the inverse arrangement of `paired`)."""
    if copies == 1:
        return relevance
    axis = linear.channel_axis % relevance.dim()
    shape = relevance.shape
    return (
        relevance.reshape(*shape[:axis], linear.groups, copies, -1, *shape[axis + 1 :])
        .sum(axis + 1)
        .flatten(axis, axis + 1)
    )


def proportional(positive: Tensor, negative: Tensor | None, relevance: Tensor) -> Messages:
    """Share in proportion to all contributions, without stabiliser; lost in units whose contributions sum to 0."""
    total = positive if negative is None else positive + negative
    has_any = total.abs() > contribution_floor(relevance.dtype)
    message = torch.where(has_any, relevance / total, 0)
    return Messages(message, message, torch.where(has_any, 0, relevance))
