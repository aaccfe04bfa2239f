"""From a method to its map on the grid of the input: `attribute`.

A *method* is a small frozen record of its settings that makes maps of a `NetworkView`. Its formula is in pure functions
beside it; precision, checks and upsampling to the input's grid are handled here for all methods.

A value of a feature map belongs to the centre of its receptive field. With unpadded convolutions and pooling that
rounds down, these centres are not spread evenly over the volume: resizing the map to the volume (as usual for CAM)
shifts it, by up to 23 voxels at the last block of the founding CNN. Here each axis is interpolated linearly between the
true centres, and constant beyond the outermost ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from heatlas.pipeline.attribution.graph.layers import triple
from heatlas.pipeline.attribution.graph.planner import carried
from heatlas.pipeline.attribution.network_view import NetworkView, StartValue, explaining, pooling_before, split_layers
from heatlas.pipeline.attribution.records import Attribution, Ledger, RunningMean
from heatlas.pipeline.models.contract import Ensemble, members_of
from heatlas.pipeline.models.dynamic import DynamicLinear
from heatlas.pipeline.models.graph.operations import Concatenate, Gate, Sum
from heatlas.pipeline.models.graph.tracing import trace
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.work.host import on_host


class Method(Protocol):
    """Settings of an attribution method."""

    name: ClassVar[str]
    """As written in sidecars and on the command line."""

    def maps(self, view: NetworkView) -> Tensor:
        """Maps (B, 1, d, h, w) at the boundary of `view`, or (B, C, d, h, w) of its channels, which are summed then."""
        ...


@runtime_checkable
class Conditional(Protocol):
    """A method that is not defined for every network."""

    def require(self, view: NetworkView) -> None:
        """Raise `UsageError` if it is not defined for this network, whatever the volumes."""
        ...


@runtime_checkable
class Propagation(Protocol):
    """A method that passes itself through the network, which can make several maps at once."""

    def answers(
        self, model: nn.Module, volumes: Tensor, target: int, start: StartValue, stage: int | str
    ) -> Sequence[Attribution]:
        """Maps on the grid of the stage, each with its start value, its settings and its ledger if it has one."""
        ...


@runtime_checkable
class Relative(Protocol):
    """A method that explains a volume relative to a reference."""

    def reference_value(self, view: NetworkView) -> Tensor | None:
        """The explained value of the reference, one per volume: (B,); None where the settings ask for no reference."""
        ...


@runtime_checkable
class Accounted(Protocol):
    """A method that knows what each layer adds to the explained value."""

    def ledger(self, view: NetworkView) -> Ledger: ...


@dataclass(frozen=True)
class Drawn:
    """Maps (B, 1, d, h, w) of a method that draws at random, and what is known of their errors; see `Attribution`."""

    values: Tensor
    errors: Tensor | None = None
    sampling_error: Tensor | None = None


@runtime_checkable
class Sampled(Protocol):
    """A method that draws at random, and knows something of the error."""

    def drawn(self, view: NetworkView) -> Drawn: ...


def require_defined(
    model: nn.Module,
    shape: tuple[int, int, int],
    method: Method,
    stage: int | str,
    start: StartValue,
    channels: int = 1,
) -> None:
    """Refuse a method that is not defined for a network with an input of this shape, before any scan is read."""
    if isinstance(method, Conditional):
        model, member_method = members_of(model)[0], for_member(method, 0)
        assert isinstance(member_method, Conditional)
        weight = next(model.parameters())
        empty = torch.zeros((1, channels, *shape), dtype=weight.dtype, device=weight.device)
        with explaining(model, empty, 0, stage, start) as view:
            member_method.require(view)


def attribute(
    model: nn.Module,
    volumes: Tensor,
    target: int,
    method: Method,
    stage: int | str = 0,
    start: StartValue = "logit",
    at_input_grid: bool = True,
) -> Attribution:
    """Explain one output by a method; the first map if it makes several. See `attribute_all`."""
    return attribute_all(model, volumes, target, method, stage, start, at_input_grid)[0]


def attribute_all(
    model: nn.Module,
    volumes: Tensor,
    target: int,
    method: Method,
    stage: int | str = 0,
    start: StartValue = "logit",
    at_input_grid: bool = True,
) -> tuple[Attribution, ...]:
    """Explain one output of a model for a batch of volumes; of an ensemble, the means over its members.

    `model`: in evaluation mode; not changed. `volumes`: (B, C, D, H, W), a channel per image, in its precision and on
    its device. `stage`: boundary at which to explain; 0 is the input (`explaining`). `start`: value of the target that
    is explained. `at_input_grid`: upsample the map of a later stage (`to_input_grid`). Gives one answer per map of the
    method.
    """
    if isinstance(model, Ensemble):
        return _of_ensemble(answers_of_members(model, volumes, target, method, stage, start, at_input_grid))
    if len(volumes) > 1 and stage != 0 and pooling_before(split_layers(model, stage)[0]) is not None:
        each = [
            attribute_all(model, volume, target, method, stage, start, at_input_grid)
            for volume in torch.split(volumes, 1)
        ]
        return tuple(
            replace(
                answers[0],
                values=torch.cat([answer.values for answer in answers]),
                start_value=torch.cat([answer.start_value for answer in answers]),
                channels=None,
            )
            for answers in zip(*each, strict=True)
        )
    if isinstance(method, Propagation) and stage == 0:  # passes through the network itself
        return tuple(
            one_channel(_finite(answer), True) for answer in method.answers(model, volumes, target, start, stage)
        )
    with explaining(model, volumes, target, stage, start) as view:
        if view.features.dim() != 5:
            raise UsageError(
                f"stage {stage!r}: its output {tuple(view.features.shape)} has no voxels; explain at an earlier stage."
            )
        if isinstance(method, Propagation):
            answers = list(method.answers(model, volumes, target, start, stage))
        else:
            drawn = method.drawn(view) if isinstance(method, Sampled) else Drawn(method.maps(view))
            with torch.no_grad():
                of_reference = method.reference_value(view) if isinstance(method, Relative) else None
            settings = described(method, stage, start)
            ledger = method.ledger(view) if isinstance(method, Accounted) else None
            answer = Attribution(
                drawn.values.detach(), method.name, target, view.own_score, settings, ledger, of_reference
            )
            answers = [replace(answer, errors=drawn.errors, sampling_error=drawn.sampling_error)]
        answers = [one_channel(_finite(answer), view.at_input) for answer in answers]
        if at_input_grid and not view.at_input:
            answers = [replace(answer, values=to_input_grid(answer.values, view)) for answer in answers]
    return tuple(answers)


def answers_of_members(
    model: nn.Module,
    volumes: Tensor,
    target: int,
    method: Method,
    stage: int | str,
    start: StartValue,
    at_input_grid: bool,
) -> Iterator[tuple[Attribution, ...]]:
    """What `attribute_all` answers for each member of an ensemble, one after the other; for any other network once."""
    for number, member in enumerate(members_of(model)):
        member_method = for_member(method, number) if isinstance(model, Ensemble) else method
        yield attribute_all(member, volumes, target, member_method, stage, start, at_input_grid)


def _of_ensemble(answers: Iterator[tuple[Attribution, ...]]) -> tuple[Attribution, ...]:
    """The means over members; maps on a reference, which are few, keep those of the members beside them."""
    means: list[RunningMean] = []
    for member_answers in answers:
        means = means or [RunningMean() for _ in member_answers]
        for mean, answer in zip(means, member_answers, strict=True):
            kept = None if answer.reference_value is None else answer.values[None]
            mean.add(replace(answer, members=kept))
    return tuple(mean.result() for mean in means)


def for_member(method: Method, number: int) -> Method:
    """A method with the reference that one member of an ensemble has, which knows what that member answers."""
    reference = getattr(method, "reference", None)
    return method if reference is None else replace(method, reference=reference.of_member(number))  # type: ignore[type-var]


def _finite(answer: Attribution) -> Attribution:
    broken = [index for index, values in enumerate(answer.values) if not bool(on_host(torch.isfinite(values).all()))]
    if broken:
        raise BadInputError(
            f"{answer.method}: the map of volume {broken[0]} of the batch is not finite (NaN or infinity): the network "
            "overflows or has an infinite slope; check the scale of its weights and of the volume."
        )
    return answer


def described(method: object, stage: int | str, start: StartValue) -> dict[str, str | float]:
    settings: dict[str, str | float] = {"stage": stage, "start": start}
    for field in dataclasses.fields(method) if dataclasses.is_dataclass(method) else ():
        value = getattr(method, field.name)
        settings[field.name] = value if isinstance(value, str | int | float) else repr(value)
    return settings


def one_channel(answer: Attribution, at_input: bool) -> Attribution:
    """Sum a map over channels; at the input those are kept beside the sum."""
    values = answer.values
    if values.shape[1] == 1:
        return answer
    return replace(answer, values=values.sum(1, keepdim=True), channels=values if at_input else None)


_ACTIVATIONS = (nn.ReLU, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Softplus, nn.Sigmoid, nn.Tanh)
_NORMALISATIONS = (nn.BatchNorm3d, nn.InstanceNorm3d, nn.GroupNorm)
POINTWISE = (*_ACTIVATIONS, *_NORMALISATIONS, nn.Dropout, nn.Dropout3d, nn.Identity)
"""Layers that preserve the position of values."""


Centres = tuple[tuple[float, float], ...]


def receptive_centres(layers: Sequence[tuple[str, nn.Module]]) -> Centres:
    """Offset and step, per axis, so that feature i has its receptive field's centre at voxel ``offset + step i``.

    >>> receptive_centres([("conv", nn.Conv3d(1, 1, 3)), ("pool", nn.MaxPool3d(2))])
    ((1.5, 2.0), (1.5, 2.0), (1.5, 2.0))
    """
    centres: Centres = ((0.0, 1.0),) * 3
    for name, layer in layers:
        centres = _after(name, layer, centres)
    return centres


def _after(name: str, layer: nn.Module, centres: Centres) -> Centres:
    """Centres of the outputs of a layer, given those of its inputs."""
    dynamic = isinstance(layer, DynamicLinear)  # a convolution, or a norm or attention, which move no value
    stays = isinstance(layer, POINTWISE) or getattr(layer, "keeps_places", False)
    if stays or (dynamic and not hasattr(layer, "kernel_size")):
        return centres
    if isinstance(layer, nn.ConstantPad3d):
        before = layer.padding[-2::-2]  # torch starts with the last axis
        return tuple((offset - pad * step, step) for (offset, step), pad in zip(centres, before, strict=True))
    if dynamic or isinstance(layer, nn.Conv3d | nn.MaxPool3d | nn.AvgPool3d):
        return tuple(
            (offset + shift * step, step * stride)
            for (offset, step), (shift, stride) in zip(centres, _window(layer), strict=True)
        )
    if any(True for _ in layer.children()):
        return _after_block(name, layer, centres)
    raise _unknown(name, layer)


def _after_block(name: str, block: nn.Module, centres: Centres) -> Centres:
    """Like `_after`, for a block with branches, whose outputs must have the same centres."""
    program = trace(block)
    centres_of, features = {program.source: centres}, carried(program)
    for operation in program.operations:
        if operation.value not in features:
            continue
        module, before = operation.module, [centres_of[value] for value in operation.inputs if value in centres_of]
        where = f"{name}.{operation.name}"
        if module is None or (isinstance(module, Sum | Concatenate) and len(set(before)) != 1):
            raise _unknown(where, module or block)
        joins = isinstance(module, Sum | Concatenate | Gate)
        centres_of[operation.value] = before[0] if joins else _after(where, module, before[0])
    return centres_of[program.result]


def _unknown(name: str, layer: nn.Module) -> UsageError:
    return UsageError(
        f"layer {name} ({type(layer).__name__}): the position of its outputs in the volume is unknown, so its map "
        "cannot be upsampled to the input; request the map on the layer's grid."
    )


def _window(layer: Any) -> list[tuple[float, int]]:
    """Per axis: the centre of the first window relative to the first voxel, and the stride."""
    kernel, stride = triple(layer.kernel_size), triple(layer.stride)
    dilation = triple(getattr(layer, "dilation", 1))
    if layer.padding == "same":
        # an even window has one voxel more after its position than before it
        return [(d * (k - 1) % 2 / 2, 1) for k, d in zip(kernel, dilation, strict=True)]
    padding = (0, 0, 0) if isinstance(layer.padding, str) else triple(layer.padding)
    return [(d * (k - 1) / 2 - p, s) for k, s, d, p in zip(kernel, stride, dilation, padding, strict=True)]


@runtime_checkable
class OwnGeometry(Protocol):
    """A module that upsamples its outputs to the grid of the input itself."""

    def to_input(self, maps: Tensor, shape: Sequence[int]) -> Tensor:
        """Maps (B, 1, d, h, w) on a grid of `shape`."""
        ...


def to_input_grid(maps: Tensor, view: NetworkView) -> Tensor:
    """Bring maps (B, 1, d, h, w) of a boundary to the grid of the volumes, (B, 1, D, H, W)."""
    return interpolated(maps, view.before, view.volumes.shape[-3:])


def interpolated(maps: Tensor, layers: Sequence[tuple[str, nn.Module]], shape: Sequence[int]) -> Tensor:
    """Bring maps (B, 1, d, h, w) of the output of some layers to a grid of `shape`; see `to_input_grid`."""
    if len(layers) == 1 and isinstance(layers[0][1], OwnGeometry):
        return layers[0][1].to_input(maps, shape)
    for axis, (offset, step) in enumerate(receptive_centres(layers), start=2):
        last = maps.shape[axis] - 1
        voxels = torch.arange(shape[axis - 2], device=maps.device, dtype=torch.float64)
        place = ((voxels - offset) / step).clamp(0, last)
        low = place.floor().long().clamp(max=max(last - 1, 0))
        weight = (place - low).to(maps.dtype).view(*(-1 if dim == axis else 1 for dim in range(maps.dim())))
        high = (low + 1).clamp(max=last)
        maps = maps.index_select(axis, low) * (1 - weight) + maps.index_select(axis, high) * weight
    return maps
