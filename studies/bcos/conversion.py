"""Turn a conventional network into a B-cos network (Böhle, Singh, Fritz & Schiele 2024), layer by layer.

Convolutions become B-cos convolutions without bias; batch normalisations lose bias and mean; activations go; maximum
pooling becomes average pooling; the linear layer behind global pooling becomes a classifier of voxels before it. The
first layer takes pairs [v, 1 - v]. Weights stay, so a trained network is a start (Arya, Rao, Böhle & Schiele 2024,
who raise B from 1 to 2 in this way): its first filters are split into halves, w / 2 and -w / 2, which give the same
but for a constant. Statistics of normalisations no longer fit, and training takes them anew.
B-cos ResNet-18, ResNeXt-50 and DenseNet-121 are those of MONAI, converted with fresh weights.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
from torch import nn

from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.family import Shape
from heatlas.pipeline.models.families.monai import DenseNetConfig, ResNetConfig, densenet, resnet, stages_of_resnet
from heatlas.pipeline.run.errors import UsageError
from heatlas.studies.bcos.layers import BcosConv3d
from heatlas.studies.bcos.networks import head, normalisation, normalised, staged
from heatlas.studies.bcos.records import BcosConfig, BcosDenseNetConfig, BcosResNetConfig, BcosResNeXtConfig
from heatlas.studies.dynamic import DynamicNorm, three

KEPT = (nn.AvgPool3d, nn.Identity, nn.Dropout, nn.Dropout3d)
"""Layers that are linear without a constant, or nothing in prediction."""


def converted(model: StagedModel, settings: BcosConfig, shape: Shape) -> StagedModel:
    """A B-cos network with the layers of a conventional one, whose last stage pools and ends with a linear layer."""
    stages = copy.deepcopy(list(model.stages))
    last = [module for module in stages.pop().modules() if isinstance(module, nn.Linear)]
    if len(last) != 1:
        raise UsageError(
            f"the network cannot be converted: its last stage has {len(last)} linear layers, and a B-cos network has "
            "one classifier. Convert a network that ends with global average pooling and a linear layer."
        )
    body = nn.ModuleList(stages)
    _convert(body, "stages.", settings)
    _split_first(body)
    classify = head(last[0].in_features, last[0].out_features, settings)
    classifier = classify[0]
    assert isinstance(classifier, BcosConv3d)
    classifier.weight.data.copy_(last[0].weight.data[:, :, None, None, None])
    return staged([*body, classify], shape, settings)


def _convert(module: nn.Module, where: str, settings: BcosConfig) -> None:
    for name, child in module.named_children():
        kind = next((kind for kind in _COUNTERPARTS if isinstance(child, kind)), None)
        if kind is not None:
            setattr(module, name, _COUNTERPARTS[kind](child, settings))
        elif any(True for _ in child.children()):
            _convert(child, f"{where}{name}.", settings)
        elif not isinstance(child, KEPT):
            raise UsageError(
                f"layer {where}{name} ({type(child).__name__}) has no B-cos counterpart; known are "
                f"{', '.join(kind.__name__ for kind in (*_COUNTERPARTS, *KEPT))}."
            )


def _convolution(layer: nn.Conv3d, settings: BcosConfig) -> nn.Module:
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        raise UsageError(f"a convolution with padding {layer.padding!r} ({layer.padding_mode}) cannot be converted.")
    kernel, stride, padding, dilation = map(three, (layer.kernel_size, layer.stride, layer.padding, layer.dilation))
    channels = layer.in_channels, layer.out_channels
    dynamic = BcosConv3d(*channels, kernel, stride, padding, dilation, layer.groups, settings.b)
    dynamic.weight.data.copy_(layer.weight.data)
    return normalised(dynamic, layer.out_channels, settings) if settings.norm == "none" else dynamic


def _norm(layer: nn.BatchNorm3d, settings: BcosConfig) -> nn.Module:
    norm = normalisation(layer.num_features, settings)
    if isinstance(norm, DynamicNorm) and layer.affine and norm.weight.shape == layer.weight.shape:
        norm.weight.data.copy_(layer.weight.data)
    return norm


_COUNTERPARTS: Mapping[type[nn.Module], Callable[..., nn.Module]] = {
    nn.Conv3d: _convolution,
    nn.BatchNorm3d: _norm,
    nn.MaxPool3d: lambda layer, _: nn.AvgPool3d(layer.kernel_size, layer.stride, layer.padding, layer.ceil_mode),
    nn.ReLU: lambda *_: nn.Identity(),
}


def _split_first(body: nn.Module) -> None:
    for parent in body.modules():
        for name, child in parent.named_children():
            if isinstance(child, BcosConv3d):
                if child.in_channels != 1:
                    raise UsageError(f"the first convolution takes {child.in_channels} channels; it must take 1.")
                sides = child.kernel_size, child.stride, child.padding, child.dilation
                pair = BcosConv3d(2, child.out_channels, *sides, 1, child.b)
                pair.weight.data.copy_(torch.cat([child.weight.data, -child.weight.data], 1) / 2)
                setattr(parent, name, pair)
                return


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
            conv = block.conv2
            block.conv2 = nn.Conv3d(
                conv.in_channels, conv.out_channels, 3, conv.stride, 1, groups=settings.groups, bias=False
            )
        elif isinstance(block, nn.ReLU):
            block.inplace = False
    return converted(StagedModel(stages_of_resnet(net)), settings, shape)


def build_densenet(shape: Shape, settings: BcosDenseNetConfig, outputs: int) -> StagedModel:
    """B-cos DenseNet-121. Stages: the encoding, the stem, four dense blocks, the head."""
    plain = DenseNetConfig(first_channels=settings.first_channels, growth=settings.growth)
    return converted(densenet(shape, plain, outputs), settings, shape)
