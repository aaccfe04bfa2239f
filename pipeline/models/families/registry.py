"""All families of networks by name. Adding one is adding a record here and its settings in `pipeline.run.config`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from heatlas.pipeline.models.families import founding_geometry as geometry
from heatlas.pipeline.models.families.bcos.records import BCOS_FAMILIES
from heatlas.pipeline.models.families.coda.records import CODA_FAMILIES
from heatlas.pipeline.models.families.family import HIDDEN_LAYER, NO_ATTENTION, NOT_INHERENT, Family, Shape
from heatlas.pipeline.models.families.halving import HALVING_FAMILIES
from heatlas.pipeline.models.families.linear import LINEAR
from heatlas.pipeline.models.families.monai import MONAI_FAMILIES
from heatlas.pipeline.models.families.probes.records import probe_family, usual_probe
from heatlas.pipeline.run.config.networks import FoundingConfig, ModelConfig, ProbeConfig

if TYPE_CHECKING:
    from heatlas.pipeline.models.contract import StagedModel


def _founding(shape: Shape, settings: FoundingConfig, outputs: int) -> StagedModel:
    from heatlas.pipeline.models.families.founding import FoundingCNN

    return FoundingCNN(shape, outputs=outputs, **settings.own)


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
    build=_founding,
    smallest_side=lambda settings: geometry.smallest_side(settings.pools),
    require_fits=geometry.require_fits,
    described=_founding_text,
    covering_side=lambda side, settings: geometry.covering_side(side, settings.pools),
    seen_side=lambda side, settings: geometry.seen_side(side, settings.pools),
    refused={**HIDDEN_LAYER, **NO_ATTENTION, **NOT_INHERENT},
)

_OWN: Mapping[str, Family] = {
    family.name: family
    for family in (FOUNDING, LINEAR, *HALVING_FAMILIES, *MONAI_FAMILIES, *BCOS_FAMILIES, *CODA_FAMILIES)
}


def family_of(settings: ModelConfig) -> Family:
    """The family of a network's settings; that of probes depends on the backbone."""
    return probe_family(settings, family_of) if isinstance(settings, ProbeConfig) else _OWN[settings.architecture]


def is_solved(settings: ModelConfig) -> bool:
    """Whether a network is solved as a ridge regression instead of trained."""
    return family_of(settings).fitted_by == "ridge"


FAMILIES: Mapping[str, Family] = {**_OWN, "probe": usual_probe(family_of)}


def build_network(settings: ModelConfig, shape: Shape, outputs: int) -> StagedModel:
    """A network with fresh weights, drawn by torch's generator.

    Raises
    ------
    BadInputError
        If the grid is too small for the family.
    UsageError
        If the settings make more weights than can be trained.
    """
    family = family_of(settings)
    family.require_fits(shape, settings)
    return family.build(shape, settings, outputs)


def parameter_count(settings: ModelConfig, shape: Shape, outputs: int = 2) -> int:
    """Weights and biases of a network, without making them."""
    import torch

    with torch.device("meta"):
        return sum(weight.numel() for weight in build_network(settings, shape, outputs).parameters())
