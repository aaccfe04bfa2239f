"""LRP and guided backpropagation behind the one verb of all methods.

The pipeline calls `pipeline.attribution.lrp.relevance.lrp_beta` itself, for several β at once and with the ledger;
these records
give single maps at any stage, beside those of other methods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from pipeline.attribution.gradient.guided_backprop import guided_backprop
from pipeline.attribution.graph.planner import BatchNormMode
from pipeline.attribution.lrp.composites import Composite, composite, focus, founding
from pipeline.attribution.lrp.ledger import Ledger
from pipeline.attribution.lrp.relevance import lrp
from pipeline.attribution.network_view import Subject
from pipeline.run.errors import UsageError


@dataclass(frozen=True)
class Lrp:
    """Layer-wise relevance propagation; relevance summed over the channels of the stage.

    Parameters
    ----------
    rules : {"founding", "focus", "composite"}
        See `pipeline.attribution.lrp.composites`. Bounds of zB are [0, 1] inside the brain and 0 outside, voxel by
        voxel.
    beta, gamma, epsilon : float
        Of the rules that have them.
    bias : bool
        Whether biases absorb relevance (not for *founding*).
    batch_norm : {"fold", "identity"}
    """

    rules: Literal["founding", "focus", "composite"] = "founding"
    beta: float = 0.0
    gamma: float = 0.25
    epsilon: float = 0.25
    bias: bool = False
    batch_norm: BatchNormMode = "fold"

    name: ClassVar[str] = "lrp"

    def __post_init__(self) -> None:
        if self.rules not in ("founding", "focus", "composite"):
            raise UsageError(f"rules = {self.rules!r}: allowed are 'founding', 'focus' and 'composite'.")
        founding(self.beta), composite(self.gamma, self.epsilon)  # the rules check their own settings

    def maps(self, subject: Subject) -> Tensor:
        """Relevance (B, 1, d, h, w)."""
        return self.maps_and_ledger(subject)[0]

    def maps_and_ledger(self, subject: Subject) -> tuple[Tensor, Ledger]:
        """Relevance, and where it went down to the stage."""
        rules = self._composite(subject.volumes)
        answers = lrp(
            subject.model, subject.volumes, subject.target, [rules], subject.start, self.batch_norm, subject.stage
        )
        (answer,) = answers
        assert answer.ledger is not None  # of every answer of `lrp`
        return answer.values.sum(1, keepdim=True), answer.ledger

    def _composite(self, volumes: Tensor) -> Composite:
        brain = (volumes != 0).to(volumes.dtype)
        if self.rules == "founding":
            return founding(self.beta)
        if self.rules == "focus":
            return focus(self.epsilon, low=0.0, high=brain, bias=self.bias)
        return composite(self.gamma, self.epsilon, low=0.0, high=brain, bias=self.bias)


@dataclass(frozen=True)
class GuidedBackprop:
    """Guided backpropagation: the absolute guided gradient, summed over the channels of the stage."""

    name: ClassVar[str] = "guided-backpropagation"

    def maps(self, subject: Subject) -> Tensor:
        """Susceptibility (B, 1, d, h, w)."""
        answer = guided_backprop(subject.model, subject.volumes, subject.target, subject.start, subject.stage)
        return answer.values.sum(1, keepdim=True)
