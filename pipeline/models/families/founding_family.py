"""The family of the founding network; without torch, see `pipeline.models.families.family`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from heatlas.pipeline.models.families import founding_geometry as geometry
from heatlas.pipeline.models.families.family import HIDDEN_LAYER, NO_ATTENTION, NOT_INHERENT, Family, Shape
from heatlas.pipeline.run.config.networks import ModelConfig
from heatlas.pipeline.run.config.ranges import Count, Counts, Fraction

if TYPE_CHECKING:
    from heatlas.pipeline.models.contract import StagedModel


@dataclass(frozen=True)
class FoundingConfig(ModelConfig):
    """The CNN of the founding study."""

    architecture: Literal["founding"] = "founding"
    channels: Counts = (8, 16, 32, 64)
    """Channels of each block."""
    pools: Counts = (2, 3, 2, 3)
    """Edge of the max-pooling after each block. The default suits 1 mm; at 2 mm use 3, 3, 2, 1."""
    hidden_units: Count = 128
    """Units of the first linear layer."""
    dropout: Fraction = 0.4
    """Before each linear layer."""
    bias: bool = True
    """Biases and batch normalisation. Without, input × gradient adds up to the logit, which is a baseline for networks
    that explain themselves."""

    def checks(self) -> list[tuple[bool, str]]:
        return [(len(self.channels) == len(self.pools), "model.channels and model.pools must be equally long")]


def _founding(shape: Shape, settings: FoundingConfig, outputs: int, images: int = 1) -> StagedModel:
    from heatlas.pipeline.models.families.founding import FoundingCNN

    return FoundingCNN(shape, outputs=outputs, images=images, **settings.own)


def _founding_text(settings: FoundingConfig) -> str:
    published = FoundingConfig().own
    changed = [
        name.replace("_", " ") for name, value in settings.own.items() if value != published[name] and name != "bias"
    ]
    norm, none = ("batch normalisation, ", "") if settings.bias else ("", "; without biases and normalisation")
    likeness = f"followed, with other {_and(changed)}, that of" if changed else "was that of"
    channels, pools = (_and(list(map(str, values))) for values in (settings.channels, settings.pools))
    return (
        f"{likeness} the founding study [@founding]: {len(settings.channels)} blocks of a 3×3×3 convolution, "
        f"{norm}ReLU and max-pooling (channels {channels}; pools {pools}), then {settings.hidden_units} "
        f"hidden units, dropout {settings.dropout:g}{none}"
    )


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


FOUNDING = Family(
    name="founding",
    settings=FoundingConfig,
    build=_founding,
    smallest_side=lambda settings: geometry.smallest_side(settings.pools),
    require_fits=geometry.require_fits,
    described=_founding_text,
    covering_side=lambda side, settings: geometry.covering_side(side, settings.pools),
    seen_side=lambda side, settings: geometry.seen_side(side, settings.pools),
    refused={**HIDDEN_LAYER, **NO_ATTENTION, **NOT_INHERENT},
    several_images=True,
)
