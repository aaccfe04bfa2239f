"""What the settings of all networks share, and the records of all families by name.

The record of a family stands beside the family (`pipeline.models.families`), which adds it here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from heatlas.pipeline.run.config.ranges import between

Width = Annotated[float, between(1 / 64, 4)]


@dataclass(frozen=True)
class ModelConfig:
    """The network and what it sees; each family adds its own settings."""

    relatives = ""
    """What families are called together whose settings have a common base, on that base."""
    dynamic_linear = False
    """Whether the network is one linear map for each scan."""

    architecture: str
    """Name of the family."""
    field_of_view: Literal["brain", "template"] = "brain"
    """What the network sees: the box around the template's brain, or the whole template."""
    intensities: Literal["minmax", "percentiles"] = "minmax"
    """How intensities in the brain are scaled to [0, 1]: by their minimum and maximum, or by their percentiles 0.5 and
    99.5, beyond which they are cut off, so that an eye or a vessel in a rough mask does not darken all the rest."""

    @property
    def shared(self) -> dict[str, Any]:
        """What the network sees, whatever its family."""
        return {name: getattr(self, name) for name in SHARED}

    @property
    def own(self) -> dict[str, Any]:
        """The settings that the family adds."""
        others = {"architecture", *SHARED}
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in others}

    @property
    def maps_voxels(self) -> bool:
        """Whether what the network contributes can be shown voxel by voxel."""
        return True

    @property
    def needs_classes(self) -> str:
        """The setting that is not defined where a number is predicted; empty without one."""
        return ""

    @property
    def usual(self) -> Mapping[str, Mapping[str, Any]]:
        """Settings of other sections that suit the family better than their defaults, by section."""
        return {}


SHARED = tuple(field.name for field in dataclasses.fields(ModelConfig) if field.name != "architecture")
"""Settings of every family: what the network sees."""

NETWORKS: dict[str, type[ModelConfig]] = {}
"""The record of settings of every family, by the name in ``[model] architecture``."""
DEFAULT_NETWORK = "founding"


def default_network() -> ModelConfig:
    """Settings of the network that a run has if it names no other."""
    return NETWORKS[DEFAULT_NETWORK](architecture=DEFAULT_NETWORK)
