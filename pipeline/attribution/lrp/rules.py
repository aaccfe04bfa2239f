"""The LRP rules, as records of their settings; `pipeline.attribution.lrp.contributions` defines the terms.

Each rule defines the contributions (plain products, except for zB) and how the relevance of a unit is divided between
positive and negative ones.

Sources: Bach et al. 2015 (ε, αβ); Montavon et al. 2017, 2019 (z+, zB, γ); Böhle et al. 2019 (β, one-signed units);
Anders et al. 2021 (γ for both signs of the output).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from heatlas.pipeline.attribution.graph.linear_maps import LinearMap, paired
from heatlas.pipeline.attribution.lrp.contributions import (
    Contributors,
    Messages,
    contribution_floor,
    products,
    proportional,
)
from heatlas.pipeline.run.errors import BadInputError, UsageError


@dataclass(frozen=True)
class BetaRule:
    """The β-rule: ``R_ij = ((1 + β) z+_ij / z+_j - β z-_ij / z-_j) R_j``; biases are ignored.

    - *One-signed units* pass all relevance to the sign they have (share 1 instead of 1 + β or -β), as in the code of
    the
      founding study. With β = 0 the negative sign has no share, so a unit with negative contributions only loses its
      relevance (β = 0 is the z+ rule); with β = -1 the converse holds.
    - *Units without contribution* (a receptive field of zeros, as in stripped background, but active through the
      bias) lose their relevance, since no input can receive it.
    - *No stabiliser.* The two sums have no cancellation, so each is either zero or a sound denominator.

    `beta`: any real number.

    Examples
    --------
    >>> positive, negative = torch.tensor([2.0, 2.0, 0.0, 0.0]), torch.tensor([-1.0, 0.0, -1.0, 0.0])
    >>> messages = BetaRule(0.5).messages(positive, negative, None, torch.ones(4))
    >>> (positive * messages.positive).tolist()  # shares of the positive side
    [1.5, 1.0, 0.0, 0.0]
    >>> (negative * messages.negative).tolist()  # shares of the negative side
    [-0.5, 0.0, 1.0, 0.0]
    >>> messages.lost.tolist()
    [0.0, 0.0, 0.0, 1.0]
    """

    beta: float

    def __post_init__(self) -> None:
        _require_finite("beta", self.beta)

    @property
    def uses_negative(self) -> bool:
        return self.beta != 0

    contributors = staticmethod(products)

    def messages(self, positive: Tensor, negative: Tensor | None, bias: Tensor | None, relevance: Tensor) -> Messages:
        floor = contribution_floor(relevance.dtype)
        has_positive = positive > floor
        if self.beta == 0:
            message = torch.where(has_positive, relevance / positive, 0)
            return Messages(message, None, torch.where(has_positive, 0, relevance))
        if negative is None:
            raise ValueError(f"beta = {self.beta} needs the sums of negative contributions.")
        has_negative = negative < -floor
        uses_positive = has_positive if self.beta != -1 else torch.zeros_like(has_positive)
        to_positive = torch.where(has_negative, (1 + self.beta) * relevance, relevance)
        to_negative = torch.where(has_positive, -self.beta * relevance, relevance)
        return Messages(
            torch.where(uses_positive, to_positive / positive, 0),
            torch.where(has_negative, to_negative / negative, 0),
            torch.where(uses_positive | has_negative, 0, relevance),
        )


@dataclass(frozen=True)
class ZPlusRule:
    """The z+ rule: positive contributions only. Without bias it equals β = 0.

    `bias`: let positive biases absorb their share of the relevance (as zennit does); reported in the ledger.
    """

    bias: bool = False

    uses_negative = False

    contributors = staticmethod(products)

    def messages(self, positive: Tensor, negative: Tensor | None, bias: Tensor | None, relevance: Tensor) -> Messages:
        if not self.bias or bias is None:
            return BetaRule(0.0).messages(positive, negative, None, relevance)
        supply = bias.clamp(min=0).expand_as(positive)
        total = positive + supply
        has_any = total > contribution_floor(relevance.dtype)
        message = torch.where(has_any, relevance / total, 0)
        return Messages(message, None, torch.where(has_any, 0, relevance), bias=message * supply)


@dataclass(frozen=True)
class EpsilonRule:
    """The ε-rule: ``R_ij = z_ij R_j / (z_j + ε sign(z_j))``; LRP-0 for ε = 0.

    `epsilon`: >= 0; the relevance it absorbs is reported in the ledger. `bias`: whether the bias is part of ``z_j`` and
    absorbs relevance, as in the literature; reported in the ledger.
    """

    epsilon: float = 1e-6
    bias: bool = True

    def __post_init__(self) -> None:
        _require_not_negative("epsilon", self.epsilon)

    uses_negative = True

    contributors = staticmethod(products)

    def messages(self, positive: Tensor, negative: Tensor | None, bias: Tensor | None, relevance: Tensor) -> Messages:
        total = positive if negative is None else positive + negative
        offset = bias.expand_as(total) if self.bias and bias is not None else None
        if offset is not None:
            total = total + offset
        push = torch.where(total < 0, -self.epsilon, self.epsilon * torch.ones_like(total))
        stabilised = total + push
        sound = stabilised.abs() > contribution_floor(relevance.dtype)
        message = torch.where(sound, relevance / stabilised, 0)
        lost = torch.where(sound, 0, relevance)
        absorbed = None if offset is None else message * offset
        return Messages(message, message, lost, absorbed, message * push if self.epsilon else None)


@dataclass(frozen=True)
class GammaRule:
    """The generalised γ-rule: contributions with the sign of the output are weighted by (1 + γ).

    For ``z_j > 0``: shares in proportion to ``(1 + γ) z+_ij + z-_ij``; for ``z_j < 0``: to ``z+_ij + (1 + γ) z-_ij``;
    units with ``z_j = 0`` lose theirs. γ = 0 is LRP-0, γ → ∞ the z+ rule (of the output's sign).

    `gamma`: >= 0. `bias`: whether the bias is part of ``z_j``, and is weighted and absorbs relevance like a
    contribution.
    """

    gamma: float = 0.25
    bias: bool = False

    def __post_init__(self) -> None:
        _require_not_negative("gamma", self.gamma)

    uses_negative = True

    contributors = staticmethod(products)

    def messages(self, positive: Tensor, negative: Tensor | None, bias: Tensor | None, relevance: Tensor) -> Messages:
        if negative is None:
            raise ValueError("the γ-rule needs the sums of negative contributions.")
        offset = bias.expand_as(positive) if self.bias and bias is not None else torch.zeros_like(positive)
        sign = torch.sign(positive + negative + offset)
        favoured = 1 + self.gamma
        one = torch.ones((), dtype=positive.dtype, device=positive.device)
        for_positive, for_negative = torch.where(sign > 0, favoured, one), torch.where(sign < 0, favoured, one)
        supply = offset * torch.where(offset * sign > 0, favoured, one)
        total = for_positive * positive + for_negative * negative + supply
        sound = (sign != 0) & (total.abs() > contribution_floor(relevance.dtype))
        message = torch.where(sound, relevance / total, 0)
        absorbed = message * supply if self.bias and bias is not None else None
        lost = torch.where(sound, 0, relevance)
        return Messages(message * for_positive, message * for_negative, lost, absorbed)


@dataclass(frozen=True)
class ZBoxRule:
    """The zB rule for bounded inputs: shares in proportion to ``x w - low w+ - high w-``.

    Within the bounds no share is negative. Scalar bounds of [0, 1] give relevance to a background of 0 in proportion to
    ``|w-|``; bounds per voxel with ``low = high = 0`` in the background give it none.

    `low`, `high`: smallest and largest possible input; scalar, or broadcastable to the input (per voxel).
    """

    low: float | Tensor = 0.0
    high: float | Tensor = 1.0

    uses_negative = True

    def contributors(self, x: Tensor, weight: Tensor, linear: LinearMap) -> Contributors:
        low, high = (self._bound(bound, x) for bound in (self.low, self.high))
        above = paired(x - low, high - x, linear.channel_axis, linear.groups)
        weights = torch.cat([weight.clamp(min=0), weight.neg().clamp_(min=0)], dim=1)
        contributors = products(above, weights, linear)
        return Contributors(contributors.x, contributors.weight, 2 * contributors.copies)

    def messages(self, positive: Tensor, negative: Tensor | None, bias: Tensor | None, relevance: Tensor) -> Messages:
        return proportional(positive, negative, relevance)

    @staticmethod
    def _bound(bound: float | Tensor, x: Tensor) -> Tensor:
        value = torch.as_tensor(bound, dtype=x.dtype, device=x.device)
        try:
            return value.expand_as(x)
        except RuntimeError as error:
            raise BadInputError(
                f"bounds of the zB rule have shape {tuple(value.shape)} and the input {tuple(x.shape)}; give scalars "
                "or volumes on the grid of the input."
            ) from error


def _require_finite(name: str, value: float) -> None:
    if not torch.isfinite(torch.tensor(value, dtype=torch.float64)):
        raise UsageError(f"{name} = {value}: must be a finite number.")


def _require_not_negative(name: str, value: float) -> None:
    _require_finite(name, value)
    if value < 0:
        raise UsageError(f"{name} = {value}: must be 0 or more.")
