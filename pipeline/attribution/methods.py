"""Entry point of all methods: `attribute`.

A *method* is a small frozen record of its settings that makes maps of a `NetworkView`. Its formula is in pure functions
beside it; precision, checks and upsampling to the input's grid are handled here for all methods.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from heatlas.pipeline.attribution.network_view import NetworkView, StartValue, explaining, pooling_before, split_layers
from heatlas.pipeline.attribution.records import Attribution, Ledger, RunningMean
from heatlas.pipeline.attribution.upsampling import to_input_grid
from heatlas.pipeline.models.ensembles import Ensemble, members_of
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
    """A method with its own pass through the network, which can make several maps at once."""

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
    """Refuse a method that is not defined for a network, using an empty volume; before any scan is read.

    `shape`: voxels of its input. `stage`, `start`: as for `attribute`. `channels`: of its input. Raises UsageError from
    the method, with the layers it found and the remedy.
    """
    if isinstance(method, Conditional):
        model, own = members_of(model)[0], for_member(method, 0)
        assert isinstance(own, Conditional)
        weight = next(model.parameters())
        empty = torch.zeros((1, channels, *shape), dtype=weight.dtype, device=weight.device)
        with explaining(model, empty, 0, stage, start) as view:
            own.require(view)


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

    Parameters
    ----------
    model : nn.Module
        In evaluation mode; not changed.
    volumes : Tensor
        (B, 1, D, H, W), in the precision and on the device of the model.
    target : int
        Output unit to explain.
    method : Method
    stage : int or str
        Boundary at which to explain; 0 is the input. See `explaining`.
    start : {"logit", "probability", "evidence"}
        Value of the target that is explained.
    at_input_grid : bool
        Upsample the map of a later stage to the grid of the input; see `to_input_grid`.

    Returns
    -------
    tuple of Attribution
        One, or one per map of a method that makes several.

    Raises
    ------
    UsageError
        For an unsupported stage, target, mode or setting.
    BadInputError
        For volumes that do not fit the model or are not finite, and for maps that are not finite.
    """
    if isinstance(model, Ensemble):
        return _of_ensemble(answers_of_members(model, volumes, target, method, stage, start, at_input_grid))
    if len(volumes) > 1 and stage != 0 and pooling_before(split_layers(model, stage)[0]) is not None:
        each = [
            attribute_all(model, one, target, method, stage, start, at_input_grid) for one in torch.split(volumes, 1)
        ]
        return tuple(_joined(answers) for answers in zip(*each, strict=True))
    if isinstance(method, Propagation) and stage == 0:  # has its own pass through the network
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
            made = method.drawn(view) if isinstance(method, Sampled) else Drawn(method.maps(view))
            with torch.no_grad():
                of_reference = method.reference_value(view) if isinstance(method, Relative) else None
            settings = described(method, stage, start)
            ledger = method.ledger(view) if isinstance(method, Accounted) else None
            answers = [
                Attribution(
                    made.values.detach(), method.name, target, view.own_score, settings, ledger, of_reference,
                    made.errors, made.sampling_error,
                )
            ]  # fmt: skip
        answers = [one_channel(_finite(answer), view.at_input) for answer in answers]
        if at_input_grid and not view.at_input:
            answers = [replace(answer, values=to_input_grid(answer.values, view)) for answer in answers]
    return tuple(answers)


def answers_of_members(
    model: nn.Module,
    volumes: Tensor,
    target: int,
    method: Method,
    stage: int | str = 0,
    start: StartValue = "logit",
    at_input_grid: bool = True,
) -> Iterator[tuple[Attribution, ...]]:
    """What `attribute_all` answers for each member of an ensemble, one after the other; for any other network once."""
    for number, member in enumerate(members_of(model)):
        own = for_member(method, number) if isinstance(model, Ensemble) else method
        yield attribute_all(member, volumes, target, own, stage, start, at_input_grid)


def _of_ensemble(answers: Iterator[tuple[Attribution, ...]]) -> tuple[Attribution, ...]:
    """The means over members; maps on a reference, which are few, keep those of the members beside them."""
    means: list[RunningMean] = []
    for made in answers:
        means = means or [RunningMean() for _ in made]
        for mean, answer in zip(means, made, strict=True):
            kept = None if answer.reference_value is None else answer.values[None]
            mean.add(replace(answer, members=kept))
    return tuple(mean.result() for mean in means)


def for_member(method: Method, number: int) -> Method:
    """A method with the reference that one member of an ensemble has, which knows what that member answers."""
    reference = getattr(method, "reference", None)
    return method if reference is None else replace(method, reference=reference.of_member(number))  # type: ignore[type-var]


def _joined(answers: Sequence[Attribution]) -> Attribution:
    """One answer of several volumes, from those of each alone."""
    values, starts = (torch.cat([getattr(one, name) for one in answers]) for name in ("values", "start_value"))
    return replace(answers[0], values=values, start_value=starts, channels=None)


def _finite(answer: Attribution) -> Attribution:
    broken = [index for index, one in enumerate(answer.values) if not bool(on_host(torch.isfinite(one).all()))]
    if broken:
        raise BadInputError(
            f"{answer.method}: the map of volume {broken[0]} of the batch is not finite (NaN or infinity): the network "
            "overflows or has an infinite slope; check the scale of its weights and of the volume."
        )
    return answer


def described(method: object, stage: int | str, start: StartValue) -> dict[str, str | float]:
    """Settings of a method for a sidecar: its fields, the stage and the start value."""
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
