"""The B-cos families; without torch, see `pipeline.models.families.family`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from heatlas.pipeline.models.families.bcos.settings import (
    BcosConfig,
    BcosConvNeXtConfig,
    BcosDenseNetConfig,
    BcosResNetConfig,
    BcosResNeXtConfig,
    BcosSimpleConfig,
    BcosVggConfig,
    BcosViTConfig,
)
from heatlas.pipeline.models.families.family import INHERENT, NO_ATTENTION, Family, Shape, dynamic_family

if TYPE_CHECKING:
    from heatlas.pipeline.models.contract import StagedModel

LAYERS = (
    "B-cos layers scale each answer by an angle",
    "a B-cos layer classifies each voxel before they are averaged",
)
BLOCKS = f"it hands relevance down by rules for MONAI's blocks, which are built otherwise. {INHERENT}, or rollout"


Geometry = Callable[[Any], int]
"""A number of voxels, from settings."""


def _family(
    name: str, settings: type[BcosConfig], place: str, smallest: Geometry, described: Callable[[Any], str],
    step: Geometry = lambda _: 1,
) -> Family:  # fmt: skip
    """A family whose network is built by the function of a module, ``module.function``.

    `step` is the edge of the windows that tile the input without overlap: what does not fill one stays unseen.
    """
    module, _, function = place.rpartition(".")

    def build(shape: Shape, settings: Any, outputs: int) -> StagedModel:
        made: StagedModel = getattr(import_module(f"{__package__}.{module}"), function)(shape, settings, outputs)
        return made

    attention = name.startswith("bcos-vit")
    return dynamic_family(
        name, settings, build, smallest, described, LAYERS, {"cgw1": BLOCKS} if attention else NO_ATTENTION,
        {"vit-cx": {"noise": 0.0}} if attention else {}, step,
    )  # fmt: skip


def _said(network: str, cited: str = "bcos_vit") -> Callable[[Any], str]:
    """The sentence of the methods section."""

    def described(settings: Any) -> str:
        norm = "without normalisation" if settings.norm == "none" else f"with {settings.norm} normalisation"
        norm += " and trained biases" if settings.norm_bias else " and no bias" if settings.norm != "none" else ""
        return (
            f"was {network.format(settings=settings)} as a B-cos network [@{cited}] in three dimensions (B = "
            f"{settings.b:g}), {norm}, which takes each intensity v as the pair [v, 1 − v]"
        )

    return described


BCOS_FAMILIES: Sequence[Family] = (
    _family(
        "bcos-simple", BcosSimpleConfig, "simple.build", lambda settings: math.prod(settings.strides) + 1,
        _said("a stack of {settings.layers} convolutions", "bcos"),
    ),
    _family(
        "bcos-resnet18", BcosResNetConfig, "of_monai.build_resnet", lambda settings: 16 * settings.stem_stride + 1,
        _said("a residual network of 18 layers [@resnet]"),
    ),
    _family(
        "bcos-resnext50", BcosResNeXtConfig, "of_monai.build_resnext", lambda settings: 16 * settings.stem_stride + 1,
        _said("a ResNeXt of 50 layers [@resnext]"),
    ),
    _family(
        "bcos-densenet121", BcosDenseNetConfig, "of_monai.build_densenet", lambda _: 61,
        _said("a DenseNet-121 [@densenet]"),
    ),
    _family(
        "bcos-convnext-tiny", BcosConvNeXtConfig, "convnext.build", lambda _: 64,
        _said("a ConvNeXt-tiny [@convnext]"), lambda _: 4,
    ),
    _family("bcos-vgg11", BcosVggConfig, "vgg.build", lambda _: 64, _said("a VGG-11 [@vgg]")),
    _family(
        "bcos-vit", BcosViTConfig, "vit.build", lambda settings: 2 * settings.patch,
        _said("a vision transformer of {settings.depth} blocks [@vit]"), lambda settings: settings.patch,
    ),
    _family(
        "bcos-vit-c", BcosViTConfig, "vit.build", lambda settings: settings.patch + 1,
        _said("a vision transformer of {settings.depth} blocks [@vit], one of them a stem of convolutions [@vit_c],"),
    ),
)  # fmt: skip
