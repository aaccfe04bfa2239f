"""B-cos ResNet-18 and DenseNet-121: MONAI's networks, converted, with fresh weights."""

from __future__ import annotations

from pipeline.models.contract import StagedModel
from pipeline.models.families.bcos.conversion import converted
from pipeline.models.families.family import Shape
from pipeline.models.families.monai import densenet, resnet
from pipeline.run.config.networks import BcosDenseNetConfig, BcosResNetConfig, DenseNetConfig, ResNetConfig


def build_resnet(shape: Shape, settings: BcosResNetConfig, outputs: int) -> StagedModel:
    """B-cos ResNet-18. Stages: the encoding, the stem, four groups of blocks, the head."""
    plain = ResNetConfig("resnet18", settings.field_of_view, settings.width, settings.stem_stride)
    return converted(resnet(shape, plain, outputs), settings, shape)


def build_densenet(shape: Shape, settings: BcosDenseNetConfig, outputs: int) -> StagedModel:
    """B-cos DenseNet-121. Stages: the encoding, the stem, four dense blocks, the head."""
    plain = DenseNetConfig(first_channels=settings.first_channels, growth=settings.growth)
    return converted(densenet(shape, plain, outputs), settings, shape)
