"""Registry entry of a method: its settings, a line of help, and the stage where it is applied by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from torch import nn

from atlases.brain_box import Box
from pipeline.attribution.method_settings import Setting, build_record
from pipeline.attribution.methods import Method
from pipeline.attribution.reference.references import Reference
from pipeline.models.contract import StagedModel
from pipeline.regions.packed_atlas import PackedAtlas


@dataclass(frozen=True)
class Surroundings:
    """What a run provides to a method.

    Parameters
    ----------
    atlas : PackedAtlas
        Atlas regions.
    box : Box or None
        The part of the template grid that the network sees.
    reference : Reference or None
        Training controls of the network; None if no method needs them.
    """

    atlas: PackedAtlas
    box: Box | None
    reference: Reference | None = None


@dataclass(frozen=True)
class Entry:
    """A method as users see it.

    Parameters
    ----------
    record : type
        Its settings. A static method ``from_run(surroundings)`` gives those that come from the run.
    help : str
        What it shows, in one line.
    usual_stage : {"input", "last"}
        Default stage: the input, or the last stage with spatial resolution.
    usual_start : {"run", "logit", "evidence"}
        Value explained by default: the `start_value` of the run, the logit, or the evidence.
    """

    record: type[Any]
    help: str
    usual_stage: Literal["input", "last"] = "input"
    usual_start: Literal["run", "logit", "evidence"] = "logit"

    @property
    def name(self) -> str:
        return str(self.record.name)

    @property
    def has_ledger(self) -> bool:
        """Whether the method reports where relevance was lost."""
        return bool(getattr(self.record, "has_ledger", False))

    @property
    def needs_reference(self) -> bool:
        """Whether it explains a scan relative to controls."""
        return any(field.name == "reference" for field in fields(self.record))

    def build(self, settings: Mapping[str, Setting], surroundings: Surroundings) -> Method:
        """Create the method; raises `UsageError` for an invalid setting."""
        given = self.record.from_run(surroundings) if hasattr(self.record, "from_run") else {}
        method: Method = build_record(self.record, settings, given)
        return method

    def stage_of(self, model: nn.Module) -> int:
        """Number of the default boundary."""
        return last_spatial_stage(model) if self.usual_stage == "last" else 0


def last_spatial_stage(model: nn.Module) -> int:
    """Boundary after the last stage with a 3D convolution, the output aside; 0 if there is none."""
    stages = list(model.stages) if isinstance(model, StagedModel) else list(model.children())
    with_convolution = [
        number for number, stage in enumerate(stages[:-1], 1) if any(weight.dim() == 5 for weight in stage.parameters())
    ]
    return with_convolution[-1] if with_convolution else 0
