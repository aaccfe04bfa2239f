"""B-cos ResNet-18, ResNeXt-50 and DenseNet-121: MONAI's networks, converted, with fresh weights."""

from __future__ import annotations

from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.family import Shape
from heatlas.pipeline.models.families.monai import DenseNetConfig, ResNetConfig, densenet, resnet, stages_of_resnet
from heatlas.studies.bcos.conversion import converted
from heatlas.studies.bcos.records import BcosDenseNetConfig, BcosResNetConfig, BcosResNeXtConfig


def build_resnet(shape: Shape, settings: BcosResNetConfig, outputs: int) -> StagedModel:
    """B-cos ResNet-18. Stages: the encoding, the stem, four groups of blocks, the head."""
    plain = ResNetConfig("resnet18", width=settings.width, stem_stride=settings.stem_stride, **settings.shared)
    return converted(resnet(shape, plain, outputs), settings, shape)


def build_resnext(shape: Shape, settings: BcosResNeXtConfig, outputs: int) -> StagedModel:
    """B-cos ResNeXt-50: a ResNet-50 whose 3×3×3 convolutions are in groups (Xie et al. 2017). Stages as ResNet-18.

    Patches are normalised within their group. The inner channels of a block are those of ResNet, not twice as many.
    """
    from monai.networks.nets.resnet import ResNet, ResNetBottleneck
    from torch import nn

    net = ResNet(
        "bottleneck", [3, 4, 6, 3], [64, 128, 256, 512], n_input_channels=1, conv1_t_stride=settings.stem_stride,
        widen_factor=settings.width, num_classes=outputs,
    )  # fmt: skip
    for block in net.modules():
        if isinstance(block, ResNetBottleneck):
            one = block.conv2
            block.conv2 = nn.Conv3d(
                one.in_channels, one.out_channels, 3, one.stride, 1, groups=settings.groups, bias=False
            )
        elif isinstance(block, nn.ReLU):
            block.inplace = False
    return converted(StagedModel(stages_of_resnet(net)), settings, shape)


def build_densenet(shape: Shape, settings: BcosDenseNetConfig, outputs: int) -> StagedModel:
    """B-cos DenseNet-121. Stages: the encoding, the stem, four dense blocks, the head."""
    plain = DenseNetConfig(first_channels=settings.first_channels, growth=settings.growth)
    return converted(densenet(shape, plain, outputs), settings, shape)
