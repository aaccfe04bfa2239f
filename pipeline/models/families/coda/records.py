"""The CoDA families; without torch, see `pipeline.models.families.family`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from heatlas.pipeline.models.families.coda.settings import CodaConfig, CodaSConfig, CodaSWbConfig
from heatlas.pipeline.models.families.family import Family, Shape, dynamic_family

if TYPE_CHECKING:
    from heatlas.pipeline.models.contract import StagedModel

LAYERS = (
    "dynamic alignment units compute their weights from the input",
    "dynamic alignment units classify each voxel before they are summed",
)
BOUNDS = {"sq": "squashed", "l2": "of norm 1", "wb": "of norm 1 or less"}


def _build(shape: Shape, settings: CodaConfig, outputs: int) -> StagedModel:
    from heatlas.pipeline.models.families.coda.network import build

    return build(shape, settings, outputs)


def _smallest(settings: CodaConfig) -> int:
    return math.prod(settings.strides) + 1


def _described(settings: CodaConfig) -> str:
    enters = (
        f"a learnt embedding of patches ({settings.embedding} filters)"
        if settings.embedding
        else "each intensity v as the pair [v, 1 − v]"
    )
    return (
        f"was a CoDA network [@coda] of {len(settings.ranks)} layers of dynamic alignment units in three dimensions "
        f"(weights {BOUNDS[settings.bound]}, ranks {min(settings.ranks)} to {max(settings.ranks)}), which takes "
        f"{enters}"
    )


CODA_FAMILIES: Sequence[Family] = tuple(
    dynamic_family(name, settings, _build, _smallest, _described, LAYERS)
    for name, settings in (("coda-s", CodaSConfig), ("coda-s-wb", CodaSWbConfig))
)
