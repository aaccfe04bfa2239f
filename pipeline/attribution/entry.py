"""Registry entry of a method: its settings, a line of help, and the stage where it is applied by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from torch import nn

from heatlas.atlases.spaces import Box
from heatlas.pipeline.attribution.method_settings import Setting, build_record
from heatlas.pipeline.attribution.methods import Method
from heatlas.pipeline.attribution.network_view import open_parts
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.models.contract import PoolsByAttention, StagedModel, attention_layers, members_of
from heatlas.pipeline.regions.packed_atlas import PackedAtlas


@dataclass(frozen=True)
class RunContext:
    """What a run provides: its atlas, the part of the template grid that networks see, and training controls."""

    atlas: PackedAtlas
    box: Box | None
    reference: Reference | None = None


@dataclass(frozen=True)
class Entry:
    """A method as users see it.

    A method is a frozen dataclass of its settings, each with its range (`CheckedSettings`), in the room of its kind. It
    has a `name` and ``maps(view) -> tensor``, where the view is a network seen from one boundary between its stages.
    Command line, runs, tables, bench and report find it by its entry; a family for which it is not defined says so
    (`Family.refused`). Tests: a closed form on a linear network, an identity (completeness, conservation), and an
    independent library if there is one.
    """

    record: type[Any]
    """Its settings. A static method ``from_run(surroundings)`` gives those that come from the run, and a static method
    ``needs_later_stage(network)`` says whether it is defined for a network, but not at its input."""
    help: str
    """What it shows, in one line."""
    usual_stage: Literal["input", "last", "tokens"] = "input"
    """Default stage: the input, the last stage with spatial resolution, or the tokens before the first attention."""
    usual_start: Literal["run", "logit", "evidence"] = "logit"
    """Value explained by default: the `start_value` of the run, the logit, or the evidence."""
    slow: Literal["", "input", "anywhere"] = ""
    """Where it shows the network a hundred changed volumes and more: nowhere; at the input alone, since what it changes
    as often behind the last stage costs little; or at whatever stage it is asked."""
    spelling: str = ""
    """Title, where it is not the name in words."""
    steps: float | None = None
    """Forward and backward passes that a map costs; None where that is not known before the run."""

    @property
    def name(self) -> str:
        return str(self.record.name)

    @property
    def title(self) -> str:
        return self.spelling or title_of(self.name)

    @property
    def has_ledger(self) -> bool:
        return bool(getattr(self.record, "has_ledger", False))

    def needs_later_stage(self, network: nn.Module) -> bool:
        return bool(getattr(self.record, "needs_later_stage", lambda _: False)(network))

    @property
    def needs_reference(self) -> bool:
        return any(field.name == "reference" for field in fields(self.record))

    @property
    def needs_atlas(self) -> bool:
        return any(field.name in ("labels", "regions") for field in fields(self.record))

    def build(self, settings: Mapping[str, Setting], surroundings: RunContext) -> Method:
        given = self.record.from_run(surroundings) if hasattr(self.record, "from_run") else {}
        method: Method = build_record(self.record, settings, given)
        return method

    def is_slow_at(self, stage: int | str) -> bool:
        return self.slow == "anywhere" or (self.slow == "input" and stage == 0)

    def stage_of(self, model: nn.Module) -> int | str:
        """The default boundary: a number, or the name of a layer inside of the first stage."""
        if self.usual_stage == "tokens":
            return token_stage(model)
        return last_spatial_stage(model) if self.usual_stage == "last" else 0


def title_of(name: str) -> str:
    """The words of a name, as a title.

    >>> title_of("region-swap")
    'Region swap'
    """
    words = name.replace("-", " ")
    return words[:1].upper() + words[1:]


def last_spatial_stage(model: nn.Module) -> int:
    """Boundary after the last stage with a 3D convolution or tokens at their places, the output aside; else 0."""
    places = [
        number
        for number, stage in enumerate(_stages(model)[:-1], 1)
        if getattr(stage, "keeps_places", False) or any(weight.dim() == 5 for weight in stage.parameters())
    ]
    return places[-1] if places else 0


def token_stage(model: nn.Module) -> int | str:
    """Boundary before the first stage with attention, or at the features of one that pools by it; 0 without any.

    Where the first stage holds a whole transformer, as of a probe, the name of its last layer before attention.
    """
    for number, stage in enumerate(_stages(model)):
        if isinstance(stage, PoolsByAttention):
            return number + 1
        if attention_layers(stage):
            parts = open_parts(members_of(model)[0])
            place = next(index for index, (_, layer) in enumerate(parts) if attention_layers(layer))
            return number or (parts[place - 1][0] if place else 0)
    return 0


def _stages(model: nn.Module) -> list[nn.Module]:
    first = members_of(model)[0]
    return list(first.stages) if isinstance(first, StagedModel) else list(first.children())
