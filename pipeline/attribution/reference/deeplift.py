"""DeepLIFT with the rescale rule, relative to controls: one backward pass, no sampling.

The map is ``multiplier * (x - r)`` and sums to ``score(x) - score(r)`` up to rounding; see
`pipeline.attribution.reference.rescale`. The network's operations run one after the other for the volume and for the
reference, so no hook is set and the model is not touched. A product of two values (squeeze and excitation, attention, a
normalisation by the spread of the values themselves) has no chord of one variable: each factor gets its Shapley value,
and the sum stays exact. What no rule is defined for is refused by name.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from heatlas.pipeline.attribution.entry import RunContext
from heatlas.pipeline.attribution.graph.planner import (
    boundary_value,
    is_linear,
    labelled,
    max_pool,
    require_known,
    traced,
)
from heatlas.pipeline.attribution.graph.tape import Values
from heatlas.pipeline.attribution.method_settings import CheckedSettings
from heatlas.pipeline.attribution.methods import described
from heatlas.pipeline.attribution.network_view import (
    NetworkView,
    StartValue,
    exact_float32,
    require_explainable,
    require_unchanging,
    start_values,
)
from heatlas.pipeline.attribution.records import Attribution
from heatlas.pipeline.attribution.reference.references import Reference, fitting
from heatlas.pipeline.attribution.reference.rescale import (
    Multiplied,
    Rescaled,
    RescaledMaxPool,
    is_flat,
    multiplied,
    normalised,
    softmax,
)
from heatlas.pipeline.models.graph.boundary import require_crossed
from heatlas.pipeline.models.graph.operations import (
    ACTIVATIONS,
    NORMALISATIONS,
    Gate,
    MatrixProduct,
    Product,
    Scaled,
    Shifted,
)
from heatlas.pipeline.models.graph.tracing import Operation, Program
from heatlas.pipeline.run.errors import UsageError

OTHERS = (*ACTIVATIONS, *NORMALISATIONS, Product, Scaled, Shifted, MatrixProduct, nn.Softmax, nn.ConstantPad3d,
          nn.ConvTranspose3d, nn.Upsample)  # fmt: skip
"""Modules that DeepLIFT has a rule for, besides those that all methods know."""


def plan_deeplift(model: nn.Module) -> Program:
    """Operations of a model, each checked to be one that the rescale rule is defined for.

    Raises UsageError, naming the operation.
    """
    require_unchanging(model)
    program = traced(model)[0]
    needed = {program.result}
    for operation in reversed(program.operations):
        if operation.value in needed and operation.value not in program.constants:
            needed |= {node.name for node in operation.node.all_input_nodes}
            if not is_linear(operation):
                require_known(operation, OTHERS)
    return program


def deeplift(
    model: nn.Module,
    volumes: Tensor,
    reference: Tensor,
    target: int,
    start: StartValue = "evidence",
    stage: int | str = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """DeepLIFT by the rescale rule, from one reference volume.

    Parameters
    ----------
    model : nn.Module
        In evaluation mode; not changed in any way.
    volumes : Tensor
        (B, 1, D, H, W), in the precision and on the device of the model.
    reference : Tensor
        (1, 1, D, H, W).
    target : int
    start : {"logit", "evidence"}
        The probability is no linear function of the last layer, and is refused.
    stage : int or str
        Boundary; see `pipeline.attribution.network_view.explaining`.

    Returns
    -------
    Tensor, Tensor, Tensor
        Contributions (B, C, d, h, w), the values of the volumes (B,), and that of the reference (1,).

    Raises
    ------
    UsageError
        For an operation, option, target, start value or mode that is not supported, before any work.
    """
    if start == "probability":
        raise UsageError("deeplift explains the logit or the evidence; the softmax has no rescale rule here.")
    program = plan_deeplift(model)
    require_explainable(model, volumes)
    boundary = boundary_value(model, program, stage)
    require_crossed(program, boundary, stage)
    with torch.inference_mode(False), torch.enable_grad(), exact_float32(volumes.device):
        volumes, reference = (one.clone() if one.is_inference() else one for one in (volumes, reference))
        leaf = volumes.detach().requires_grad_(boundary == program.source)
        own, theirs = Values(program, leaf), Values(program, reference.detach())
        base = reference.detach()
        for operation in program.operations:
            with torch.set_grad_enabled(leaf.requires_grad):
                value, value_of_reference = _run(operation, own, theirs)
            if operation.value == boundary:
                leaf, base = value.detach().requires_grad_(), value_of_reference
                own.give(boundary, leaf)
        explained = start_values(own[program.result], target, start)
        (multiplier,) = torch.autograd.grad(explained.sum(), leaf)
        of_reference = start_values(theirs[program.result], target, start)
    return multiplier * (leaf.detach() - base), explained.detach(), of_reference


def _run(operation: Operation, own: Values, theirs: Values) -> tuple[Tensor, Tensor]:
    """Run one operation for the volumes and for the reference; that of the volumes by the rescale rule."""
    module = operation.module
    pool = None if module is None else max_pool(module)
    if isinstance(module, Gate | Product):
        (a, b), (a_r, b_r) = ([values[name] for name in operation.inputs] for values in (own, theirs))
        return _given(operation, own, theirs, Multiplied.apply(a, b, a_r, b_r), a_r * b_r)  # type: ignore[no-untyped-call]
    if isinstance(module, MatrixProduct):
        (a, b), (a_r, b_r) = ([values[name] for name in operation.inputs] for values in (own, theirs))

        def product(*factors: Tensor) -> Tensor:
            return own.called(operation, factors)  # type: ignore[no-any-return]

        return _given(operation, own, theirs, multiplied(product, a, b, a_r, b_r), product(a_r, b_r))
    if isinstance(module, nn.Softmax):
        (name,) = operation.inputs
        return _given(operation, own, theirs, *softmax(own[name], theirs[name], module.dim or 0))
    if isinstance(module, NORMALISATIONS) and getattr(module, "running_mean", None) is None:
        (name,) = operation.inputs
        if is_flat(module, own[name], theirs[name]):
            warnings.warn(
                f"deeplift: the reference is constant before layer {labelled(operation)}, which divides by its spread; "
                "single voxels may get huge values of both signs. Take images of controls as the reference.",
                stacklevel=2,
            )
        return _given(operation, own, theirs, *normalised(module, own[name], theirs[name]))
    if pool is None and not isinstance(module, ACTIVATIONS):
        value = own.run(operation)
        with torch.no_grad():
            return value, theirs.run(operation)
    (name,) = operation.inputs
    x, r = own[name], theirs[name]
    with torch.no_grad():
        s, *of_r = [torch.as_tensor(module(r))] if pool is None else pool.apply(r)  # type: ignore[misc]
    rule, settings = (Rescaled, module) if pool is None else (RescaledMaxPool, pool)
    value = rule.apply(x, r, s, *of_r, settings)  # type: ignore[no-untyped-call]
    return _given(operation, own, theirs, value, s)


def _given(operation: Operation, own: Values, theirs: Values, value: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    for values, given in ((own, value), (theirs, s)):
        values.give(operation.value, given)
        for node in operation.node.all_input_nodes:
            values.used(node.name)
    return value, s


@dataclass(frozen=True)
class DeepLift(CheckedSettings):
    """DeepLIFT by the rescale rule, signed, summed over channels.

    Parameters
    ----------
    reference : Reference or None
        Given by the run.
    compare : {"mean", "each"}
        With the mean of the controls, or with each of them, of whose maps it takes the mean.
    """

    name: ClassVar[str] = "deeplift"

    reference: Reference | None = None
    compare: Literal["mean", "each"] = "mean"

    @staticmethod
    def from_run(surroundings: RunContext) -> dict[str, Reference | None]:
        """The controls of the network."""
        return {"reference": surroundings.reference}

    def require(self, view: NetworkView) -> None:
        """Refuse a network with an operation that the rule is not defined for."""
        plan_deeplift(view.model)

    def answers(
        self, model: nn.Module, volumes: Tensor, target: int, start: StartValue, stage: int | str
    ) -> Sequence[Attribution]:
        """Contributions (B, C, d, h, w) that sum to the value of the volume less that of the reference."""
        reference = fitting(self.reference, volumes, self.name)
        baselines = [reference.mean] if self.compare == "mean" else list(torch.split(reference.volumes, 1))
        total, of_references = None, []
        for baseline in baselines:
            found, explained, of_reference = deeplift(model, volumes, baseline, target, start, stage)
            total = found if total is None else total + found
            of_references.append(of_reference)
        assert total is not None
        settings, base = described(self, stage, start), torch.cat(of_references).mean().expand(len(volumes))
        values = total / len(baselines)
        return [Attribution(values, self.name, target, explained, settings, reference_value=base)]

    def maps(self, view: NetworkView) -> Tensor:
        return self.answers(view.model, view.volumes, view.target, view.start, view.stage)[0].values
