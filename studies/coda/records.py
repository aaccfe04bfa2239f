"""The CoDA families and their settings; without torch, see `pipeline.models.families.family`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from heatlas.pipeline.models.families.family import Family, Shape, dynamic_family
from heatlas.pipeline.run.config.networks import ModelConfig
from heatlas.pipeline.run.config.ranges import ODD, Counts, at_least, between, naming

if TYPE_CHECKING:
    from heatlas.pipeline.models.contract import StagedModel


@dataclass(frozen=True)
class CodaConfig(ModelConfig):
    """What the CoDA families share: layers of dynamic alignment units."""

    relatives = "CoDA"
    dynamic_linear = True

    bound: Literal["sq", "l2", "wb"] = "sq"
    """How the norm of weights is bounded: ``sq`` below 1 and less for weak responses, ``l2`` to 1; ``wb`` at most 1."""
    units: Counts = (8, 8, 16, 16, 16, 32, 32, 32)
    """Units of all layers but the last, which has one per output."""
    ranks: Counts = (8, 8, 8, 8, 8, 8, 8, 8, 8)
    """Ranks of the maps that make weights; a rank bounds how many patterns a unit can hold."""
    kernels: Annotated[tuple[int, ...], naming(1), at_least(1), ODD] = (5, 3, 3, 3, 3, 3, 3, 3, 1)
    """Edges of the patches of each layer, in voxels; odd."""
    strides: Counts = (3, 1, 2, 1, 1, 2, 1, 1, 1)
    """Stride of each layer."""
    background: Literal["null", "dark"] = "null"
    """What intensities of 0 become, as everywhere outside the brain: [0, 0], or [0, 1] as in the source."""
    embedding: Annotated[int, between(0, 512)] = 0
    """Filters of a learnt embedding of patches in place of the pair [v, 1 - v]; maps are then not of voxels."""
    temperature: Annotated[float, at_least(0)] = 0.0
    """Temperature of the logits, per voxel of the last layer: the warmer, the more weights must align. 0 sets it from
    data."""
    initial_logits: Annotated[float, between(1e-6, 10)] = 0.5
    """Root mean square of the logits before training where the temperature is set from data."""

    @property
    def maps_voxels(self) -> bool:
        return self.embedding == 0

    @property
    def usual(self) -> Mapping[str, Mapping[str, Any]]:
        return {
            "training": {"learning_rate": 1e-3, "learning_rate_schedule": "cosine", "weight_decay": 0.0},
            "attribution": {"methods": ("inherent",)},
        }

    def checks(self) -> list[tuple[bool, str]]:
        layers = (self.ranks, self.kernels, self.strides)
        reached = all(kernel // 2 >= stride - 1 for kernel, stride in zip(self.kernels, self.strides, strict=False))
        wb = self.architecture == "coda-s-wb"
        bounds = 'must be "wb"' if wb else 'must be "sq" or "l2"; for "wb" choose the architecture coda-s-wb'
        return [
            ((self.bound == "wb") == wb, f"model.bound of {self.architecture} {bounds}"),
            (
                all(len(layer) == len(self.units) + 1 for layer in layers),
                "model.ranks, model.kernels and model.strides must each have one value more than model.units",
            ),
            (reached, "model.kernels must be at least twice the stride less one, or voxels between them go unseen"),
        ]


@dataclass(frozen=True)
class CodaSConfig(CodaConfig):
    """A CoDA network in which all units of a layer share what they reduce."""

    architecture: Literal["coda-s"] = "coda-s"


@dataclass(frozen=True)
class CodaSWbConfig(CodaConfig):
    """A CoDA network whose weights are bounded by those of their maps, and whose units reduce patches on their own."""

    architecture: Literal["coda-s-wb"] = "coda-s-wb"
    bound: Literal["sq", "l2", "wb"] = "wb"


LAYERS = (
    "dynamic alignment units compute their weights from the input",
    "dynamic alignment units classify each voxel before they are summed",
)
BOUNDS = {"sq": "squashed", "l2": "of norm 1", "wb": "of norm 1 or less"}


def _build(shape: Shape, settings: CodaConfig, outputs: int) -> StagedModel:
    from heatlas.studies.coda.network import build

    return build(shape, settings, outputs)


def _smallest(settings: CodaConfig) -> int:
    return math.prod(settings.strides) + 1


def _described(settings: CodaConfig) -> str:
    enters = f"a learnt embedding of patches ({settings.embedding} filters)"
    enters = enters if settings.embedding else "each intensity v as the pair [v, 1 − v]"
    return (
        f"was a CoDA network [@coda] of {len(settings.ranks)} layers of dynamic alignment units in three dimensions "
        f"(weights {BOUNDS[settings.bound]}, ranks {min(settings.ranks)} to {max(settings.ranks)}), which takes "
        f"{enters}"
    )


CODA_FAMILIES: Sequence[Family] = tuple(
    dynamic_family(name, settings, _build, _smallest, _described, LAYERS)
    for name, settings in (("coda-s", CodaSConfig), ("coda-s-wb", CodaSWbConfig))
)
