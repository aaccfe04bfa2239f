"""DeepLIFT with the rescale rule (Shrikumar, Greenside & Kundaje 2017), relative to controls: one backward pass.

Between a volume x and a reference r, an activation f turns the difference ``x - r`` into ``f(x) - f(r)``. The rule
hands a multiplier back through the slope of that chord, ``(f(x) - f(r)) / (x - r)``, instead of the slope at x; linear
operations keep theirs. So the map, ``multiplier * (x - r)``, adds up to ``score(x) - score(r)`` up to rounding,
without sampling. The chord of a smooth activation over a short difference is lost in rounding; there the slope in the
middle stands for it, which differs by a term of third order.

The network's operations run one after the other for the volume and for the reference, so no hook is set and the model
is not touched. A product of two values (squeeze and excitation, attention, a normalisation by the spread of the values
themselves) has no chord of one variable: each factor gets its Shapley value, and the sum stays exact. What no rule is
defined for is refused by name.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from heatlas.pipeline.attribution import network_view
from heatlas.pipeline.attribution.graph.layers import AdaptiveMaxPool, MaxPool, gather, scatter
from heatlas.pipeline.attribution.graph.planner import (
    boundary_value,
    checked,
    followed,
    is_linear,
    labelled,
    max_pool,
    require_known,
)
from heatlas.pipeline.attribution.graph.tape import Values
from heatlas.pipeline.attribution.methods import described
from heatlas.pipeline.attribution.records import Attribution
from heatlas.pipeline.attribution.reference.references import ComparesWithControls, fitting
from heatlas.pipeline.models.graph import operations as ops
from heatlas.pipeline.models.graph.tracing import Operation, Program, require_crossed
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.work.host import on_host

SPARSE = 4
"""Slopes are computed one by one if fewer than this part of the units have a multiplier."""


def chord_slope(
    function: Callable[[Tensor], Tensor], x: Tensor, r: Tensor, y: Tensor, s: Tensor, shortest: float = 0.0
) -> Tensor:
    """Slope of `function` from `r` to `x`, element by element; where ``|x - r| <= shortest``, that in the middle.

    ``y = function(x)`` and ``s = function(r)``.

    >>> x, r = torch.tensor([2.0, -1.0, 3.0]), torch.tensor([-2.0, -2.0, 3.0])
    >>> chord_slope(torch.relu, x, r, torch.relu(x), torch.relu(r)).tolist()
    [0.5, 0.0, 1.0]
    """
    difference = x - r
    short = difference == 0 if shortest == 0 else difference.abs() <= shortest
    if isinstance(function, nn.ReLU) or function is torch.relu:
        middle = (x > 0).to(x.dtype)  # where x and r are the same
    else:
        with torch.inference_mode(False), torch.enable_grad():
            halfway = torch.lerp(x, r.expand_as(x), 0.5).clone().requires_grad_()
            (middle,) = torch.autograd.grad(function(halfway).sum(), halfway)
    return torch.where(short, middle, (y - s).div_(difference))


class Rescaled(torch.autograd.Function):
    """An activation of x, given that of r, ``s``; its backward pass has the slope of the chord from r.

    Behind a max-pooling few units have a multiplier, and slopes are computed for those alone.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, r: Tensor, s: Tensor, module: nn.Module) -> Tensor:
        ctx.module = module
        y = torch.as_tensor(module(x))
        ctx.save_for_backward(x, r.expand_as(x), y, s.expand_as(x))
        return y

    @staticmethod
    def backward(ctx: Any, multiplier: Tensor) -> tuple[Tensor, None, None, None]:
        x, r, y, s = ctx.saved_tensors
        shortest = torch.finfo(x.dtype).eps ** 0.5 if isinstance(ctx.module, ops.SMOOTH) else 0.0
        there = torch.nonzero(multiplier.reshape(-1)).squeeze(1)
        by_channel = isinstance(ctx.module, nn.PReLU) and ctx.module.num_parameters > 1
        if by_channel or len(there) > x.numel() // SPARSE:
            return multiplier * chord_slope(ctx.module, x, r, y, s, shortest), None, None, None
        few, x_few, r_few, y_few, s_few = (values.reshape(-1)[there] for values in (multiplier, x, r, y, s))
        answer = x.new_zeros(x.numel())
        answer[there] = few * chord_slope(ctx.module, x_few, r_few, y_few, s_few, shortest)
        return answer.view_as(x), None, None, None


class RescaledMaxPool(torch.autograd.Function):
    """A max-pooling of x whose backward pass accounts for winners that differ between x and r.

    The output of r, `s`, and its winners, `of_r`, are given.

    With ``top`` the larger of both outputs, ``top - s`` is what x's winner added, and ``y - top``
    (y, the output of x) what r's winner took away; each is divided by the difference of its voxel, as in captum.
    Both parts have the multiplier of x, so that they add up to ``y - s`` in every window. A winner that is the same in
    x and r has the slope 1 of the maximum itself.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, r: Tensor, s: Tensor, of_r: Tensor, pool: MaxPool | AdaptiveMaxPool) -> Tensor:
        y, of_x = pool.apply(x)
        r, s, of_r = r.expand_as(x), s.expand_as(y), of_r.expand_as(of_x)
        differences = [gather(x, winners) - gather(r, winners) for winners in (of_x, of_r)]
        ctx.shape = x.shape
        ctx.save_for_backward(y, s, of_x, of_r, *differences)
        return y

    @staticmethod
    def backward(ctx: Any, multiplier: Tensor) -> tuple[Tensor, None, None, None, None]:
        y, s, of_x, of_r, of_winner, of_winner_r = ctx.saved_tensors
        top = torch.maximum(y, s)
        added = torch.where(of_winner == 0, multiplier, multiplier * (top - s) / of_winner)
        taken = torch.where(of_winner_r == 0, 0.0, multiplier * (y - top) / of_winner_r)
        moved = scatter(added, of_x, ctx.shape)
        moved.view(*ctx.shape[:2], -1).scatter_add_(2, of_r.flatten(2), taken.flatten(2))
        return moved, None, None, None, None


class Multiplied(torch.autograd.Function):
    """``a * b``, given what the factors are in the reference, ``a_r`` and ``b_r``; shapes may broadcast.

    Each factor gets its Shapley value of the difference of the product, the mean of its share when it changes first and
    when it changes second: the multiplier of a is ``(b + b_r) / 2``, that of b is ``(a + a_r) / 2`` (Lundberg & Lee
    2017). They add up to ``a b - a_r b_r``.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, a_r: Tensor, b_r: Tensor) -> Tensor:
        ctx.save_for_backward(a, b, a_r, b_r)
        return a * b

    @staticmethod
    def backward(ctx: Any, multiplier: Tensor) -> tuple[Tensor, Tensor, None, None]:
        a, b, a_r, b_r = ctx.saved_tensors
        of_a, of_b = multiplier * (b + b_r) / 2, multiplier * (a + a_r) / 2
        return of_a.sum_to_size(a.shape), of_b.sum_to_size(b.shape), None, None


class Sloped(torch.autograd.Function):
    """A function of x whose value `y` and slope, that of the chord from the reference, are known."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(slope)
        return y.clone()

    @staticmethod
    def backward(ctx: Any, multiplier: Tensor) -> tuple[Tensor, None, None]:
        return multiplier * ctx.saved_tensors[0], None, None


def normalised(module: nn.Module, x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """A normalisation by the mean and spread of the values themselves, of x (B, C, ...) and its reference r.

    Subtracting the mean is linear; the variance is a mean of squares, whose chord has the slope ``c + c_r``; the chord
    of ``1 / sqrt(v)`` has ``-1 / (sqrt(v) sqrt(v_r) (sqrt(v) + sqrt(v_r)))``; and the result is a product
    (`Multiplied`). So multipliers of x, the derivatives of its result, add up to the difference of the results.
    """
    (centred, centred_r), eps = (_centred(module, values) for values in (x, r)), float(module.eps)  # type: ignore[arg-type]
    squares = Multiplied.apply(centred, centred, centred_r, centred_r)  # type: ignore[no-untyped-call]
    v, v_r = squares.mean(-1, keepdim=True), centred_r.square().mean(-1, keepdim=True)
    root, root_r = (v.detach() + eps).sqrt(), (v_r + eps).sqrt()
    inverse = Sloped.apply(v, 1 / root, -1 / (root * root_r * (root + root_r)))  # type: ignore[no-untyped-call]
    scaled = Multiplied.apply(centred, inverse, centred_r, 1 / root_r)  # type: ignore[no-untyped-call]
    return _with_weights(module, scaled.view_as(x)), _with_weights(module, (centred_r / root_r).view_as(r))


def softmax(x: Tensor, r: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The softmax of x and of the reference r along an axis; derivatives of the first are multipliers that add up.

    ``exp`` has the slope of its chord, the sum is linear, the chord of ``1 / t`` has ``-1 / (t t_r)``, and the result
    is a product (`Multiplied`). Scores that are masked (minus infinity) in both get none.
    """
    top = torch.maximum(x, r).amax(dim, keepdim=True).detach()
    masked = torch.isinf(x) & torch.isinf(r)
    e, e_r = torch.exp(x.detach() - top), torch.exp(r - top)
    shortest = torch.finfo(x.dtype).eps ** 0.5
    slope = chord_slope(lambda a: torch.exp(a - top), x.detach(), r, e, e_r, shortest).masked_fill(masked, 0)
    powers = Sloped.apply(x.masked_fill(masked, 0), e, slope)  # type: ignore[no-untyped-call]
    total, total_r = powers.sum(dim, keepdim=True), e_r.sum(dim, keepdim=True)
    inverse = Sloped.apply(total, 1 / total.detach(), -1 / (total.detach() * total_r))  # type: ignore[no-untyped-call]
    of_r = torch.softmax(r, dim)
    return Multiplied.apply(powers, inverse, e_r, 1 / total_r), of_r  # type: ignore[no-untyped-call]


def multiplied(product: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor, a_r: Tensor, b_r: Tensor) -> Tensor:
    """Any product that is linear in both factors, as of matrices, with the multipliers of `Multiplied`."""
    halves = product(a, (b + b_r).detach() / 2) + product((a + a_r).detach() / 2, b)
    return product(a, b).detach() + halves - halves.detach()


def is_flat(module: nn.Module, x: Tensor, r: Tensor) -> bool:
    """Whether only `eps` keeps the spread of a reference from 0, somewhere where that of the volume is larger."""
    v, v_r = (_centred(module, values).square().mean(-1) for values in (x, r))
    eps = float(module.eps)  # type: ignore[arg-type]
    return bool(on_host(((v_r < eps) & (v > 100 * eps)).any()))


def _centred(module: nn.Module, x: Tensor) -> Tensor:
    """Values less the mean of those that are normalised together, which are in the last axis."""
    if isinstance(module, nn.LayerNorm):
        together = x.flatten(-len(module.normalized_shape))
    else:
        groups = module.num_groups if isinstance(module, nn.GroupNorm) else x.shape[1]
        together = x.reshape(len(x), groups, -1)
    return together - together.mean(-1, keepdim=True)


def _with_weights(module: Any, x: Tensor) -> Tensor:
    weight, bias = module.weight, module.bias
    if not isinstance(module, nn.LayerNorm):
        weight, bias = (
            None if parameter is None else parameter.view(-1, *[1] * (x.dim() - 2)) for parameter in (weight, bias)
        )
    scaled = x if weight is None else x * weight
    return scaled if bias is None else scaled + bias


OTHERS = (
    *(*ops.ACTIVATIONS, *ops.NORMALISATIONS, ops.Product, ops.Scaled, ops.Shifted, ops.MatrixProduct),
    *(nn.Softmax, nn.ConstantPad3d, nn.ConvTranspose3d, nn.Upsample),
)
"""Modules that DeepLIFT has a rule for, besides those that all methods know."""


def plan_deeplift(model: nn.Module, volumes: Tensor) -> Program:
    """Operations of a model, each checked to be one that the rescale rule is defined for."""
    network_view.require_unchanging(model)
    return followed(model, volumes, partial(_supported, model))


def _supported(model: nn.Module, program: Program) -> Program:
    checked(model, program)
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
    start: network_view.StartValue = "evidence",
    stage: int | str = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """DeepLIFT by the rescale rule, from one reference volume.

    `model`: in evaluation mode; not changed. `volumes`: (B, 1, D, H, W), in its precision and on its device.
    `reference`: (1, 1, D, H, W). `start`: the probability is no linear function of the last layer, and is refused.
    `stage`: see `pipeline.attribution.network_view.explaining`.

    Gives contributions (B, C, d, h, w), the values of the volumes (B,), and that of the reference (1,).
    """
    if start == "probability":
        raise UsageError("deeplift explains the logit or the evidence; the softmax has no rescale rule here.")
    program = plan_deeplift(model, volumes)
    network_view.require_explainable(model, volumes)
    boundary = boundary_value(model, program, stage)
    require_crossed(program, boundary, stage)
    with torch.inference_mode(False), torch.enable_grad(), network_view.exact_float32(volumes.device):
        volumes, reference = (images.clone() if images.is_inference() else images for images in (volumes, reference))
        leaf = volumes.detach().requires_grad_(boundary == program.source)
        values, of_reference = Values(program, leaf), Values(program, reference.detach())
        base = reference.detach()
        for operation in program.operations:
            with torch.set_grad_enabled(leaf.requires_grad):
                value, value_of_reference = _run(operation, values, of_reference)
            if operation.value == boundary:
                leaf, base = value.detach().requires_grad_(), value_of_reference
                values.give(boundary, leaf)
        explained = network_view.start_values(values[program.result], target, start)
        (multiplier,) = torch.autograd.grad(explained.sum(), leaf)
        reference_value = network_view.start_values(of_reference[program.result], target, start)
    return multiplier * (leaf.detach() - base), explained.detach(), reference_value


def _run(operation: Operation, at_x: Values, at_r: Values) -> tuple[Tensor, Tensor]:
    """Run one operation for the volumes and for the reference; that of the volumes by the rescale rule."""
    module = operation.module
    pool = None if module is None else max_pool(module)
    if isinstance(module, ops.Gate | ops.Product):
        (a, b), (a_r, b_r) = ([values[name] for name in operation.inputs] for values in (at_x, at_r))
        return _given(operation, at_x, at_r, Multiplied.apply(a, b, a_r, b_r), a_r * b_r)  # type: ignore[no-untyped-call]
    if isinstance(module, ops.MatrixProduct):
        (a, b), (a_r, b_r) = ([values[name] for name in operation.inputs] for values in (at_x, at_r))

        def product(*factors: Tensor) -> Tensor:
            return at_x.called(operation, factors)  # type: ignore[no-any-return]

        return _given(operation, at_x, at_r, multiplied(product, a, b, a_r, b_r), product(a_r, b_r))
    if isinstance(module, nn.Softmax):
        (name,) = operation.inputs
        return _given(operation, at_x, at_r, *softmax(at_x[name], at_r[name], module.dim or 0))
    if isinstance(module, ops.NORMALISATIONS) and getattr(module, "running_mean", None) is None:
        (name,) = operation.inputs
        if is_flat(module, at_x[name], at_r[name]):
            warnings.warn(
                f"deeplift: the reference is constant before layer {labelled(operation)}, which divides by its spread; "
                "single voxels may get huge values of both signs. Take images of controls as the reference; if "
                "they are, patches of air cause this, and expected-gradients has no such values.",
                stacklevel=2,
            )
        return _given(operation, at_x, at_r, *normalised(module, at_x[name], at_r[name]))
    if pool is None and not isinstance(module, ops.ACTIVATIONS):
        value = at_x.run(operation)
        with torch.no_grad():
            return value, at_r.run(operation)
    (name,) = operation.inputs
    x, r = at_x[name], at_r[name]
    with torch.no_grad():
        s, *of_r = [torch.as_tensor(module(r))] if pool is None else pool.apply(r)  # type: ignore[misc]
    rule, settings = (Rescaled, module) if pool is None else (RescaledMaxPool, pool)
    value = rule.apply(x, r, s, *of_r, settings)  # type: ignore[no-untyped-call]
    return _given(operation, at_x, at_r, value, s)


def _given(operation: Operation, at_x: Values, at_r: Values, value: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    for values, given in ((at_x, value), (at_r, s)):
        values.give(operation.value, given)
        for node in operation.node.all_input_nodes:
            values.used(node.name)
    return value, s


@dataclass(frozen=True)
class DeepLift(ComparesWithControls):
    """DeepLIFT by the rescale rule, signed, summed over channels.

    `compare`: with the mean of the controls, or with each of them, of whose maps it takes the mean.
    """

    name: ClassVar[str] = "deeplift"

    compare: Literal["mean", "each"] = "mean"

    def require(self, view: network_view.NetworkView) -> None:
        plan_deeplift(view.model, view.volumes)

    def answers(
        self, model: nn.Module, volumes: Tensor, target: int, start: network_view.StartValue, stage: int | str
    ) -> Sequence[Attribution]:
        """Contributions (B, C, d, h, w) that sum to the value of the volume less that of the reference."""
        reference = fitting(self.reference, volumes, self.name)
        baselines = [reference.mean] if self.compare == "mean" else list(torch.split(reference.volumes, 1))
        total, of_references = None, []
        for baseline in baselines:
            contributions, explained, of_reference = deeplift(model, volumes, baseline, target, start, stage)
            total = contributions if total is None else total + contributions
            of_references.append(of_reference)
        assert total is not None
        settings, base = described(self, stage, start), torch.cat(of_references).mean().expand(len(volumes))
        values = total / len(baselines)
        return [Attribution(values, self.name, target, explained, settings, reference_value=base)]

    def maps(self, view: network_view.NetworkView) -> Tensor:
        return self.answers(view.model, view.volumes, view.target, view.start, view.stage)[0].values
