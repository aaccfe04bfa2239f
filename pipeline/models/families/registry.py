"""All families of networks by name; a new one is one record in a list here.

`heatlas.pipeline` imports this module, so that the settings of every family are known wherever a configuration is read.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from heatlas.pipeline.models.families.family import Family, Shape
from heatlas.pipeline.models.families.foreign import FOREIGN
from heatlas.pipeline.models.families.founding_family import FOUNDING
from heatlas.pipeline.models.families.halving import HALVING_FAMILIES
from heatlas.pipeline.models.families.linear import LINEAR
from heatlas.pipeline.models.families.monai import MONAI_FAMILIES
from heatlas.pipeline.run.config.networks import NETWORKS, ModelConfig
from heatlas.pipeline.run.plugins import plugged_in
from heatlas.studies.bcos.records import BCOS_FAMILIES
from heatlas.studies.coda.records import CODA_FAMILIES
from heatlas.studies.probes.records import probe_family, usual_probe
from heatlas.studies.probes.settings import ProbeConfig

if TYPE_CHECKING:
    from heatlas.pipeline.models.contract import StagedModel
    from heatlas.pipeline.run.config.settings import Config


FAMILIES: dict[str, Family] = {}
"""All families, by the name in ``[model] architecture``."""


def add_family(family: Family) -> None:
    """Make a family known here, and its settings to whatever reads a configuration."""
    FAMILIES[family.name] = family
    NETWORKS[family.name] = family.settings


def family_of(settings: ModelConfig) -> Family:
    """The family of a network's settings; that of probes depends on the backbone."""
    return probe_family(settings, family_of) if isinstance(settings, ProbeConfig) else FAMILIES[settings.architecture]


def is_solved(settings: ModelConfig) -> bool:
    """Whether a network is solved as a ridge regression instead of trained."""
    return family_of(settings).fitted_by == "ridge"


OWN = (
    FOUNDING, LINEAR, *HALVING_FAMILIES, *MONAI_FAMILIES, *BCOS_FAMILIES, *CODA_FAMILIES,
)  # fmt: skip
for _family in OWN:
    add_family(_family)
for _family in plugged_in("networks", Family, (*FAMILIES, "probe", FOREIGN.name)):
    add_family(_family)
add_family(usual_probe(family_of))  # which stands on one of the others
BUILT = tuple(FAMILIES)
"""Names of the families that are built and trained here."""
add_family(FOREIGN)


def is_given(config: Config) -> bool:
    """Whether a run uses networks as they are, the user's own or those of another run."""
    return bool(config.training.networks_of) or family_of(config.model).fitted_by == "nothing"


def build_network(settings: ModelConfig, shape: Shape, outputs: int, images: int = 1) -> StagedModel:
    """A network with fresh weights, drawn by torch's generator, that takes `images` as channels.

    Raises BadInputError if the grid is too small for the family. Raises UsageError if the settings make more weights
    than can be trained, or the family takes one image.
    """
    family = family_of(settings)
    family.require_fits(shape, settings)
    family.require_images(images)
    if images == 1:
        return family.build(shape, settings, outputs)
    model = family.build(shape, settings, outputs, images)
    if model.architecture is not None:  # whose weights are only counted has none
        model.architecture = dataclasses.replace(model.architecture, images=images)
    return model


def parameter_count(settings: ModelConfig, shape: Shape, outputs: int = 2, images: int = 1) -> int:
    """Weights and biases of a network, without making them."""
    import torch

    with torch.device("meta"):
        return sum(weight.numel() for weight in build_network(settings, shape, outputs, images).parameters())
