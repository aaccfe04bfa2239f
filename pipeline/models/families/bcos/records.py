"""The B-cos families; without torch, see `pipeline.models.families.family`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pipeline.models.families.family import Family, Shape
from pipeline.run.errors import BadInputError

if TYPE_CHECKING:
    from pipeline.models.contract import StagedModel

INHERENT = "Use inherent, which is exact for this family"
RULES = (
    "its rules are defined for ReLU networks; B-cos layers scale each answer by an angle, which no rule covers. "
    f"{INHERENT}"
)
NOISE = f"noise leaves intensities from 0 to 1, which the pair [v, 1 - v] is defined for. {INHERENT}"
HEAD = (
    "CAM needs global average pooling and one linear layer after the last stage, and here a B-cos layer classifies "
    f"each voxel before they are averaged. {INHERENT}, or grad-cam"
)
SIGNED = "the features of its last stage may be negative, and the formula needs amounts. Use grad-cam"
REFUSED: Mapping[str, str] = {
    "lrp": RULES, "guided-backpropagation": RULES, "deeplift": RULES, "cam": HEAD,
    "smoothgrad": NOISE,
    "grad-cam++": SIGNED, "xgrad-cam": SIGNED, "opti-cam": SIGNED,
}  # fmt: skip


def _family(name: str, smallest: Callable[[Any], int], described: Callable[[Any], str]) -> Family:
    module = f"pipeline.models.families.bcos.{name.removeprefix('bcos-').partition('-')[0].rstrip('0123456789')}"

    def build(shape: Shape, settings: Any, outputs: int) -> StagedModel:
        made: StagedModel = import_module(module).build(shape, settings, outputs)
        return made

    def require_fits(shape: Shape, settings: Any) -> None:
        if min(shape) < smallest(settings):
            raise BadInputError(
                f"model: a grid of {'x'.join(map(str, shape))} voxels is too small for {name}: its last stage needs "
                f"two voxels along each axis, so each side must have at least {smallest(settings)}. Choose a finer "
                "resolution, or an architecture for smaller grids (heatlas models lists them)."
            )

    return Family(
        name, build, smallest, require_fits, described,
        covering_side=lambda side, settings: max(side, smallest(settings)),
        encoding="pair", loss="off-target", refused=REFUSED,
    )  # fmt: skip


def _simple_text(settings: Any) -> str:
    return (
        f"was a B-cos network [@bcos] of {len(settings.channels) + 1} convolutions in three dimensions "
        f"(B = {settings.b:g}, MaxOut of {settings.max_out}), which takes each intensity v as the pair [v, 1 − v]"
    )


BCOS_FAMILIES: Sequence[Family] = (
    _family("bcos-simple", lambda settings: math.prod(settings.strides) + 1, _simple_text),
)
