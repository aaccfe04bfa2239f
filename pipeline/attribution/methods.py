"""One verb for every method: `attribute`.

A *method* is a small frozen record of its settings that makes maps of a `Subject`. Its formula lives in pure functions
beside it; what surrounds it (precision, checks, the boundary, bringing maps up to the input's grid) lives here, once.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from pipeline.attribution.lrp.ledger import Ledger
from pipeline.attribution.network_view import Subject, explaining
from pipeline.attribution.records import Attribution
from pipeline.attribution.targets import StartValue
from pipeline.attribution.upsampling import to_input_grid
from pipeline.run.errors import BadInputError, UsageError


class Method(Protocol):
    """Settings of an attribution method."""

    name: ClassVar[str]
    """As written in sidecars and on the command line."""

    def maps(self, subject: Subject) -> Tensor:
        """Maps (B, 1, d, h, w) at the boundary of `subject`, summed over the channels of its features."""
        ...


@runtime_checkable
class Conditional(Protocol):
    """A method that is not defined for every network."""

    def require(self, subject: Subject) -> None:
        """Raise `UsageError` where it is not, whatever the volumes hold."""
        ...


@runtime_checkable
class Accounting(Protocol):
    """A method that knows where its relevance went."""

    def maps_and_ledger(self, subject: Subject) -> tuple[Tensor, Ledger]:
        """Maps as of `Method.maps`, and their ledger."""
        ...


def require_defined(
    model: nn.Module, shape: tuple[int, int, int], method: Method, stage: int | str, start: StartValue
) -> None:
    """Refuse a method that is not defined for a network, by one pass of an empty volume; before any scan is read.

    Parameters
    ----------
    model : nn.Module
    shape : tuple of int
        Voxels of its input.
    method : Method
    stage, start
        As of `attribute`.

    Raises
    ------
    UsageError
        As the method raises it, with the layers it finds and what to do.
    """
    if isinstance(method, Conditional):
        weight = next(model.parameters())
        empty = torch.zeros((1, 1, *shape), dtype=weight.dtype, device=weight.device)
        with explaining(model, empty, 0, stage, start) as subject:
            method.require(subject)


def attribute(
    model: nn.Module,
    volumes: Tensor,
    target: int,
    method: Method,
    stage: int | str = 0,
    start: StartValue = "logit",
    at_input_grid: bool = True,
) -> Attribution:
    """Explain one output of a model for a batch of volumes.

    Parameters
    ----------
    model : nn.Module
        In evaluation mode; not changed in any way.
    volumes : Tensor
        (B, 1, D, H, W), in the precision and on the device of the model.
    target : int
        Output unit to explain.
    method : Method
    stage : int or str
        Boundary at which to explain; 0 is the input. See `explaining`.
    start : {"logit", "probability"}
        Value of the target that is explained.
    at_input_grid : bool
        Bring the map of a later stage up to the grid of the input; see `to_input_grid`.

    Returns
    -------
    Attribution

    Raises
    ------
    UsageError
        For a stage, target, mode or setting that is not supported.
    BadInputError
        For volumes that do not fit the model or are not finite, and for maps that would not be.
    """
    with explaining(model, volumes, target, stage, start) as subject:
        if subject.features.dim() != 5:
            raise UsageError(
                f"stage {stage!r}: what leaves it is {tuple(subject.features.shape)} and has no voxels; explain at an "
                "earlier stage."
            )
        found, ledger = (
            method.maps_and_ledger(subject) if isinstance(method, Accounting) else (method.maps(subject), None)
        )
        values = found.detach()
        _require_finite(values, method)
        if at_input_grid and not subject.at_input:
            values = to_input_grid(values, subject)
        with torch.no_grad():
            start_value = subject.score(subject.features)
    return Attribution(values, method.name, target, start_value, described(method, stage, start), ledger)


def _require_finite(maps: Tensor, method: Method) -> None:
    broken = [index for index, one in enumerate(maps) if not bool(torch.isfinite(one).all())]
    if broken:
        raise BadInputError(
            f"{method.name}: the map of volume {broken[0]} of the batch is not finite (NaN or infinity): the network "
            "overflows or has an infinite slope there; look at the scale of its weights and of the volume."
        )


def described(method: Method, stage: int | str, start: StartValue) -> dict[str, str | float]:
    """Settings of a method for a sidecar: its fields, the stage and the start value."""
    settings: dict[str, str | float] = {"stage": stage, "start": start}
    for name in _settings_of(method):
        value = getattr(method, name)
        settings[name] = value if isinstance(value, str | int | float) else repr(value)
    return settings


def _settings_of(method: object) -> list[str]:
    """Names of its fields; `name` is none, the record of the answer carries it as `method`."""
    return [field.name for field in dataclasses.fields(method)] if dataclasses.is_dataclass(method) else []
