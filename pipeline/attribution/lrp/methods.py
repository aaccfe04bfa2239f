"""LRP as a method of the registry; maps for several β come from one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from torch import Tensor, nn

from heatlas.pipeline.attribution.graph.planner import BatchNormMode
from heatlas.pipeline.attribution.lrp.relevance import lrp
from heatlas.pipeline.attribution.lrp.rules import Composite, composite, focus, founding
from heatlas.pipeline.attribution.method_settings import CheckedSettings
from heatlas.pipeline.attribution.methods import described
from heatlas.pipeline.attribution.network_view import NetworkView, StartValue
from heatlas.pipeline.attribution.records import Attribution
from heatlas.pipeline.run.config.ranges import at_least, naming


@dataclass(frozen=True)
class Lrp(CheckedSettings):
    """Layer-wise relevance propagation; relevance summed over the channels of the stage.

    `rules`: see `pipeline.attribution.lrp.rules`. Bounds of zB are [0, 1] inside the brain and 0 outside, voxel by
    voxel. `beta`: of the β-rule (*founding*); one map per value. `gamma`, `epsilon`: for the rules that have them.
    `bias`: whether biases stand in the denominators and absorb relevance, as in the literature (not for *founding*).
    `batch_norm`: folded into the convolution before it, or passed; ``auto`` folds where the network allows it. Maps
    name what was done.
    """

    rules: Literal["founding", "focus", "composite"] = "founding"
    beta: Annotated[float | tuple[float, ...], naming(1, once=True), at_least(0)] = 0.0
    gamma: Annotated[float, at_least(0)] = 0.25
    epsilon: Annotated[float, at_least(0)] = 0.25
    bias: bool = False
    batch_norm: BatchNormMode = "auto"

    name: ClassVar[str] = "lrp"
    has_ledger: ClassVar[bool] = True

    @property
    def betas(self) -> tuple[float, ...]:
        return self.beta if isinstance(self.beta, tuple) else (self.beta,)

    def singles(self) -> list[Lrp]:
        """The same settings with one β each, one per map."""
        return [replace(self, beta=beta) for beta in self.betas] if isinstance(self.beta, tuple) else [self]

    def answers(
        self, model: nn.Module, volumes: Tensor, target: int, start: StartValue, stage: int | str
    ) -> Sequence[Attribution]:
        """Relevance (B, C, d, h, w) for each β, with its ledger down to the stage."""
        rules = [one._composite(volumes) for one in self.singles()]
        found = lrp(model, volumes, target, rules, start, self.batch_norm, stage)
        done: Any = found[0].parameters["batch_norm"]
        return [
            replace(answer, method=self.name, parameters=described(replace(one, batch_norm=done), stage, start))
            for one, answer in zip(self.singles(), found, strict=True)
        ]

    def maps(self, view: NetworkView) -> Tensor:
        return self.answers(view.model, view.volumes, view.target, view.start, view.stage)[0].values

    def _composite(self, volumes: Tensor) -> Composite:
        if self.rules == "founding":
            return founding(self.betas[0])
        brain = (volumes != 0).to(volumes.dtype)
        if self.rules == "focus":
            return focus(self.epsilon, low=0.0, high=brain, bias=self.bias)
        return composite(self.gamma, self.epsilon, low=0.0, high=brain, bias=self.bias)
