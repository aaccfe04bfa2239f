"""What absence means for a map: volumes of controls, or their mean.

A map of a person says what speaks for a class *compared with what*. Compared with air, all brain speaks; compared with
controls, only what differs from them does. Maps on a reference explain the evidence, in logits, and those that are
complete add up to the evidence of the volume less that of its reference.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from heatlas.pipeline.attribution.method_settings import CheckedSettings
from heatlas.pipeline.attribution.network_view import NetworkView, start_values
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.work.host import on_host

if TYPE_CHECKING:
    from heatlas.pipeline.attribution.entry import RunContext

Memory = dict[Hashable, tuple[object, Tensor]]
"""What was made of the volumes of a reference, by question, and the network that it was made with."""


@dataclass(frozen=True, eq=False)
class Reference:
    """Controls that a volume is compared with.

    `volumes`: (R, 1, D, H, W), as the network sees them. `people`: one per volume. `logits`: (R, K), what the network
    answers to them, where that is known; saves R forward passes per volume explained. `memory`: of `remembered`; may be
    shared by references to the same volumes. `members`: of an ensemble, the same volumes with what each of its members
    answers. `controls`: that each volume stands for: above 1 where it is a mean of controls.
    """

    volumes: Tensor
    people: tuple[str, ...]
    logits: Tensor | None = field(default=None, repr=False)
    memory: Memory = field(default_factory=dict, repr=False)
    members: tuple[Reference, ...] = field(default=(), repr=False)
    controls: int = 1

    def __post_init__(self) -> None:
        if self.volumes.dim() != 5 or not len(self.volumes):
            raise BadInputError(
                f"reference: volumes must be (R, 1, D, H, W), R at least 1, and are {tuple(self.volumes.shape)}."
            )
        if len(self.people) != len(self.volumes) or (self.logits is not None and len(self.logits) != len(self.volumes)):
            raise BadInputError(
                f"reference: {len(self.volumes)} volumes but {len(self.people)} participants"
                + ("." if self.logits is None else f" and {len(self.logits)} rows of logits.")
            )
        broken = [name for name, values in zip(self.people, self.volumes, strict=True) if not _is_finite(values)]
        if broken:
            raise BadInputError(f"reference: the volume of {broken[0]} has values that are not finite.")
        logits = () if self.logits is None else self.logits
        unknown = [name for name, values in zip(self.people, logits, strict=False) if not _is_finite(values)]
        if unknown:
            raise BadInputError(
                f"reference: the network's answer to the scan of {unknown[0]} is not finite (NaN or infinity); look at "
                "the scale of its weights."
            )

    def __repr__(self) -> str:
        return f"Reference({', '.join(self.people)})"

    def remembered(self, question: Hashable, network: object, made: Callable[[], Tensor]) -> Tensor:
        """What a method makes of these volumes alone, once per question and network; kept for the latest network."""
        if question not in self.memory or self.memory[question][0] != network:
            self.memory[question] = network, made()
        return self.memory[question][1]

    def of_member(self, number: int) -> Reference:
        """The same volumes for one member of an ensemble, whose answers may not be known."""
        return self.members[number] if self.members else Reference(self.volumes, self.people, controls=self.controls)

    @cached_property
    def mean(self) -> Tensor:
        return self.volumes.mean(0, keepdim=True)


@dataclass(frozen=True)
class ComparesWithControls(CheckedSettings):
    """Settings of a method that compares with the controls of a network, which the run gives."""

    name: ClassVar[str]

    reference: Reference | None = None

    @staticmethod
    def from_run(surroundings: RunContext) -> dict[str, object]:
        return {"reference": surroundings.reference}


def fitting(reference: Reference | None, volumes: Tensor, method: str) -> Reference:
    """The reference of a method in the precision and on the device of the volumes that it explains."""
    if reference is None:
        raise UsageError(
            f"{method} compares with controls and was given none; give images of controls as reference=[control], or "
            "name a method that needs none, as 'lrp'."
        )
    theirs, grid = tuple(reference.volumes.shape[1:]), tuple(volumes.shape[1:])
    if theirs != grid:
        raise BadInputError(
            f"{method}: the reference volumes have the grid {theirs}, the volumes {grid}; bring both to one grid."
        )
    if reference.volumes.dtype == volumes.dtype and reference.volumes.device == volumes.device:
        return reference
    return Reference(
        reference.volumes.to(volumes),
        reference.people,
        None if reference.logits is None else reference.logits.to(volumes),
        controls=reference.controls,
    )


def features_of(volumes: Tensor, view: NetworkView) -> Tensor:
    """Features (R, C, d, h, w) of reference volumes at the boundary of a view; one pass each."""
    if view.at_input:
        return volumes
    if view.pooling is not None:
        raise UsageError(
            f"stage {view.stage!r}: the attention behind it has another query for each scan, so that the features of "
            "controls are no baseline there. Use stage 0."
        )
    with torch.no_grad():
        return torch.cat([view.pre(volume) for volume in torch.split(volumes, 1)])


def mean_value(reference: Reference, view: NetworkView) -> Tensor:
    """Mean over the reference volumes of the value that a view explains, one per volume of the view: (B,)."""
    logits = reference.logits
    if logits is None:
        with torch.no_grad():
            logits = torch.cat([view.rest(view.pre(volume)) for volume in torch.split(reference.volumes, 1)])
    values = start_values(logits, view.target, view.start)
    return values.double().mean().to(values.dtype).expand(len(view.volumes))


def value_of_mean(reference: Reference, view: NetworkView) -> Tensor:
    """The value that a view explains, of the mean reference volume, one per volume of the view: (B,)."""
    with torch.no_grad():
        return view.score_of(reference.mean).expand(len(view.volumes))


def _is_finite(values: Tensor) -> bool:
    return bool(on_host(torch.isfinite(values).all()))
