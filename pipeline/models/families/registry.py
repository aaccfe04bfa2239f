"""All families of networks by name; a new one is one record in a list here, or a plug-in.

`heatlas.pipeline` imports this module, so that the settings of every family are known wherever a configuration is read.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from heatlas.pipeline.models.families.family import Family, OnBackbone, Shape
from heatlas.pipeline.models.families.foreign import FOREIGN
from heatlas.pipeline.models.families.founding_family import FOUNDING
from heatlas.pipeline.models.families.monai import MONAI_FAMILIES
from heatlas.pipeline.models.families.plain import HALVING_FAMILIES, LINEAR
from heatlas.pipeline.run.config.networks import NETWORKS, ModelConfig
from heatlas.pipeline.run.plugins import plugged_in

if TYPE_CHECKING:
    from heatlas.pipeline.models.contract import StagedModel
    from heatlas.pipeline.run.config.settings import Config


FAMILIES: dict[str, Family] = {}
"""All families, by the name in ``[model] architecture``."""


def add_family(family: Family) -> None:
    """Make a family known here, and its settings to whatever reads a configuration."""
    NETWORKS[family.name] = family.settings
    FAMILIES[family.name] = family
    if family.resolve is not None:  # as its default settings make it, for lists of all families
        FAMILIES[family.name] = family.resolve(family.settings(architecture=family.name))


def family_of(settings: ModelConfig) -> Family:
    """The family of a network's settings, as they make it."""
    family = FAMILIES[settings.architecture]
    return family if family.resolve is None else family.resolve(settings)


def on_backbone(settings: ModelConfig) -> OnBackbone:
    """What the family says of the backbones of its networks; no backbone need be known."""
    return FAMILIES[settings.architecture].backbone


def code_of(settings: ModelConfig) -> tuple[str, ...]:
    """Modules that make networks of these settings, for the key of any work that builds or asks such a network.

    Nothing in the program imports those of a plug-in, so its key would not hold their code.
    """
    build, body = FAMILIES[settings.architecture].build, on_backbone(settings).body(settings)
    modules = {type(settings).__module__, str(getattr(build, "func", build).__module__)}  # of functools.partial
    return tuple(sorted(modules | {*(code_of(body) if body is not None else ())}))


def is_solved(settings: ModelConfig) -> bool:
    return family_of(settings).fitted_by == "ridge"


OWN = (
    FOUNDING,
    LINEAR,
    *HALVING_FAMILIES,
    *MONAI_FAMILIES,
)
for _family in OWN:
    add_family(_family)
for _family in plugged_in("networks", Family, (*FAMILIES, FOREIGN.name)):
    add_family(_family)
BUILT = tuple(FAMILIES)
"""Names of the families that are built and trained here."""
add_family(FOREIGN)


def is_foreign(settings: ModelConfig) -> bool:
    """Whether a network is the user's own, trained elsewhere: one for all folds."""
    return family_of(settings).fitted_by == "nothing"


def is_given(config: Config) -> bool:
    """Whether a run uses networks as they are, the user's own or those of another run."""
    return bool(config.training.networks_of) or is_foreign(config.model)


def build_network(settings: ModelConfig, shape: Shape, outputs: int, images: int = 1) -> StagedModel:
    """A network with fresh weights, drawn by torch's generator, that takes `images` as channels."""
    family = family_of(settings)
    family.require_fits(shape, settings)
    family.require_images(images)
    if images == 1:
        return family.build(shape, settings, outputs)
    model = family.build(shape, settings, outputs, images)
    if model.architecture is not None:  # whose weights are only counted has none
        model.architecture = dataclasses.replace(model.architecture, images=images)
    return model


def parameter_count(settings: ModelConfig, shape: Shape, outputs: int = 2) -> int:
    """Weights and biases of a network, without making them."""
    import torch

    with torch.device("meta"):
        return sum(weight.numel() for weight in build_network(settings, shape, outputs).parameters())
