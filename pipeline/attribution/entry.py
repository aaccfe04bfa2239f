"""What the program knows of a method beside its formula: its record, one line of help, where it is usually asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from atlases.brain_box import Box
from pipeline.attribution.method_settings import Setting, build_record
from pipeline.attribution.methods import Method
from pipeline.models.contract import StagedModel
from pipeline.regions.packed_atlas import PackedAtlas


@dataclass(frozen=True)
class Surroundings:
    """What a run can give to a method: its regions, and the part of the template grid that the network sees."""

    atlas: PackedAtlas
    box: Box | None


@dataclass(frozen=True)
class Entry:
    """A method as users meet it.

    Parameters
    ----------
    record : type
        Its settings. A static method ``from_run(surroundings)`` gives those that come from the run.
    help : str
        What it answers, in one line.
    usual_stage : {"input", "last"}
        Where it is asked by default: at the input, or after the last layers that keep places apart.
    usual_start : {"run", "logit"}
        The value it explains by default: the `start_value` of the run, or the logit.
    """

    record: type[Any]
    help: str
    usual_stage: Literal["input", "last"] = "input"
    usual_start: Literal["run", "logit"] = "logit"

    @property
    def name(self) -> str:
        return str(self.record.name)

    @property
    def has_ledger(self) -> bool:
        """Whether the method says where its relevance went."""
        return bool(getattr(self.record, "has_ledger", False))

    def build(self, settings: Mapping[str, Setting], surroundings: Surroundings) -> Method:
        """Make the method; raises `UsageError` for a setting that it refuses."""
        given = self.record.from_run(surroundings) if hasattr(self.record, "from_run") else {}
        method: Method = build_record(self.record, settings, given)
        return method

    def stage_of(self, model: nn.Module) -> int:
        """Number of the boundary at which the method is usually asked."""
        return last_spatial_stage(model) if self.usual_stage == "last" else 0


def last_spatial_stage(model: nn.Module) -> int:
    """Boundary after the last stage that holds a 3D convolution; 0 where there is none."""
    stages = list(model.stages) if isinstance(model, StagedModel) else list(model.children())
    with_convolution = [
        number for number, stage in enumerate(stages, 1) if any(isinstance(m, nn.Conv3d) for m in stage.modules())
    ]
    return with_convolution[-1] if with_convolution else 0
