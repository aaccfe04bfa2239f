"""Every method explains every family of networks that it is defined for, and the others are refused by name."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch

from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.perturbation.occlusion import RegionLabels
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.attribution.registry import METHODS
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.bcos.records import (
    BcosConvNeXtConfig,
    BcosDenseNetConfig,
    BcosResNetConfig,
    BcosResNeXtConfig,
    BcosSimpleConfig,
    BcosVggConfig,
    BcosViTConfig,
)
from heatlas.pipeline.models.families.coda.records import CodaSConfig, CodaSWbConfig
from heatlas.pipeline.models.families.founding_family import FoundingConfig
from heatlas.pipeline.models.families.halving import Conv5FC3Config, SFCNConfig
from heatlas.pipeline.models.families.linear import LinearConfig
from heatlas.pipeline.models.families.monai import (
    DenseNetConfig,
    EfficientNetConfig,
    ResNetConfig,
    SEResNetConfig,
    ViTConfig,
)
from heatlas.pipeline.models.families.probes.settings import ProbeConfig
from heatlas.pipeline.models.families.registry import BUILT, FAMILIES, build_network
from heatlas.pipeline.run.config.networks import ModelConfig
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.training.batch_statistics import prepare_step

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
DEEP = ("bcos-resnet18", "bcos-resnext50", "bcos-densenet121", "bcos-convnext-tiny", "bcos-vgg11")
NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name in DEEP)) for name in BUILT]
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


MANY_PASSES = (
    "score-cam", "ablation-cam", "lime", "rise", "occlusion", "region-occlusion", "smoothgrad",
    "smooth-input-x-gradient", "smooth-integrated-gradients",
)  # fmt: skip
"""Methods that repeat a pass that others also make."""
REPEATED = (
    *MANY_PASSES, "integrated-gradients", "integrated-gradients-from-mean", "expected-gradients", "opti-cam",
    "region-shapley", "region-swap",
)  # fmt: skip
"""The same, where one pass takes long: what they add to it does not depend on the family."""
WIDE = ("seresnet50", "efficientnet-b0")
"""Families without a setting for fewer channels."""


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


def test_every_family_is_here() -> None:
    assert list(SMALL) == list(BUILT)
    assert all(set(family.refused) | set(family.needs) <= set(METHODS) for family in FAMILIES.values())


@pytest.mark.parametrize(
    ("name", "method"),
    [
        pytest.param(name, method, marks=[pytest.mark.slow] * (name in DEEP or (name in WIDE and method in REPEATED)))
        for name in BUILT
        for method in METHODS
    ],
)
def test_a_finite_map_on_the_grid_of_the_input_or_a_refusal(name: str, method: str) -> None:
    family, entry = FAMILIES[name], METHODS[method]
    if method in family.refused:
        with pytest.raises(UsageError, match=rf"^{method.replace('+', '.')} .* {name}: ") as caught:
            family.require_method(method)
        assert family.refused[method] in str(caught.value)
        return
    model, volume = trained(name)
    given: dict[str, Any] = {**family.needs.get(method, {}), **QUICK.get(method, {})}
    if method == "occlusion":
        given = dict.fromkeys(("size", "stride"), min(volume.shape[2:]))
    if entry.needs_reference:
        given["reference"] = Reference(torch.rand(1, *volume.shape[1:]) * (volume != 0), ("sub-1",))
    if method.startswith("region-"):
        labels = torch.zeros(volume.shape[2:], dtype=torch.int64)
        labels[4:20, 4:20, 4:20] = 1
        given["regions"] = RegionLabels("one region", labels)
    built: Any = entry.record(**given)
    stage = entry.stage_of(model)
    if method in ("score-cam", "ablation-cam"):  # a pass per channel, of which the last stage has up to thousands
        stage = {"densenet121": 1, "seresnet50": 1, "efficientnet-b0": 2}.get(name, stage)
    answer = attribute(model, volume, 1, built, stage)
    if method in ("deeplift", "inherent"):
        assert answer.reference_value is not None
        difference = answer.start_value - answer.reference_value
        if not name.startswith("bcos-vit"):  # whose positions are no voxels
            torch.testing.assert_close(answer.values.flatten(1).sum(1), difference, rtol=1e-3, atol=1e-4)
    assert answer.values.shape == volume.shape
    assert bool(torch.isfinite(answer.values).all())
    if answer.ledger is not None:
        assert float(answer.ledger.residual.abs().max()) < 1e-5 * float(answer.values.abs().sum())


@pytest.mark.parametrize("name", NAMES)
def test_what_is_refused_would_not_have_worked(name: str) -> None:
    """A refusal that is declared is one that the method itself would have to make."""
    model, volume = trained(name)
    for method in FAMILIES[name].refused:
        entry = METHODS[method]
        given = {"reference": Reference(volume, ("sub-1",))} if entry.needs_reference else {}
        with pytest.raises((UsageError, BadInputError)):
            attribute(model, volume, 1, entry.record(**given), entry.stage_of(model))
