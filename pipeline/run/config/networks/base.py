"""What the settings of all networks share."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class ModelConfig:
    """The network and what it sees; each family adds its own settings."""

    architecture: str
    """Name of the family."""
    field_of_view: Literal["brain", "template"] = "brain"
    """What the network sees: the box around the template's brain, or the whole template."""

    @property
    def own(self) -> dict[str, Any]:
        """The settings that the family adds."""
        shared = {field.name for field in dataclasses.fields(ModelConfig)}
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in shared}

    @property
    def usual(self) -> Mapping[str, Mapping[str, Any]]:
        """Settings of other sections that suit the family better than their defaults, by section."""
        return {}

    def checks(self) -> list[tuple[bool, str]]:
        """Checks of values: whether each passes, and the message if it fails."""
        return []


def all_positive(values: tuple[int, ...]) -> bool:
    return len(values) > 0 and min(values) >= 1


def is_width(value: float) -> tuple[bool, str]:
    return 1 / 64 <= value <= 4, "model.width must lie between 0.015625 and 4"


def is_share(name: str, value: float) -> tuple[bool, str]:
    return 0 <= value < 1, f"model.{name} must lie in [0, 1)"
