"""Composites: LRP rules by kind of layer.

Three from the literature: *founding* (β everywhere; Böhle et al. 2019), *focus* (ε on linear layers, z+ on
convolutions, zB on the first) and *composite* (ε, γ, zB); the last two from Rao, Böhle & Schiele 2022 after Montavon et
al. 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pipeline.attribution.lrp.contributions import Rule
from pipeline.attribution.lrp.rules import BetaRule, EpsilonRule, GammaRule, ZBoxRule, ZPlusRule

UNWEIGHTED = EpsilonRule(1e-6, bias=False)
"""Proportional rule, usual in the literature for average poolings and sums of branches."""


@dataclass(frozen=True)
class Composite:
    """Rules by kind of layer.

    Parameters
    ----------
    name : str
        For sidecars; with its settings.
    first : Rule
        For layers with weights whose input is the volume.
    convolution, linear : Rule
        For all other convolutions, and for fully connected layers.
    unweighted : Rule
        For average poolings and sums.
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
        Whether biases absorb relevance.
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
