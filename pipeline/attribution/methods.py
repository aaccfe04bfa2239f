"""One verb for every method: `attribute`.

A *method* is a small frozen record of its settings that makes maps of a `Subject`. Its formula lives in pure functions
beside it; what surrounds it (precision, checks, the boundary, bringing maps up to the input's grid) lives here, once.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from pipeline.attribution.records import Attribution
from pipeline.attribution.subject import Subject, explaining
from pipeline.attribution.targets import StartValue
from pipeline.attribution.upsampling import to_input_grid


class Method(Protocol):
    """Settings of an attribution method."""

    name: ClassVar[str]
    """As written in sidecars and on the command line."""

    def maps(self, subject: Subject) -> Tensor:
        """Maps (B, 1, d, h, w) at the boundary of `subject`, summed over the channels of its features."""
        ...


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
        For volumes that do not fit the model or are not finite.
    """
    with explaining(model, volumes, target, stage, start) as subject:
        values = method.maps(subject).detach()
        if at_input_grid and not subject.at_input:
            values = to_input_grid(values, subject)
        with torch.no_grad():
            start_value = subject.score(subject.features)
    return Attribution(values, method.name, target, start_value, described(method, stage, start))


def described(method: Method, stage: int | str, start: StartValue) -> dict[str, str | float]:
    """Settings of a method for a sidecar: its fields, the stage and the start value."""
    settings: dict[str, str | float] = {"stage": stage, "start": start}
    for name in getattr(method, "__dataclass_fields__", {}):
        value = getattr(method, name)
        settings[name] = value if isinstance(value, str | int | float) else repr(value)
    return settings
