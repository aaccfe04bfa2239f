"""How LRP treats a layer: contributions, the rules that divide relevance by them, and rules by kind of layer.

**Terms.** A *unit* j of a layer sums the *contributions* ``z_ij = x_i w_ij`` of its inputs i, and a bias ``b_j``.
``z+_j`` is the sum of its positive contributions, ``z-_j`` (<= 0) of its negative ones. Every rule gives each positive
contribution the same *message* ``s+_j`` per unit of contribution, and each negative one ``s-_j``::

    R_ij = z_ij s+_j  where z_ij > 0,    z_ij s-_j  where z_ij < 0

A rule is therefore defined by its contributions (plain products, except for zB) and the two messages. Relevance that is
not passed on is accounted for: absorbed by the bias, taken by the stabiliser, or lost in units without a usable
contribution. Sources: Bach et al. 2015 (ε, αβ); Montavon et al. 2017, 2019 (z+, zB, γ); Böhle et al. 2019 (β,
one-signed units); Anders et al. 2021 (γ for both signs of the output).

**Composites** are rules by kind of layer, three from the literature: *founding* (β everywhere; Böhle et al. 2019),
*focus* (ε on linear layers, z+ on convolutions, zB on the first) and *composite* (ε, γ, zB); the last two from Rao,
Böhle & Schiele 2022 after Montavon et al. 2019.

**Biases.** The β-rule leaves them out of its denominators, and so do *focus* and *composite* here by default, so that
relevance is lost only in units without a contribution. In the literature (and in zennit) they stand in the denominators
of ε, γ and z+, and absorb their share: ``bias=True``.

**Sign.** Every rule hands an input of the output unit ``contribution * start value / denominator``. Contributions have
the sign of what they do to the output, so positive relevance speaks *for* the target where start value and denominator
have the same sign. Which rules keep it so is a property of the rule:

- Denominators of one sign (β, z+, zB: sums of contributions of one sign): a negative start value turns all signs.
- Denominators with the sign of the unit (ε, γ, LRP-0): both turn together and nothing turns; LRP-0 with biases is input
  times gradient whatever the logit. *Without* biases the denominator is the logit less its bias, so all signs turn
  where the bias alone decides the sign of the logit. The same happens at each hidden unit that only its bias makes
  active, which no sign of the whole map can mend: with rules of this kind and large biases take ``bias=True``.

In a mixture the rule at the output decides, as units below it are not negative (ReLU). Where they can be (logits of
several places that are averaged, as in a grid), the ε of the average hands each place its logit, and one-signed
rules below it mark a place whose logit is negative as negative throughout. `Attribution.sign` holds the sign of each
map.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from heatlas.pipeline.attribution.graph.layers import LinearMap, paired
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.work.host import on_host


@dataclass(frozen=True)
class Contributors:
    """Inputs of a layer arranged so that its contributions are the products of `x`, at least 0, and `weight`.

    `x` has `copies` (1 or 2) times the channels of the layer's input, side by side within each group; the relevance of
    the copies of an input is added (`merge_copies`).
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

    >>> from heatlas.pipeline.attribution.graph.layers import FullyConnected
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


@dataclass(frozen=True)
class BetaRule:
    """The β-rule: ``R_ij = ((1 + β) z+_ij / z+_j - β z-_ij / z-_j) R_j``; biases ignored, β any real number.

    - *One-signed units* pass all relevance to the sign they have (share 1 instead of 1 + β or -β), as in the code of
      the founding study. With β = 0 the negative sign has no share, so a unit with negative contributions only loses
      its relevance (β = 0 is the z+ rule); with β = -1 the converse holds.
    - *Units without contribution* (a receptive field of zeros, as in stripped background, but active through the
      bias) lose their relevance, since no input can receive it.
    - *No stabiliser.* The two sums have no cancellation, so each is either zero or a sound denominator.

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

    `bias`: whether the bias is part of ``z_j`` and absorbs relevance, as in the literature.
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
        unit = torch.ones((), dtype=positive.dtype, device=positive.device)
        for_positive, for_negative = torch.where(sign > 0, favoured, unit), torch.where(sign < 0, favoured, unit)
        supply = offset * torch.where(offset * sign > 0, favoured, unit)
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


UNWEIGHTED = EpsilonRule(1e-6, bias=False)
"""Proportional rule, usual in the literature for average poolings and sums of branches."""


@dataclass(frozen=True)
class Composite:
    """Rules by kind of layer: `first` sees the volume, `unweighted` are average poolings and sums.

    `name`: for sidecars; with its settings.
    """

    name: str
    first: Rule
    convolution: Rule
    linear: Rule
    unweighted: Rule


def founding(beta: float) -> Composite:
    """The β-rule everywhere, ignoring biases."""
    rule = BetaRule(beta)
    return Composite(f"beta={beta:g}", rule, rule, rule, rule)


def focus(
    epsilon: float = 0.25, low: float | Tensor = 0.0, high: float | Tensor = 1.0, bias: bool = False
) -> Composite:
    """ε on linear layers, z+ on convolutions, zB on the first: the main configuration of Rao et al. 2022.

    `low`, `high`: bounds of the input; see `ZBoxRule`. `bias`: whether biases stand in the denominators and absorb
    relevance, as in the literature.
    """
    first = ZBoxRule(low, high)
    return Composite(f"focus,epsilon={epsilon:g}", first, ZPlusRule(bias), EpsilonRule(epsilon, bias), UNWEIGHTED)


def composite(
    gamma: float = 0.25,
    epsilon: float = 0.25,
    low: float | Tensor = 0.0,
    high: float | Tensor = 1.0,
    bias: bool = False,
) -> Composite:
    """ε on linear layers, generalised γ on convolutions, zB on the first. Parameters as for `focus`."""
    rules = ZBoxRule(low, high), GammaRule(gamma, bias), EpsilonRule(epsilon, bias), UNWEIGHTED
    return Composite(f"composite,gamma={gamma:g},epsilon={epsilon:g}", *rules)
