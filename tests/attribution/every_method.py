"""Every family of networks in a small form, every method in a quick one, and what a method needs besides a network.

For tests, and for `benchmarks/gpu.py`; a new family is a line in `SMALL`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from heatlas.pipeline.attribution.perturbation.masking import RegionLabels
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.attribution.registry import METHODS
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.founding_family import FoundingConfig
from heatlas.pipeline.models.families.monai import (
    DenseNetConfig,
    EfficientNetConfig,
    ResNetConfig,
    SEResNetConfig,
    ViTConfig,
)
from heatlas.pipeline.models.families.plain import Conv5FC3Config, LinearConfig, SFCNConfig
from heatlas.pipeline.models.families.registry import FAMILIES, build_network
from heatlas.pipeline.run.config.networks import ModelConfig
from heatlas.pipeline.training.steps import prepare_step
from heatlas.studies.bcos.records import (
    BcosConvNeXtConfig,
    BcosDenseNetConfig,
    BcosResNetConfig,
    BcosResNeXtConfig,
    BcosSimpleConfig,
    BcosVggConfig,
    BcosViTConfig,
)
from heatlas.studies.coda.records import CodaSConfig, CodaSWbConfig
from heatlas.studies.probes.records import ProbeConfig

SMALL: dict[str, ModelConfig] = {
    "founding": FoundingConfig(channels=(3, 4), pools=(2, 3), hidden_units=5),
    "linear": LinearConfig(fwhm_voxels=6, step=5),
    "sfcn": SFCNConfig(channels=(3, 4, 4, 5)),
    "conv5-fc3": Conv5FC3Config(channels=(3, 4, 4), hidden_units=(6, 5)),
    "resnet10": ResNetConfig(width=0.1, stem_stride=1),
    "resnet18": ResNetConfig(architecture="resnet18", width=0.05, stem_stride=1),
    "densenet121": DenseNetConfig(first_channels=2, growth=1),
    "seresnet50": SEResNetConfig(),
    "efficientnet-b0": EfficientNetConfig(),
    "vit": ViTConfig(patch=4, dim=12, depth=2, heads=2),
    "bcos-simple": BcosSimpleConfig(channels=(3, 4, 4), strides=(2, 1, 2)),
    "bcos-resnet18": BcosResNetConfig(width=1 / 32, stem_stride=1),
    "bcos-resnext50": BcosResNeXtConfig(width=1 / 16, groups=2, stem_stride=1),
    "bcos-densenet121": BcosDenseNetConfig(first_channels=2, growth=1),
    "bcos-convnext-tiny": BcosConvNeXtConfig(width=1 / 32, depths=(1, 1, 1, 1)),
    "bcos-vgg11": BcosVggConfig(width=1 / 16),
    "bcos-vit": BcosViTConfig("bcos-vit", patch=4, dim=12, depth=2, heads=2),
    "bcos-vit-c": BcosViTConfig(patch=4, dim=12, depth=2, heads=2),
    "coda-s": CodaSConfig(units=(3, 4), ranks=(2, 2, 3), kernels=(3, 3, 1), strides=(2, 2, 1)),
    "coda-s-wb": CodaSWbConfig(units=(3, 4), ranks=(2, 2, 3), kernels=(3, 3, 1), strides=(2, 2, 1)),
    "probe": ProbeConfig(body='{"architecture": "resnet10", "width": 0.1, "stem_stride": 1}'),
}
QUICK: dict[str, dict[str, Any]] = {
    "integrated-gradients": {"steps": 2, "tolerance": 1e9},
    "smoothgrad": {"samples": 2},
    "smooth-input-x-gradient": {"kernel": 3},
    "smooth-integrated-gradients": {"steps": 2, "tolerance": 1e9, "kernel": 3},
    "opti-cam": {"iterations": 1},
    "rise": {"masks": 2},
    "lime": {"segments": 4, "samples": 6},
    "integrated-gradients-from-mean": {"steps": 2, "tolerance": 1e9},
    "expected-gradients": {"tolerance": 1e9},
    "region-shapley": {"pairs": 1},
}
"""Settings that keep the tests short."""
EXAMPLES = ("founding", "vit", "bcos-simple", "bcos-vit-c")
"""Families on which methods are tried: the first that a method is defined for."""


@lru_cache(maxsize=1)
def trained(family: str) -> tuple[StagedModel, torch.Tensor]:
    """A network whose normalisations have seen data, and one volume on the smallest grid, of unequal sides."""
    settings = SMALL[family]
    side = FAMILIES[family].smallest_side(settings)
    shape = (side, side + 2, side + 1)
    torch.manual_seed(7)
    model = build_network(settings, shape, 2)
    volumes = torch.rand(2, 1, *shape)
    volumes[..., :3] = 0
    prepare_step(model)
    with torch.no_grad():
        model.train()(volumes)
    return model.eval(), volumes[:1]


def example_for(method: str) -> str:
    """The family of `EXAMPLES` on which a method is tried; none, if it is defined for none of them."""
    return next((name for name in EXAMPLES if method not in FAMILIES[name].refused), "")


def built(method: str, family: str, volume: Tensor, device: torch.device) -> Any:
    """A quick form of a method for one of the families above."""
    given: dict[str, Any] = {**FAMILIES[family].needs.get(method, {}), **QUICK.get(method, {})}
    if method == "occlusion":
        given = dict.fromkeys(("size", "stride"), min(volume.shape[2:]) // 2 + 1)
    if METHODS[method].needs_reference:
        controls = torch.rand(2, *volume.shape[1:], generator=torch.Generator().manual_seed(3)) * (volume != 0)
        given["reference"] = Reference(controls.to(device), ("sub-1", "sub-2"))
    if method.startswith("region-"):
        labels = torch.zeros(volume.shape[2:], dtype=torch.int64)
        labels[4:20, 4:20, 4:20], labels[:4, 5:9] = 7, 3
        given["regions"] = RegionLabels("two regions", labels)
    return METHODS[method].record(**given)
