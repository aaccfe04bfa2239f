"""Layer-wise relevance propagation through a 3D network, with several rules at once.

Choices that affect maps (those of the rules are in `pipeline.attribution.lrp.rules`): batch normalisation is folded
into the preceding convolution, or passed as identity; relevance of a pooling window goes to its winner; ReLU, dropout
and changes of shape pass relevance on; a sum divides it among its terms and an average pooling among its voxels, like a
layer with equal weights; a gate (squeeze and excitation) is treated as a constant and gets none. One forward pass, one
tape and one set of contribution sums serve all rules.

From the evidence, relevance starts at one unit that is the difference of the outputs: the last layer has the weights of
the target less the mean of all others (Montavon et al. 2019, on how classes are told apart). Its map does not
level off where the probability nears 1, and a constant added to all logits changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from heatlas.pipeline.attribution import network_view
from heatlas.pipeline.attribution.graph.layers import FullyConnected
from heatlas.pipeline.attribution.graph.planner import (
    BatchNormMode,
    RelevancePlan,
    Weights,
    followed,
    plan_relevance,
)
from heatlas.pipeline.attribution.graph.tape import Tape, record_forward
from heatlas.pipeline.attribution.lrp.propagation import propagate
from heatlas.pipeline.attribution.lrp.rules import Composite, composite, focus, founding
from heatlas.pipeline.attribution.method_settings import CheckedSettings
from heatlas.pipeline.attribution.methods import described
from heatlas.pipeline.attribution.records import Attribution, Ledger, sum_per_volume
from heatlas.pipeline.models.graph.tracing import Program
from heatlas.pipeline.run.config.ranges import at_least, naming
from heatlas.pipeline.run.errors import UsageError


def lrp(
    model: nn.Module,
    volumes: Tensor,
    target: int,
    composites: Sequence[Composite],
    start: network_view.StartValue = "logit",
    batch_norm: BatchNormMode = "auto",
    stage: int | str = 0,
) -> tuple[Attribution, ...]:
    """Explain one output of a model with LRP, by several composites of rules in one call.

    `model`: in evaluation mode; not changed. `volumes`: (B, 1, D, H, W), in its precision and on its device. `start`:
    value that relevance starts from; a negative one gives a negated map. `stage`: where relevance is wanted; 0 is the
    input (`pipeline.attribution.network_view.explaining`).

    Gives one answer per composite, in which start value = sum of the map + losses of the ledger. At a later stage the
    values are (B, C, d, h, w), relevance per feature. `sign` says which relevance speaks for the target.
    """
    if not composites:
        raise UsageError("composites: name at least one.")
    answers: list[Attribution] = []

    def recorded(program: Program) -> tuple[RelevancePlan, Tape]:
        plan = plan_relevance(model, batch_norm, stage, program)
        network_view.require_explainable(model, volumes)
        return plan, record_forward(plan, volumes)

    with torch.no_grad(), network_view.exact_float32(volumes.device):
        plan, tape = followed(model, volumes, recorded)
        start_value = network_view.start_values(tape.logits, target, start)
        if start == "evidence" and tape.logits.shape[1] > 1:
            tape, seed = _difference(tape, last_layer(plan), target), start_value[:, None]
        else:
            seed = torch.zeros_like(tape.logits)
            seed[:, target] = start_value
        maps, entries, signs = propagate(plan, tape, seed, composites)
        for composite, values, accounts, sign in zip(composites, maps, entries, signs, strict=True):
            ledger = Ledger(start_value, sum_per_volume(values), accounts)
            parameters = {"composite": composite.name, "start": start, "batch_norm": plan.batch_norm, "stage": stage}
            answers.append(Attribution(values, "lrp", target, start_value, parameters, ledger, sign=sign))
    return tuple(answers)


def last_layer(plan: RelevancePlan) -> Weights:
    """The linear layer that gives the logits, which relevance from the evidence starts at."""
    last = plan.steps[-1]
    unchanged = all(
        isinstance(operation.module, (nn.Dropout, nn.Dropout3d, nn.Identity)) for operation in last.operations[1:]
    )
    weights = last.weights if last.value == plan.program.result and unchanged else None
    if weights is None or not isinstance(weights.linear, FullyConnected):
        raise UsageError(
            "lrp from the evidence needs a network whose logits are those of a linear layer, with nothing after it; "
            "explain the logit of this one."
        )
    return weights


def _difference(tape: Tape, weights: Weights, target: int) -> Tape:
    """The tape with the outputs replaced by one: the target less the mean of the others.

    Differences of the weights, not of two maps: what speaks for both classes cancels before a rule tells positive
    contributions from negative ones.
    """
    last = tape.records[-1]
    units = tape.logits.shape[1]
    signs = torch.full((1, units), -1 / (units - 1)).to(weights.weight)
    signs[0, target] = 1
    bias = None if weights.bias is None else signs @ weights.bias
    merged = replace(weights, weight=signs @ weights.weight, bias=bias)
    record = replace(last, step=replace(last.step, weights=merged), unit_shape=torch.Size((len(tape.logits), 1)))
    return replace(tape, records=(*tape.records[:-1], record))


@dataclass(frozen=True)
class Lrp(CheckedSettings):
    """Layer-wise relevance propagation; relevance summed over the channels of the stage.

    `rules`: see `pipeline.attribution.lrp.rules`. Bounds of zB are [0, 1] inside the brain and 0 outside, voxel by
    voxel. `beta`: of the β-rule (*founding*); one map per value. `bias`: whether biases stand in the denominators and
    absorb relevance, as in the literature (not for *founding*). `batch_norm`: folded into the convolution before it, or
    passed; ``auto`` folds where the network allows it. Maps name what was done.
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
        self, model: nn.Module, volumes: Tensor, target: int, start: network_view.StartValue, stage: int | str
    ) -> Sequence[Attribution]:
        """Relevance (B, C, d, h, w) for each β, with its ledger down to the stage."""
        rules = [single._composite(volumes) for single in self.singles()]
        attributions = lrp(model, volumes, target, rules, start, self.batch_norm, stage)
        done: Any = attributions[0].parameters["batch_norm"]
        return [
            replace(answer, method=self.name, parameters=described(replace(single, batch_norm=done), stage, start))
            for single, answer in zip(self.singles(), attributions, strict=True)
        ]

    def maps(self, view: network_view.NetworkView) -> Tensor:
        return self.answers(view.model, view.volumes, view.target, view.start, view.stage)[0].values

    def _composite(self, volumes: Tensor) -> Composite:
        if self.rules == "founding":
            return founding(self.betas[0])
        brain = (volumes != 0).to(volumes.dtype)
        if self.rules == "focus":
            return focus(self.epsilon, low=0.0, high=brain, bias=self.bias)
        return composite(self.gamma, self.epsilon, low=0.0, high=brain, bias=self.bias)
