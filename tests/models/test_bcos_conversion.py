"""Conventional networks turned into B-cos networks: what stays, what goes, and what is refused by name."""

import pytest
import torch
from bias_guard import bias_terms
from torch import nn
from torch.nn import functional

from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.bcos.conversion import converted
from heatlas.pipeline.models.families.bcos.layers import BcosConv3d
from heatlas.pipeline.models.families.bcos.records import BcosResNetConfig, BcosSimpleConfig
from heatlas.pipeline.models.families.monai import EfficientNetConfig, ResNetConfig
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.run.errors import UsageError

SHAPE = (6, 7, 5)


def conventional(*extra: nn.Module) -> StagedModel:
    torch.manual_seed(5)
    first = nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU(), nn.MaxPool3d(2))
    second = nn.Sequential(nn.Conv3d(4, 6, 3, 2, 1, groups=2), *extra)
    return StagedModel([first, second, nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(6, 3))]).eval()


def test_filters_stay_and_nothing_but_the_encoding_is_added():
    plain = conventional()
    made = converted(plain, BcosSimpleConfig(b=1, norm="batch"), SHAPE).eval()
    assert bias_terms(plain)
    assert bias_terms(made) == ()
    first, second, last = (module for module in made.modules() if isinstance(module, BcosConv3d))
    weight = plain.stages[0][0].weight.data
    assert torch.equal(first.weight, torch.cat([weight, -weight], 1) / 2)
    assert torch.equal(second.weight, plain.stages[1][0].weight)
    assert torch.equal(last.weight.flatten(1), plain.stages[-1][-1].weight)
    assert isinstance(made.stages[1][3], nn.AvgPool3d)


def test_with_exponent_one_it_computes_the_linear_layers_with_filters_of_norm_one():
    plain, v = conventional(), torch.rand(2, 1, *SHAPE)
    made = converted(plain, BcosSimpleConfig(b=1, norm="none", background="dark"), SHAPE).eval()

    def unit(weight: torch.Tensor) -> torch.Tensor:
        return weight / weight.flatten(1).norm(dim=1).view(-1, *[1] * (weight.dim() - 1))

    w = plain.stages[0][0].weight
    a = functional.conv3d(torch.cat([v, 1 - v], 1), unit(torch.cat([w, -w], 1)), padding=1)
    a = functional.conv3d(functional.avg_pool3d(a, 2), unit(plain.stages[1][0].weight), None, 2, 1, groups=2)
    expected = a.mean((2, 3, 4)) @ unit(plain.stages[-1][-1].weight).T
    logits = made.stages[-1][-1]
    torch.testing.assert_close(made(v), expected / logits.temperature + logits.bias, rtol=1e-5, atol=1e-6)


def test_halves_of_the_first_filters_see_what_the_whole_saw_but_for_a_constant():
    w, v = conventional().stages[0][0].weight, torch.rand(1, 1, *SHAPE)
    halves = functional.conv3d(torch.cat([v, 1 - v], 1), torch.cat([w, -w], 1) / 2)
    whole = functional.conv3d(v, w)
    constant = whole - halves
    torch.testing.assert_close(constant, constant.mean((2, 3, 4), keepdim=True).expand_as(constant), rtol=0, atol=1e-5)


def test_a_trained_resnet_starts_its_bcos_network():
    plain = build_network(ResNetConfig("resnet18", width=1 / 32), (33, 34, 33), 2)
    settings = BcosResNetConfig(width=1 / 32)
    made, fresh = converted(plain, settings, (33, 34, 33)), build_network(settings, (33, 34, 33), 2)
    assert made.architecture == fresh.architecture
    fresh.load_state_dict(made.state_dict())
    v = torch.rand(1, 1, 33, 34, 33)
    assert torch.equal(fresh.eval()(v), made.eval()(v))


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (nn.SiLU(), r"layer stages.1.1 \(SiLU\) has no B-cos counterpart; known are Conv3d, BatchNorm3d"),
        (nn.PReLU(), r"layer stages.1.1 \(PReLU\)"),
        (nn.Conv3d(6, 6, 3, padding="same"), r"padding 'same'"),
    ],
)
def test_what_has_no_counterpart_is_named(extra, message):
    with pytest.raises(UsageError, match=message):
        converted(conventional(extra), BcosSimpleConfig(), SHAPE)


def test_other_heads_and_first_layers_are_refused():
    plain = conventional()
    headless = StagedModel([plain.stages[0], nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Flatten())])
    with pytest.raises(UsageError, match="last stage has 0 linear layers"):
        converted(headless, BcosSimpleConfig(), SHAPE)
    with pytest.raises(UsageError, match="takes 4 channels; it must take 1"):
        converted(StagedModel([plain.stages[1], plain.stages[2]]), BcosSimpleConfig(), SHAPE)
    with torch.device("meta"):
        swish = build_network(EfficientNetConfig(), (64, 64, 64), 2)
    with pytest.raises(UsageError, match="has no B-cos counterpart"):
        converted(swish, BcosSimpleConfig(), SHAPE)
