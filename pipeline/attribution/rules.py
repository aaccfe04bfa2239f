"""The LRP β-rule as pure functions on tensors.

Words: a *unit* j of a layer sums the *contributions* ``z_ij = x_i w_ij`` of its inputs i; the bias is no input and
takes no part. ``z+_j`` is the sum of its positive contributions, ``z-_j`` (<= 0) of its negative ones. The β-rule (Bach
et al. 2015, the αβ-rule with α = 1 + β; Böhle et al. 2019, eq. 2) shares the relevance of a unit among its inputs::

    R_ij = ((1 + β) z+_ij / z+_j  -  β z-_ij / z-_j) R_j

Decisions, each visible in the ledger or in a test:

- *One-signed units* pass all relevance to the one side they have (share 1 instead of 1 + β or -β), as in the founding
  code. With β = 0 the negative side has no share at all, so a unit with negative contributions only loses its
  relevance (β = 0 is the z+ rule); with β = -1 the mirror image holds.
- *Units without contribution* (a receptive field of zeros, as in stripped background, but active through the bias)
  lose their relevance: there is no input to give it to.
- *No stabiliser.* The two sums have no cancellation (every term of a sum has one sign), so a sum is either zero or a
  sound denominator. Sums below `contribution_floor` count as zero, which keeps quotients finite.

The rule is written for non-negative inputs, where ``z+ = W+ x`` and ``z- = W- x``, W± the positive and negative part
of the weights. A signed input is the same case with twice the channels: ``x = [x+, -x-]`` with weights ``[W, -W]``
(`split_signs`, `mirrored_weight`), after which the relevance of both halves is added (`merge_signs`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.attribution.linear_maps import LinearMap, paired


@dataclass(frozen=True)
class Contributions:
    """Sums of the contributions to each unit.

    Parameters
    ----------
    positive : Tensor
        ``z+`` of each unit, >= 0.
    negative : Tensor or None
        ``z-`` of each unit, <= 0; None where only β = 0 is asked for, which never uses it.
    """

    positive: Tensor
    negative: Tensor | None


@dataclass(frozen=True)
class Messages:
    """Relevance per unit of contribution, and what could not be passed on.

    Parameters
    ----------
    positive, negative : Tensor, Tensor or None
        ``s+``, ``s-`` with ``R_i = x_i (sum_j w+_ij s+_j + w-_ij s-_j)``; `negative` is None where it is all zero.
    lost : Tensor
        Relevance of units without a contribution that the rule uses; same shape.
    """

    positive: Tensor
    negative: Tensor | None
    lost: Tensor


def contribution_floor(dtype: torch.dtype) -> float:
    """Sums of contributions at or below this count as zero (about 1e-31 in float32, 1e-292 in float64).

    Far below any sum of real contributions, and far enough above the smallest number that relevance divided by it
    stays finite.
    """
    info = torch.finfo(dtype)
    return info.tiny / info.eps


def beta_messages(contributions: Contributions, relevance: Tensor, beta: float) -> Messages:
    """Divide the relevance of each unit by its sums of contributions, with the shares of the β-rule.

    Parameters
    ----------
    contributions : Contributions
    relevance : Tensor
        Relevance of each unit, the shape of ``contributions.positive``.
    beta : float
        Any real number; 0 uses positive contributions only.

    Returns
    -------
    Messages
        Relevance is kept exactly: for each unit ``z+ s+ + z- s- + lost = relevance`` up to rounding.

    Examples
    --------
    >>> sums = Contributions(torch.tensor([2.0, 2.0, 0.0, 0.0]), torch.tensor([-1.0, 0.0, -1.0, 0.0]))
    >>> messages = beta_messages(sums, torch.ones(4), beta=0.5)
    >>> (sums.positive * messages.positive).tolist()  # shares of the positive side
    [1.5, 1.0, 0.0, 0.0]
    >>> (sums.negative * messages.negative).tolist()  # shares of the negative side
    [-0.5, 0.0, 1.0, 0.0]
    >>> messages.lost.tolist()
    [0.0, 0.0, 0.0, 1.0]
    """
    floor = contribution_floor(relevance.dtype)
    has_positive = contributions.positive > floor
    if beta == 0:
        positive = torch.where(has_positive, relevance / contributions.positive, 0)
        return Messages(positive, None, torch.where(has_positive, 0, relevance))
    if contributions.negative is None:
        raise ValueError(f"beta = {beta} needs the sums of negative contributions.")
    has_negative = contributions.negative < -floor
    uses_positive = has_positive if beta != -1 else torch.zeros_like(has_positive)
    to_positive = torch.where(has_negative, (1 + beta) * relevance, relevance)
    to_negative = torch.where(has_positive, -beta * relevance, relevance)
    positive = torch.where(uses_positive, to_positive / contributions.positive, 0)
    negative = torch.where(has_negative, to_negative / contributions.negative, 0)
    return Messages(positive, negative, torch.where(uses_positive | has_negative, 0, relevance))


def positive_sums(x: Tensor, weight: Tensor, linear: LinearMap) -> Tensor:
    """``z+ = W+ x`` of a non-negative input (see `split_signs` for others); >= 0, one value per unit.

    Parameters
    ----------
    x : Tensor
        Input of the layer, >= 0.
    weight : Tensor
        Without bias; batch normalisation already folded in where it is to count.
    linear : LinearMap
    """
    return linear.apply(x, weight.clamp(min=0))


def negative_sums(x: Tensor, weight: Tensor, linear: LinearMap) -> Tensor:
    """``z- = W- x`` of a non-negative input; <= 0, one value per unit. Parameters as for `positive_sums`."""
    return linear.apply(x, weight.clamp(max=0))


def both_parts(weight: Tensor, linear: LinearMap) -> Tensor:
    """Weights of a layer that gives ``z+`` and ``z-`` as units of its own: ``[W+; W-]`` along the output channels.

    Its transposed map adds the two terms of the rule up by itself, in one operation instead of two.
    """
    return paired(weight.clamp(min=0), weight.clamp(max=0), 0, linear.groups)


def redistribute(x: Tensor, parts: Tensor, linear: LinearMap, messages: Tensor) -> Tensor:
    """Relevance of each input: ``x P^T s``, with P the parts of the weights that the messages s belong to.

    Parameters
    ----------
    x : Tensor
        Input of the layer, >= 0.
    parts : Tensor
        ``W+`` with messages ``s+``, or `both_parts` with ``s+`` and ``s-`` side by side (`paired`).
    linear : LinearMap
    messages : Tensor
        At the units of the layer.

    Returns
    -------
    Tensor
        The shape of `x`. Exactly 0 where `x` is 0.
    """
    return linear.transpose(messages, parts, x.shape).mul_(x)


def split_signs(x: Tensor, linear: LinearMap) -> Tensor:
    """A signed input as a non-negative one with twice the channels: ``x+`` and ``-x-``, side by side in each group.

    Examples
    --------
    >>> from pipeline.attribution.linear_maps import FullyConnected
    >>> split_signs(torch.tensor([[1.0, -2.0]]), FullyConnected()).tolist()
    [[1.0, 0.0, 0.0, 2.0]]
    """
    return paired(x.clamp(min=0), x.neg().clamp_(min=0), linear.channel_axis, linear.groups)


def mirrored_weight(weight: Tensor) -> Tensor:
    """Weights that go with `split_signs` of the input and give the same contributions: ``[W, -W]``."""
    return torch.cat([weight, -weight], dim=1)


def merge_signs(relevance: Tensor, linear: LinearMap) -> Tensor:
    """Relevance of a signed input from that of its two halves (the inverse arrangement of `split_signs`)."""
    axis = linear.channel_axis % relevance.dim()
    halves = relevance.reshape(*relevance.shape[:axis], linear.groups, 2, -1, *relevance.shape[axis + 1 :])
    return halves.sum(axis + 1).flatten(axis, axis + 1)
