"""The CoDA families; without torch, see `pipeline.models.families.family`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from heatlas.pipeline.models.families.family import NO_ATTENTION, Family, Shape
from heatlas.pipeline.run.config.networks import CodaConfig
from heatlas.pipeline.run.errors import BadInputError

if TYPE_CHECKING:
    from heatlas.pipeline.models.contract import StagedModel

INHERENT = "Use inherent, which is exact for this family"
RULES = (
    "its rules are defined for ReLU networks; dynamic alignment units compute their weights from the input, which no "
    f"rule covers. {INHERENT}"
)
NOISE = f"noise leaves intensities from 0 to 1, which the pair [v, 1 - v] is defined for. {INHERENT}"
HEAD = (
    "CAM needs global average pooling and one linear layer after the last stage, and here dynamic alignment units "
    f"classify each voxel before they are summed. {INHERENT}, or grad-cam"
)
SIGNED = "the features of its last stage may be negative, and the formula needs amounts. Use grad-cam"
REFUSED: Mapping[str, str] = {
    "lrp": RULES, "guided-backpropagation": RULES, "deeplift": RULES, "cam": HEAD,
    "smoothgrad": NOISE,
    "grad-cam++": SIGNED, "xgrad-cam": SIGNED, "opti-cam": SIGNED,
    **NO_ATTENTION,
}  # fmt: skip
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


def _family(name: str) -> Family:
    def require_fits(shape: Shape, settings: CodaConfig) -> None:
        if min(shape) < _smallest(settings):
            raise BadInputError(
                f"model: a grid of {'x'.join(map(str, shape))} voxels is too small for {name}: its last stage needs "
                f"two voxels along each axis, so each side must have at least {_smallest(settings)}. Choose a finer "
                "resolution, or an architecture for smaller grids (heatlas models lists them)."
            )

    return Family(
        name, _build, _smallest, require_fits, _described,
        covering_side=lambda side, settings: max(side, _smallest(settings)),
        encoding="pair", loss="off-target", refused=REFUSED,
    )  # fmt: skip


CODA_FAMILIES: Sequence[Family] = (_family("coda-s"), _family("coda-s-wb"))
