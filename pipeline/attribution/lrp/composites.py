"""Composites: LRP rules by kind of layer.

Three from the literature: *founding* (β everywhere; Böhle et al. 2019), *focus* (ε on linear layers, z+ on
convolutions, zB on the first) and *composite* (ε, γ, zB); the last two from Rao, Böhle & Schiele 2022 after Montavon et
al. 2019.

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
several places that are averaged, as in a grid), the ε of the average hands each place its own logit, and one-signed
rules below it mark a place whose logit is negative as negative throughout. `Attribution.sign` holds the sign of each
map.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from heatlas.pipeline.attribution.lrp.contributions import Rule
from heatlas.pipeline.attribution.lrp.rules import BetaRule, EpsilonRule, GammaRule, ZBoxRule, ZPlusRule

UNWEIGHTED = EpsilonRule(1e-6, bias=False)
"""Proportional rule, usual in the literature for average poolings and sums of branches."""


@dataclass(frozen=True)
class Composite:
    """Rules by kind of layer.

    `name`: for sidecars; with its settings. `first`: for layers with weights whose input is the volume. `convolution`,
    `linear`: for all other convolutions, and for fully connected layers. `unweighted`: for average poolings and sums.
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

    Parameters
    ----------
    epsilon : float
    low, high : float or Tensor
        Bounds of the input; see `ZBoxRule`.
    bias : bool
        Whether biases stand in the denominators and absorb relevance, as in the literature.
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
