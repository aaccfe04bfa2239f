"""Every method explains every family of networks that it is defined for, and the others are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.perturbation.masking import RegionLabels
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.attribution.registry import METHODS
from heatlas.pipeline.models.families.registry import BUILT, FAMILIES
from heatlas.pipeline.run.errors import BadInputError, UsageError
from tests.attribution.every_method import QUICK, SMALL, trained

DEEP = ("bcos-resnet18", "bcos-resnext50", "bcos-densenet121", "bcos-convnext-tiny", "bcos-vgg11")
NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name in DEEP)) for name in BUILT]

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


def test_every_family_is_here() -> None:
    assert list(SMALL) == list(BUILT)
    assert all(set(family.refused) | set(family.needs) <= set(METHODS) for family in FAMILIES.values())


@pytest.mark.sample(135)  # every fifth: each family and each method is among them
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


@pytest.mark.sample(7)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_refused_would_not_have_worked(name: str) -> None:
    """A refusal that is declared is one that the method itself would have to make."""
    model, volume = trained(name)
    for method in FAMILIES[name].refused:
        entry = METHODS[method]
        given = {"reference": Reference(volume, ("sub-1",))} if entry.needs_reference else {}
        with pytest.raises((UsageError, BadInputError)):
            attribute(model, volume, 1, entry.record(**given), entry.stage_of(model))
