"""The family of the founding network, and how many voxels its blocks leave and which of its input reach a feature.

Without torch, so that ``heatlas check`` can ask in a moment whether a network fits a grid; the network itself is in
`pipeline.models.families.founding`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from heatlas.pipeline.models.families.family import HIDDEN_LAYER, NO_ATTENTION, NOT_INHERENT, Family, Shape
from heatlas.pipeline.run.config.networks import ModelConfig
from heatlas.pipeline.run.config.ranges import Count, Counts, Fraction
from heatlas.pipeline.run.errors import BadInputError, UsageError

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


KERNEL = 3
"""Edge of the convolutions, which have no padding."""
MOST_WEIGHTS = 1_000_000_000
"""The founding network has 0.7 million. With gradients and Adam's two moments a thousand million take 16 GB."""


def require_fits(shape: tuple[int, int, int], settings: FoundingConfig) -> None:
    """Refuse a grid that is too small for the blocks, and a network too large for any memory."""
    count = weight_count(shape, settings.channels, settings.pools, settings.hidden_units, classes=2)
    if count > MOST_WEIGHTS:
        raise UsageError(
            f"model: these channels, pools and hidden_units make {count:,} weights; at most {MOST_WEIGHTS:,} are "
            "trained here. Lower model.hidden_units or model.channels, or raise model.pools."
        )


def output_shape(input_shape: Sequence[int], pools: Sequence[int]) -> tuple[int, ...]:
    """Voxels per axis after the blocks: each takes ``KERNEL - 1`` voxels, then divides by its pool, rounding down.

    >>> output_shape((193, 229, 193), (2, 3, 2, 3))
    (4, 5, 4)
    """
    shape = tuple(input_shape)
    for number, pool in enumerate(pools, start=1):
        reduced = tuple((side - KERNEL + 1) // pool for side in shape)
        if min(reduced) < 1:
            raise BadInputError(
                f"model: a grid of {_times(input_shape)} voxels is too small for founding with pools {tuple(pools)}: "
                f"block {number} receives {_times(shape)} and would give "
                f"{_times([max(side, 0) for side in reduced])}. Each side must have at least "
                f"{smallest_side(pools)} voxels; choose a finer resolution or smaller model.pools."
            )
        shape = reduced
    return shape


def weight_count(
    input_shape: Sequence[int], channels: Sequence[int], pools: Sequence[int], hidden_units: int, classes: int
) -> int:
    """Weights and biases of the founding network, those of batch normalisation among them.

    >>> weight_count((193, 229, 193), (8, 16, 32, 64), (2, 3, 2, 3), 128, 2)
    728898
    """
    features = channels[-1] * math.prod(output_shape(input_shape, pools))
    filters = sum(after * (before * KERNEL**3 + 3) for before, after in zip((1, *channels[:-1]), channels, strict=True))
    return filters + (features + 1) * hidden_units + (hidden_units + 1) * classes


def seen_side(side: int, pools: Sequence[int]) -> int:
    """Voxels of an axis of `side` voxels, counted from the first, that reach a feature.

    Pooling rounds down, so the last voxels of an axis may fall beside every window: 7 of 193 on the founding grid.

    >>> seen_side(193, (2, 3, 2, 3)), seen_side(229, (2, 3, 2, 3))
    (186, 222)
    """
    return _receptive_side(output_shape((side,), pools)[0], pools)


def smallest_side(pools: Sequence[int]) -> int:
    """Fewest voxels per axis that leave one voxel after the last block.

    >>> smallest_side((2, 3, 2, 3))
    78
    """
    return _receptive_side(1, pools)


def covering_side(side: int, pools: Sequence[int]) -> int:
    """Fewest voxels, at least `side`, of which every one reaches a feature.

    >>> covering_side(180, (2, 3, 2, 3)), covering_side(186, (2, 3, 2, 3))
    (186, 186)
    """
    features = 1
    while _receptive_side(features, pools) < side:
        features += 1
    return _receptive_side(features, pools)


def _receptive_side(side: int, pools: Sequence[int]) -> int:
    """Voxels of the input below `side` voxels after the last block."""
    for pool in reversed(pools):
        side = side * pool + KERNEL - 1
    return side


def _times(shape: Sequence[int]) -> str:
    return "x".join(str(side) for side in shape)


FOUNDING = Family(
    name="founding",
    settings=FoundingConfig,
    build=_founding,
    smallest_side=lambda settings: smallest_side(settings.pools),
    require_fits=require_fits,
    described=_founding_text,
    covering_side=lambda side, settings: covering_side(side, settings.pools),
    seen_side=lambda side, settings: seen_side(side, settings.pools),
    refused={**HIDDEN_LAYER, **NO_ATTENTION, **NOT_INHERENT},
    several_images=True,
)
